//! How many bytes went to a writer.

use std::io::{self, Write};

/// Counts what passes through.
pub(crate) struct Counted<'w> {
    pub(crate) out: &'w mut dyn Write,
    pub(crate) written: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
