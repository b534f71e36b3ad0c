//! Bytes as choices.

/// A source of choices. When the bytes run out, every further choice is the first one.
pub(crate) struct Recipe<'a> {
    bytes: &'a [u8],
}

impl<'a> Recipe<'a> {
    /// All choices that `bytes` hold.
    pub(crate) fn new(bytes: &'a [u8]) -> Recipe<'a> {
        Recipe { bytes }
    }

    /// The next byte.
    pub(crate) fn byte(&mut self) -> u8 {
        let (first, rest) = self.bytes.split_first().unwrap_or((&0, &[]));
        self.bytes = rest;
        *first
    }

    /// The next eight bytes.
    pub(crate) fn u64(&mut self) -> u64 {
        (0..8).fold(0, |value, _| value << 8 | u64::from(self.byte()))
    }

    /// A number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let choice = usize::from(self.byte()) << 8 | usize::from(self.byte());
        choice % end
    }

    /// One of these.
    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// True about once in `n` times; never when the bytes have run out.
    pub(crate) fn rarely(&mut self, n: u8) -> bool {
        let byte = self.byte();
        byte % n == n - 1
    }

    /// `len` bytes that look unlike each other, from one seed byte.
    pub(crate) fn paint(&mut self, len: usize) -> Vec<u8> {
        let mut state = u32::from(self.byte()).wrapping_mul(0x9e37_79b9) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 24) as u8
        };
        (0..len).map(|_| next()).collect()
    }
}
