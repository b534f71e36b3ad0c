//! Golden transcripts of what is refused, by what is wrong. `codes` holds them against the list of all codes.
//!
//! Each file that is refused differs in one thing from a twin that is accepted, and the transcript has both.

#[path = "../../../../slm-runtime/tests/common/bend.rs"]
#[allow(dead_code, unreachable_pub, reason = "the runtime's tests use the rest")]
mod bend;

mod adapters;
mod bake;
mod codes;
mod containers;
mod gguf;
mod manifests;
mod models;
mod packages;
mod requests;
mod safetensors;
mod slm1;
mod store;
mod tokenizers;
mod trust;

use slm_format::Limits;

use crate::common::Place;
use crate::transcript::Transcript;

const LIMITS: Limits = Limits::STANDARD;

/// A whole llama model of one layer in 41 kB, made by the project's own corpus writer.
const VALID: &[u8] = include_bytes!("../../../../slm-format/tests/data/hostile/gguf/valid.gguf");

/// A store, and the transcript of what is imported into it.
struct Imports<'a> {
    place: &'a Place,
    transcript: Transcript<'a>,
}

impl Imports<'_> {
    fn new(place: &Place) -> Imports<'_> {
        Imports { place, transcript: Transcript::new(place) }
    }

    /// A file that is a model.
    fn accepted(&mut self, file: &str, bytes: &[u8]) {
        let path = self.place.write(file, bytes);
        self.transcript.accepted(&["import", &path, "--name", "x", "--replace"]);
    }

    /// A file that is none, called by what is wrong with it.
    fn refused(&mut self, file: &str, bytes: &[u8]) {
        let path = self.place.write(file, bytes);
        self.transcript.refused(3, &["import", &path, "--name", "y"]);
    }

    fn finish(self) -> String {
        self.transcript.finish()
    }
}

/// Bytes with some of them others.
fn with(bytes: &[u8], at: usize, change: &[u8]) -> Vec<u8> {
    let mut bent = bytes.to_vec();
    bent[at..at + change.len()].copy_from_slice(change);
    assert_ne!(bent, bytes, "byte {at} is changed");
    bent
}

/// Where `part` first stands in `bytes`.
fn find(bytes: &[u8], part: &[u8]) -> usize {
    let found = bytes.windows(part.len()).position(|window| window == part);
    found.unwrap_or_else(|| panic!("no {}", String::from_utf8_lossy(part)))
}
