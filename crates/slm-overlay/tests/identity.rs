//! The identity of an adapter, and its `.slm` file.

mod common;

use common::{config, file, qv_tensors, resolve, weights, with};
use slm_format::container::{Container, ContainerWriter, SectionKind};
use slm_format::{Coded, Digest, Encoding, Limits};
use slm_overlay::{Adapter, OverlayError, SourceDigest};

fn lora_qv() -> Adapter {
    resolve(&config("lora-qv"), &weights("lora-qv")).unwrap().0
}

fn sources() -> Vec<SourceDigest> {
    vec![SourceDigest { name: "adapter_config.json".into(), digest: Digest::of(b"a file") }]
}

fn written(adapter: &Adapter) -> Vec<u8> {
    let mut out = Vec::new();
    adapter.write_to(&mut out).unwrap();
    out
}

fn read(bytes: &[u8]) -> Result<Adapter, OverlayError> {
    Adapter::read(&Container::open(bytes, &Limits::STANDARD)?, &Limits::STANDARD)
}

#[test]
fn ids_are_what_they_were() {
    // Computed by slm 0.1.0; the first also by a plain Python program with BLAKE3 and postcard written out by hand from the page.
    // A change of any of them is a change of the identity and needs a new domain.
    let names = ["lora-qv", "lora-all-linear", "lora-patterns", "lora-layers"];
    let ids = names.map(|name| resolve(&config(name), &weights(name)).unwrap().0.id().to_string());
    assert_eq!(
        ids,
        [
            "sha256:25777939aa80a33e867dbc9daca3a15a6faef5f62df65334a655e1ac8f8b25d2",
            "sha256:7f5b2e7882827d0779cc4aa65c7cb22ff9f0f778d839877460f529a1a9083154",
            "sha256:e2d42b05fa9a06b59a2b258071cfcc39afe9cd7aaadaaffb9177e513e3d2019a",
            "sha256:f430b986793a9ffdb83faaa9f051e02ced6811e5f468ae8bd373cfa06ea0f47a",
        ]
    );
}

#[test]
fn the_id_covers_what_is_computed_and_nothing_else() {
    let tensors = qv_tensors();
    let plain = config("lora-qv");
    let id = |config: &str, tensors: &[_]| resolve(config, &file(tensors)).unwrap().0.id();
    let expected = id(&plain, &tensors);
    for (field, value) in [
        ("target_modules", "[\"v_proj\", \"q_proj\"]"),
        ("base_model_name_or_path", "\"elsewhere\""),
        ("r", "8"),
        ("alpha_pattern", "{\"q_proj\": 16}"),
        ("lora_alpha", "16.0"),
    ] {
        assert_eq!(id(&with(&plain, field, value), &tensors), expected, "{field}");
    }
    for (field, value) in
        [("lora_alpha", "17"), ("use_rslora", "true"), ("alpha_pattern", "{\"q_proj\": 17}")]
    {
        assert_ne!(id(&with(&plain, field, value), &tensors), expected, "{field}");
    }
    let mut changed = tensors.clone();
    changed[5].3[0] ^= 1;
    assert_ne!(id(&plain, &changed), expected, "one bit of one factor");
    changed = tensors[2..].to_vec();
    assert_ne!(id(&plain, &changed), expected, "one module less");
}

#[test]
fn a_written_adapter_reads_back_as_itself() {
    let adapter = lora_qv().with_sources(sources());
    let bytes = written(&adapter);
    let back = read(&bytes).unwrap();
    assert_eq!(back, adapter);
    assert_eq!(back.sources(), sources());
    assert_eq!(written(&back), bytes);
    assert_eq!(back.id(), lora_qv().id(), "sources are no part of the identity");
    let container = Container::open(&bytes, &Limits::STANDARD).unwrap();
    container.verify_all().unwrap();
    assert_eq!(container.sections().len(), 1);
}

#[test]
fn f16_factors_are_another_adapter_of_half_the_size() {
    let adapter = lora_qv();
    let half = adapter.with_factors_f16().unwrap();
    assert_ne!(half.id(), adapter.id());
    assert_eq!(half.bytes() * 2, adapter.bytes());
    assert!(half.plain_lora().unwrap().iter().all(|module| module.b.encoding() == Encoding::F16));
    let modules = (adapter.plain_lora().unwrap(), half.plain_lora().unwrap());
    for (whole, half) in modules.0.iter().zip(&modules.1) {
        assert_eq!((whole.scale, &whole.target), (half.scale, &half.target));
        for (whole, half) in whole.a.values().zip(half.a.values()) {
            assert!((whole - half).abs() <= whole.abs() / 2048.0 + 3e-8, "{whole} {half}");
        }
    }
    assert_eq!(half.with_factors_f16().unwrap(), half);
    assert_eq!(read(&written(&half)).unwrap(), half);
}

#[test]
fn no_changed_byte_of_a_section_is_read_as_the_adapter() {
    // A small adapter, so that every byte can be tried. The container's own hashes are left out of the way.
    let adapter = small();
    let section = adapter.to_section();
    assert_eq!(Adapter::from_section(&section, &Limits::STANDARD).unwrap(), adapter);
    for at in 0..section.len() {
        for flip in [1, 0x80] {
            let mut bytes = section.clone();
            bytes[at] ^= flip;
            if let Ok(read) = Adapter::from_section(&bytes, &Limits::STANDARD) {
                // Provenance is no part of the identity; nothing else may change.
                assert_eq!(read.id(), adapter.id(), "byte {at}");
                assert_ne!(read.sources(), adapter.sources(), "byte {at}");
            }
        }
    }
    for len in 0..section.len() {
        Adapter::from_section(&section[..len], &Limits::STANDARD).unwrap_err();
    }
    let longer = [&section[..], &[0]].concat();
    assert_eq!(
        Adapter::from_section(&longer, &Limits::STANDARD).unwrap_err().code(),
        "adapter-section"
    );
}

#[test]
fn damage_behind_the_container_s_hashes_is_found_by_them() {
    let bytes = written(&small());
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        read(&damaged).err().unwrap_or_else(|| panic!("byte {at} was changed and nobody saw it"));
    }
}

#[test]
fn a_claimed_identity_is_compared_with_the_content() {
    let section = small().to_section();
    let id = small().id().digest().to_bytes();
    let at =
        section.windows(32).position(|bytes| bytes == id).expect("the id stands in the header");
    let mut bytes = section.clone();
    bytes[at] ^= 1;
    assert_eq!(
        Adapter::from_section(&bytes, &Limits::STANDARD).unwrap_err().code(),
        "adapter-identity"
    );
}

#[test]
fn a_file_holds_exactly_one_adapter_to_read() {
    let section = small().to_section();
    for (count, expected) in [(0, Some("adapter-section")), (1, None), (2, Some("adapter-section"))]
    {
        let mut writer = ContainerWriter::new();
        writer.section(SectionKind::Config, b"config".as_slice()).unwrap();
        for _ in 0..count {
            writer.section(SectionKind::Adapter, section.clone()).unwrap();
        }
        let mut bytes = Vec::new();
        writer.write_to(&mut bytes).unwrap();
        assert_eq!(read(&bytes).err().map(|error| error.code()), expected, "{count} adapters");
    }
}

/// One module of a small base, with provenance.
fn small() -> Adapter {
    let factor = |rows, cols| {
        let bytes = common::f32_bytes(&common::ramp(rows * cols, 3));
        slm_overlay::Factor::new("a factor", Encoding::F32, rows, cols, bytes.into()).unwrap()
    };
    let module = slm_overlay::LoraModule {
        target: "blk.0.ffn_up.weight".into(),
        scale: 2.0,
        a: factor(2, 5),
        b: factor(3, 2),
    };
    Adapter::lora(vec![module]).unwrap().with_sources(sources())
}
