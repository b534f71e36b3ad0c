//! One page: the rows of some positions, all layers, K and V.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use slm_manifest::{ExecutionId, KvType};

use crate::KvError;
use crate::geometry::value_bytes;

/// Rows that lie together, `[n, width]`, in the cache's type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KvRows<'a> {
    /// IEEE binary16 bits.
    F16(&'a [u16]),
    /// IEEE binary32.
    F32(&'a [f32]),
}

impl KvRows<'_> {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            KvRows::F16(values) => values.len(),
            KvRows::F32(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Storage of one page. Layer by layer, a block of K rows, then one of V rows, so that a layer's rows lie together.
#[derive(Debug)]
pub(crate) struct Page {
    execution: ExecutionId,
    values: Values,
}

#[derive(Debug)]
enum Values {
    F16(Box<[u16]>),
    F32(Box<[f32]>),
}

impl Page {
    /// A page of `len` zero values.
    pub(crate) fn new(
        execution: ExecutionId,
        kv_type: KvType,
        len: usize,
    ) -> Result<Page, KvError> {
        let out_of_memory = KvError::Memory { bytes: len as u64 * value_bytes(kv_type) };
        let values = match kv_type {
            KvType::F16 => zeroed(len, 0u16).map(Values::F16),
            KvType::F32 => zeroed(len, 0f32).map(Values::F32),
        };
        Ok(Page { execution, values: values.ok_or(out_of_memory)? })
    }

    /// The execution whose rows these are.
    pub(crate) fn execution(&self) -> ExecutionId {
        self.execution
    }

    /// Bytes of the rows.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.values {
            Values::F16(values) => size_of_val::<[u16]>(values) as u64,
            Values::F32(values) => size_of_val::<[f32]>(values) as u64,
        }
    }

    /// Writes `source` from value `at` on, rounded to the page's type; index of the first value that is not finite there, if any.
    pub(crate) fn write(&mut self, at: usize, source: &[f32]) -> Result<(), usize> {
        match &mut self.values {
            Values::F16(values) => {
                let target = &mut values[at..at + source.len()];
                target.reinterpret_cast_mut::<half::f16>().convert_from_f32_slice(source);
                // All ones in the exponent: infinity or NaN.
                first(target, |bits| bits & 0x7c00 == 0x7c00)
            }
            Values::F32(values) => {
                values[at..at + source.len()].copy_from_slice(source);
                first(source, |value| !value.is_finite())
            }
        }
    }

    /// Values `at .. at + len`.
    pub(crate) fn rows(&self, at: usize, len: usize) -> KvRows<'_> {
        match &self.values {
            Values::F16(values) => KvRows::F16(&values[at..at + len]),
            Values::F32(values) => KvRows::F32(&values[at..at + len]),
        }
    }
}

fn zeroed<T: Copy>(len: usize, zero: T) -> Option<Box<[T]>> {
    let mut values = Vec::new();
    values.try_reserve_exact(len).ok()?;
    values.resize(len, zero);
    Some(values.into_boxed_slice())
}

fn first<T: Copy>(values: &[T], bad: impl Fn(T) -> bool) -> Result<(), usize> {
    // The whole row is folded before the search: a loop without an exit is one that compilers turn into vectors.
    match values.iter().fold(false, |any, &value| any | bad(value)) {
        false => Ok(()),
        true => Err(values
            .iter()
            .position(|&value| bad(value))
            .expect("BUG: a value was bad and is not")),
    }
}
