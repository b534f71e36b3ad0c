//! What the processor says of its caches, and what is known of how it likes to be used: that changes times, never bits.

use core::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};
use std::sync::OnceLock;

/// How far ahead of its loads a lone token's product asks for weights that no cache has: 4 and 16 KiB were slower.
pub(super) const WEIGHTS_AHEAD: usize = 8 << 10;

/// AMD's family of Zen 3 and Zen 4; of these the latter has vectors of 512 bits.
const ZEN_4: u32 = 25;
/// AMD's family that begins with Zen 5.
const ZEN_5: u32 = 26;

/// Whether a run of addresses in memory is read faster when its lines are asked for one by one. So it is on Zen 5; Zen 4 follows a run by itself, and
/// such requests held it up (`docs/performance.md`). Later families of AMD's are taken to be like
/// Zen 5; other makers' were not measured and are left alone.
pub(super) fn runs_are_asked_for() -> bool {
    amd_family().is_some_and(|family| family >= ZEN_5)
}

/// Whether f16 is widened faster eight at a time than sixteen: Zen 4 computes vectors of 512 bits in halves. Only Zen 4 and Zen 5
/// were measured.
pub(super) fn widens_in_halves() -> bool {
    amd_family() == Some(ZEN_4)
}

/// Asked for once: it takes microseconds on a virtual machine.
fn amd_family() -> Option<u32> {
    static FAMILY: OnceLock<Option<u32>> = OnceLock::new();
    *FAMILY.get_or_init(|| is_amd(__cpuid(0)).then(|| family(__cpuid(1))))
}

fn is_amd(leaf_0: CpuidResult) -> bool {
    let CpuidResult { ebx, ecx, edx, .. } = leaf_0;
    [ebx, edx, ecx] == [*b"Auth", *b"enti", *b"cAMD"].map(u32::from_le_bytes)
}

fn family(leaf_1: CpuidResult) -> u32 {
    match leaf_1.eax >> 8 & 15 {
        15 => 15 + (leaf_1.eax >> 20 & 0xff),
        family => family,
    }
}

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
    fn families_are_told_apart() {
        let eax = |eax| CpuidResult { eax, ebx: 0, ecx: 0, edx: 0 };
        // Turin, Genoa, a Haswell.
        assert_eq!([0x00b0_0f21, 0x00a1_0f11, 0x0003_06c3].map(|n| family(eax(n))), [26, 25, 6]);
        let vendor = |text: &[u8; 12]| {
            let [ebx, edx, ecx] =
                [0, 4, 8].map(|at| u32::from_le_bytes(text[at..at + 4].try_into().unwrap()));
            is_amd(CpuidResult { eax: 13, ebx, ecx, edx })
        };
        assert!(vendor(b"AuthenticAMD") && !vendor(b"GenuineIntel"));
    }

    #[test]
    fn this_machine_s_is_no_smaller_than_a_first_one_and_no_larger_than_any_ever_built() {
        if let Some(bytes) = last_cache_bytes() {
            assert!((16 << 10..4 << 30).contains(&bytes), "{bytes}");
        }
    }
}
