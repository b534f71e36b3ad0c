//! TinyRustLM's formats through the program: an SLM1 base from import to logits, and typed deltas on the tiny model.

use serde_json::{Value, json};
use slm_format::slm1::{
    RawHeader, ScaleOrder, Slm1Dtype, Slm1Header, Slm1Tensor, TIED_OUTPUT, name_hash, write,
};
use slm_format::{Digest, Encoding, Limits};
use slm_overlay::delta::{BaseMatrices, DeltaIdentity, to_delta};
use slm_overlay::{Adapter, Delta, DenseDelta, Factor, Lora, Module, SourceDigest, SparseDelta};
use slm_quant::{Inline, Kernels};
use slm_runtime::load::Base;

use crate::common::{Place, golden, text};
use crate::transcript::Transcript;

/// A tied q8_0 model of one layer with a byte tokenizer, weights pseudo-random.
fn slm1() -> Vec<u8> {
    let header = Slm1Header::check(RawHeader {
        flags: TIED_OUTPUT,
        vocab_size: 260,
        special_token_count: 4,
        hidden_size: 32,
        layer_count: 1,
        head_count: 2,
        kv_head_count: 2,
        head_dim: 16,
        ffn_size: 64,
        max_context: 128,
        rope_theta: 10_000.0,
        rms_norm_epsilon: 1e-5,
        checksum: 1,
    })
    .expect("a header");
    let shapes = [
        ("tok_embeddings", 260, 32),
        ("layers.0.attn_norm", 1, 32),
        ("layers.0.ffn_norm", 1, 32),
        ("layers.0.wq", 32, 32),
        ("layers.0.wk", 32, 32),
        ("layers.0.wv", 32, 32),
        ("layers.0.wo", 32, 32),
        ("layers.0.w1", 64, 32),
        ("layers.0.w2", 32, 64),
        ("layers.0.w3", 64, 32),
        ("norm", 1, 32),
    ];
    let mut state = 1u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let owned = shapes.map(|(name, rows, cols): (&str, usize, usize)| {
        let values: Vec<u8> = (0..rows * cols).map(|_| byte()).collect();
        (format!("{name}.weight"), rows, cols, values, 0.01f32.to_le_bytes().repeat(rows))
    });
    let tensors = owned.each_ref().map(|(name, rows, cols, values, scales)| {
        let (rows, cols) = (*rows as u32, *cols as u32);
        let dims = if rows == 1 { [cols, 1, 1, 1] } else { [rows, cols, 1, 1] };
        Slm1Tensor {
            name_hash: name_hash(name),
            dtype: Slm1Dtype::Q8_0,
            rank: if rows == 1 { 1 } else { 2 },
            dims,
            block_size: cols,
            reserved: 0,
            values,
            scales,
        }
    });
    let mut tokenizer = b"BTOK".to_vec();
    [1u32, 260, 256, 257, 258, 259].iter().for_each(|field| tokenizer.extend(field.to_le_bytes()));
    let mut file = Vec::new();
    write(&mut file, &header, &[], &tokenizer, &tensors, ScaleOrder::PerTensor).expect("written");
    file
}

#[test]
fn an_slm1_base_is_imported_and_runs() {
    let place = Place::new();
    let good = slm1();
    let path = place.write("model.slm1", &good);
    let inspected = place.json(["inspect", &path]);
    let imported = place.json(["import", &path, "--name", "smoke"]);
    assert_eq!(imported["base"], inspected["base"]);
    assert_eq!(text(&imported, "architecture"), "llama");
    assert_eq!(imported["quantization"], json!([{ "type": "F32", "tensors": 11 }]));
    place.json(["compose", "c", "--base", "smoke"]);
    place.json(["activate", "c"]);
    let tokens = ["--tokens", "256,104,101,108,108,111"];
    let stored = place.json([&["logits"][..], &tokens, &["--composition", "c"]].concat());
    let direct = place.json([&["logits"][..], &tokens, &["--model", &path]].concat());
    assert_eq!(stored["all_blake3"], direct["all_blake3"]);
    let ids = place.json(["tokenize", "hello", "--model", &path]);
    assert_eq!(ids["ids"], json!([104, 101, 108, 108, 111]));
    let ran = place.json(["run", "hello", "--max-tokens", "4", "--ignore-eos"]);
    assert!(ran["tokens"].as_array().is_some_and(|tokens| !tokens.is_empty()), "{ran}");
    // One byte of the header, and the file is none: nothing is stored.
    let before = place.snapshot();
    let mut bent = good.clone();
    bent[12] = 9;
    let path = place.write("bent.slm1", &bent);
    let args = ["import", &path, "--name", "bent"];
    assert_eq!(place.refused(args), (3, "slm1-model-type".to_owned()));
    let path = place.write("cut.slm1", &good[..good.len() - 64]);
    let args = ["import", &path, "--name", "cut"];
    assert_eq!(place.refused(args), (3, "slm1-range".to_owned()));
    assert_eq!(place.snapshot(), before);
}

/// What a delta for the tiny model must carry.
fn identity() -> DeltaIdentity {
    let bytes = std::fs::read(golden("tiny-q8_0.gguf")).expect("the tiny model");
    let bytes = std::sync::Arc::new(bytes);
    let base = Base::open(bytes, &Limits::STANDARD, Kernels::detect(), &Inline).expect("a base");
    DeltaIdentity {
        matrices: BaseMatrices::of(&base.shape()),
        tokenizer: base.tokenizer_id(),
        base: base.id(),
        quantization: base.quantization(),
        numerics: slm_manifest::NUMERICS_VERSION,
    }
}

fn deltas() -> [(&'static str, Adapter); 3] {
    let factor = |rows: u64, cols: u64| {
        let values = (0..rows * cols).flat_map(|at| ((at % 97) as f32 * 1e-3).to_le_bytes());
        Factor::new("x", Encoding::F32, rows, cols, values.collect()).expect("a factor")
    };
    let on = |delta| {
        let module = Module { target: "blk.1.ffn_up.weight".into(), delta };
        Adapter::new(vec![module]).expect("an adapter")
    };
    let indices = (0..500).map(|at| at * 300).collect();
    let sparse = SparseDelta { scale: 1.0, rows: 768, cols: 256, indices, values: factor(1, 500) };
    let lora = Lora { scale: 1.0, a: factor(4, 256), b: factor(768, 4), bias: None };
    let source = SourceDigest { name: "trained.bin".into(), digest: Digest::of(b"trained") };
    [
        ("dense", on(Delta::Dense(DenseDelta { scale: 1.0, delta: factor(768, 256) }))),
        ("sparse", on(Delta::Sparse(sparse))),
        ("lora", on(Delta::Lora(lora)).with_sources(vec![source])),
    ]
}

#[test]
fn typed_deltas_are_adapters_of_the_base_that_they_name() {
    let place = Place::new();
    place.json(["import", &golden("tiny-q8_0.gguf"), "--name", "tiny"]);
    place.json(["import", &golden("tiny"), "--name", "hf"]);
    let identity = identity();
    let tokens = "767,261,305";
    let bare = place.json(["logits", "--tokens", tokens, "--model", &golden("tiny-q8_0.gguf")]);
    let mut seen: Vec<Value> = vec![bare["all_blake3"].clone()];
    for (kind, adapter) in deltas() {
        let file = to_delta(&adapter, &identity).expect("a file");
        let path = place.write(&format!("{kind}.safetensors"), &file);
        let args = ["adapter", "import", &path, "--name", kind, "--base", "tiny"];
        let imported = place.json(args);
        assert_eq!((text(&imported, "kind"), &imported["adapter"]), (kind, &json!(adapter.id())));
        // Everything is declared, and what the file says of itself is listed.
        let warnings = imported["warnings"].as_array().expect("warnings");
        assert_eq!(warnings.len(), usize::from(kind != "dense"), "{warnings:?}");
        // It names its tensors itself; a layout would be read by nobody.
        let args = [&args[..], &["--layout", "nothing.json"]].concat();
        assert_eq!(place.refused(args), (3, "unknown-format".to_owned()));
        place.json(["compose", kind, "--base", "tiny", "--adapter", kind]);
        let logits = place.json(["logits", "--tokens", tokens, "--composition", kind]);
        assert!(!seen.contains(&logits["all_blake3"]), "{kind} changes nothing of its own");
        seen.push(logits["all_blake3"].clone());

        // The same shapes in bf16 are another base: the published identity would let it pass, the content's does not.
        let before = place.snapshot();
        let args = ["adapter", "import", &path, "--name", "other", "--base", "hf"];
        assert_eq!(place.refused(args), (3, "adapter-base-mismatch".to_owned()));
        let refused = |identity: &DeltaIdentity| {
            let file = to_delta(&adapter, identity).expect("a file");
            let path = place.write("bent.safetensors", file);
            place.refused(["adapter", "import", &path, "--name", "bent", "--base", "tiny"])
        };
        let twin = DeltaIdentity { ..identity.clone() };
        let mut tokenizer = twin.clone();
        tokenizer.tokenizer = slm_manifest::TokenizerId::of_canonical(b"another");
        assert_eq!(refused(&tokenizer), (3, "tokenizer-mismatch".to_owned()));
        let numerics = DeltaIdentity { numerics: twin.numerics + 1, ..twin.clone() };
        assert_eq!(refused(&numerics), (3, "adapter-numerics".to_owned()));
        let mut quantization = twin.clone();
        quantization.quantization[0].1 += 1;
        assert_eq!(refused(&quantization), (3, "adapter-quantization".to_owned()));
        let mut count = twin.clone();
        count.matrices.tensor_count += 1;
        assert_eq!(refused(&count), (3, "adapter-delta-identity".to_owned()));
        assert_eq!(place.snapshot(), before);
    }
    // Factors without the entry are no adapter, as before.
    let plain = golden("adapters/lora-qv/adapter_model.safetensors");
    let args = ["adapter", "import", &plain, "--name", "plain", "--base", "tiny"];
    assert_eq!(place.refused(args).0, 3);
}

#[test]
fn what_is_said_of_typed_deltas_that_are_refused() {
    let place = Place::new();
    place.json(["import", &golden("tiny-q8_0.gguf"), "--name", "tiny"]);
    let mut transcript = Transcript::new(&place);
    let [(_, dense), ..] = deltas();
    let good = to_delta(&dense, &identity()).expect("a file");
    let with = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let at = good.windows(from.len()).position(|window| window == from.as_bytes());
        let mut bytes = good.clone();
        bytes[at.expect("an entry")..][..to.len()].copy_from_slice(to.as_bytes());
        bytes
    };
    fn import(path: &str) -> [&str; 7] {
        ["adapter", "import", path, "--name", "delta", "--base", "tiny"]
    }
    for (name, bytes) in [
        ("of-version-2", with("\"slm_delta\":\"1\"", "\"slm_delta\":\"2\"")),
        ("of-no-kind", with("\"kind\":\"dense\"", "\"kind\":\"tense\"")),
        ("with-an-entry", with("\"tokenizer\":", "\"tokenized\":")),
        ("of-no-tokenizer", with("\"tokenizer\":\"sha256", "\"tokenizer\":\"sha255")),
    ] {
        let path = place.write(&format!("{name}.safetensors"), bytes);
        transcript.refused(3, &import(&path));
    }
    let path = place.write("good.safetensors", &good);
    transcript.accepted(&import(&path));
    insta::assert_snapshot!(transcript.finish());
}
