//! Bases in our container: written once, opened in place.

use serde::{Deserialize, Serialize};
use slm_format::container::{Container, ContainerWriter, SectionKind, TensorLayout};
use slm_format::{ContentHash, Limits};
use slm_manifest::ModelConfig;
use slm_quant::Layout;

use crate::error::{ModelError, RuntimeError};
use crate::load::source::range_in;
use crate::load::{Base, SourceModel, SourceTensor, TokenizerSource};

/// The `config` section: postcard of this.
#[derive(Debug, Serialize, Deserialize)]
struct ConfigSection {
    /// The canonical pairs that the base id covers.
    config: Vec<(String, u64)>,
    /// The model's own name.
    name: String,
    /// The chat template.
    chat_template: Option<String>,
}

/// Reads a base: its parts, and the hash that the directory gives for each tensor, in the same order.
pub(crate) fn read(
    file: &[u8],
    limits: &Limits,
) -> Result<(SourceModel, Vec<ContentHash>), RuntimeError> {
    let container = Container::open(file, limits)?;
    let config: ConfigSection = decode("config", section(&container, SectionKind::Config)?)?;
    let tokenizer = TokenizerSource::Document {
        bytes: range_in(file, section(&container, SectionKind::Tokenizer)?),
        limits: *limits,
    };
    let gguf_metadata = match container.section(SectionKind::SourceMetadata) {
        Some(section) => {
            section.verify()?;
            Some(section.bytes().to_vec())
        }
        None => None,
    };
    let tensors = container
        .tensors()
        .iter()
        .map(|tensor| SourceTensor {
            name: tensor.name.to_owned(),
            encoding: tensor.encoding,
            shape: tensor.shape.clone(),
            layout: match tensor.layout {
                TensorLayout::Rows => Layout::RowMajor,
                TensorLayout::Interleaved16 => Layout::Interleaved,
            },
            bytes: range_in(file, tensor.data),
        })
        .collect();
    let contents = container.tensors().iter().map(|tensor| tensor.content).collect();
    let source = SourceModel {
        config: ModelConfig::from_canonical(&config.config)?,
        tokenizer,
        name: config.name,
        chat_template: config.chat_template,
        gguf_metadata,
        tensors,
    };
    Ok((source, contents))
}

/// Writes a base.
pub(crate) fn write(base: &Base, out: &mut dyn std::io::Write) -> Result<(), RuntimeError> {
    let config = ConfigSection {
        config: base
            .config()
            .canonical()
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        name: base.name().to_owned(),
        chat_template: base.chat_template_source().map(str::to_owned),
    };
    let mut writer = ContainerWriter::new();
    writer.section(SectionKind::Config, encode(&config))?;
    writer.section(SectionKind::Tokenizer, base.tokenizer_spec().to_canonical())?;
    if let Some(metadata) = base.gguf_metadata() {
        writer.section(SectionKind::SourceMetadata, metadata)?;
    }
    for (at, tensor) in base.tensors().iter().enumerate() {
        match base.interleaved_bytes(at) {
            Some(bytes) => writer.interleaved_tensor(
                tensor.name(),
                tensor.encoding(),
                tensor.shape(),
                tensor.content(),
                bytes,
            )?,
            None => writer.tensor(
                tensor.name(),
                tensor.encoding(),
                tensor.shape(),
                base.tensor_bytes(at),
            )?,
        };
    }
    writer.write_to(out)?;
    Ok(())
}

fn section<'a>(container: &Container<'a>, kind: SectionKind) -> Result<&'a [u8], RuntimeError> {
    let section =
        container.section(kind).ok_or(ModelError::SectionMissing { section: kind.name() })?;
    section.verify()?;
    Ok(section.bytes())
}

/// Decodes a section; bytes left over are refused with it.
fn decode<T: for<'de> Deserialize<'de>>(
    section: &'static str,
    bytes: &[u8],
) -> Result<T, ModelError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(ModelError::SectionContent { section }),
    }
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("BUG: a section could not be encoded")
}

/// The identity that a `.slm` file claims, from its configuration and directory alone; `None` for anything that is not a base. No tensor
/// is hashed: this finds a blob, and opening it checks the claim.
pub(crate) fn peek_base_id(bytes: &[u8], limits: &Limits) -> Option<slm_manifest::BaseId> {
    let container = Container::open(bytes, limits).ok()?;
    let config: ConfigSection =
        decode("config", section(&container, SectionKind::Config).ok()?).ok()?;
    let config = ModelConfig::from_canonical(&config.config).ok()?;
    let tensors: Vec<slm_manifest::TensorIdentity> = container
        .tensors()
        .iter()
        .map(|tensor| slm_manifest::TensorIdentity {
            name: tensor.name.to_owned(),
            encoding: tensor.encoding,
            shape: tensor.shape.clone(),
            content: tensor.content,
        })
        .collect();
    Some(slm_manifest::BaseId::compute(&config, &tensors))
}
