//! An adapter in a `.slm` container: one section that holds all of it.
//!
//! The section is a u64 length, a header of that length (postcard of [`Header`]), and then A and B of each module, each starting at a
//! multiple of 64 from the start of the section, zeros between. Modules are sorted by target. One adapter has one encoding. Adapters that are more than
//! low-rank modules are written in the layout of [`crate::section`].

use std::borrow::Cow;
use std::io::Write;

use serde::{Deserialize, Serialize};
use slm_format::container::{
    Container, ContainerWriteError, ContainerWriter, SectionKind, Written,
};
use slm_format::{Digest, Encoding, Limits, Reader};
use slm_manifest::AdapterId;

use crate::{Adapter, AdapterKind, Factor, LoraModule, OverlayError, SourceDigest, section};

/// Version of the section's layout.
const VERSION: u32 = 0;
/// Factors start at multiples of this.
const ALIGNMENT: u64 = 64;

#[derive(Serialize, Deserialize)]
struct Header<'a> {
    version: u32,
    id: AdapterId,
    #[serde(borrow)]
    kind: &'a str,
    #[serde(borrow)]
    modules: Vec<ModuleHeader<'a>>,
    #[serde(borrow)]
    sources: Vec<(&'a str, Digest)>,
}

#[derive(Serialize, Deserialize)]
struct ModuleHeader<'a> {
    target: &'a str,
    scale_bits: u32,
    a: FactorHeader<'a>,
    b: FactorHeader<'a>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct FactorHeader<'a> {
    encoding: &'a str,
    rows: u32,
    cols: u32,
}

impl FactorHeader<'_> {
    pub(crate) fn of(factor: &Factor) -> FactorHeader<'static> {
        FactorHeader {
            encoding: factor.encoding().name(),
            rows: factor.rows(),
            cols: factor.cols(),
        }
    }
}

impl Adapter {
    /// Writes the adapter as a `.slm` file of one section. The same adapter with the same sources gives the same bytes.
    ///
    /// # Errors
    /// [`ContainerWriteError`] when `out` refuses bytes.
    pub fn write_to(&self, out: &mut dyn Write) -> Result<Written, ContainerWriteError> {
        let mut writer = ContainerWriter::new();
        writer.section(SectionKind::Adapter, self.to_section())?;
        writer.write_to(out)
    }

    /// Reads the adapter of a `.slm` file and checks all of it again: the section's hashes, every number, and the identity.
    ///
    /// # Errors
    /// [`OverlayError::Section`] when the file holds not exactly one adapter, [`OverlayError::Container`] when the section is damaged, else as
    /// [`Adapter::from_section`].
    pub fn read(container: &Container<'_>, limits: &Limits) -> Result<Adapter, OverlayError> {
        let mut sections = container.sections_of(SectionKind::Adapter);
        let (Some(section), None) = (sections.next(), sections.next()) else {
            let found = container.sections_of(SectionKind::Adapter).count();
            return Err(OverlayError::Section {
                reason: format!("the file holds {found} adapters, expected one"),
            });
        };
        section.verify()?;
        Adapter::from_section(section.bytes(), limits)
    }

    /// The bytes of an adapter section.
    pub fn to_section(&self) -> Vec<u8> {
        let Some(modules) = self.plain_lora() else { return section::write(self) };
        let header = self.header(&modules);
        let mut bytes =
            Vec::with_capacity(header.len() + 8 + self.bytes() as usize + 128 * modules.len());
        bytes.extend((header.len() as u64).to_le_bytes());
        bytes.extend(header);
        for module in &modules {
            for factor in [&module.a, &module.b] {
                pad(&mut bytes);
                bytes.extend(factor.data());
            }
        }
        bytes
    }

    /// The adapter whose section `bytes` is. Its identity is computed from the content and compared with the one the section claims.
    ///
    /// # Errors
    /// [`OverlayError::Section`], [`OverlayError::SectionVersion`], [`OverlayError::Identity`], and whatever makes a factor or an adapter unusable.
    pub fn from_section(bytes: &[u8], limits: &Limits) -> Result<Adapter, OverlayError> {
        let mut reader = Reader::new(bytes);
        let read_error = |error: slm_format::ReadError| refuse(error.to_string());
        let header_len =
            reader.count("length of the header", limits.max_header_bytes, 1).map_err(read_error)?;
        let header_bytes = reader.take("header", header_len as u64).map_err(read_error)?;
        // Every version begins with its number.
        match postcard::take_from_bytes::<u32>(header_bytes) {
            Ok((section::VERSION, _)) => return section::read(header_bytes, reader, limits),
            Ok((found, _)) if found != VERSION => {
                return Err(OverlayError::SectionVersion { found, newest: section::VERSION });
            }
            _ => {}
        }
        let header = match postcard::take_from_bytes::<Header<'_>>(header_bytes) {
            Ok((header, [])) => header,
            Ok((_, rest)) => return Err(refuse(format!("{} bytes follow the header", rest.len()))),
            Err(error) => return Err(refuse(format!("the header is not one: {error}"))),
        };
        match AdapterKind::from_name(header.kind) {
            Some(AdapterKind::Lora) => {}
            _ => {
                return Err(OverlayError::Kind { kind: header.kind.chars().take(80).collect() });
            }
        }
        if header.modules.len() as u64 * 2 > limits.max_tensors {
            let (what, found, limit) =
                ("the number of factors", header.modules.len() as u64 * 2, limits.max_tensors);
            return Err(OverlayError::Limit { what, found, limit });
        }
        if let Some(pair) = header.modules.windows(2).find(|pair| pair[0].target >= pair[1].target)
        {
            return Err(refuse(format!(
                "{:?} does not come after {:?}",
                pair[1].target, pair[0].target
            )));
        }
        let mut modules = Vec::with_capacity(header.modules.len());
        for module in &header.modules {
            let mut factor = |name: &str, header: &FactorHeader<'_>| {
                read_factor(&mut reader, &format!("{}.{name}", module.target), header)
            };
            modules.push(LoraModule {
                target: module.target.into(),
                scale: f32::from_bits(module.scale_bits),
                a: factor("lora_a", &module.a)?,
                b: factor("lora_b", &module.b)?,
            });
        }
        reader.finish().map_err(read_error)?;
        let sources = header
            .sources
            .iter()
            .map(|&(name, digest)| SourceDigest { name: name.into(), digest })
            .collect();
        let adapter = Adapter::lora(modules)?.with_sources(sources);
        if adapter.id() != header.id {
            return Err(OverlayError::Identity { claimed: header.id, found: adapter.id() });
        }
        if adapter.plain_lora().map(|modules| adapter.header(&modules)).as_deref()
            != Some(header_bytes)
        {
            return Err(refuse("the header is not in its only encoding".into()));
        }
        Ok(adapter)
    }

    fn header(&self, modules: &[LoraModule]) -> Vec<u8> {
        let modules = modules.iter().map(|module| ModuleHeader {
            target: &module.target,
            scale_bits: module.scale.to_bits(),
            a: FactorHeader::of(&module.a),
            b: FactorHeader::of(&module.b),
        });
        let header = Header {
            version: VERSION,
            id: self.id(),
            kind: self.kind().name(),
            modules: modules.collect(),
            sources: self
                .sources()
                .iter()
                .map(|source| (source.name.as_str(), source.digest))
                .collect(),
        };
        postcard::to_stdvec(&header).expect("BUG: a header could not be encoded")
    }
}

pub(crate) fn read_factor(
    reader: &mut Reader<'_>,
    name: &str,
    header: &FactorHeader<'_>,
) -> Result<Factor, OverlayError> {
    let FactorHeader { encoding, rows, cols } = *header;
    let Some(found) = Encoding::from_name(encoding) else {
        return Err(OverlayError::Dtype {
            tensor: name.into(),
            dtype: encoding.chars().take(80).collect(),
        });
    };
    let (rows, cols) = (u64::from(rows), u64::from(cols));
    let Some(len) = found.tensor_bytes(&[cols, rows]) else {
        return Err(OverlayError::Factor {
            encoding: found,
            rows,
            cols,
            bytes: reader.remaining(),
        });
    };
    skip_padding(reader, name)?;
    let data = reader.take("factor", len).map_err(|error| refuse(error.to_string()))?;
    Factor::new(name, found, rows, cols, Cow::Borrowed(data))
}

/// Fills up with zeros to where a factor starts.
pub(crate) fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT as usize), 0);
}

/// Passes the zeros before `name`.
pub(crate) fn skip_padding(reader: &mut Reader<'_>, name: &str) -> Result<(), OverlayError> {
    let position = reader.position();
    let padding = reader
        .take("padding", position.next_multiple_of(ALIGNMENT) - position)
        .map_err(|error| refuse(error.to_string()))?;
    match padding.iter().all(|&byte| byte == 0) {
        true => Ok(()),
        false => Err(refuse(format!("the padding before {name} is not zero"))),
    }
}

pub(crate) fn refuse(reason: String) -> OverlayError {
    OverlayError::Section { reason }
}
