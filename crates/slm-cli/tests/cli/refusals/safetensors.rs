//! safetensors files whose header is wrong in one thing, as `inspect` reads them.

use crate::common::Place;
use crate::transcript::Transcript;

/// What every bent header is made of.
const GOOD: &str = r#"{"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]}}"#;

fn file(header: &str) -> Vec<u8> {
    let len = (header.len() as u64).to_le_bytes();
    [len.as_slice(), header.as_bytes(), &[0; 12]].concat()
}

#[test]
fn one_wrong_field() {
    let place = Place::new();
    let mut transcript = Transcript::new(&place);
    let good = place.write("good.safetensors", file(GOOD));
    transcript.accepted(&["inspect", &good]);
    for (name, from, to) in [
        ("key-twice", r#""k":"v""#, r#""k":"v","k":"w""#),
        ("tensor-twice", r#""b":{"#, r#""a":{"#),
        ("dtype-q4", r#""BF16""#, r#""Q4_0""#),
        ("negative-shape", r#""shape":[2]"#, r#""shape":[-2]"#),
        ("five-dimensions", "[2]", "[2,1,1,1,1]"),
        ("shape-of-3", "[2]", "[3]"),
        ("gap", "[8,12]", "[9,12]"),
    ] {
        let bent = GOOD.replacen(from, to, 1);
        assert_ne!(bent, GOOD, "{from}");
        let path = place.write(&format!("{name}.safetensors"), file(&bent));
        transcript.refused(3, &["inspect", &path]);
    }
    let gap = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}"#;
    for (name, bytes) in [
        ("bytes-of-no-tensor", file(gap)),
        ("bytes-at-the-end", [&file(GOOD)[..], &[0]].concat()),
        ("pointer", b"version https://git-lfs.github.com/spec/v1\n".to_vec()),
    ] {
        let path = place.write(&format!("{name}.safetensors"), bytes);
        transcript.refused(3, &["inspect", &path]);
    }
    let entry = |n: usize| format!(r#""{n}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#);
    let many: Vec<String> = (0..=65_536).map(entry).collect();
    let path = place.write("many.safetensors", file(&format!("{{{}}}", many.join(","))));
    transcript.refused(3, &["inspect", &path]);
    insta::assert_snapshot!(transcript.finish());
}
