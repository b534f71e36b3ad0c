//! TOML and JSON into one tree, and from the tree into fields, each taken once and by name.

use core::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use slm_format::{Digest, Limits};

use super::error::{ManifestError, cut};
use crate::name::Name;

/// The two spellings of a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// TOML 1.
    Toml,
    /// JSON, RFC 8259.
    Json,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Form::Toml => "TOML",
            Form::Json => "JSON",
        })
    }
}

/// A value of either form. Tables keep every key in the order given, also one that stands twice, so that it can be refused by path.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Null,
    Bool,
    Integer(i128),
    Float(f64),
    Text(String),
    Datetime,
    List(Vec<Node>),
    Table(Vec<(String, Node)>),
}

/// Reads TOML into a tree.
pub(super) fn toml_tree(text: &str, limits: &Limits) -> Result<Node, ManifestError> {
    check_length(text.len(), limits)?;
    match toml::from_str::<toml::Table>(text) {
        Ok(table) => Ok(Node::from_toml(toml::Value::Table(table))),
        Err(error) => {
            let span = error.span().unwrap_or(0..0);
            if error.message() == "duplicate key" {
                return Err(ManifestError::DuplicateKey {
                    field: cut(text.get(span).unwrap_or("a key")),
                });
            }
            let before = text.as_bytes().get(..span.start).unwrap_or(text.as_bytes());
            let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count() as u64;
            Err(ManifestError::Syntax {
                form: Form::Toml,
                line,
                problem: error.message().to_owned(),
            })
        }
    }
}

/// Reads JSON into a tree.
pub(super) fn json_tree(bytes: &[u8], limits: &Limits) -> Result<Node, ManifestError> {
    check_length(bytes.len(), limits)?;
    let text = utf8(bytes)?;
    serde_json::from_str::<Node>(text).map_err(|error| ManifestError::Syntax {
        form: Form::Json,
        line: error.line() as u64,
        problem: error.to_string(),
    })
}

/// `bytes` as text.
pub(super) fn utf8(bytes: &[u8]) -> Result<&str, ManifestError> {
    core::str::from_utf8(bytes)
        .map_err(|error| ManifestError::NotUtf8 { at: error.valid_up_to() as u64 })
}

fn check_length(len: usize, limits: &Limits) -> Result<(), ManifestError> {
    let found = len as u64;
    if found > limits.max_header_bytes {
        return Err(ManifestError::TooLong { found, limit: limits.max_header_bytes });
    }
    Ok(())
}

/// The fields of one table, which are taken out by name.
pub(super) struct Fields {
    path: String,
    entries: Vec<(String, Node)>,
}

impl Fields {
    /// The fields of the table `node` at `path` (empty for the document). Every key is one of `known` and stands once.
    pub(super) fn new(path: &str, node: Node, known: &[&str]) -> Result<Fields, ManifestError> {
        let Node::Table(entries) = node else {
            let field = if path.is_empty() { "the document" } else { path };
            return Err(ManifestError::Type {
                field: field.to_owned(),
                found: node.kind(),
                expected: "a table",
            });
        };
        let fields = Fields { path: path.to_owned(), entries };
        for (at, (key, _)) in fields.entries.iter().enumerate() {
            // An unknown key ends the loop, so that no more than `known.len() + 1` keys are ever compared with each other.
            if !known.contains(&key.as_str()) {
                return Err(ManifestError::UnknownField { field: fields.field(&cut(key)) });
            }
            if fields.entries[..at].iter().any(|(earlier, _)| earlier == key) {
                return Err(ManifestError::DuplicateKey { field: fields.field(key) });
            }
        }
        Ok(fields)
    }

    /// The path of `name` in this table.
    pub(super) fn field(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Takes a field that may be absent.
    pub(super) fn optional(&mut self, name: &str) -> Option<Node> {
        let at = self.entries.iter().position(|(key, _)| key == name)?;
        Some(self.entries.swap_remove(at).1)
    }

    /// Takes a field.
    pub(super) fn required(&mut self, name: &str) -> Result<Node, ManifestError> {
        self.optional(name).ok_or_else(|| ManifestError::MissingField { field: self.field(name) })
    }

    /// Takes a text.
    pub(super) fn text(&mut self, name: &str) -> Result<String, ManifestError> {
        let node = self.required(name)?;
        node.text(&self.field(name))
    }

    /// Takes a digest, or anything that is spelled like one.
    pub(super) fn digest(&mut self, name: &str) -> Result<Digest, ManifestError> {
        let node = self.required(name)?;
        parse_digest(node, &self.field(name))
    }

    /// Takes a digest that may be absent.
    pub(super) fn optional_digest(&mut self, name: &str) -> Result<Option<Digest>, ManifestError> {
        self.optional(name).map(|node| parse_digest(node, &self.field(name))).transpose()
    }

    /// Takes a name.
    pub(super) fn name(&mut self, name: &str) -> Result<Name, ManifestError> {
        let field = self.field(name);
        self.text(name)?.parse().map_err(|source| ManifestError::Name { field, source })
    }

    /// Takes a count between 0 and `max`.
    pub(super) fn count(&mut self, name: &str, max: u64) -> Result<u64, ManifestError> {
        let field = self.field(name);
        match self.required(name)? {
            Node::Integer(found) => u64::try_from(found)
                .ok()
                .filter(|&count| count <= max)
                .ok_or(ManifestError::Range { field, found: found.to_string(), min: 0, max }),
            other => {
                Err(ManifestError::Type { field, found: other.kind(), expected: "an integer" })
            }
        }
    }

    /// Takes a count that fits a u32.
    pub(super) fn count_u32(&mut self, name: &str) -> Result<u32, ManifestError> {
        let count = self.count(name, u64::from(u32::MAX))?;
        Ok(u32::try_from(count).expect("BUG: a count passed its maximum"))
    }

    /// Takes a number and rounds it to the nearest f32.
    pub(super) fn weight(&mut self, name: &str) -> Result<f32, ManifestError> {
        let field = self.field(name);
        let wide = match self.required(name)? {
            Node::Float(wide) => wide,
            Node::Integer(whole) => whole as f64,
            other => {
                return Err(ManifestError::Type {
                    field,
                    found: other.kind(),
                    expected: "a number",
                });
            }
        };
        let weight = wide as f32;
        if !weight.is_finite() || (weight == 0.0 && wide != 0.0) {
            return Err(ManifestError::Weight { field, found: wide.to_string() });
        }
        Ok(weight)
    }

    /// Takes a list.
    pub(super) fn list(&mut self, name: &str) -> Result<Vec<Node>, ManifestError> {
        let node = self.required(name)?;
        node.list(&self.field(name))
    }
}

impl Node {
    /// The first value of `key`, where this is a table that has it.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        match self {
            Node::Table(entries) => {
                entries.iter().find(|(name, _)| name == key).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    pub(super) fn text(self, field: &str) -> Result<String, ManifestError> {
        match self {
            Node::Text(text) => Ok(text),
            other => Err(ManifestError::Type {
                field: field.to_owned(),
                found: other.kind(),
                expected: "a string",
            }),
        }
    }

    pub(super) fn list(self, field: &str) -> Result<Vec<Node>, ManifestError> {
        match self {
            Node::List(items) => Ok(items),
            other => Err(ManifestError::Type {
                field: field.to_owned(),
                found: other.kind(),
                expected: "a list",
            }),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Node::Null => "null",
            Node::Bool => "a boolean",
            Node::Integer(_) => "an integer",
            Node::Float(_) => "a float",
            Node::Text(_) => "a string",
            Node::Datetime => "a TOML date-time",
            Node::List(_) => "a list",
            Node::Table(_) => "a table",
        }
    }

    fn from_toml(value: toml::Value) -> Node {
        match value {
            toml::Value::String(text) => Node::Text(text),
            toml::Value::Integer(integer) => Node::Integer(i128::from(integer)),
            toml::Value::Float(float) => Node::Float(float),
            toml::Value::Boolean(_) => Node::Bool,
            toml::Value::Datetime(_) => Node::Datetime,
            toml::Value::Array(items) => {
                Node::List(items.into_iter().map(Node::from_toml).collect())
            }
            toml::Value::Table(table) => Node::Table(
                table.into_iter().map(|(key, value)| (key, Node::from_toml(value))).collect(),
            ),
        }
    }
}

fn parse_digest(node: Node, field: &str) -> Result<Digest, ManifestError> {
    node.text(field)?
        .parse()
        .map_err(|source| ManifestError::Digest { field: field.to_owned(), source })
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Bool)
    }

    fn visit_i64<E>(self, integer: i64) -> Result<Node, E> {
        Ok(Node::Integer(i128::from(integer)))
    }

    fn visit_u64<E>(self, integer: u64) -> Result<Node, E> {
        Ok(Node::Integer(i128::from(integer)))
    }

    fn visit_f64<E>(self, float: f64) -> Result<Node, E> {
        Ok(Node::Float(float))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    // A sequence or map grows as its items are read; no hint of the input reserves memory.
    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Node::Table(entries))
    }
}
