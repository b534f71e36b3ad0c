//! A stored adapter: its section, and what it requires.

use std::io::Write;

use serde::{Deserialize, Serialize};
use slm_format::Limits;
use slm_format::container::{Container, ContainerWriter, SectionKind};
use slm_manifest::{BaseId, NUMERICS_VERSION, TokenizerId};
use slm_overlay::Adapter;

use crate::error::{ActivationError, ModelError, RuntimeError};
use crate::load::Base;

/// What a stored adapter runs on: the `config` section of its file, postcard of this. Files of before have the base alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requires {
    /// The base the adapter was resolved against; it is bound to no other.
    pub base: BaseId,
    /// What else its file declares.
    #[serde(skip)]
    pub declared: Option<Declared>,
}

/// What an adapter requires beside its base.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Declared {
    /// The tokenizer whose words it learned.
    pub tokenizer: TokenizerId,
    /// Encodings of the base, and how many tensors have each.
    pub quantization: Vec<(String, u32)>,
    /// Version of the arithmetic.
    pub numerics: u32,
}

impl Requires {
    /// Just this base.
    pub fn base(base: BaseId) -> Requires {
        Requires { base, declared: None }
    }

    /// What an adapter requires that is resolved against `base` by this build.
    pub fn of(base: &Base) -> Requires {
        let quantization = base.quantization().into_iter();
        let declared = Declared {
            tokenizer: base.tokenizer_id(),
            quantization: quantization
                .map(|(encoding, tensors)| (encoding.name().to_owned(), tensors))
                .collect(),
            numerics: NUMERICS_VERSION,
        };
        Requires { base: base.id(), declared: Some(declared) }
    }

    /// Refuses a base that is not what the adapter of this name requires.
    ///
    /// # Errors
    /// `adapter-base-mismatch`, `tokenizer-mismatch`, `adapter-quantization`, `adapter-numerics`.
    pub fn check(&self, name: &str, base: &Base) -> Result<(), RuntimeError> {
        let name = || name.to_owned();
        if self.base != base.id() {
            let (name, bound, base) = (name(), self.base, base.id());
            return Err(ActivationError::AdapterBase { name, bound, base }.into());
        }
        let (Some(required), Some(found)) = (&self.declared, Requires::of(base).declared) else {
            return Ok(());
        };
        if required.tokenizer != found.tokenizer {
            let (expected, found) = (required.tokenizer, found.tokenizer);
            return Err(ActivationError::TokenizerMismatch { expected, found }.into());
        }
        if required.quantization != found.quantization {
            let text = |list: &[(String, u32)]| format!("{list:?}");
            return Err(ActivationError::AdapterQuantization {
                name: name(),
                required: text(&required.quantization),
                found: text(&found.quantization),
            }
            .into());
        }
        if required.numerics != found.numerics {
            let (name, required, found) = (name(), required.numerics, found.numerics);
            return Err(ActivationError::AdapterNumerics { name, required, found }.into());
        }
        Ok(())
    }
}

/// Writes an adapter with the base it is bound to. Deterministic.
///
/// # Errors
/// What `out` returns.
pub fn write_adapter(
    adapter: &Adapter,
    requires: &Requires,
    out: &mut dyn Write,
) -> Result<(), RuntimeError> {
    let encoded = |bytes: Result<Vec<u8>, postcard::Error>| {
        bytes.expect("BUG: a requirement could not be encoded")
    };
    let mut section = encoded(postcard::to_stdvec(requires));
    if let Some(declared) = &requires.declared {
        section.extend(encoded(postcard::to_stdvec(declared)));
    }
    let mut writer = ContainerWriter::new();
    writer.section(SectionKind::Config, section)?;
    writer.section(SectionKind::Adapter, adapter.to_section())?;
    writer.write_to(out)?;
    Ok(())
}

/// Reads an adapter's file; every section's hash and the adapter's identity are checked.
///
/// # Errors
/// A file that is no adapter or is damaged.
pub fn read_adapter(
    container: &Container<'_>,
    limits: &Limits,
) -> Result<(Adapter, Requires), RuntimeError> {
    let adapter = Adapter::read(container, limits)?;
    let section = container
        .section(SectionKind::Config)
        .ok_or(ModelError::SectionMissing { section: "config" })?;
    section.verify()?;
    let wrong = || ModelError::SectionContent { section: "config" };
    let (requires, rest) =
        postcard::take_from_bytes::<Requires>(section.bytes()).map_err(|_| wrong())?;
    let declared = match rest {
        [] => None,
        rest => match postcard::take_from_bytes::<Declared>(rest) {
            Ok((declared, [])) => Some(declared),
            _ => return Err(wrong().into()),
        },
    };
    Ok((adapter, Requires { declared, ..requires }))
}
