//! The committed vectors are what the reference pass computes today.

use slm_golden::TINY_Q8_0;
use slm_golden::vectors::{TINY_Q8_0_F32, TINY_Q8_0_INT8, compute, format, parse, real_models};

fn check(committed: &str, int8: bool) {
    let computed = compute(TINY_Q8_0, int8);
    let parsed = parse(committed);
    for (committed, computed) in parsed.vectors.iter().zip(&computed.vectors) {
        assert_eq!(committed, computed);
    }
    assert_eq!(committed, format(&computed), "the file's text");
    assert_eq!(parsed.vectors.len(), 8);
}

#[test]
fn int8() {
    check(TINY_Q8_0_INT8, true);
}

#[test]
fn f32() {
    check(TINY_Q8_0_F32, false);
}

/// Every vector has its own digest: no stack, prompt or mode is without effect.
#[test]
fn vectors_differ() {
    let mut digests: Vec<String> = [TINY_Q8_0_INT8, TINY_Q8_0_F32]
        .iter()
        .flat_map(|text| parse(text).vectors)
        .map(|vector| vector.all_blake3)
        .collect();
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), 16);
}

/// Without the models' files only the records' own form can be checked: whole, and long enough to fill a chunk of 64.
#[test]
fn records_of_the_real_models_are_whole() {
    let mut records = real_models().records;
    for record in &records {
        assert!(record.tokens.len() > 70, "{}", record.name);
        for digest in [&record.gguf_blake3, &record.all_blake3] {
            let is_hex = |c: char| c.is_ascii_hexdigit() && !c.is_ascii_uppercase();
            assert!(digest.len() == 64 && digest.chars().all(is_hex), "{}", record.name);
        }
    }
    records.dedup_by(|a, b| a.all_blake3 == b.all_blake3);
    assert_eq!(records.len(), 3);
}
