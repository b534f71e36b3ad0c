//! Binary LoRA files with one bad field: the code of each, and a twin, equal but for that field, that is accepted, bound to the tiny model and run.

mod common;

use std::sync::Arc;

use common::{Bits, LIMITS, bits_of, composition, tiny};
use slm_format::{Coded, ContentHash};
use slm_overlay::binary::{Compact, Layout, LoraAdapter};
use slm_overlay::{Adapter, OverlayError};
use slm_runtime::Composition;

fn golden(file: &str) -> Vec<u8> {
    let path = slm_golden::path("files/lora-binary").join(file);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Plan 008's content begins behind its checksum, in front of which the version stands outside of it.
fn plan008(at: usize, bytes: &[u8]) -> Result<Adapter, OverlayError> {
    let mut file = golden("plan008.lora");
    file[at..at + bytes.len()].copy_from_slice(bytes);
    let hash = ContentHash::of(&file[40..]).to_bytes();
    file[8..40].copy_from_slice(&hash);
    let layout = Layout::parse(&golden("plan008.layout.json"))?;
    layout.to_adapter(&LoraAdapter::load(&file, &LIMITS)?, &tiny().shape())
}

/// A compact file ends with the checksum of everything.
fn compact(at: usize, bytes: &[u8]) -> Result<Adapter, OverlayError> {
    let mut file = golden("compact.lora");
    let end = file.len() - 32;
    file[at..at + bytes.len()].copy_from_slice(bytes);
    let hash = ContentHash::of(&file[..end]).to_bytes();
    file[end..].copy_from_slice(&hash);
    Compact::load(&file, &LIMITS)?.to_adapter(&tiny().shape())
}

fn run(adapter: Adapter) -> Bits {
    let base = tiny();
    let bound = Arc::new(adapter).bind(base.id(), &base.shape()).expect("a binding");
    let stack = vec![("x".to_owned(), Arc::new(bound), 1.0)];
    bits_of(&Arc::new(Composition::new(base, stack).expect("a composition")))
}

/// Sets the field to what is refused, and to what the file has.
fn pair_of(
    file: fn(usize, &[u8]) -> Result<Adapter, OverlayError>,
    (code, at, bad, good): (&str, usize, &[u8], &[u8]),
    plain: &Bits,
) {
    let refused = file(at, bad).map(|_| ()).expect_err(code);
    assert_eq!(refused.code(), code, "{refused}");
    let twin = run(file(at, good).expect("the twin"));
    assert!(twin == *plain, "{code}: the twin is the file as it was");
}

#[test]
fn twins_are_run() {
    let base = bits_of(&composition(&tiny(), &[]));
    let whole: [fn(usize, &[u8]) -> _; 2] = [plan008, compact];
    let [of_plan008, of_compact] = whole.map(|file| run(file(0, b"LORA").expect("a file")));
    assert_ne!(of_plan008.last, base.last, "the adapter does something");
    assert_ne!(of_compact.last, base.last, "the adapter does something");

    // The file's own rank is 4, its alpha 6, its pairs 4; the first maps 256 inputs to 128 outputs.
    let (nan, first) = (f32::NAN.to_le_bytes(), golden("plan008.lora")[60..64].to_vec());
    for case in [
        ("lora-binary-magic", 0, &b"LORB"[..], &b"LORA"[..]),
        ("lora-binary-big-endian", 4, &[0, 0, 0, 1], &[1, 0, 0, 0]),
        ("lora-binary-version", 4, &[2, 0, 0, 0], &[1, 0, 0, 0]),
        ("lora-binary-empty", 40, &[0; 4], &[4, 0, 0, 0]),
        ("truncated", 40, &[5, 0, 0, 0], &[4, 0, 0, 0]),
        ("lora-binary-count", 40, &[0xff; 4], &[4, 0, 0, 0]),
        ("lora-binary-rank-zero", 44, &[0; 4], &[4, 0, 0, 0]),
        ("lora-binary-alpha", 48, &nan, &6f32.to_le_bytes()),
        ("lora-binary-zero-dimension", 52, &[0; 4], &[0, 1, 0, 0]),
        ("lora-binary-dimensions", 56, &[0xff; 4], &[128, 0, 0, 0]),
        ("lora-binary-non-finite", 60, &nan, &first),
    ] {
        pair_of(plan008, case, &of_plan008);
    }
    let file = golden("compact.lora");
    for (code, at, bad) in [
        ("lora-binary-magic", 0, &b"LORB"[..]),
        ("lora-binary-version", 4, &[2]),
        ("lora-binary-rank-zero", 5, &[0, 0]),
        ("lora-binary-empty", 7, &[0, 0]),
        ("lora-binary-empty", 9, &[0, 0]),
        ("lora-binary-target-id", 11, &[7, 0]),
    ] {
        pair_of(compact, (code, at, bad, &file[at..at + bad.len()]), &of_compact);
    }
}
