//! The metadata of a GGUF file: checked once, asked for by key and type.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::error::GgufError;
use super::value::{Array, Value, ValueType};
use crate::limits::Limits;
use crate::read::Reader;

/// Longest key, from GGUF's specification.
pub(crate) const MAX_KEY_BYTES: u64 = 65_535;

/// The least a metadata entry takes: key length, a one-letter key, type, a one-byte value.
const MIN_ENTRY_BYTES: u64 = 8 + 1 + 4 + 1;

/// The metadata entries of a GGUF file, in the file's order, keys unique.
///
/// Typed accessors give `Ok(None)` where the key is missing and an error where it has another type; the `require_` variants make a
/// missing key an error too.
#[derive(Debug, Clone, PartialEq)]
pub struct Metadata<'a> {
    entries: Vec<(&'a str, Value<'a>)>,
    index: BTreeMap<&'a str, usize>,
}

impl<'a> Metadata<'a> {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value<'a>> {
        self.index.get(key).map(|&at| &self.entries[at].1)
    }

    /// Every entry, in the file's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'a str, &Value<'a>)> {
        self.entries.iter().map(|(key, value)| (*key, value))
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A u32; any integer type that fits will do.
    ///
    /// # Errors
    /// `gguf-metadata-type` or `gguf-metadata-range`, as for all accessors, naming the key.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.integer(key, "a u32")
    }

    /// A u64; any integer type that fits will do. Errors as [`Metadata::u32`].
    pub fn u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.integer(key, "a u64")
    }

    /// An i32; any integer type that fits will do. Errors as [`Metadata::u32`].
    pub fn i32(&self, key: &str) -> Result<Option<i32>, GgufError> {
        self.integer(key, "an i32")
    }

    /// An f32, any bit pattern. Errors as [`Metadata::u32`].
    pub fn f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.typed(key, "an f32", |value| match value {
            Value::F32(v) => Some(*v),
            _ => None,
        })
    }

    /// A truth value. Errors as [`Metadata::u32`].
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "a bool", |value| match value {
            Value::Bool(v) => Some(*v),
            _ => None,
        })
    }

    /// A string. Errors as [`Metadata::u32`].
    pub fn str(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        self.typed(key, "a string", |value| match value {
            Value::Str(v) => Some(*v),
            _ => None,
        })
    }

    /// An array of strings. Errors as [`Metadata::u32`].
    pub fn str_array(&self, key: &str) -> Result<Option<&[&'a str]>, GgufError> {
        self.typed(key, "an array of string", |value| match value {
            Value::Array(Array::Str(strings)) => Some(strings.as_slice()),
            _ => None,
        })
    }

    /// An array of f32, decoded. Errors as [`Metadata::u32`].
    pub fn f32_array(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        self.typed(key, "an array of f32", |value| match value {
            Value::Array(array) => array.floats(),
            _ => None,
        })
    }

    /// An array of truth values, decoded. Errors as [`Metadata::u32`].
    pub fn bool_array(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        self.typed(key, "an array of bool", |value| match value {
            Value::Array(array) => array.bools(),
            _ => None,
        })
    }

    /// An array of i32, decoded; any integer type whose elements fit will do. Errors as [`Metadata::u32`].
    pub fn i32_array(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        let integers = self.typed(key, "an array of i32", |value| match value {
            Value::Array(array) => array.integers(),
            _ => None,
        })?;
        let fit = |found: i128| {
            i32::try_from(found).map_err(|_| GgufError::OutOfRange {
                key: key.to_owned(),
                expected: "an i32",
                found,
            })
        };
        integers.map(|integers| integers.into_iter().map(fit).collect()).transpose()
    }

    /// As [`Metadata::u32`], but a missing key is the error `gguf-metadata-missing`.
    pub fn require_u32(&self, key: &str) -> Result<u32, GgufError> {
        required(key, self.u32(key))
    }

    /// As [`Metadata::u64`], but a missing key is the error `gguf-metadata-missing`.
    pub fn require_u64(&self, key: &str) -> Result<u64, GgufError> {
        required(key, self.u64(key))
    }

    /// As [`Metadata::i32`], but a missing key is the error `gguf-metadata-missing`.
    pub fn require_i32(&self, key: &str) -> Result<i32, GgufError> {
        required(key, self.i32(key))
    }

    /// As [`Metadata::f32`], but a missing key is the error `gguf-metadata-missing`.
    pub fn require_f32(&self, key: &str) -> Result<f32, GgufError> {
        required(key, self.f32(key))
    }

    /// As [`Metadata::bool`], but a missing key is the error `gguf-metadata-missing`.
    pub fn require_bool(&self, key: &str) -> Result<bool, GgufError> {
        required(key, self.bool(key))
    }

    /// As [`Metadata::str`], but a missing key is the error `gguf-metadata-missing`.
    pub fn require_str(&self, key: &str) -> Result<&'a str, GgufError> {
        required(key, self.str(key))
    }

    /// As [`Metadata::str_array`], but a missing key is the error `gguf-metadata-missing`.
    pub fn require_str_array(&self, key: &str) -> Result<&[&'a str], GgufError> {
        required(key, self.str_array(key))
    }

    /// As [`Metadata::f32_array`], but a missing key is the error `gguf-metadata-missing`.
    pub fn require_f32_array(&self, key: &str) -> Result<Vec<f32>, GgufError> {
        required(key, self.f32_array(key))
    }

    /// As [`Metadata::i32_array`], but a missing key is the error `gguf-metadata-missing`.
    pub fn require_i32_array(&self, key: &str) -> Result<Vec<i32>, GgufError> {
        required(key, self.i32_array(key))
    }

    /// As [`Metadata::bool_array`], but a missing key is the error `gguf-metadata-missing`.
    pub fn require_bool_array(&self, key: &str) -> Result<Vec<bool>, GgufError> {
        required(key, self.bool_array(key))
    }

    /// The file's alignment: `general.alignment`, or 32.
    pub(crate) fn alignment(&self) -> Result<u64, GgufError> {
        match self.get("general.alignment") {
            None => Ok(super::DEFAULT_ALIGNMENT),
            Some(Value::U32(v)) if v.is_power_of_two() => Ok((*v).into()),
            Some(Value::U32(v)) => Err(GgufError::Alignment { found: v.to_string() }),
            Some(other) => Err(GgufError::Alignment { found: other.describe() }),
        }
    }

    /// Reads `count` entries.
    pub(crate) fn read(
        reader: &mut Reader<'a>,
        count: u64,
        limits: &Limits,
    ) -> Result<Metadata<'a>, GgufError> {
        let most = limits.max_metadata_entries.min(reader.remaining() / MIN_ENTRY_BYTES);
        if count > most {
            return Err(GgufError::KvCount { found: count, most });
        }
        let mut metadata = Metadata { entries: Vec::new(), index: BTreeMap::new() };
        for index in 0..count {
            let key = read_key(reader, index)?;
            let value = read_value(reader, key, limits)?;
            if metadata.index.insert(key, metadata.entries.len()).is_some() {
                return Err(GgufError::DuplicateKey { key: key.to_owned() });
            }
            metadata.entries.push((key, value));
        }
        Ok(metadata)
    }

    fn integer<T: TryFrom<i128>>(
        &self,
        key: &str,
        expected: &'static str,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let found = value.as_integer().ok_or_else(|| GgufError::WrongType {
            key: key.to_owned(),
            expected,
            found: value.describe(),
        })?;
        T::try_from(found).map(Some).map_err(|_| GgufError::OutOfRange {
            key: key.to_owned(),
            expected,
            found,
        })
    }

    fn typed<'s, T>(
        &'s self,
        key: &str,
        expected: &'static str,
        pick: impl FnOnce(&'s Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        pick(value).map(Some).ok_or_else(|| GgufError::WrongType {
            key: key.to_owned(),
            expected,
            found: value.describe(),
        })
    }
}

fn required<T>(key: &str, found: Result<Option<T>, GgufError>) -> Result<T, GgufError> {
    found?.ok_or_else(|| GgufError::Missing { key: key.to_owned() })
}

fn read_key<'a>(reader: &mut Reader<'a>, index: u64) -> Result<&'a str, GgufError> {
    let found = reader.u64("key length").map_err(GgufError::Truncated)?;
    let most = MAX_KEY_BYTES.min(reader.remaining());
    if found == 0 {
        return Err(GgufError::KeyEmpty { index });
    }
    if found > most {
        return Err(GgufError::KeyLength { index, found, most });
    }
    let bytes = reader.take("key", found).map_err(GgufError::Truncated)?;
    core::str::from_utf8(bytes).map_err(|_| GgufError::KeyUtf8 { index })
}

fn read_value<'a>(
    reader: &mut Reader<'a>,
    key: &str,
    limits: &Limits,
) -> Result<Value<'a>, GgufError> {
    let value_type = read_type(reader, key)?;
    let field = value_type.name();
    let value = match value_type {
        ValueType::Str => return read_string(reader, key, limits).map(Value::Str),
        ValueType::Array => return read_array(reader, key, limits).map(Value::Array),
        ValueType::U8 => reader.u8(field).map(Value::U8),
        ValueType::I8 => reader.u8(field).map(|v| Value::I8(v as i8)),
        ValueType::U16 => reader.u16(field).map(Value::U16),
        ValueType::I16 => reader.u16(field).map(|v| Value::I16(v as i16)),
        ValueType::U32 => reader.u32(field).map(Value::U32),
        ValueType::I32 => reader.u32(field).map(|v| Value::I32(v as i32)),
        ValueType::F32 => reader.f32(field).map(Value::F32),
        ValueType::U64 => reader.u64(field).map(Value::U64),
        ValueType::I64 => reader.u64(field).map(|v| Value::I64(v as i64)),
        ValueType::F64 => reader.u64(field).map(|v| Value::F64(f64::from_bits(v))),
        ValueType::Bool => match reader.u8(field) {
            Ok(found @ 2..) => return Err(GgufError::Bool { key: key.to_owned(), found }),
            other => other.map(|v| Value::Bool(v == 1)),
        },
    };
    value.map_err(GgufError::Truncated)
}

fn read_type(reader: &mut Reader<'_>, key: &str) -> Result<ValueType, GgufError> {
    let number = reader.u32("value type").map_err(GgufError::Truncated)?;
    ValueType::from_number(number)
        .ok_or_else(|| GgufError::ValueType { key: key.to_owned(), number })
}

fn read_string<'a>(
    reader: &mut Reader<'a>,
    key: &str,
    limits: &Limits,
) -> Result<&'a str, GgufError> {
    let found = reader.u64("string length").map_err(GgufError::Truncated)?;
    let most = limits.max_string_bytes.min(reader.remaining());
    if found > most {
        return Err(GgufError::StringLength { key: key.to_owned(), found, most });
    }
    let bytes = reader.take("string", found).map_err(GgufError::Truncated)?;
    core::str::from_utf8(bytes).map_err(|_| GgufError::StringUtf8 { key: key.to_owned() })
}

fn read_array<'a>(
    reader: &mut Reader<'a>,
    key: &str,
    limits: &Limits,
) -> Result<Array<'a>, GgufError> {
    let element = read_type(reader, key)?;
    if element == ValueType::Array {
        return Err(GgufError::NestedArray { key: key.to_owned() });
    }
    let found = reader.u64("array length").map_err(GgufError::Truncated)?;
    let most = limits.max_array_len.min(reader.remaining() / element.min_bytes());
    if found > most {
        return Err(GgufError::ArrayLength { key: key.to_owned(), found, most });
    }
    if element == ValueType::Str {
        return (0..found)
            .map(|_| read_string(reader, key, limits))
            .collect::<Result<_, _>>()
            .map(Array::Str);
    }
    // `found` is at most remaining / element size, so the product is at most remaining.
    let bytes = reader.take("array", found * element.min_bytes()).map_err(GgufError::Truncated)?;
    if element == ValueType::Bool
        && let Some(&found) = bytes.iter().find(|&&byte| byte > 1)
    {
        return Err(GgufError::Bool { key: key.to_owned(), found });
    }
    Ok(Array::Numbers { element, bytes: Cow::Borrowed(bytes) })
}
