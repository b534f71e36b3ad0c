//! Metadata values as GGUF stores them.

use std::borrow::Cow;

/// The type of a metadata value, with GGUF's own numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ValueType {
    /// Unsigned, 1 byte.
    U8 = 0,
    /// Signed, 1 byte.
    I8 = 1,
    /// Unsigned, 2 bytes.
    U16 = 2,
    /// Signed, 2 bytes.
    I16 = 3,
    /// Unsigned, 4 bytes.
    U32 = 4,
    /// Signed, 4 bytes.
    I32 = 5,
    /// IEEE binary32.
    F32 = 6,
    /// One byte, 0 or 1.
    Bool = 7,
    /// UTF-8 with a u64 length in front.
    Str = 8,
    /// Element type, u64 length, elements.
    Array = 9,
    /// Unsigned, 8 bytes.
    U64 = 10,
    /// Signed, 8 bytes.
    I64 = 11,
    /// IEEE binary64.
    F64 = 12,
}

/// (type, name, bytes of one value; strings count their length field and arrays their head, the least they take)
const TYPES: [(ValueType, &str, u64); 13] = [
    (ValueType::U8, "u8", 1),
    (ValueType::I8, "i8", 1),
    (ValueType::U16, "u16", 2),
    (ValueType::I16, "i16", 2),
    (ValueType::U32, "u32", 4),
    (ValueType::I32, "i32", 4),
    (ValueType::F32, "f32", 4),
    (ValueType::Bool, "bool", 1),
    (ValueType::Str, "string", 8),
    (ValueType::Array, "array", 12),
    (ValueType::U64, "u64", 8),
    (ValueType::I64, "i64", 8),
    (ValueType::F64, "f64", 8),
];

impl ValueType {
    /// The type with this number.
    pub fn from_number(number: u32) -> Option<ValueType> {
        TYPES.get(usize::try_from(number).ok()?).map(|row| row.0)
    }

    /// GGUF's number.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The name used in messages, for example `u32`.
    pub fn name(self) -> &'static str {
        TYPES[self as usize].1
    }

    /// Bytes of one value; for strings and arrays the least one takes.
    pub fn min_bytes(self) -> u64 {
        TYPES[self as usize].2
    }
}

/// A metadata value. Text and numeric arrays borrow from the file.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "each variant is the value type of the same name")]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(&'a str),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// A metadata array.
#[derive(Debug, Clone, PartialEq)]
pub enum Array<'a> {
    /// Strings.
    Str(Vec<&'a str>),
    /// Numbers or truth values as they are in the file: little-endian, one after the other.
    Numbers {
        /// The type of each element; never a string or an array.
        element: ValueType,
        /// `len · element.min_bytes()` bytes.
        bytes: Cow<'a, [u8]>,
    },
}

impl<'a> Value<'a> {
    /// The type of this value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::Str(_) => ValueType::Str,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// The value's type in words, for example `an array of f32`.
    pub fn describe(&self) -> String {
        match self {
            Value::Array(array) => format!("an array of {}", array.element().name()),
            other => {
                let name = other.value_type().name();
                let article = if name.starts_with(['i', 'f']) { "an" } else { "a" };
                format!("{article} {name}")
            }
        }
    }

    /// The value as an integer, whatever its width; `None` for anything else.
    pub fn as_integer(&self) -> Option<i128> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::I8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::U64(v) => Some(v.into()),
            Value::I64(v) => Some(v.into()),
            _ => None,
        }
    }

    /// An array of f32.
    pub fn f32_array(values: &[f32]) -> Value<'a> {
        Value::numbers(ValueType::F32, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// An array of i32.
    pub fn i32_array(values: &[i32]) -> Value<'a> {
        Value::numbers(ValueType::I32, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// An array of u32.
    pub fn u32_array(values: &[u32]) -> Value<'a> {
        Value::numbers(ValueType::U32, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// An array of strings.
    pub fn str_array(values: Vec<&'a str>) -> Value<'a> {
        Value::Array(Array::Str(values))
    }

    fn numbers(element: ValueType, bytes: Vec<u8>) -> Value<'a> {
        Value::Array(Array::Numbers { element, bytes: Cow::Owned(bytes) })
    }
}

impl Array<'_> {
    /// The type of the elements.
    pub fn element(&self) -> ValueType {
        match self {
            Array::Str(_) => ValueType::Str,
            Array::Numbers { element, .. } => *element,
        }
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        match self {
            Array::Str(strings) => strings.len(),
            Array::Numbers { element, bytes } => bytes.len() / element.min_bytes() as usize,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as integers, whatever their width; `None` unless the element type is one.
    pub fn integers(&self) -> Option<Vec<i128>> {
        let Array::Numbers { element, bytes } = self else { return None };
        let decode: fn(&[u8]) -> i128 = match element {
            ValueType::U8 => |b| b[0].into(),
            ValueType::I8 => |b| (b[0] as i8).into(),
            ValueType::U16 => |b| u16::from_le_bytes(exact(b)).into(),
            ValueType::I16 => |b| i16::from_le_bytes(exact(b)).into(),
            ValueType::U32 => |b| u32::from_le_bytes(exact(b)).into(),
            ValueType::I32 => |b| i32::from_le_bytes(exact(b)).into(),
            ValueType::U64 => |b| u64::from_le_bytes(exact(b)).into(),
            ValueType::I64 => |b| i64::from_le_bytes(exact(b)).into(),
            _ => return None,
        };
        Some(bytes.chunks_exact(element.min_bytes() as usize).map(decode).collect())
    }

    /// The elements as f32; `None` unless that is their type.
    pub fn floats(&self) -> Option<Vec<f32>> {
        match self {
            Array::Numbers { element: ValueType::F32, bytes } => {
                Some(bytes.chunks_exact(4).map(|b| f32::from_le_bytes(exact(b))).collect())
            }
            _ => None,
        }
    }

    /// The elements as truth values; `None` unless that is their type.
    pub fn bools(&self) -> Option<Vec<bool>> {
        match self {
            Array::Numbers { element: ValueType::Bool, bytes } => {
                Some(bytes.iter().map(|&b| b != 0).collect())
            }
            _ => None,
        }
    }
}

fn exact<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("BUG: a chunk has another length than its element type")
}
