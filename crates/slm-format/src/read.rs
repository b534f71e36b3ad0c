//! The one place where bytes become integers.

use crate::error::Coded;

/// A cursor over bytes that cannot pass their end.
///
/// ```
/// use slm_format::Reader;
///
/// let mut reader = Reader::new(&[1, 0, 0, 0, 7]);
/// assert_eq!(reader.u32("version").unwrap(), 1);
/// assert_eq!(reader.remaining(), 1);
/// assert!(reader.u32("count").is_err());
/// ```
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// A read that the bytes could not satisfy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Fewer bytes are left than the field needs.
    #[error("{field} at byte {at} needs {needed} bytes, {left} are left")]
    Truncated {
        /// What was being read.
        field: &'static str,
        /// Offset of the field.
        at: u64,
        /// Bytes the field needs.
        needed: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// A count or a length is over its limit.
    #[error("{field} at byte {at} is {found}, the limit is {limit}")]
    TooLarge {
        /// What was being read.
        field: &'static str,
        /// Offset of the field.
        at: u64,
        /// The value found.
        found: u64,
        /// The largest value allowed.
        limit: u64,
    },
    /// Text is not UTF-8.
    #[error("{field} at byte {at} is not UTF-8")]
    NotUtf8 {
        /// What was being read.
        field: &'static str,
        /// Offset of the text.
        at: u64,
    },
    /// Bytes follow where the value should end.
    #[error("{count} bytes follow the end at byte {at}")]
    Trailing {
        /// Offset of the first byte too many.
        at: u64,
        /// How many there are.
        count: u64,
    },
}

impl Coded for ReadError {
    fn code(&self) -> &'static str {
        match self {
            ReadError::Truncated { .. } => "truncated",
            ReadError::TooLarge { .. } => "limit-exceeded",
            ReadError::NotUtf8 { .. } => "not-utf8",
            ReadError::Trailing { .. } => "trailing-bytes",
        }
    }
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    /// Offset of the next byte.
    pub fn position(&self) -> u64 {
        self.at as u64
    }

    /// Bytes that are left.
    pub fn remaining(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// [`ReadError::Truncated`] when fewer are left; the position then stays.
    pub fn take(&mut self, field: &'static str, len: u64) -> Result<&'a [u8], ReadError> {
        let end = usize::try_from(len)
            .ok()
            .and_then(|len| self.at.checked_add(len))
            .filter(|&end| end <= self.bytes.len())
            .ok_or(ReadError::Truncated {
                field,
                at: self.position(),
                needed: len,
                left: self.remaining(),
            })?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// The next `N` bytes as an array.
    ///
    /// # Errors
    /// [`ReadError::Truncated`].
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], ReadError> {
        let taken = self.take(field, N as u64)?;
        Ok(taken.try_into().expect("BUG: take returned another length"))
    }

    /// The next byte. Errors as [`Reader::take`].
    pub fn u8(&mut self, field: &'static str) -> Result<u8, ReadError> {
        Ok(self.array::<1>(field)?[0])
    }

    /// The next little-endian u16. Errors as [`Reader::take`].
    pub fn u16(&mut self, field: &'static str) -> Result<u16, ReadError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    /// The next little-endian u32. Errors as [`Reader::take`].
    pub fn u32(&mut self, field: &'static str) -> Result<u32, ReadError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    /// The next little-endian u64. Errors as [`Reader::take`].
    pub fn u64(&mut self, field: &'static str) -> Result<u64, ReadError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// The next little-endian f32, any bit pattern. Errors as [`Reader::take`].
    pub fn f32(&mut self, field: &'static str) -> Result<f32, ReadError> {
        Ok(f32::from_le_bytes(self.array(field)?))
    }

    /// A u64 count of items of at least `item_bytes` each, compared with `limit` and with the bytes left before anyone reserves memory for it.
    ///
    /// # Errors
    /// [`ReadError::TooLarge`] over the limit, [`ReadError::Truncated`] where the rest of the file could not hold so many.
    pub fn count(
        &mut self,
        field: &'static str,
        limit: u64,
        item_bytes: u64,
    ) -> Result<usize, ReadError> {
        let at = self.position();
        let found = self.u64(field)?;
        if found > limit {
            return Err(ReadError::TooLarge { field, at, found, limit });
        }
        let needed = found.saturating_mul(item_bytes);
        if needed > self.remaining() {
            return Err(ReadError::Truncated { field, at, needed, left: self.remaining() });
        }
        usize::try_from(found).map_err(|_| ReadError::TooLarge {
            field,
            at,
            found,
            limit: usize::MAX as u64,
        })
    }

    /// A UTF-8 string with a u64 length in front of it.
    ///
    /// # Errors
    /// [`ReadError::TooLarge`], [`ReadError::Truncated`] or [`ReadError::NotUtf8`].
    pub fn string(&mut self, field: &'static str, limit: u64) -> Result<&'a str, ReadError> {
        let len = self.count(field, limit, 1)?;
        let at = self.position();
        core::str::from_utf8(self.take(field, len as u64)?)
            .map_err(|_| ReadError::NotUtf8 { field, at })
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// [`ReadError::Trailing`] when bytes are left.
    pub fn finish(self) -> Result<(), ReadError> {
        match self.remaining() {
            0 => Ok(()),
            count => Err(ReadError::Trailing { at: self.position(), count }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_never_reserve_before_they_are_compared() {
        let bytes = u64::MAX.to_le_bytes();
        assert_eq!(Reader::new(&bytes).count("n", 10, 1).unwrap_err().code(), "limit-exceeded");
        assert_eq!(Reader::new(&bytes).count("n", u64::MAX, 8).unwrap_err().code(), "truncated");
        assert_eq!(Reader::new(&bytes).string("s", u64::MAX).unwrap_err().code(), "truncated");
    }

    #[test]
    fn take_keeps_its_place_on_error() {
        let mut reader = Reader::new(&[1, 2, 3]);
        assert!(reader.u32("x").is_err());
        assert_eq!(reader.u16("y").unwrap(), 0x0201);
        assert_eq!(reader.clone().finish().unwrap_err(), ReadError::Trailing { at: 2, count: 1 });
        assert_eq!(reader.u8("z").unwrap(), 3);
        assert_eq!(reader.finish(), Ok(()));
    }
}
