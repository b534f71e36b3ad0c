//! The seeds hold, each with the verdict it is named for; and the generators reach what they are for.

use std::collections::BTreeSet;
use std::path::Path;

use slm_oracle::Verdict;

/// A target's name, its properties, its verdict on a file, and its verdict on a bent recipe.
type Target = (&'static str, fn(&[u8]), fn(&[u8]) -> Verdict, fn(&[u8]) -> Verdict);

const TARGETS: [Target; 6] = [
    ("gguf", slm_oracle::gguf, slm_oracle::gguf_file, slm_oracle::gguf_recipe),
    ("container", slm_oracle::container, slm_oracle::container_file, slm_oracle::container_recipe),
    ("manifest", slm_oracle::manifest, slm_oracle::manifest_file, slm_oracle::manifest_recipe),
    ("adapter", slm_oracle::adapter, slm_oracle::adapter_file, slm_oracle::adapter_recipe),
    ("slm1", slm_oracle::slm1, slm_oracle::slm1_file, slm_oracle::slm1_recipe),
    ("peft", slm_oracle::peft, slm_oracle::peft_file, slm_oracle::peft_recipe),
];

#[test]
fn every_seed_has_the_verdict_of_its_name() {
    for (target, properties, file, _) in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../seeds").join(target);
        let mut seen = 0;
        for entry in std::fs::read_dir(&folder).expect("every target has seeds") {
            let path = entry.expect("a readable folder").path();
            let stem = path.file_stem().expect("a seed has a name").to_string_lossy().into_owned();
            let bytes = std::fs::read(&path).expect("a readable seed");
            properties(&bytes);
            match file(&bytes) {
                Verdict::Accepted => {
                    assert!(stem.starts_with("ok_"), "{target}/{stem} was accepted")
                }
                Verdict::Refused(code) => assert_eq!(code, stem, "{target}"),
            }
            seen += 1;
        }
        assert!(seen >= 4, "{target} has only {seen} seeds");
    }
}

#[test]
fn the_generators_reach_acceptance_and_many_refusals() {
    for (target, properties, _, recipe) in TARGETS {
        let mut codes = BTreeSet::new();
        let mut accepted = 0;
        for number in 0..400 {
            let bytes = painted(number);
            properties(&bytes);
            match recipe(&bytes) {
                Verdict::Accepted => accepted += 1,
                Verdict::Refused(code) => {
                    codes.insert(code);
                }
            }
        }
        println!("{target}: {accepted} of 400 bent files accepted, refusals {codes:?}");
        assert!(accepted > 0, "{target}: no bent file was accepted");
        assert!(codes.len() >= 4, "{target}: only {codes:?}");
    }
}

#[test]
fn the_empty_recipe_makes_a_valid_file() {
    for (_, properties, ..) in TARGETS {
        properties(&[]);
    }
}

/// 300 bytes unlike those of any other number.
fn painted(number: u64) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bf0_3635_f0a5_2d41;
    (0..300)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}
