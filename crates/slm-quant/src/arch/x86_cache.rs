//! What the processor says of its caches.

use core::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};

/// Intel's leaf of caches, and AMD's of the same form.
const LEAVES: [u32; 2] = [4, 0x8000_001d];

/// Bytes of the cache of the highest level; `None` where the processor, or whoever stands before it, does not say.
pub(crate) fn last_cache_bytes() -> Option<u64> {
    LEAVES.into_iter().filter(|&leaf| __cpuid(leaf & 0x8000_0000).eax >= leaf).find_map(|leaf| {
        // Levels are few; a processor that never ends its list is not believed for ever.
        largest((0..16).map(|n| __cpuid_count(leaf, n)))
    })
}

/// Of the caches up to the end of the list, the one of the highest level.
fn largest(caches: impl Iterator<Item = CpuidResult>) -> Option<u64> {
    let described = caches.take_while(|cache| cache.eax & 31 != 0);
    let last = described.max_by_key(|cache| cache.eax >> 5 & 7)?;
    let (ways, partitions) = (last.ebx >> 22, last.ebx >> 12 & 0x3ff);
    let (line, sets) = (last.ebx & 0xfff, last.ecx);
    // Each is one less than what it counts.
    [ways, partitions, line, sets]
        .iter()
        .try_fold(1u64, |bytes, &field| bytes.checked_mul(u64::from(field) + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(level: u32, ways: u32, line: u32, sets: u32) -> CpuidResult {
        // A unified cache, of one partition.
        let (eax, ebx) = (level << 5 | 3, (ways - 1) << 22 | (line - 1));
        CpuidResult { eax, ebx, ecx: sets - 1, edx: 0 }
    }

    const END: CpuidResult = CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };

    #[test]
    fn the_highest_level_before_the_end_of_the_list_counts() {
        let caches = [cache(1, 8, 64, 64), cache(3, 16, 64, 32768), cache(2, 8, 64, 2048), END];
        assert_eq!(largest(caches.into_iter()), Some(32 << 20));
        let ended = [cache(1, 8, 64, 64), END, cache(3, 16, 64, 32768)];
        assert_eq!(largest(ended.into_iter()), Some(32 << 10));
    }

    #[test]
    fn a_list_of_nothing_and_a_size_beyond_all_numbers_say_nothing() {
        assert_eq!(largest([END].into_iter()), None);
        let ones = CpuidResult { eax: !0, ebx: !0, ecx: !0, edx: !0 };
        assert_eq!(largest([ones].into_iter()), None);
    }

    #[test]
    fn this_machine_s_is_no_smaller_than_a_first_one_and_no_larger_than_any_ever_built() {
        if let Some(bytes) = last_cache_bytes() {
            assert!((16 << 10..4 << 30).contains(&bytes), "{bytes}");
        }
    }
}
