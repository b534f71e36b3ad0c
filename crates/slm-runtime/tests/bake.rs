//! Compositions made into new bases: PEFT's logits from plain files, read back as what they claim to be, and refused where they cannot be.

mod common;

use std::sync::Arc;

use common::bend::Bend;
use common::{HfFolder, LIMITS, adapter_files, code, open, session, tiny};
use safetensors::SafeTensors;
use slm_format::Encoding;
use slm_format::gguf::{Gguf, Value};
use slm_golden::TINY_Q8_0;
use slm_manifest::ExecutionProfile;
use slm_overlay::peft::PeftAdapter;
use slm_overlay::{Adapter, Delta, DenseDelta, Factor, Lora, Module};
use slm_quant::{Inline, Kernels, RayonExecutor};
use slm_runtime::bake::{Bake, BakeEncoding, BakeOptions, Baked};
use slm_runtime::load::{Base, HfFiles};
use slm_runtime::{Composition, RuntimeError};

const F32: BakeOptions = BakeOptions { encoding: BakeEncoding::F32, untie: false };
const UNTIED: BakeOptions = BakeOptions { encoding: BakeEncoding::F32, untie: true };

fn read(path: &str) -> Vec<u8> {
    let path = slm_golden::path("files").join(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn folder(name: &str, base: &Base) -> Adapter {
    let config = read(&format!("adapters/{name}/adapter_config.json"));
    let weights = read(&format!("adapters/{name}/adapter_model.safetensors"));
    let parsed = PeftAdapter::parse(&config, &weights, &LIMITS).expect(name);
    parsed.resolve(&base.shape()).expect(name).0
}

fn kjv(base: &Base) -> Adapter {
    let (config, weights) = adapter_files("kjv");
    PeftAdapter::parse(config, weights, &LIMITS)
        .expect("files")
        .resolve(&base.shape())
        .expect("an adapter")
        .0
}

fn composition(base: &Arc<Base>, stack: Vec<(Adapter, f32)>) -> Arc<Composition> {
    let bound = stack.into_iter().enumerate().map(|(n, (adapter, weight))| {
        let bound = Arc::new(adapter).bind(base.id(), &base.shape()).expect("a binding");
        (format!("adapter {n}"), Arc::new(bound), weight)
    });
    Arc::new(Composition::new(Arc::clone(base), bound.collect()).expect("a composition"))
}

fn logits(composition: &Arc<Composition>, tokens: &[u32]) -> Vec<f32> {
    let mut all = Vec::new();
    session(composition, ExecutionProfile::ORACLE)
        .advance_all(tokens, 64, &mut |_, logits| all.extend_from_slice(logits))
        .expect("a pass");
    all
}

fn logits_of(base: Base, tokens: &[u32]) -> Vec<f32> {
    logits(&Arc::new(Composition::bare(Arc::new(base)).expect("a composition")), tokens)
}

/// The largest norm-wise relative error of a position.
fn relative_error(found: &[f32], expected: &[f32], n: usize) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let of = |(a, b): (&[f32], &[f32])| {
        let difference = norm(&mut a.iter().zip(b).map(|(&a, &b)| f64::from(a) - f64::from(b)));
        difference / norm(&mut b.iter().map(|&b| f64::from(b)))
    };
    found.chunks_exact(n).zip(expected.chunks_exact(n)).map(of).fold(0.0, f64::max)
}

/// A folder's weights, and the base that importing the folder gives.
fn through_a_folder(
    composition: &Composition,
    options: BakeOptions,
) -> Result<(Vec<u8>, Baked, Base), RuntimeError> {
    let bake = Bake::new(composition, options)?;
    let documents = bake.hf_documents()?;
    let mut weights = Vec::new();
    let baked = bake.write_safetensors(&Inline, &mut weights)?;
    assert_eq!(baked.bytes, weights.len() as u64);
    let files = HfFiles {
        config: &documents.config,
        tokenizer: &documents.tokenizer,
        tokenizer_config: Some(&documents.tokenizer_config),
        generation_config: Some(&documents.generation_config),
        chat_template: documents.chat_template.as_deref(),
        weights: vec![&weights],
    };
    let base = Base::open_hf(&files, &LIMITS, Kernels::detect(), &Inline)?;
    assert_eq!(base.id(), baked.base, "what is written is what was announced");
    assert_eq!(base.tokenizer_id(), composition.base().tokenizer_id());
    assert_eq!(base.chat_template_source(), composition.base().chat_template_source());
    Ok((weights, baked, base))
}

fn through_gguf(
    composition: &Composition,
    options: BakeOptions,
) -> Result<(Vec<u8>, Baked, Base), RuntimeError> {
    let mut file = Vec::new();
    let baked = Bake::new(composition, options)?.write_gguf(&Inline, &mut file)?;
    assert_eq!(baked.bytes, file.len() as u64);
    let base = open(&file)?;
    assert_eq!(base.id(), baked.base, "what is written is what was announced");
    assert_eq!(base.tokenizer_id(), composition.base().tokenizer_id());
    Ok((file, baked, base))
}

/// golden/files/adapters: PEFT computed each adapter's logits.
#[test]
fn every_adapter_of_peft_gives_its_logits_from_plain_weights() {
    let base = Arc::new(HfFolder::tiny().open().expect("the tiny folder"));
    let cases: serde_json::Value =
        serde_json::from_slice(&read("adapters/cases.json")).expect("JSON");
    let mut n_baked = 0;
    for case in cases.as_array().expect("a list") {
        if case["expect"] != "logits" {
            continue;
        }
        let path = case["path"].as_str().expect("a path");
        let stack: Vec<(Adapter, f32)> = match case["stack"].as_array() {
            None => vec![(folder(path, &base), 1.0)],
            Some(entries) => entries
                .iter()
                .map(|entry| {
                    let weight = entry[1].as_f64().expect("a weight") as f32;
                    (folder(entry[0].as_str().expect("a path"), &base), weight)
                })
                .collect(),
        };
        let composition = composition(&base, stack);
        if path == "lora-bias-term" {
            assert_eq!(code(Bake::new(&composition, F32)), "bake-bias");
            continue;
        }
        let options = if path == "lora-embed" { UNTIED } else { F32 };
        let bytes = read(&format!("adapters/{path}/expected.safetensors"));
        let file = SafeTensors::deserialize(&bytes).expect("safetensors");
        let words = |name: &str| -> Vec<u32> {
            let data = file.tensor(name).expect("a tensor").data();
            data.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        };
        let tokens = words("tokens");
        let expected: Vec<f32> = words("logits").into_iter().map(f32::from_bits).collect();
        let n = expected.len() / tokens.len();
        let (_, baked, written) = through_a_folder(&composition, options).expect(path);
        assert!(baked.tensors.iter().any(|tensor| tensor.changed), "{path}");
        assert_ne!(baked.base, base.id(), "{path}: a new identity");
        let error = relative_error(&logits_of(written, &tokens), &expected, n);
        println!("{path:20} baked to f32, relative error {error:.2e}");
        assert!(error <= 1e-4, "{path}: {error:e}");
        // In memory it is the same base, but for what stays bf16 there.
        let in_memory = Bake::new(&composition, options).expect(path);
        let in_memory = in_memory.to_base(Kernels::detect(), &Inline).expect(path);
        let error = relative_error(&logits_of(in_memory, &tokens), &expected, n);
        assert!(error <= 1e-4, "{path}: {error:e}");
        n_baked += 1;
    }
    assert_eq!(n_baked, 12);
}

#[test]
fn gguf_keeps_what_the_stack_leaves_alone() {
    let base = tiny();
    let one = composition(&base, vec![(kjv(&base), 1.0)]);
    let (file, baked, written) = through_gguf(&one, BakeOptions::default()).expect("a file");
    let (old, new) = (
        Gguf::parse(TINY_Q8_0, &LIMITS).expect("GGUF"),
        Gguf::parse(&file, &LIMITS).expect("GGUF"),
    );
    let mut n_changed = 0;
    for (tensor, found) in baked.tensors.iter().zip(new.tensors()) {
        let before = old.tensor(&tensor.name).expect("the same names");
        assert_eq!((found.name, found.encoding), (tensor.name.as_str(), before.encoding));
        assert_eq!(found.data != before.data, tensor.changed, "{}", tensor.name);
        assert_eq!(tensor.error > 0.0, tensor.changed, "{}", tensor.name);
        assert!(tensor.error < 0.01, "{}: {}", tensor.name, tensor.error);
        n_changed += usize::from(tensor.changed);
    }
    assert_eq!(n_changed, Bake::new(&one, BakeOptions::default()).expect("a bake").n_changed());
    assert!(n_changed > 0 && n_changed < baked.tensors.len());
    for (key, value) in old.metadata().iter() {
        assert_eq!(new.metadata().get(key), Some(value), "{key}");
    }
    let entry = |key: &str| new.metadata().require_str(key).expect(key).to_owned();
    assert_eq!(entry("slm.baked.0.base"), base.id().to_string());
    assert_eq!(entry("slm.baked.0.composition"), one.id().to_string());

    // Near the overlay, which has no second quantization; nearer in f32, whose identity is another.
    let tokens = common::TOKENS;
    let overlay = logits(&one, &tokens);
    let n = overlay.len() / tokens.len();
    let quantized = relative_error(&logits_of(written, &tokens), &overlay, n);
    let (_, exact, written) = through_gguf(&one, F32).expect("a file");
    assert_ne!(exact.base, baked.base);
    assert!(exact.tensors.iter().all(|tensor| tensor.error == 0.0));
    let rounded = relative_error(&logits_of(written, &tokens), &overlay, n);
    println!("kjv on Q8_0: requantized {quantized:.2e}, f32 {rounded:.2e} from the overlay");
    assert!(rounded < 1e-5 && quantized > 10.0 * rounded && quantized < 0.05);

    // What was baked can be baked again, and says both.
    let again = Arc::new(open(&file).expect("a base"));
    let twice = composition(&again, vec![(folder("lora-qv", &again), 0.5)]);
    let (file, ..) = through_gguf(&twice, BakeOptions::default()).expect("a file");
    let new = Gguf::parse(&file, &LIMITS).expect("GGUF");
    assert_eq!(
        new.metadata().require_str("slm.baked.0.base").expect("text"),
        base.id().to_string()
    );
    assert_eq!(
        new.metadata().require_str("slm.baked.1.base").expect("text"),
        again.id().to_string()
    );
}

#[test]
fn the_bytes_are_the_same_on_every_number_of_threads() {
    let base = tiny();
    let one = composition(&base, vec![(kjv(&base), 0.5), (folder("dora", &base), 1.0)]);
    let bake = Bake::new(&one, BakeOptions::default()).expect("a bake");
    let write = |exec: &dyn slm_quant::Executor| {
        let (mut gguf, mut folder) = (Vec::new(), Vec::new());
        let baked = bake.write_gguf(exec, &mut gguf).expect("a file");
        Bake::new(&one, F32).expect("a bake").write_safetensors(exec, &mut folder).expect("a file");
        (gguf, folder, baked)
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().expect("a pool");
    assert!(write(&Inline) == write(&RayonExecutor::new(pool)));
}

#[test]
fn one_side_of_a_tied_base_needs_a_word() {
    let base = tiny();
    let embed = composition(
        &base,
        vec![(folder("lora-qv", &base), 1.0), (on_the(&base, "token_embd.weight"), 1.0)],
    );
    assert_eq!(code(through_gguf(&embed, F32)), "bake-tied-split");
    let head = composition(&base, vec![(on_the(&base, "output.weight"), 1.0)]);
    assert_eq!(code(through_gguf(&head, F32)), "bake-tied-split");
    // Its twin: no adapter on either side.
    let plain = composition(&base, vec![(folder("lora-qv", &base), 1.0)]);
    assert!(through_gguf(&plain, F32).expect("a file").2.config().tied_embeddings);
    assert!(through_gguf(&plain, UNTIED).expect("a file").2.config().tied_embeddings);
    let tokens = common::TOKENS;
    for composition in [embed, head] {
        let expected = logits(&composition, &tokens);
        let n = expected.len() / tokens.len();
        for through in [through_gguf, through_a_folder] {
            let (_, baked, written) = through(&composition, UNTIED).expect("a file");
            assert_eq!(baked.tensors.last().expect("tensors").name, "output.weight");
            assert!(!written.config().tied_embeddings);
            let error = relative_error(&logits_of(written, &tokens), &expected, n);
            assert!(error < 1e-5, "{error:e}");
        }
    }
}

fn on_the(base: &Base, target: &str) -> Adapter {
    let (rows, cols) = base.shape().tensor("token_embd.weight").expect("a table");
    let factor = |rows: u64, cols: u64| {
        let values = (0..rows * cols).map(|n| (n % 13) as f32 / 130.0 - 0.05);
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        Factor::new("x", Encoding::F32, rows, cols, bytes.into()).expect("a factor")
    };
    let delta =
        Delta::Lora(Lora { scale: 0.5, a: factor(2, cols), b: factor(rows, 2), bias: None });
    Adapter::new(vec![Module { target: target.to_owned(), delta }]).expect("an adapter")
}

/// An adapter whose one delta is `value` everywhere in a tensor.
fn everywhere(base: &Base, target: &str, value: f32) -> Adapter {
    let (rows, cols) = base.shape().tensor(target).expect("a tensor");
    let bytes = value.to_le_bytes().repeat((rows * cols) as usize);
    let delta = Factor::new("x", Encoding::F32, rows, cols, bytes.into()).expect("a factor");
    let delta = Delta::Dense(DenseDelta { scale: 1.0, delta });
    Adapter::new(vec![Module { target: target.to_owned(), delta }]).expect("an adapter")
}

#[test]
fn every_refusal_has_a_twin() {
    let base = tiny();
    let one = |value: f32| {
        composition(&base, vec![(everywhere(&base, "blk.0.attn_v.weight", value), 1.0)])
    };
    let half = BakeOptions { encoding: BakeEncoding::F16, untie: false };
    // Beyond binary16, and beyond the scale of Q8_0; within.
    assert_eq!(code(through_gguf(&one(70_000.0), half)), "bake-range");
    assert!(through_gguf(&one(60_000.0), half).is_ok());
    assert_eq!(code(through_gguf(&one(1e8), BakeOptions::default())), "bake-range");
    assert!(through_gguf(&one(1e6), BakeOptions::default()).is_ok());
    assert!(through_gguf(&one(1e8), F32).is_ok());

    // An encoding that is only read.
    let zeros = |encoding: Encoding| {
        let bytes = vec![0; encoding.tensor_bytes(&[256, 128]).expect("whole blocks") as usize];
        let changed = vec![("blk.0.attn_v.weight".to_owned(), encoding, bytes)];
        let base = base.with_tensors(changed, Kernels::detect(), &Inline).expect("a base");
        let base = Arc::new(base);
        let one = composition(&base, vec![(everywhere(&base, "blk.0.attn_v.weight", 1.0), 1.0)]);
        let bake = Bake::new(&one, BakeOptions::default()).expect("a bake");
        bake.to_base(Kernels::detect(), &Inline)
    };
    assert_eq!(code(zeros(Encoding::Q5_K)), "bake-encoder");
    assert!(zeros(Encoding::Q4_K).is_ok());

    // A folder holds plain numbers.
    assert_eq!(code(through_a_folder(&one(1.0), BakeOptions::default())), "bake-format");
    assert!(through_a_folder(&one(1.0), half).is_ok());

    // GGUF's metadata come from a GGUF file.
    let from_folder = Arc::new(HfFolder::tiny().open().expect("the tiny folder"));
    let bare = composition(&from_folder, Vec::new());
    assert_eq!(code(through_gguf(&bare, F32)), "not-from-gguf");
    assert_eq!(
        through_a_folder(&bare, BakeOptions::default()).expect("a folder").1.base,
        from_folder.id()
    );

    // A token that nothing makes has no place in tokenizer.json. The first normal one is a single byte, which no merge makes either.
    let gguf = Gguf::parse(TINY_Q8_0, &LIMITS).expect("GGUF");
    let types = gguf.metadata().i32_array("tokenizer.ggml.token_type").expect("numbers");
    let types = types.expect("there");
    let with_type = |kind: i32| {
        let mut types = types.clone();
        *types.iter_mut().find(|found| **found == 1).expect("a normal token") = kind;
        let types = Value::i32_array(&types);
        let file = Bend::of(TINY_Q8_0).set("tokenizer.ggml.token_type", types).to_bytes();
        let base = Arc::new(open(&file).expect("a base"));
        through_a_folder(&composition(&base, Vec::new()), F32)
    };
    assert!(with_type(1).is_ok());
    assert_eq!(code(with_type(5)), "bake-tokenizer");
}

#[test]
fn other_weights_are_checked_as_a_file_s() {
    let base = tiny();
    let with = |name: &str, encoding, bytes: Vec<u8>| {
        base.with_tensors(vec![(name.to_owned(), encoding, bytes)], Kernels::detect(), &Inline)
    };
    let same = base.with_tensors(Vec::new(), Kernels::detect(), &Inline).expect("a base");
    assert_eq!(same.id(), base.id());
    assert!(with("blk.0.attn_v.weight", Encoding::F32, vec![0; 4 * 256 * 128]).is_ok());
    assert_eq!(
        code(with("blk.9.attn_v.weight", Encoding::F32, vec![0; 4 * 256 * 128])),
        "tensor-unknown"
    );
    assert!(with("blk.0.attn_v.weight", Encoding::F32, vec![0; 4]).is_err());
    assert!(with("blk.0.attn_v.weight", Encoding::F32, vec![0xff; 4 * 256 * 128]).is_err());
}
