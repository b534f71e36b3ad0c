//! JSON with the order of keys kept and duplicate keys refused.

use core::fmt;
use std::collections::BTreeSet;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::OverlayError;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// The value that `bytes` hold, duplicate keys refused at every depth. Nesting is bounded by the parser (128).
    pub(super) fn parse(bytes: &[u8]) -> Result<Json, OverlayError> {
        let value: Json =
            serde_json::from_slice(bytes).map_err(|error| OverlayError::ConfigJson {
                line: error.line(),
                column: error.column(),
                reason: error.to_string(),
            })?;
        value.check_keys()?;
        Ok(value)
    }

    /// Whether the value is null, false or empty: the ways of leaving a field out.
    pub(super) fn is_unset(&self) -> bool {
        match self {
            Json::Null => true,
            Json::Bool(set) => !set,
            Json::Int(_) | Json::Float(_) => false,
            Json::Text(text) => text.is_empty(),
            Json::List(items) => items.is_empty(),
            Json::Object(entries) => entries.is_empty(),
        }
    }

    /// The value as JSON text, cut where it is long.
    pub(super) fn excerpt(&self) -> String {
        const LONGEST: usize = 120;
        let text = self.to_string();
        match text.char_indices().nth(LONGEST) {
            Some((at, _)) => format!("{}…", &text[..at]),
            None => text,
        }
    }

    fn check_keys(&self) -> Result<(), OverlayError> {
        match self {
            Json::List(items) => items.iter().try_for_each(Json::check_keys),
            Json::Object(entries) => {
                let mut seen = BTreeSet::new();
                entries.iter().try_for_each(|(key, value)| match seen.insert(key) {
                    true => value.check_keys(),
                    false => Err(OverlayError::DuplicateKey { key: key.clone() }),
                })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Json::Null => f.write_str("null"),
            Json::Bool(value) => write!(f, "{value}"),
            Json::Int(value) => write!(f, "{value}"),
            Json::Float(value) => write!(f, "{value}"),
            Json::Text(text) => write!(f, "{text:?}"),
            Json::List(items) => {
                f.write_str("[")?;
                for (index, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if index == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Json::Object(entries) => {
                f.write_str("{")?;
                for (index, (key, value)) in entries.iter().enumerate() {
                    write!(f, "{}{key:?}: {value}", if index == 0 { "" } else { ", " })?;
                }
                f.write_str("}")
            }
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(i64::try_from(value).map_or(Json::Float(value as f64), Json::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut object = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            object.push(entry);
        }
        Ok(Json::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use slm_format::Coded;

    use super::*;

    #[test]
    fn order_is_kept_and_duplicates_are_refused_at_every_depth() {
        let text = r#"{"z": {"b": 1, "a": [2.5, null, true]}, "a": "x"}"#;
        assert_eq!(Json::parse(text.as_bytes()).unwrap().to_string(), text);
        for text in [r#"{"a": 1, "a": 1}"#, r#"{"z": [{"a": 1, "b": 2, "a": 3}]}"#] {
            assert_eq!(
                Json::parse(text.as_bytes()).unwrap_err().code(),
                "adapter-config-duplicate-key"
            );
        }
        for text in ["", "{", "{} x", "{\"a\": NaN}", "{\"a\": 1e999}", &"[".repeat(1000)] {
            assert_eq!(
                Json::parse(text.as_bytes()).unwrap_err().code(),
                "adapter-config-json",
                "{text:.20}"
            );
        }
    }
}
