//! The only `unsafe` of this crate: mapping a blob into memory.

use std::fs::File;
use std::io;

use memmap2::{Mmap, MmapOptions};

/// Maps the whole of `file`, read-only.
///
/// What keeps the bytes still is the store's own rule: a file is mapped only under its final name, where it arrives by a rename after
/// its last write; no code of this crate opens a published blob for writing; replacing or removing one leaves the mapped file alone.
/// Another program that writes to or cuts a blob in place, against its file mode, breaks that rule: reads may then see other bytes, or
/// the system may end the process with a bus error.
#[expect(unsafe_code, reason = "mapping a file cannot be done in safe code")]
pub(super) fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the file is a published blob or a slot's sibling opened read-only, which no code of this crate writes to; see above.
    unsafe { MmapOptions::new().map(file) }
}
