//! The only `unsafe` of this crate: mapping a blob into memory.

use core::ops::Range;
use std::fs::File;
use std::io;

use memmap2::{Mmap, MmapOptions};

/// Maps the whole of `file`, read-only.
///
/// What keeps the bytes of a blob still is the rule that `FsStorage` enforces: only files under `blobs/` are mapped; a file gets there by
/// a rename, after it was sealed read-only, which consumes the one handle that could write to it; no call opens it for writing again; and
/// replacing or removing its name leaves the mapped file alone. Another program that writes to or cuts a blob in place, against its file
/// mode, breaks that rule: reads may then see other bytes, or the system may end the process with a bus error. For a file outside a
/// store, mapped by `map_file`, nothing but the caller's word keeps the bytes still.
#[expect(unsafe_code, reason = "mapping a file cannot be done in safe code")]
pub(super) fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the file is opened read-only and, as a published blob or by the word of `map_file`'s caller, is not written to; see above.
    unsafe { MmapOptions::new().map(file) }
}

/// Tells the system that the pages of `range` are not needed now. Whoever reads them again gets the file's bytes again.
#[cfg(unix)]
#[expect(
    unsafe_code,
    reason = "the advice is unsafe for mappings that may hold changed pages; these cannot"
)]
pub(super) fn release(mapped: &Mmap, range: Range<usize>) {
    use memmap2::UncheckedAdvice;
    let Some(len) = range.end.min(mapped.len()).checked_sub(range.start) else { return };
    // SAFETY: the mapping is read-only and of a file, so no page holds anything but the file's bytes, and dropping one loses nothing.
    let told =
        unsafe { mapped.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, len) };
    // Advice that the system does not take costs memory, not correctness.
    let _ = told;
}
