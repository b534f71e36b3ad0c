//! Memory that kernels read fast.

/// Bytes whose first one stands at a multiple of 64, so that no load of an interleaved matrix straddles two cache lines without need, and
/// that lie in huge pages where the system has them.
///
/// Kernels accept any memory; this is for whoever keeps weights. A product reads each of its bytes once: with pages of 4 KiB the walk
/// through the page tables, once every 64 cache lines, costs more than a quarter of the time.
#[derive(Debug)]
pub struct AlignedBytes {
    memory: Memory,
    start: usize,
    len: usize,
}

#[derive(Debug)]
enum Memory {
    Heap(Vec<u8>),
    #[cfg(all(target_os = "linux", feature = "huge-pages"))]
    Pages(memmap2::MmapMut),
}

impl Memory {
    #[inline]
    fn all(&self) -> &[u8] {
        match self {
            Memory::Heap(buffer) => buffer.as_slice(),
            #[cfg(all(target_os = "linux", feature = "huge-pages"))]
            Memory::Pages(pages) => pages.as_ref(),
        }
    }

    fn all_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Heap(buffer) => buffer.as_mut_slice(),
            #[cfg(all(target_os = "linux", feature = "huge-pages"))]
            Memory::Pages(pages) => pages.as_mut(),
        }
    }
}

/// A huge page of the systems that have them.
#[cfg(all(target_os = "linux", feature = "huge-pages"))]
const HUGE_PAGE: usize = 2 << 20;

impl AlignedBytes {
    /// `len` zeros. Allocates up to 63 bytes more, and where they are to lie in huge pages (from 1 MiB on) up to 4 MiB more of address space,
    /// of which less than 2 MiB is ever touched.
    pub fn zeroed(len: usize) -> AlignedBytes {
        #[cfg(all(target_os = "linux", feature = "huge-pages"))]
        if let Some(bytes) = huge(len) {
            return bytes;
        }
        let buffer = vec![0u8; len + 63];
        // `align_offset` may decline to answer; alignment is only a matter of speed.
        let start = Some(buffer.as_ptr().align_offset(64)).filter(|&start| start < 64).unwrap_or(0);
        AlignedBytes { memory: Memory::Heap(buffer), start, len }
    }
}

/// A mapping of its own, advised to use huge pages; `None` when it is not worth it or the system declines.
#[cfg(all(target_os = "linux", feature = "huge-pages"))]
fn huge(len: usize) -> Option<AlignedBytes> {
    if len < HUGE_PAGE / 2 {
        return None;
    }
    let mapped = len.checked_next_multiple_of(HUGE_PAGE)?.checked_add(HUGE_PAGE)?;
    let pages = memmap2::MmapMut::map_anon(mapped).ok()?;
    // A system without huge pages says so; the memory is as good as any other.
    let _ = pages.advise(memmap2::Advice::HugePage);
    let start = Some(pages.as_ptr().align_offset(HUGE_PAGE)).filter(|&start| start < HUGE_PAGE);
    Some(AlignedBytes { memory: Memory::Pages(pages), start: start.unwrap_or(0), len })
}

impl core::ops::Deref for AlignedBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.memory.all()[self.start..][..self.len]
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl core::ops::DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory.all_mut()[self.start..][..self.len]
    }
}

/// Bytes of the cache of the highest level that the core has which asks: cores may share it, and a machine may have several. `None` where the
/// processor does not say, and always where it is no x86. For whoever must guess what will still be in it
/// ([`QMatrix::read_once`](crate::QMatrix::read_once)); asks the processor each time, which takes microseconds on a virtual machine.
///
/// ```
/// assert!(slm_quant::last_cache_bytes().is_none_or(|bytes| bytes > 0));
/// ```
pub fn last_cache_bytes() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    return crate::arch::x86_cpu::last_cache_bytes();
    #[cfg(not(target_arch = "x86_64"))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_buffers_are_zero_aligned_and_as_long_as_asked() {
        for len in [0, 1, 63, 4096, (1 << 20) - 1, 1 << 20, (5 << 20) + 7] {
            let mut bytes = AlignedBytes::zeroed(len);
            assert_eq!(bytes.len(), len);
            assert!(bytes.iter().all(|&byte| byte == 0), "{len}");
            assert!(bytes.as_ptr().addr().is_multiple_of(64), "{len}");
            bytes.fill(7);
            assert!(bytes.iter().all(|&byte| byte == 7), "{len}");
        }
    }
}
