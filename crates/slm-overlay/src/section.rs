//! The adapter section of kinds that the first layout has no room for.
//!
//! A u64 length, a header of that length (postcard of [`Header`]), then the indices of each module that has any, as u64, and then every factor once,
//! each starting at a multiple of 64 from the start of the section, zeros between. Modules are sorted by target, factors stand in the order in
//! which modules first use them. One adapter has one encoding.

use serde::{Deserialize, Serialize};
use slm_format::{ContentHash, Digest, Encoding, Limits, Reader};
use slm_manifest::AdapterId;

use crate::container::{FactorHeader, pad, read_factor, refuse};
use crate::kind::Parts;
use crate::{Adapter, AdapterKind, Factor, Module, OverlayError, SourceDigest};

/// Version of this layout.
pub(crate) const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Header<'a> {
    version: u32,
    id: AdapterId,
    #[serde(borrow)]
    kind: &'a str,
    invocation: Vec<u32>,
    #[serde(borrow)]
    modules: Vec<ModuleHeader<'a>>,
    #[serde(borrow)]
    factors: Vec<FactorHeader<'a>>,
    #[serde(borrow)]
    sources: Vec<(&'a str, Digest)>,
}

#[derive(Serialize, Deserialize)]
struct ModuleHeader<'a> {
    target: &'a str,
    numbers: Vec<u32>,
    n_indices: u64,
    /// Places in the list of factors.
    factors: Vec<u32>,
}

/// The bytes of an adapter's section.
pub(crate) fn write(adapter: &Adapter) -> Vec<u8> {
    let (header, factors) = header(adapter);
    let mut bytes = Vec::new();
    bytes.extend((header.len() as u64).to_le_bytes());
    bytes.extend(header);
    for module in adapter.modules() {
        let indices = module.parts().indices;
        if !indices.is_empty() {
            pad(&mut bytes);
            indices.iter().for_each(|index| bytes.extend(index.to_le_bytes()));
        }
    }
    for factor in factors {
        pad(&mut bytes);
        bytes.extend(factor.data());
    }
    bytes
}

/// The adapter whose section this is; `reader` stands behind the header.
pub(crate) fn read(
    header_bytes: &[u8],
    mut reader: Reader<'_>,
    limits: &Limits,
) -> Result<Adapter, OverlayError> {
    let header = match postcard::take_from_bytes::<Header<'_>>(header_bytes) {
        Ok((header, [])) => header,
        Ok((_, rest)) => return Err(refuse(format!("{} bytes follow the header", rest.len()))),
        Err(error) => return Err(refuse(format!("the header is not one: {error}"))),
    };
    let Some(kind) = AdapterKind::from_name(header.kind) else {
        return Err(OverlayError::Kind { kind: header.kind.chars().take(80).collect() });
    };
    for (what, found) in [
        ("the number of factors", header.factors.len()),
        ("the number of modules", header.modules.len()),
    ] {
        if found as u64 > limits.max_tensors {
            let (found, limit) = (found as u64, limits.max_tensors);
            return Err(OverlayError::Limit { what, found, limit });
        }
    }
    let mut indices = Vec::with_capacity(header.modules.len());
    for module in &header.modules {
        indices.push(read_indices(&mut reader, module.n_indices)?);
    }
    let mut factors = Vec::with_capacity(header.factors.len());
    for (at, factor) in header.factors.iter().enumerate() {
        factors.push(read_factor(&mut reader, &format!("factor {at}"), factor)?);
    }
    reader.finish().map_err(|error| refuse(error.to_string()))?;

    let mut modules = Vec::with_capacity(header.modules.len());
    for (module, indices) in header.modules.iter().zip(indices) {
        let own = module.factors.iter().map(|&at| factors.get(at as usize).cloned());
        let Some(own) = own.collect::<Option<Vec<Factor>>>() else {
            return Err(refuse(format!("{:?} names a factor that is not there", module.target)));
        };
        let target = module.target.to_owned();
        match Module::from_parts(target, kind, &module.numbers, indices, own) {
            Some(module) => modules.push(module),
            None => {
                let (target, kind) = (module.target, kind.name());
                return Err(refuse(format!("{target:?} is not a module of kind {kind}")));
            }
        }
    }
    let sources = header
        .sources
        .iter()
        .map(|&(name, digest)| SourceDigest { name: name.into(), digest })
        .collect();
    let adapter = Adapter::with_invocation(modules, header.invocation)?.with_sources(sources);
    if adapter.kind() != kind {
        return Err(refuse(format!("the content is of kind {}", adapter.kind().name())));
    }
    if adapter.id() != header.id {
        return Err(OverlayError::Identity { claimed: header.id, found: adapter.id() });
    }
    if adapter.plain_lora().is_some() || self::header(&adapter).0 != header_bytes {
        return Err(refuse("the header is not in its only encoding".into()));
    }
    Ok(adapter)
}

/// The header, and the factors that it lists.
fn header(adapter: &Adapter) -> (Vec<u8>, Vec<&Factor>) {
    let mut factors: Vec<&Factor> = Vec::new();
    let mut known: std::collections::BTreeMap<(&str, u32, u32, ContentHash), u32> =
        std::collections::BTreeMap::new();
    let mut modules = Vec::with_capacity(adapter.modules().len());
    for module in adapter.modules() {
        let Parts { numbers, indices, factors: own, .. } = module.parts();
        let mut place = |factor| {
            let Factored { key, factor } = Factored::new(factor);
            *known.entry(key).or_insert_with(|| {
                factors.push(factor);
                factors.len() as u32 - 1
            })
        };
        modules.push(ModuleHeader {
            target: &module.target,
            numbers,
            n_indices: indices.len() as u64,
            factors: own.into_iter().map(|(_, factor)| place(factor)).collect(),
        });
    }
    let header = Header {
        version: VERSION,
        id: adapter.id(),
        kind: adapter.kind().name(),
        invocation: adapter.invocation().to_vec(),
        modules,
        factors: factors.iter().map(|factor| FactorHeader::of(factor)).collect(),
        sources: adapter
            .sources()
            .iter()
            .map(|source| (source.name.as_str(), source.digest))
            .collect(),
    };
    (postcard::to_stdvec(&header).expect("BUG: a header could not be encoded"), factors)
}

/// A factor with what tells it from others.
struct Factored<'a> {
    key: (&'static str, u32, u32, ContentHash),
    factor: &'a Factor,
}

impl<'a> Factored<'a> {
    fn new(factor: &'a Factor) -> Factored<'a> {
        let encoding: Encoding = factor.encoding();
        let key = (encoding.name(), factor.rows(), factor.cols(), factor.content());
        Factored { key, factor }
    }
}

fn read_indices(reader: &mut Reader<'_>, n: u64) -> Result<Vec<u64>, OverlayError> {
    if n == 0 {
        return Ok(Vec::new());
    }
    crate::container::skip_padding(reader, "indices")?;
    let Some(bytes) = n.checked_mul(8) else {
        return Err(refuse(format!("{n} indices")));
    };
    let data = reader.take("indices", bytes).map_err(|error| refuse(error.to_string()))?;
    let word = |b: &[u8]| u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
    Ok(data.chunks_exact(8).map(word).collect())
}
