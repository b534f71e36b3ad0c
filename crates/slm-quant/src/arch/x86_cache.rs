//! What the processor says of its caches.

use core::arch::x86_64::{__cpuid, __cpuid_count};

/// Intel's leaf of caches, and AMD's of the same form.
const LEAVES: [u32; 2] = [4, 0x8000_001d];

/// Bytes of the cache of the highest level; `None` where the processor, or whoever stands before it, does not say.
pub(crate) fn last_cache_bytes() -> Option<u64> {
    LEAVES.into_iter().filter(|&leaf| __cpuid(leaf & 0x8000_0000).eax >= leaf).find_map(largest)
}

fn largest(leaf: u32) -> Option<u64> {
    // Levels are few; a processor that never ends its list is not believed for ever.
    let described = (0..16).map(|n| __cpuid_count(leaf, n)).take_while(|cache| cache.eax & 31 != 0);
    let sized = described.map(|cache| {
        let level = cache.eax >> 5 & 7;
        let (ways, partitions) = (cache.ebx >> 22, cache.ebx >> 12 & 0x3ff);
        let (line, sets) = (cache.ebx & 0xfff, cache.ecx);
        let bytes = [ways, partitions, line, sets].iter().map(|&n| u64::from(n) + 1).product();
        (level, bytes)
    });
    sized.max_by_key(|&(level, _)| level).map(|(_, bytes)| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_cache_is_no_smaller_than_a_first_one_and_no_larger_than_any_ever_built() {
        if let Some(bytes) = last_cache_bytes() {
            assert!((16 << 10..4 << 30).contains(&bytes), "{bytes}");
        }
    }
}
