//! PEFT adapters on a small base: what is accepted is finite, reported whole, and survives being stored.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use slm_format::container::Container;
use slm_format::safetensors::{self, Dtype, SafeTensors, TensorSource};
use slm_format::{Coded, Digest, Encoding, Limits};
use slm_manifest::BaseId;
use slm_manifest::config::Architecture;
use slm_overlay::peft::{BindingReport, PeftAdapter, PeftFiles, to_peft};
use slm_overlay::{Adapter, BaseShape, BaseWeights, Module};

use crate::Verdict;
use crate::recipe::Recipe;

/// Hidden size, FFN size and head width of the base.
const N_EMBD: u64 = 8;
const N_FF: u64 = 12;
const HEAD_DIM: u32 = 4;

/// The linear modules as the framework names them: layer path, canonical name, rows, columns.
const MODULES: [(&str, &str, u64, u64); 7] = [
    ("self_attn.q_proj", "attn_q", 8, N_EMBD),
    ("self_attn.k_proj", "attn_k", 4, N_EMBD),
    ("self_attn.v_proj", "attn_v", 4, N_EMBD),
    ("self_attn.o_proj", "attn_output", N_EMBD, 8),
    ("mlp.gate_proj", "ffn_gate", N_FF, N_EMBD),
    ("mlp.up_proj", "ffn_up", N_FF, N_EMBD),
    ("mlp.down_proj", "ffn_down", N_EMBD, N_FF),
];

/// Both properties.
pub fn peft(data: &[u8]) {
    peft_file(data);
    peft_recipe(data);
}

/// Configuration and tensors in one input: the configuration's length (u32, little-endian), the configuration, the safetensors file.
pub fn join(config: &[u8], weights: &[u8]) -> Vec<u8> {
    let length = u32::try_from(config.len()).expect("a small configuration");
    [&length.to_le_bytes(), config, weights].concat()
}

/// Reading never panics. Of an accepted adapter every factor and scale is finite, every tensor of the file belongs to a module, every module is in
/// the report and the other way round, it holds no more bytes than the file, it binds to its base, and it comes back equal and under the same
/// identity from a `.slm` file and, written as PEFT writes it, from a folder.
pub fn peft_file(data: &[u8]) -> Verdict {
    let Some((length, rest)) = data.split_at_checked(4) else { return Verdict::Refused("short") };
    let length = u32::from_le_bytes(length.try_into().expect("four bytes")) as usize;
    let (config, weights) = rest.split_at(length.min(rest.len()));
    let limits = Limits::STANDARD;
    let base = base();
    let resolved =
        PeftAdapter::parse(config, weights, &limits).and_then(|read| read.resolve(&base));
    let (adapter, report) = match resolved {
        Ok(both) => both,
        Err(error) => return Verdict::Refused(error.code()),
    };
    let files = SafeTensors::parse(weights, &limits).expect("an accepted file can be read");
    let own: usize = adapter.modules().iter().map(|module| module.factors().len()).sum();
    let shared = files.tensors().iter().filter(|t| t.name.starts_with("base_model.vera_")).count();
    // Each VeRA module has its part of both shared projections.
    let own = if shared > 0 { own - 2 * adapter.modules().len() + shared } else { own };
    assert_eq!(
        files.tensors().len(),
        own + report.dropped.len(),
        "a tensor of the file is in no module"
    );
    let (bytes, limit) = (adapter.bytes(), weights.len() as u64);
    assert!(bytes <= limit, "an adapter of {bytes} bytes from a file of {limit}");
    if let Ok(PeftFiles { config, weights, .. }) = to_peft(&adapter, &base) {
        let again = PeftAdapter::parse(config.as_bytes(), &weights, &limits)
            .and_then(|read| read.resolve(&base));
        let (again, _) = again.expect("a written adapter can be read");
        assert_eq!(again.id(), adapter.id(), "written as PEFT, the adapter has another identity");
    }
    holds(adapter, &report, &base);
    Verdict::Accepted
}

/// Of an adapter that was accepted on `base`: every factor and scale is finite, every module is in the report and the other way round, it comes
/// back equal and under the same identity from a `.slm` file, and it binds to its base.
pub(crate) fn holds(adapter: Adapter, report: &BindingReport, base: &BaseShape<'_>) {
    for module in adapter.modules() {
        let name = &module.target;
        assert!(module.scale().is_finite(), "the scale of {name} is not finite");
        for (_, factor) in module.factors() {
            assert!(factor.values().all(f32::is_finite), "a factor of {name} is not finite");
        }
    }
    let touched: BTreeSet<(String, u32, u32)> = adapter
        .modules()
        .iter()
        .map(|module: &Module| (module.target.clone(), module.rank(), module.scale().to_bits()))
        .collect();
    let reported: BTreeSet<(String, u32, u32)> = report
        .targets
        .iter()
        .map(|target| (target.tensor.clone(), target.rank, target.scale.to_bits()))
        .collect();
    assert_eq!(touched, reported, "the report is not what the adapter touches");
    assert_eq!(report.targets.len(), reported.len(), "the report names a tensor twice");

    let mut file = Vec::new();
    adapter.write_to(&mut file).expect("an accepted adapter can be written");
    let limits = Limits::STANDARD;
    let container = Container::open(&file, &limits).expect("a written adapter can be opened");
    let again = Adapter::read(&container, &limits).expect("a written adapter can be read");
    assert_eq!(again.id(), adapter.id(), "stored, the adapter has another identity");
    assert_eq!(again, adapter, "stored, the adapter is another");
    let given = adapter.bytes();
    let bound = Arc::new(adapter)
        .bind(BaseId::from_digest(Digest::of(b"base")), base)
        .expect("an adapter binds to the base it was resolved on");
    // Factors in f32, turned or multiplied out, never more than the matrices that they stand beside.
    let matrices: u64 = base.tensors.values().map(|(rows, cols)| rows * cols).sum();
    let (bytes, limit) = (bound.bytes(), 8 * (given + matrices) + 4096);
    assert!(bytes <= limit, "bound, an adapter of {given} bytes takes {bytes}, more than {limit}");
}

/// One adapter made by the recipe: accepted as it is, or with one thing bent, and then refused or holding as any. Which of the six the recipe's
/// first choice says, so that an input costs one of them and not all. Gives the verdict on what was bent.
pub fn peft_recipe(data: &[u8]) -> Verdict {
    let mut recipe = Recipe::new(data);
    match recipe.below(6) {
        0 => {
            let (config, weights) = valid(&mut recipe);
            accepted(&config, &weights)
        }
        1 => {
            let kind = recipe.below(6);
            let (config, weights) = valid_kind(kind, &mut recipe);
            accepted(&config, &weights)
        }
        2 => {
            let (config, weights) = valid(&mut recipe);
            peft_file(&bent(&config, &weights, &mut recipe))
        }
        3 => {
            let kind = recipe.below(6);
            let (config, weights) = valid_kind(kind, &mut recipe);
            peft_file(&bent(&config, &weights, &mut recipe))
        }
        4 => {
            let (config, weights) = valid(&mut recipe);
            let fields = [
                "\"use_dora\": true",
                "\"bias\": \"all\"",
                "\"modules_to_save\": [\"lm_head\"]",
                "\"rank_pattern\": {\"q_proj\": 2}",
                "\"alpha_pattern\": {\"layers.0\": 1e30}",
                "\"fan_in_fan_out\": true",
                "\"unheard_of\": 1",
                "\"target_modules\": \".*q_proj\"",
                "\"alora_invocation_tokens\": [1, 2]",
                "\"lora_bias\": true",
                "\"ensure_weight_tying\": true",
            ];
            let field = recipe.one_of(&fields);
            let more = config.replacen('{', &format!("{{{field}, "), 1);
            peft_file(&join(more.as_bytes(), &weights))
        }
        _ => {
            // Any fields with any values; one that stands twice in an object is refused, so the original's may go.
            let (config, weights) = valid(&mut recipe);
            let n = 1 + recipe.below(3);
            let fields = (0..n).map(|_| any_field(&mut recipe)).collect::<Vec<_>>();
            let body = if recipe.rarely(3) { "" } else { &config[1..config.len() - 1] };
            let glue = if body.is_empty() { "" } else { ", " };
            let odd = format!("{{{body}{glue}{}}}", fields.join(", "));
            peft_file(&join(odd.as_bytes(), &weights))
        }
    }
}

fn accepted(config: &str, weights: &[u8]) -> Verdict {
    let verdict = peft_file(&join(config.as_bytes(), weights));
    assert_eq!(verdict, Verdict::Accepted, "a valid adapter was refused: {config}");
    verdict
}

/// A file with another byte somewhere behind its first four.
fn bent(config: &str, weights: &[u8], recipe: &mut Recipe<'_>) -> Vec<u8> {
    let mut bytes = join(config.as_bytes(), weights);
    let at = 4 + recipe.below(bytes.len() - 4);
    bytes[at] = recipe.byte();
    bytes
}

/// A field that some version of PEFT knows, with a value of any type.
fn any_field(recipe: &mut Recipe<'_>) -> String {
    const NAMES: [&str; 40] = [
        "peft_type",
        "r",
        "lora_alpha",
        "alpha",
        "use_rslora",
        "rank_pattern",
        "alpha_pattern",
        "target_modules",
        "exclude_modules",
        "layers_to_transform",
        "layers_pattern",
        "init_lora_weights",
        "use_dora",
        "lora_bias",
        "alora_invocation_tokens",
        "ensure_weight_tying",
        "feedforward_modules",
        "save_projection",
        "init_weights",
        "init_ia3_weights",
        "projection_prng_key",
        "bias",
        "modules_to_save",
        "fan_in_fan_out",
        "arrow_config",
        "kasa_config",
        "layer_replication",
        "megatron_config",
        "monteclora_config",
        "target_parameters",
        "trainable_token_indices",
        "use_bdlora",
        "use_qalora",
        "lora_dropout",
        "task_type",
        "base_model_name_or_path",
        "inference_mode",
        "decompose_both",
        "loftq_config",
        "of_a_later_version",
    ];
    const VALUES: [&str; 36] = [
        "null",
        "true",
        "false",
        "0",
        "1",
        "2",
        "-1",
        "8",
        "0.5",
        "1e308",
        "1e-320",
        "1e400",
        "4294967296",
        "18446744073709551616",
        "NaN",
        "\"\"",
        "\"none\"",
        "\"all\"",
        "\"all-linear\"",
        "\"pissa_niter_4\"",
        "\"gaussian\"",
        "\"LORA\"",
        "\"VERA\"",
        "\"(a+)+$\"",
        "\".*\\\\.(q|v)_proj\"",
        "\"[\"",
        "\"\\ud800\"",
        "[]",
        "[0]",
        "[1, 0, 1]",
        "[\"q_proj\", \"v_proj\", \"down_proj\"]",
        "[[]]",
        "{}",
        "{\"q_proj\": 2}",
        "{\"layers.0\": 1e39, \".*\": -2}",
        "{\"a\": {\"b\": [{}]}}",
    ];
    format!("\"{}\": {}", recipe.one_of(&NAMES), recipe.one_of(&VALUES))
}

/// An adapter of another kind than LoRA: IA³, LoHa, LoKr, VeRA, DoRA, or LoRA with a bias and on the embedding table.
pub fn peft_kind_sample(kind: usize, recipe: &[u8]) -> (String, Vec<u8>) {
    valid_kind(kind, &mut Recipe::new(recipe))
}

/// The configuration and the safetensors file that a recipe makes.
pub fn peft_sample(recipe: &[u8]) -> (String, Vec<u8>) {
    valid(&mut Recipe::new(recipe))
}

/// Ones, whatever is asked for.
struct Ones;

impl BaseWeights for Ones {
    fn row(&self, _tensor: &str, _row: usize, out: &mut [f32]) {
        out.fill(1.0);
    }

    fn encoding(&self, _tensor: &str) -> Option<Encoding> {
        Some(Encoding::F32)
    }
}

pub(crate) fn base() -> BaseShape<'static> {
    let mut tensors = BTreeMap::new();
    for layer in 0..2 {
        for (_, canonical, rows, cols) in MODULES {
            tensors.insert(format!("blk.{layer}.{canonical}.weight"), (rows, cols));
        }
    }
    tensors.insert("token_embd.weight".to_owned(), (32, N_EMBD));
    BaseShape {
        architecture: Architecture::Llama,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: HEAD_DIM,
        n_layers: 2,
        tied_embeddings: true,
        tensors,
        weights: Some(&Ones),
    }
}

fn valid(recipe: &mut Recipe<'_>) -> (String, Vec<u8>) {
    let rank = 1 + recipe.below(4) as u64;
    let first = recipe.below(MODULES.len());
    let chosen = &MODULES[first..first + 1 + recipe.below(MODULES.len() - first)];
    let dtype = recipe.one_of(&[Dtype::F32, Dtype::F16, Dtype::BF16]);
    let mut owned = Vec::new();
    for layer in 0..2 {
        for (path, _, rows, cols) in chosen {
            for (half, shape) in [("A", [rank, *cols]), ("B", [*rows, rank])] {
                let name =
                    format!("base_model.model.model.layers.{layer}.{path}.lora_{half}.weight");
                let elements = (shape[0] * shape[1]) as usize;
                owned.push((name, shape, factor(recipe, dtype, elements)));
            }
        }
    }
    let tensors: Vec<TensorSource<'_>> =
        owned.iter().map(|(name, shape, data)| TensorSource { name, dtype, shape, data }).collect();
    let mut weights = Vec::new();
    safetensors::write(&mut weights, &tensors, &BTreeMap::new()).expect("valid tensors");
    let names: Vec<String> = chosen
        .iter()
        .map(|(path, ..)| format!("\"{}\"", path.rsplit('.').next().unwrap_or(path)))
        .collect();
    let alpha = recipe.one_of(&["16", "1", "0.5", "8.0"]);
    let rslora = recipe.rarely(2);
    let config = format!(
        "{{\"peft_type\": \"LORA\", \"r\": {rank}, \"lora_alpha\": {alpha}, \"use_rslora\": {rslora}, \"bias\": \"none\", \"target_modules\": [{}]}}",
        names.join(", ")
    );
    (config, weights)
}

fn valid_kind(kind: usize, recipe: &mut Recipe<'_>) -> (String, Vec<u8>) {
    let mut owned: Vec<(String, Vec<u64>, Vec<u8>)> = Vec::new();
    let mut put = |recipe: &mut Recipe<'_>, name: String, shape: &[u64]| {
        let elements = shape.iter().product::<u64>() as usize;
        // Painted bytes of ordinary size: neither so small that products vanish nor so large that they overflow.
        let values = recipe.paint(elements).into_iter().map(|byte| f32::from(byte) / 64.0 - 1.99);
        owned.push((name, shape.to_vec(), values.flat_map(f32::to_le_bytes).collect()));
    };
    let own = match kind {
        0 => r#""peft_type": "IA3", "feedforward_modules": ["down_proj"]"#,
        1 => r#""peft_type": "LOHA", "r": 2, "alpha": 4"#,
        2 => r#""peft_type": "LOKR", "r": 2, "alpha": 4"#,
        3 => r#""peft_type": "VERA", "r": 3, "save_projection": true"#,
        4 => r#""peft_type": "LORA", "r": 2, "use_dora": true"#,
        _ => r#""peft_type": "LORA", "r": 2, "lora_bias": true"#,
    };
    for layer in 0..2 {
        for (path, _, rows, cols) in [MODULES[0], MODULES[2], MODULES[6]] {
            let name = |end: &str| format!("base_model.model.model.layers.{layer}.{path}.{end}");
            let is_down = path.ends_with("down_proj");
            let tensors: Vec<(&str, Vec<u64>)> = match kind {
                0 if is_down => vec![("ia3_l", vec![1, cols])],
                0 => vec![("ia3_l", vec![rows, 1])],
                1 => vec![
                    ("hada_w1_a", vec![rows, 2]),
                    ("hada_w1_b", vec![2, cols]),
                    ("hada_w2_a", vec![rows, 2]),
                    ("hada_w2_b", vec![2, cols]),
                ],
                2 => vec![
                    ("lokr_w1", vec![2, 4]),
                    ("lokr_w2_a", vec![rows / 2, 2]),
                    ("lokr_w2_b", vec![2, cols / 4]),
                ],
                3 => vec![("vera_lambda_b", vec![rows]), ("vera_lambda_d", vec![3])],
                _ => vec![
                    ("lora_A.weight", vec![2, cols]),
                    ("lora_B.weight", vec![rows, 2]),
                    (if kind == 4 { "lora_magnitude_vector" } else { "lora_B.bias" }, vec![rows]),
                ],
            };
            for (end, shape) in tensors {
                put(recipe, name(end), &shape);
            }
        }
    }
    if kind == 3 {
        put(recipe, "base_model.vera_A".to_owned(), &[3, N_FF]);
        put(recipe, "base_model.vera_B".to_owned(), &[9, 3]);
    }
    let targets = if kind == 5 {
        put(recipe, "base_model.model.model.embed_tokens.lora_embedding_A".to_owned(), &[2, 32]);
        put(
            recipe,
            "base_model.model.model.embed_tokens.lora_embedding_B".to_owned(),
            &[N_EMBD, 2],
        );
        r#"["q_proj", "v_proj", "down_proj", "embed_tokens"]"#
    } else {
        r#"["q_proj", "v_proj", "down_proj"]"#
    };
    let tensors: Vec<TensorSource<'_>> = owned
        .iter()
        .map(|(name, shape, data)| TensorSource { name, dtype: Dtype::F32, shape, data })
        .collect();
    let mut weights = Vec::new();
    safetensors::write(&mut weights, &tensors, &BTreeMap::new()).expect("valid tensors");
    (format!("{{{own}, \"target_modules\": {targets}}}"), weights)
}

/// Finite elements: the exponent's highest bit is cleared.
fn factor(recipe: &mut Recipe<'_>, dtype: Dtype, elements: usize) -> Vec<u8> {
    let size = usize::try_from(dtype.size()).expect("an element is small");
    let mut data = recipe.paint(elements * size);
    for element in data.chunks_exact_mut(size) {
        element[size - 1] &= 0xbf;
    }
    data
}
