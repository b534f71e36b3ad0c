//! The JSON header, decoded in one pass that sees what a map type would hide: a name given twice.

use core::fmt;
use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::error::SafeTensorsError;
use crate::limits::Limits;

/// The header's entries, not yet compared with the data.
pub(super) struct RawHeader {
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) tensors: BTreeMap<String, RawInfo>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawInfo {
    pub(super) dtype: String,
    pub(super) shape: RawShape,
    pub(super) data_offsets: (u64, u64),
}

/// The dimensions, at most [`RawShape::KEPT`] of them, and how many there were.
pub(super) struct RawShape {
    pub(super) dims: Vec<u64>,
    pub(super) count: u64,
}

impl RawShape {
    const KEPT: usize = 16;
}

impl RawHeader {
    pub(super) fn parse(text: &str, limits: &Limits) -> Result<RawHeader, SafeTensorsError> {
        if !text.starts_with('{') {
            let message = "it does not start with an opening brace".to_owned();
            return Err(SafeTensorsError::HeaderJson { message });
        }
        let mut fault = Fault { found: None, place: Place::Header };
        let mut json = serde_json::Deserializer::from_str(text);
        let parsed = HeaderSeed { fault: &mut fault, limits }.deserialize(&mut json);
        match parsed.and_then(|header| json.end().map(|()| header)) {
            Ok(header) => Ok(header),
            Err(error) => Err(fault.explain(&error)),
        }
    }
}

/// Where the reader is, and the fault it found itself: serde's errors carry only text.
struct Fault {
    found: Option<SafeTensorsError>,
    place: Place,
}

enum Place {
    Header,
    Metadata,
    Tensor(String),
}

impl Fault {
    fn explain(self, error: &serde_json::Error) -> SafeTensorsError {
        let message = error.to_string();
        match (self.found, self.place) {
            (Some(found), _) => found,
            (None, Place::Metadata) if error.is_data() => SafeTensorsError::Metadata { message },
            (None, Place::Tensor(tensor)) if error.is_data() => {
                SafeTensorsError::Info { tensor, message }
            }
            (None, _) => SafeTensorsError::HeaderJson { message },
        }
    }

    fn raise<E: serde::de::Error>(&mut self, error: SafeTensorsError) -> E {
        let text = E::custom(&error);
        self.found = Some(error);
        text
    }
}

struct HeaderSeed<'s> {
    fault: &'s mut Fault,
    limits: &'s Limits,
}

impl<'de> DeserializeSeed<'de> for HeaderSeed<'_> {
    type Value = RawHeader;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<RawHeader, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeaderSeed<'_> {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let HeaderSeed { fault, limits } = self;
        let mut metadata = None;
        let mut tensors = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                if metadata.is_some() {
                    return Err(fault.raise(SafeTensorsError::DuplicateKey { key: name }));
                }
                fault.place = Place::Metadata;
                metadata = Some(map.next_value_seed(MetadataSeed { fault: &mut *fault, limits })?);
            } else {
                if tensors.len() as u64 >= limits.max_tensors {
                    let (what, limit) = ("tensors", limits.max_tensors);
                    return Err(fault.raise(SafeTensorsError::Count { what, limit }));
                }
                fault.place = Place::Tensor(name.clone());
                let info = map.next_value::<RawInfo>()?;
                if tensors.contains_key(&name) {
                    return Err(fault.raise(SafeTensorsError::DuplicateTensor { tensor: name }));
                }
                tensors.insert(name, info);
            }
            fault.place = Place::Header;
        }
        Ok(RawHeader { metadata: metadata.unwrap_or_default(), tensors })
    }
}

struct MetadataSeed<'s> {
    fault: &'s mut Fault,
    limits: &'s Limits,
}

impl<'de> DeserializeSeed<'de> for MetadataSeed<'_> {
    type Value = BTreeMap<String, String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MetadataSeed<'_> {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut metadata = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            if metadata.len() as u64 >= self.limits.max_metadata_entries {
                let (what, limit) = ("metadata entries", self.limits.max_metadata_entries);
                return Err(self.fault.raise(SafeTensorsError::Count { what, limit }));
            }
            let value = map.next_value::<Cow<'_, str>>()?.into_owned();
            if metadata.contains_key(&key) {
                return Err(self.fault.raise(SafeTensorsError::DuplicateKey { key }));
            }
            metadata.insert(key, value);
        }
        Ok(metadata)
    }
}

impl<'de> Deserialize<'de> for RawShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawShape, D::Error> {
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = RawShape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<RawShape, A::Error> {
        let mut shape = RawShape { dims: Vec::new(), count: 0 };
        while shape.dims.len() < RawShape::KEPT {
            let Some(dim) = seq.next_element()? else { break };
            shape.dims.push(dim);
            shape.count += 1;
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {
            shape.count = shape.count.checked_add(1).ok_or_else(|| A::Error::custom("endless"))?;
        }
        Ok(shape)
    }
}
