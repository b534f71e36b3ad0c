//! Writes the seeds that the generators make into the folder given: `cargo run -p slm-oracle --example seeds -- fuzz/seeds`.
//!
//! A seed named `ok_…` is accepted; every other is named for the code it is refused with.

use std::fs;
use std::path::Path;

use slm_oracle::{
    adapter_sample, container_sample, delta_sample, gguf_sample, join, manifest_sample,
    peft_kind_sample, peft_sample, sealed, slm1_sample,
};

fn main() -> std::io::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "fuzz/seeds".to_owned());
    let write = |path: &str, bytes: &[u8]| {
        let path = Path::new(&folder).join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, bytes)
    };
    // Choices with several sections, tensors, entries and adapters.
    let recipe: Vec<u8> =
        (0..400u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();

    let gguf = gguf_sample(&recipe);
    write("gguf/ok_generated.gguf", &gguf)?;
    write("gguf/gguf-version.gguf", &bent(&gguf, 4, 9))?;

    let container = container_sample(&recipe);
    write("container/ok_generated.slm", &container)?;
    write("container/ok_empty.slm", &container_sample(&[]))?;
    write("container/slm-index-hash.slm", &bent(&container, 40, container[40] ^ 1))?;
    write("container/slm-section-kind.slm", &sealed(&bent(&container, 64, 200)))?;
    write("container/slm-section-reserved.slm", &sealed(&bent(&container, 68, 1)))?;
    write("container/slm-file-length.slm", &container[..container.len() - 1])?;

    let slm1 = slm1_sample(&recipe);
    write("slm1/ok_generated.slm1", &slm1)?;
    write("slm1/ok_bare.slm1", &slm1_sample(&[]))?;
    write("slm1/slm1-version.slm1", &bent(&slm1, 4, 2))?;
    write("slm1/slm1-heads.slm1", &bent(&slm1, 40, 3))?;
    write("slm1/slm1-padding.slm1", &bent(&slm1, slm1.len() - 1, 1))?;
    write("slm1/slm1-truncated.slm1", &slm1[..100])?;

    let manifest = manifest_sample(&recipe);
    let toml = manifest.to_toml();
    write("manifest/ok_generated.toml", toml.as_bytes())?;
    write("manifest/ok_generated.json", &manifest.to_canonical_json())?;
    write("manifest/ok_bare.toml", manifest_sample(&[]).to_toml().as_bytes())?;
    let unknown = toml.replacen("timestamp_utc", "extra = 1\ntimestamp_utc", 1);
    write("manifest/manifest-unknown-field.toml", unknown.as_bytes())?;
    let gap = toml.replacen("load_order = 1", "load_order = 2", 1);
    write("manifest/manifest-load-order.toml", gap.as_bytes())?;

    for kind in 0..6 {
        let (config, weights) = peft_kind_sample(kind, &recipe);
        write(&format!("peft/ok_generated_{kind}.peft"), &join(config.as_bytes(), &weights))?;
    }
    for (name, start) in [("plan008", 0), ("compact", 1), ("gguf", 2)] {
        // The first choice is the rank; the format's own stands behind the factors.
        let sample = (0..=255u8)
            .map(|byte| adapter_sample(&[&[0, 1], &vec![byte; 400][..]].concat()))
            .find(|file| format_of(file) == start)
            .expect("a byte that chooses the format");
        write(&format!("adapter/ok_generated.{name}"), &sample)?;
    }
    for (name, kind) in [("dense", 0), ("sparse", 1), ("lora", 2)] {
        write(
            &format!("adapter/ok_delta_{name}.safetensors"),
            &delta_sample(&[&[0, kind], &recipe[..]].concat()),
        )?;
    }
    let (config, weights) = peft_sample(&recipe);
    write("peft/ok_generated.peft", &join(config.as_bytes(), &weights))?;
    let bias = config.replacen("\"none\"", "\"all\"", 1);
    write("peft/adapter-bias.peft", &join(bias.as_bytes(), &weights))?;
    let dora = config.replacen('{', "{\"use_dora\": true, ", 1);
    write("peft/adapter-missing-factor.peft", &join(dora.as_bytes(), &weights))?;
    let unknown = config.replacen('{', "{\"unheard_of\": 1, ", 1);
    write("peft/adapter-unknown-field.peft", &join(unknown.as_bytes(), &weights))?;
    write(
        "peft/safetensors-truncated.peft",
        &join(config.as_bytes(), &weights[..weights.len() - 1]),
    )
}

/// 0 for Plan 008, 1 for the compact format, 2 for GGUF.
fn format_of(file: &[u8]) -> usize {
    match (file.starts_with(b"LORA"), file.get(5)) {
        (true, Some(0)) => 0,
        (true, _) => 1,
        _ => 2,
    }
}

fn bent(bytes: &[u8], at: usize, value: u8) -> Vec<u8> {
    let mut bent = bytes.to_vec();
    bent[at] = value;
    bent
}
