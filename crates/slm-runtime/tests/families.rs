//! The graphs that the embedded tiny model does not have, against the reference pass bit for bit and against Hugging Face transformers:
//! Gemma 3 (sliding window, two RoPE bases, QK-norm, GELU, post-norms, scaled embeddings), an untied head, linear RoPE scaling.
//!
//! `golden/files/families` holds small random models with the logits that HF transformers computed in f32. Their rows are 64 and 160
//! long, too short for K-quants; those run on models of the same graphs with rows of 256 and 512, drawn here.

mod common;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use common::{Choices, LIMITS, engine, open, to_bits};
use safetensors::SafeTensors;
use slm_format::Coded;
use slm_format::Encoding;
use slm_format::container::Container;
use slm_format::gguf::{self, TensorSource, Value};
use slm_golden::TRIG;
use slm_golden::load::{floats, hf_model};
use slm_golden::reference::{self, Architecture, Config, Model, Options, Tensor, decode_row};
use slm_manifest::ExecutionProfile;
use slm_overlay::{Adapter, Factor, LoraModule};
use slm_quant::layout::{STRIP_ROWS, is_interleavable};
use slm_quant::{Layout, Tier, codec};
use slm_runtime::load::{Base, Bytes};
use slm_runtime::{Composition, Engine, Session};

const INT8: Options = Options { int8: true, kv_f16: true, trig: TRIG };
const F32: Options = Options { int8: false, kv_f16: false, trig: TRIG };
const PROFILES: [(ExecutionProfile, Options); 2] =
    [(ExecutionProfile::DEFAULT, INT8), (ExecutionProfile::ORACLE, F32)];

/// One token a pass, passes that end inside a window, and the whole prompt at once.
const CHUNKS: [usize; 3] = [1, 5, 1000];
const CONTEXT_LENGTH: usize = 256;

#[test]
fn gemma3_in_every_encoding() {
    let family = Family::read("gemma3");
    let model = family.model();
    assert_eq!(model.config.sliding_window, Some(16));
    let (short, long) = family.prompts();
    assert!(short.len() < 16 && long.len() > 64, "inside the window; over two pages of the cache");
    let seen = small_encodings(&model).map(|model| agree(&model, &[&short, &long[..66]]));
    all_differ(&seen);
}

#[test]
fn gemma3_windows_and_patterns() {
    let family = Family::read("gemma3");
    let (_, long) = family.prompts();
    let plain = encoded(&family.model(), &|_| Encoding::Q8_0);
    let bent = |bend: &dyn Fn(&mut Config)| {
        let mut model = plain.clone();
        bend(&mut model.config);
        agree(&model, &[&long[..20]])
    };
    all_differ(&[
        bent(&|_| {}),
        bent(&|config| config.sliding_window = Some(1)),
        bent(&|config| config.sliding_window = Some(2)),
        bent(&|config| config.sliding_window = Some(7)),
        // Longer than the prompt: every layer sees all of it, two RoPE bases remain.
        bent(&|config| config.sliding_window = Some(200)),
        bent(&|config| config.sliding_window_pattern = 2),
        bent(&|config| config.sliding_window_pattern = 1),
        bent(&|config| config.rope_theta_local = 500.0),
        bent(&|config| config.rope_theta = 20_000.0),
    ]);
}

#[test]
fn llama_with_an_untied_head_in_every_encoding() {
    let family = Family::read("llama-untied");
    let model = family.model();
    assert!(model.tensors.contains_key("output.weight"));
    let (short, long) = family.prompts();
    let seen = small_encodings(&model).map(|model| agree(&model, &[&short, &long[..66]]));
    all_differ(&seen);
    // The same file without its head runs on the embedding table.
    let mut tied = encoded(&model, &|_| Encoding::Q8_0);
    tied.tensors.remove("output.weight");
    let tied = agree(&tied, &[&short]);
    all_differ(&[tied, agree(&encoded(&model, &|_| Encoding::Q8_0), &[&short])]);
}

#[test]
fn linear_rope_scaling() {
    for name in ["gemma3", "llama-untied"] {
        let family = Family::read(name);
        let (_, long) = family.prompts();
        let plain = encoded(&family.model(), &|_| Encoding::Q8_0);
        let seen = [1.0, 8.0, 2.5].map(|factor| {
            let mut model = plain.clone();
            model.config.rope_linear_factor = factor;
            agree(&model, &[&long[..20]])
        });
        all_differ(&seen);
    }
}

#[test]
fn k_quants_on_wider_rows() {
    let mixed = |name: &str| match name.split('.').nth(2) {
        Some("attn_v" | "ffn_down") => Encoding::Q6_K,
        Some("attn_k") => Encoding::Q5_0,
        Some(_) => Encoding::Q4_K,
        // The embedding table, its norm, and the head.
        None => Encoding::Q6_K,
    };
    let tokens = [3, 96, 0, 41, 41, 7];
    let gemma3 = wide_model(Architecture::Gemma3);
    all_differ(&[
        agree(&encoded(&gemma3, &|_| Encoding::Q4_K), &[&tokens]),
        agree(&encoded(&gemma3, &|_| Encoding::Q6_K), &[&tokens]),
        agree(&encoded(&gemma3, &mixed), &[&tokens]),
        agree(&encoded(&wide_model(Architecture::Llama), &mixed), &[&tokens]),
    ]);
}

/// Hugging Face's expected logits: every position of the short prompt, two of the long one.
#[test]
fn f32_logits_are_those_of_hugging_face() {
    for name in ["gemma3", "llama-untied"] {
        let family = Family::read(name);
        let composition = composition(open(&gguf_of(&family.model())).expect("a model"));
        let (short, long) = family.prompts();
        let run = |tokens: &[u32]| {
            run(&composition, ExecutionProfile::ORACLE, &Engine::inline(), tokens, 64)
        };
        let (short, long) = (run(&short), run(&long));
        let expected = family.expected("short_logits");
        let mut rows: Vec<(&[f32], &[f32])> =
            short.iter().map(Vec::as_slice).zip(expected.chunks(320)).collect();
        let (at_40, last) =
            (family.expected("long_logits_at_40"), family.expected("long_last_logits"));
        rows.extend([(&long[40][..], &at_40[..]), (&long[99][..], &last[..])]);
        assert_eq!(rows.len(), 14);
        for (row, (found, expected)) in rows.into_iter().enumerate() {
            let cosine = cosine(found, expected);
            assert!(cosine >= 0.999_999, "{name} row {row}: cosine {cosine}");
            assert_eq!(top_1(found), top_1(expected), "{name} row {row}");
        }
    }
}

/// No product of a pass under adapters reads these tensors, so an adapter on one of them would be ignored.
#[test]
fn an_adapter_on_a_tensor_that_no_pass_reads_as_a_matrix_is_refused() {
    let base = open(&gguf_of(&Family::read("llama-untied").model())).expect("a model");
    let bind = |target: &str, out: u32| {
        let ones = |rows: u32, cols: u32| {
            let bytes = 1f32.to_le_bytes().repeat((rows * cols) as usize);
            Factor::new("ones", Encoding::F32, rows.into(), cols.into(), bytes.into())
        };
        let module = LoraModule {
            target: target.to_owned(),
            scale: 2.0,
            a: ones(4, 64).expect("a factor"),
            b: ones(out, 4).expect("a factor"),
        };
        let mut file = Vec::new();
        let adapter = Adapter::lora(vec![module]).expect("an adapter");
        adapter.write_to(&mut file).expect("a .slm file");
        let container = Container::open(&file, &LIMITS).expect("a container");
        let adapter = Adapter::read(&container, &LIMITS).expect("an adapter");
        Arc::new(adapter).bind(base.id(), &base.shape())
    };
    // Each in the tensor's own shape: nothing but the target is wrong.
    for (target, out) in [
        ("output_norm.weight", 1),
        ("blk.0.ffn_norm.weight", 1),
        ("blk.0.attn_norm.weight", 1),
        ("blk.3.ffn_up.weight", 160),
        ("blk.00.ffn_up.weight", 160),
    ] {
        let code = bind(target, out).map(|_| ()).expect_err(target).code();
        assert_eq!(code, "adapter-unknown-tensor", "{target}");
    }
    for (target, out) in [
        ("blk.0.ffn_up.weight", 160),
        ("blk.2.ffn_up.weight", 160),
        ("token_embd.weight", 320),
        ("output.weight", 320),
    ] {
        assert!(bind(target, out).is_ok(), "{target}");
    }
}

/// The bits of a model's last logits, int8 and f32.
type Seen = [Vec<u32>; 2];

/// Runs `model`, written as GGUF, over every prompt in both profiles, all chunks, all tiers and both layouts: the logits of every position
/// have the bits of the reference pass.
fn agree(model: &Model<'_>, prompts: &[&[u32]]) -> Seen {
    let expected = PROFILES.map(|(_, options)| {
        let all = prompts.iter().map(|tokens| {
            reference::logits(model, &[], tokens, options).expect("the reference's logits")
        });
        all.collect::<Vec<_>>()
    });
    let file: Bytes = Arc::new(gguf_of(model));
    for tier in Tier::available() {
        let engine = engine(tier, 1);
        let (kernels, exec) = (engine.kernels, &*engine.exec);
        let rows = Base::open(Arc::clone(&file), &LIMITS, kernels, exec).expect("a model");
        let strips = Base::load((*file).as_ref(), &LIMITS, kernels, exec, &|_| {});
        let strips = strips.expect("a model");
        assert_eq!((strips.id(), strips.rehash(&*engine.exec)), (rows.id(), rows.id()));
        for (layout, base) in [(Layout::RowMajor, rows), (Layout::Interleaved, strips)] {
            check_layout(&base, layout);
            let composition = composition(base);
            for ((profile, options), expected) in PROFILES.into_iter().zip(&expected) {
                for (tokens, expected) in prompts.iter().zip(expected) {
                    for chunk in CHUNKS {
                        let found = run(&composition, profile, &engine, tokens, chunk);
                        assert_eq!(found.len(), expected.len());
                        let same = |(a, b): &(&Vec<f32>, &Vec<f32>)| to_bits(a) == to_bits(b);
                        let n_same = found.iter().zip(expected).take_while(same).count();
                        assert_eq!(
                            n_same,
                            tokens.len(),
                            "positions before the first that differs: {engine:?}, {layout:?}, int8 {}, chunk {chunk}, {:?}",
                            options.int8,
                            model.config
                        );
                    }
                }
            }
        }
    }
    expected.map(|prompts| to_bits(prompts.last().and_then(|rows| rows.last()).expect("logits")))
}

/// A comparison of equal things proves nothing.
fn all_differ(seen: &[Seen]) {
    for (at, one) in seen.iter().enumerate() {
        for other in &seen[at + 1..] {
            assert!(one[0] != other[0] && one[1] != other[1], "two models with the same logits");
        }
    }
}

fn check_layout(base: &Base, expected: Layout) {
    let graph = base.graph();
    for layer in &graph.layers {
        for matrix in [layer.attn_q, layer.attn_v, layer.ffn_down, graph.output, graph.token_embd] {
            assert!(base.matrix(matrix).rows() >= STRIP_ROWS);
            let layout = match is_interleavable(base.matrix_encoding(matrix)) {
                true => expected,
                false => Layout::RowMajor,
            };
            assert_eq!(base.matrix(matrix).layout(), layout, "{}", base.matrix_name(matrix));
        }
    }
}

fn composition(base: Base) -> Arc<Composition> {
    Arc::new(Composition::bare(Arc::new(base)).expect("a composition"))
}

/// The logits of every position.
fn run(
    composition: &Arc<Composition>,
    profile: ExecutionProfile,
    engine: &Engine,
    tokens: &[u32],
    chunk: usize,
) -> Vec<Vec<f32>> {
    let mut session =
        Session::new(Arc::clone(composition), profile, engine.clone()).expect("a session");
    let mut rows = Vec::new();
    session
        .advance_all(tokens, chunk, &mut |position, logits| {
            assert_eq!(position, rows.len());
            rows.push(logits.to_vec());
        })
        .expect("a pass");
    rows
}

/// The files of one model in `golden/files/families`.
struct Family {
    config: String,
    weights: Vec<u8>,
    expected: Vec<u8>,
}

impl Family {
    fn read(family: &str) -> Family {
        let read = |file: &str| {
            let path = slm_golden::path("files/families").join(family).join(file);
            std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        Family {
            config: String::from_utf8(read("config.json")).expect("UTF-8"),
            weights: read("model.safetensors"),
            expected: read("expected.safetensors"),
        }
    }

    /// In GGUF's form: its names, its order of q and k rows, and Gemma's norms with the one added.
    fn model(&self) -> Model<'_> {
        hf_model(&self.config, &self.weights)
    }

    fn prompts(&self) -> (Vec<u32>, Vec<u32>) {
        let file = SafeTensors::deserialize(&self.expected).expect("safetensors");
        let tokens = |name: &str| {
            let data = file.tensor(name).expect("tokens").data().to_vec();
            data.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        };
        (tokens("short_tokens"), tokens("long_tokens"))
    }

    fn expected(&self, name: &str) -> Vec<f32> {
        let file = SafeTensors::deserialize(&self.expected).expect("safetensors");
        let view = file.tensor(name).expect("logits");
        floats(view.dtype(), view.data())
    }
}

/// What rows of 64 and 160 allow: all in one encoding, and one that gives the readers of one activation row different encodings.
fn small_encodings(model: &Model<'_>) -> [Model<'static>; 4] {
    let mixed = |name: &str| match name.split('.').nth(2) {
        Some("attn_q" | "ffn_up") => Encoding::F16,
        Some("attn_k" | "ffn_gate") => Encoding::Q8_0,
        Some("attn_v" | "attn_output") => Encoding::Q5_0,
        Some(_) => Encoding::Q4_0,
        None => Encoding::BF16,
    };
    [
        encoded(model, &|_| Encoding::F32),
        encoded(model, &|_| Encoding::Q8_0),
        encoded(model, &|_| Encoding::Q5_0),
        encoded(model, &mixed),
    ]
}

/// The same model with its matrices in the encodings that `pick` gives their names; norms stay F32.
fn encoded(model: &Model<'_>, pick: &dyn Fn(&str) -> Encoding) -> Model<'static> {
    let tensors = model.tensors.iter().map(|(name, tensor)| {
        let encoding = if tensor.rows == 1 { Encoding::F32 } else { pick(name) };
        let values: Vec<f32> = (0..tensor.rows).flat_map(|row| decode_row(tensor, row)).collect();
        (name.clone(), encode(encoding, tensor.rows, tensor.cols, &values))
    });
    Model { config: model.config.clone(), tensors: tensors.collect() }
}

fn encode(encoding: Encoding, rows: usize, cols: usize, values: &[f32]) -> Tensor<'static> {
    let bytes = codec::encode(encoding, values, cols).expect("whole blocks");
    let encoding = reference::Encoding::from_name(encoding.name()).expect("a known encoding");
    Tensor { encoding, rows, cols, bytes: Cow::Owned(bytes) }
}

/// A random model whose rows are whole K-quant blocks; its heads together are wider than the residual stream, and its vocabulary is no
/// multiple of a strip of rows.
fn wide_model(architecture: Architecture) -> Model<'static> {
    let gemma = architecture == Architecture::Gemma3;
    let config = Config {
        architecture,
        n_layers: 2,
        n_embd: 256,
        n_heads: 8,
        n_kv_heads: 2,
        head_dim: 64,
        rms_norm_eps: 1e-6,
        rope_theta: 1e6,
        rope_linear_factor: 1.0,
        rope_theta_local: if gemma { 1e4 } else { 1e6 },
        sliding_window: gemma.then_some(4),
        sliding_window_pattern: if gemma { 2 } else { 1 },
    };
    let mut choices = Choices(256);
    let mut tensors = BTreeMap::new();
    let mut add = |name: String, rows: usize, cols: usize| {
        let (mean, spread) = match rows {
            1 => (1.0, 0.5),
            _ => (0.0, (3.0 / cols as f32).sqrt()),
        };
        let mut draw = || mean + spread * (choices.below(2001) as f32 / 1000.0 - 1.0);
        let values: Vec<f32> = (0..rows * cols).map(|_| draw()).collect();
        tensors.insert(format!("{name}.weight"), encode(Encoding::F32, rows, cols, &values));
    };
    let (n_embd, n_ff, q_width, kv_width) = (256, 256, 512, 128);
    add("token_embd".to_owned(), 97, n_embd);
    add("output_norm".to_owned(), 1, n_embd);
    if !gemma {
        add("output".to_owned(), 97, n_embd);
    }
    for layer in 0..config.n_layers {
        let mut part = |part: &str, rows, cols| add(format!("blk.{layer}.{part}"), rows, cols);
        part("attn_norm", 1, n_embd);
        part("attn_q", q_width, n_embd);
        part("attn_k", kv_width, n_embd);
        part("attn_v", kv_width, n_embd);
        part("attn_output", n_embd, q_width);
        part("ffn_norm", 1, n_embd);
        part("ffn_gate", n_ff, n_embd);
        part("ffn_up", n_ff, n_embd);
        part("ffn_down", n_embd, n_ff);
        if gemma {
            part("attn_q_norm", 1, config.head_dim);
            part("attn_k_norm", 1, config.head_dim);
            part("post_attention_norm", 1, n_embd);
            part("post_ffw_norm", 1, n_embd);
        }
    }
    Model { config, tensors }
}

/// The model as a GGUF file, its tokenizer as many control tokens as it has rows of embeddings.
fn gguf_of(model: &Model<'_>) -> Vec<u8> {
    let c = &model.config;
    let gemma = c.architecture == Architecture::Gemma3;
    let architecture = if gemma { "gemma3" } else { "llama" };
    let number = |value: usize| Value::U32(u32::try_from(value).expect("a small number"));
    let rows_of = |name: &str| model.tensors[name].rows;
    let mut keys = vec![
        ("block_count", number(c.n_layers)),
        ("context_length", number(CONTEXT_LENGTH)),
        ("embedding_length", number(c.n_embd)),
        ("feed_forward_length", number(rows_of("blk.0.ffn_up.weight"))),
        ("attention.head_count", number(c.n_heads)),
        ("attention.head_count_kv", number(c.n_kv_heads)),
        ("attention.key_length", number(c.head_dim)),
        ("attention.value_length", number(c.head_dim)),
        ("attention.layer_norm_rms_epsilon", Value::F32(c.rms_norm_eps)),
        ("rope.freq_base", Value::F32(c.rope_theta)),
    ];
    if let Some(window) = c.sliding_window {
        keys.extend([
            ("attention.sliding_window", number(window)),
            ("attention.sliding_window_pattern", number(c.sliding_window_pattern)),
            ("rope.freq_base_swa", Value::F32(c.rope_theta_local)),
        ]);
    }
    if c.rope_linear_factor != 1.0 {
        keys.extend([
            ("rope.scaling.type", Value::Str("linear")),
            ("rope.scaling.factor", Value::F32(c.rope_linear_factor)),
        ]);
    }
    let keys: Vec<(String, Value<'_>)> =
        keys.into_iter().map(|(key, value)| (format!("{architecture}.{key}"), value)).collect();
    let tokens: Vec<String> =
        (0..rows_of("token_embd.weight")).map(|id| format!("<|r{id}|>")).collect();
    let mut metadata = vec![("general.architecture", Value::Str(architecture))];
    metadata.extend(keys.iter().map(|(key, value)| (key.as_str(), value.clone())));
    metadata.extend([
        ("tokenizer.ggml.model", Value::Str("gpt2")),
        ("tokenizer.ggml.pre", Value::Str("gpt-2")),
        ("tokenizer.ggml.tokens", Value::str_array(tokens.iter().map(String::as_str).collect())),
        ("tokenizer.ggml.token_type", Value::i32_array(&vec![3; tokens.len()])),
        ("tokenizer.ggml.bos_token_id", Value::U32(1)),
        ("tokenizer.ggml.eos_token_id", Value::U32(2)),
    ]);
    let shapes: Vec<Vec<u64>> = model
        .tensors
        .values()
        .map(|tensor| match tensor.rows {
            1 => vec![tensor.cols as u64],
            rows => vec![tensor.cols as u64, rows as u64],
        })
        .collect();
    let tensors: Vec<TensorSource<'_>> = model
        .tensors
        .iter()
        .zip(&shapes)
        .map(|((name, tensor), shape)| TensorSource {
            name,
            shape,
            encoding: Encoding::from_name(tensor.encoding.name()).expect("a known encoding"),
            data: &tensor.bytes,
        })
        .collect();
    let mut file = Vec::new();
    gguf::write(&mut file, &metadata, &tensors).expect("a file");
    file
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn top_1(logits: &[f32]) -> usize {
    (0..logits.len()).fold(0, |best, id| if logits[id] > logits[best] { id } else { best })
}
