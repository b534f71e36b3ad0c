//! The reference forward pass: one file, no dependencies, plain loops.
//!
//! This is what slm computes, written to be read beside the fast code and beside `docs/numerics.md`, whose section numbers
//! the comments give. It shares no line with `slm-quant` or `slm-runtime`; the vectors in `golden/vectors/` come from here.
//! It is slow on purpose: nothing is blocked, vectorised, cached or threaded.
//!
//! Reading order: the call and its types; the graphs; attention; products and adapters; 8-bit rows; blocks; functions;
//! reductions; half precision.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

// ---------------------------------------------------------------- the call and its types

/// The graph of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama: two norms per block, SiLU, RoPE over neighbours `(2j, 2j+1)`.
    Llama,
    /// Gemma 3: four norms per block, QK-norm, GELU, RoPE over halves `(j, j + d/2)`, sliding windows.
    Gemma3,
}

/// The dimensions and constants of a model, named as in GGUF.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The graph.
    pub architecture: Architecture,
    /// Transformer blocks.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Added to the mean square in RMS norms.
    pub rms_norm_eps: f32,
    /// RoPE base of global layers.
    pub rope_theta: f32,
    /// Linear RoPE factor of global layers; 1 for none.
    pub rope_linear_factor: f32,
    /// RoPE base of sliding-window layers.
    pub rope_theta_local: f32,
    /// Positions a sliding-window layer sees, itself included.
    pub sliding_window: Option<usize>,
    /// Every n-th layer is global; used with `sliding_window`.
    pub sliding_window_pattern: usize,
}

/// One matrix, `rows` x `cols` in row-major blocks; a vector is one row.
#[derive(Debug, Clone)]
pub struct Tensor<'a> {
    /// How the elements are stored.
    pub encoding: Encoding,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// The blocks, row after row.
    pub bytes: Cow<'a, [u8]>,
}

/// A base: configuration and tensors under their GGUF names.
#[derive(Debug, Clone)]
pub struct Model<'a> {
    /// The configuration.
    pub config: Config,
    /// The tensors.
    pub tensors: BTreeMap<String, Tensor<'a>>,
}

/// One pair of low-rank factors.
#[derive(Debug, Clone)]
pub struct Factors {
    /// Rank.
    pub r: usize,
    /// `r` rows of `cols` elements.
    pub a: Vec<f32>,
    /// `rows` rows of `r` elements, in GGUF's row order.
    pub b: Vec<f32>,
    /// `f32(alpha / r)`, or `f32(alpha / sqrt(r))` for rsLoRA, divided in f64.
    pub scale: f32,
}

/// An adapter: factors under the GGUF names of the matrices they go with.
#[derive(Debug, Clone, Default)]
pub struct Lora {
    /// Target tensor name to factors.
    pub targets: BTreeMap<String, Factors>,
}

/// What changes bits beside the model and the tokens.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Activations in 8-bit blocks; else f32 with decoded weights.
    pub int8: bool,
    /// K and V rounded to f16; else kept in f32.
    pub kv_f16: bool,
    /// Where RoPE gets its functions from.
    pub trig: Trig,
}

/// `pow`, `cos` and `sin` in f64. The contract names the `libm` crate; this file depends on nothing, so the caller brings them.
#[derive(Debug, Clone, Copy)]
pub struct Trig {
    /// Base and exponent to power.
    pub pow: fn(f64, f64) -> f64,
    /// Cosine of an angle in radians.
    pub cos: fn(f64) -> f64,
    /// Sine of an angle in radians.
    pub sin: fn(f64) -> f64,
}

/// Why there are no logits.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReferenceError {
    /// The graph needs a tensor that the model lacks.
    MissingTensor(String),
    /// A tensor or a pair of factors does not have the shape that its place needs.
    Shape(String),
    /// An adapter targets a tensor that no product of this graph reads.
    UnusedTarget(String),
    /// A token is outside the vocabulary.
    Token(u32),
    /// NaN or infinity among the activations or logits, at this place.
    NotFinite(String),
}

impl fmt::Display for ReferenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReferenceError::MissingTensor(name) => write!(f, "tensor {name} is missing"),
            ReferenceError::Shape(name) => {
                write!(f, "{name} has a shape that does not fit its place")
            }
            ReferenceError::UnusedTarget(name) => {
                write!(f, "no product reads {name}, which an adapter targets")
            }
            ReferenceError::Token(token) => write!(f, "token {token} is outside the vocabulary"),
            ReferenceError::NotFinite(place) => write!(f, "NaN or infinity at {place}"),
        }
    }
}

impl std::error::Error for ReferenceError {}

/// The logits of every position of `tokens` under `stack`, an ordered list of (adapter, weight).
///
/// # Errors
/// [`ReferenceError`].
pub fn logits(
    model: &Model<'_>,
    stack: &[(&Lora, f32)],
    tokens: &[u32],
    options: Options,
) -> Result<Vec<Vec<f32>>, ReferenceError> {
    let pass = Pass { model, stack, options };
    pass.check_targets()?;
    if tokens.is_empty() {
        return Ok(Vec::new());
    }
    pass.run(tokens)
}

// ---------------------------------------------------------------- the graphs (§6)

struct Pass<'p> {
    model: &'p Model<'p>,
    stack: &'p [(&'p Lora, f32)],
    options: Options,
}

/// One f32 row per position.
type Rows = Vec<Vec<f32>>;

impl Pass<'_> {
    fn run(&self, tokens: &[u32]) -> Result<Rows, ReferenceError> {
        let config = &self.model.config;
        let gemma = config.architecture == Architecture::Gemma3;

        let table = self.tensor("token_embd.weight")?;
        let mut x: Rows = Vec::new();
        for &token in tokens {
            if token as usize >= table.rows {
                return Err(ReferenceError::Token(token));
            }
            let mut row = decode_row(table, token as usize);
            if gemma {
                let scale = (config.n_embd as f32).sqrt();
                row.iter_mut().for_each(|v| *v *= scale);
            }
            x.push(row);
        }

        for layer in 0..config.n_layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");

            let mut y = self.norm(&name("attn_norm"), &x)?;
            y = self.attention(layer, &y)?;
            if gemma {
                y = self.norm(&name("post_attention_norm"), &y)?;
            }
            add(&mut x, &y);

            y = self.norm(&name("ffn_norm"), &x)?;
            let mut gate = self.linear(&name("ffn_gate"), &y)?;
            let up = self.linear(&name("ffn_up"), &y)?;
            for (gate, up) in gate.iter_mut().zip(&up) {
                for (g, &u) in gate.iter_mut().zip(up) {
                    *g = (if gemma { gelu(*g) } else { silu(*g) }) * u;
                }
            }
            y = self.linear(&name("ffn_down"), &gate)?;
            if gemma {
                y = self.norm(&name("post_ffw_norm"), &y)?;
            }
            add(&mut x, &y);
        }

        x = self.norm("output_norm.weight", &x)?;
        let logits = self.product(self.head(), "output.weight", &x)?;
        match logits.iter().position(|row| row.iter().any(|v| !v.is_finite())) {
            Some(position) => {
                Err(ReferenceError::NotFinite(format!("logits of position {position}")))
            }
            None => Ok(logits),
        }
    }

    /// The tied head is the embedding table.
    fn head(&self) -> &'static str {
        match self.model.tensors.contains_key("output.weight") {
            true => "output.weight",
            false => "token_embd.weight",
        }
    }

    fn norm(&self, name: &str, x: &Rows) -> Result<Rows, ReferenceError> {
        let w = decode_row(self.tensor(name)?, 0);
        if w.len() != x[0].len() {
            return Err(ReferenceError::Shape(name.to_string()));
        }
        Ok(x.iter().map(|row| rms_norm(row, &w, self.model.config.rms_norm_eps)).collect())
    }

    fn tensor(&self, name: &str) -> Result<&Tensor<'_>, ReferenceError> {
        let missing = || ReferenceError::MissingTensor(name.to_string());
        let tensor = self.model.tensors.get(name).ok_or_else(missing)?;
        let (elements, bytes) = tensor.encoding.block();
        let whole = tensor.cols % elements == 0
            && tensor.bytes.len() == tensor.rows * (tensor.cols / elements * bytes);
        if whole { Ok(tensor) } else { Err(ReferenceError::Shape(name.to_string())) }
    }

    /// An adapter that would be ignored is refused.
    fn check_targets(&self) -> Result<(), ReferenceError> {
        let parts = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
        let blocks = (0..self.model.config.n_layers)
            .flat_map(|layer| parts.map(|part| format!("blk.{layer}.{part}.weight")));
        let products: Vec<String> = blocks.chain(["output.weight".to_string()]).collect();
        for target in self.stack.iter().flat_map(|(lora, _)| lora.targets.keys()) {
            if !products.contains(target) {
                return Err(ReferenceError::UnusedTarget(target.clone()));
            }
        }
        Ok(())
    }
}

/// The residual: `x = x + y`.
fn add(x: &mut Rows, y: &Rows) {
    for (x, y) in x.iter_mut().zip(y) {
        for (x, y) in x.iter_mut().zip(y) {
            *x += y;
        }
    }
}

// ---------------------------------------------------------------- attention (§5)

impl Pass<'_> {
    /// Causal attention of one layer over all rows of `x`, output projection included.
    fn attention(&self, layer: usize, x: &Rows) -> Result<Rows, ReferenceError> {
        let config = &self.model.config;
        let (heads, kv_heads, d) = (config.n_heads, config.n_kv_heads, config.head_dim);
        let name = |part: &str| format!("blk.{layer}.{part}.weight");

        let mut q = self.linear(&name("attn_q"), x)?;
        let mut k = self.linear(&name("attn_k"), x)?;
        let mut v = self.linear(&name("attn_v"), x)?;
        if q[0].len() != heads * d || k[0].len() != kv_heads * d || v[0].len() != kv_heads * d {
            return Err(ReferenceError::Shape(name("attn_q")));
        }

        if config.architecture == Architecture::Gemma3 {
            for (rows, part) in [(&mut q, "attn_q_norm"), (&mut k, "attn_k_norm")] {
                let w = decode_row(self.tensor(&name(part))?, 0);
                if w.len() != d {
                    return Err(ReferenceError::Shape(name(part)));
                }
                for head in rows.iter_mut().flat_map(|row| row.chunks_exact_mut(d)) {
                    head.copy_from_slice(&rms_norm(head, &w, config.rms_norm_eps));
                }
            }
        }

        let inv_freq = self.inv_freq(layer);
        for (position, (q, k)) in q.iter_mut().zip(&mut k).enumerate() {
            for head in q.chunks_exact_mut(d).chain(k.chunks_exact_mut(d)) {
                self.rope(head, position, &inv_freq);
            }
        }

        if self.options.kv_f16 {
            for value in k.iter_mut().chain(&mut v).flatten() {
                *value = f16_to_f32(f32_to_f16(*value));
            }
        }

        let scale = 1.0 / (d as f32).sqrt();
        let mut out = vec![vec![0.0f32; heads * d]; x.len()];
        for position in 0..x.len() {
            let first = match config.sliding_window {
                Some(window) if is_sliding(config, layer) => (position + 1).saturating_sub(window),
                _ => 0,
            };
            for head in 0..heads {
                let kv = head / (heads / kv_heads) * d;
                let q = &q[position][head * d..(head + 1) * d];
                let scores: Vec<f32> =
                    (first..=position).map(|p| dot16(q, &k[p][kv..kv + d]) * scale).collect();
                let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let e: Vec<f32> = scores.iter().map(|&s| exp(s - max)).collect();
                let total = sum16(&e);
                for channel in 0..d {
                    let mut o = 0.0f32;
                    for (&e, p) in e.iter().zip(first..) {
                        o += e * v[p][kv + channel];
                    }
                    out[position][head * d + channel] = o / total;
                }
            }
        }
        self.linear(&name("attn_output"), &out)
    }

    /// The inverse frequency of each pair, in f64 up to the last rounding.
    fn inv_freq(&self, layer: usize) -> Vec<f32> {
        let config = &self.model.config;
        let (theta, factor) = match is_sliding(config, layer) {
            true => (config.rope_theta_local, 1.0),
            false => (config.rope_theta, config.rope_linear_factor),
        };
        let d = config.head_dim;
        (0..d / 2)
            .map(|j| {
                (1.0 / (self.options.trig.pow)(f64::from(theta), (2 * j) as f64 / d as f64)) as f32
            })
            .map(|inv_freq| if factor == 1.0 { inv_freq } else { inv_freq / factor })
            .collect()
    }

    fn rope(&self, head: &mut [f32], position: usize, inv_freq: &[f32]) {
        for (j, &inv_freq) in inv_freq.iter().enumerate() {
            let angle = position as f32 * inv_freq;
            let c = (self.options.trig.cos)(f64::from(angle)) as f32;
            let s = (self.options.trig.sin)(f64::from(angle)) as f32;
            let (first, second) = match self.model.config.architecture {
                Architecture::Llama => (2 * j, 2 * j + 1),
                Architecture::Gemma3 => (j, j + head.len() / 2),
            };
            let (a, b) = (head[first], head[second]);
            head[first] = a * c - b * s;
            head[second] = a * s + b * c;
        }
    }
}

/// The last layer of each `sliding_window_pattern` is global.
fn is_sliding(config: &Config, layer: usize) -> bool {
    config.sliding_window.is_some() && !(layer + 1).is_multiple_of(config.sliding_window_pattern)
}

// ---------------------------------------------------------------- products and adapters (§3, §4, §7)

impl Pass<'_> {
    fn linear(&self, name: &str, x: &Rows) -> Result<Rows, ReferenceError> {
        self.product(name, name, x)
    }

    /// `W x` for each row of `x`, then each adapter's part for `target` in stack order.
    fn product(&self, name: &str, target: &str, x: &Rows) -> Result<Rows, ReferenceError> {
        let w = self.tensor(name)?;
        if w.cols != x[0].len() {
            return Err(ReferenceError::Shape(name.to_string()));
        }
        let mut y = vec![vec![0.0f32; w.rows]; x.len()];
        if self.options.int8 && w.encoding.is_integer() {
            let x: Vec<Vec<Block8>> = x
                .iter()
                .map(|row| {
                    quantize_row(row).ok_or_else(|| ReferenceError::NotFinite(name.to_string()))
                })
                .collect::<Result<_, _>>()?;
            for o in 0..w.rows {
                let row = unpack_row(w, o);
                for (y, x) in y.iter_mut().zip(&x) {
                    y[o] = dot_quantized(&row, x);
                }
            }
        } else {
            for o in 0..w.rows {
                let row = decode_row(w, o);
                for (y, x) in y.iter_mut().zip(x) {
                    y[o] = dot16(&row, x);
                }
            }
        }
        for (lora, weight) in self.stack {
            let Some(factors) = lora.targets.get(target) else { continue };
            if *weight == 0.0 {
                continue;
            }
            if factors.a.len() != factors.r * w.cols || factors.b.len() != w.rows * factors.r {
                return Err(ReferenceError::Shape(format!("adapter factors for {target}")));
            }
            for (y, x) in y.iter_mut().zip(x) {
                add_lora(y, x, factors, *weight);
            }
        }
        Ok(y)
    }
}

/// `y = y + s * (B (A x))`, on the f32 row whatever the activation setting.
pub fn add_lora(y: &mut [f32], x: &[f32], factors: &Factors, weight: f32) {
    let s = weight * factors.scale;
    let z: Vec<f32> = factors.a.chunks_exact(x.len()).map(|a| dot16(a, x)).collect();
    for (y, b) in y.iter_mut().zip(factors.b.chunks_exact(factors.r)) {
        let mut u = 0.0f32;
        for (b, z) in b.iter().zip(&z) {
            u += b * z;
        }
        *y += s * u;
    }
}

// ---------------------------------------------------------------- activation rows in 8 bits (§2) and their product (§3)

/// 32 activations as integers.
#[derive(Debug, Clone, PartialEq)]
pub struct Block8 {
    /// The scale.
    pub d: f32,
    /// The integers, -127 ..= 127.
    pub q: [i32; 32],
}

/// A row of activations in 8-bit blocks of 32; `None` where one is NaN or infinite.
pub fn quantize_row(x: &[f32]) -> Option<Vec<Block8>> {
    if x.iter().any(|v| !v.is_finite()) {
        return None;
    }
    Some(x.chunks_exact(32).map(quantize_block).collect())
}

fn quantize_block(x: &[f32]) -> Block8 {
    let amax = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let id = 127.0 / amax;
    let mut block = Block8 { d: 0.0, q: [0; 32] };
    if amax == 0.0 || !id.is_finite() {
        return block;
    }
    block.d = amax / 127.0;
    for (q, x) in block.q.iter_mut().zip(x) {
        *q = (x * id).round_ties_even() as i32;
    }
    block
}

/// The product of one weight row and one activation row: one accumulator, blocks ascending.
pub fn dot_quantized(w: &[Block], x: &[Block8]) -> f32 {
    let mut acc = 0.0f32;
    for (w, x) in w.iter().zip(x) {
        let mut sum = [0i32; 2];
        let mut xsum = [0i32; 2];
        for i in 0..32 {
            sum[i / 16] += w.q[i] * x.q[i];
            xsum[i / 16] += x.q[i];
        }
        let scaled = w.scale[0] * sum[0] + w.scale[1] * sum[1];
        let mut t = (w.d * x.d) * scaled as f32;
        match w.offset {
            Offset::None => {}
            Offset::Plus { m } => t += m * (x.d * (xsum[0] + xsum[1]) as f32),
            Offset::Minus { dmin, min } => {
                let offset = min[0] * xsum[0] + min[1] * xsum[1];
                t -= (dmin * x.d) * offset as f32;
            }
        }
        acc += t;
    }
    acc
}

// ---------------------------------------------------------------- blocks

/// How the elements of a tensor are stored; sizes and layouts are ggml's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "the field's own names")]
pub enum Encoding {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    BF16,
    /// `d (q - 8)`, 4 bits.
    Q4_0,
    /// `d q + m`, 4 bits.
    Q4_1,
    /// `d (q - 16)`, 5 bits.
    Q5_0,
    /// `d q + m`, 5 bits.
    Q5_1,
    /// `d q`, 8 bits.
    Q8_0,
    /// `d sc q - dmin mn`, 2 bits, sixteen groups of 16.
    Q2_K,
    /// `d sc (q - 4)`, 3 bits, sixteen groups of 16.
    Q3_K,
    /// `d sc q - dmin mn`, 4 bits, eight groups of 32.
    Q4_K,
    /// `d sc q - dmin mn`, 5 bits, eight groups of 32.
    Q5_K,
    /// `d sc (q - 32)`, 6 bits, sixteen groups of 16.
    Q6_K,
    /// `d table[q]`, 4 bits.
    IQ4_NL,
    /// `d sc table[q]`, 4 bits, eight groups of 32.
    IQ4_XS,
}

/// (encoding, name, ggml type, elements per block, bytes per block)
const ENCODINGS: [(Encoding, &str, u32, usize, usize); 15] = [
    (Encoding::F32, "F32", 0, 1, 4),
    (Encoding::F16, "F16", 1, 1, 2),
    (Encoding::BF16, "BF16", 30, 1, 2),
    (Encoding::Q4_0, "Q4_0", 2, 32, 18),
    (Encoding::Q4_1, "Q4_1", 3, 32, 20),
    (Encoding::Q5_0, "Q5_0", 6, 32, 22),
    (Encoding::Q5_1, "Q5_1", 7, 32, 24),
    (Encoding::Q8_0, "Q8_0", 8, 32, 34),
    (Encoding::Q2_K, "Q2_K", 10, 256, 84),
    (Encoding::Q3_K, "Q3_K", 11, 256, 110),
    (Encoding::Q4_K, "Q4_K", 12, 256, 144),
    (Encoding::Q5_K, "Q5_K", 13, 256, 176),
    (Encoding::Q6_K, "Q6_K", 14, 256, 210),
    (Encoding::IQ4_NL, "IQ4_NL", 20, 32, 18),
    (Encoding::IQ4_XS, "IQ4_XS", 23, 256, 136),
];

impl Encoding {
    /// Every encoding of this file.
    pub fn all() -> impl Iterator<Item = Encoding> {
        ENCODINGS.iter().map(|row| row.0)
    }

    /// The encoding of this name, such as `Q4_K`.
    pub fn from_name(name: &str) -> Option<Encoding> {
        ENCODINGS.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// The encoding of this ggml type number.
    pub fn from_ggml_type(number: u32) -> Option<Encoding> {
        ENCODINGS.iter().find(|row| row.2 == number).map(|row| row.0)
    }

    /// The field's name.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Elements and bytes of one block.
    pub fn block(self) -> (usize, usize) {
        (self.row().3, self.row().4)
    }

    /// Whether the weights are integers under scales, and so multiplied with 8-bit activations.
    pub fn is_integer(self) -> bool {
        self.row().3 > 1
    }

    fn row(self) -> &'static (Encoding, &'static str, u32, usize, usize) {
        ENCODINGS
            .iter()
            .find(|row| row.0 == self)
            .expect("BUG: an encoding is missing from the table")
    }
}

/// 32 weights as integers: element i is `d * scale[i / 16] * q[i]`, and then its offset. Every integer type becomes this.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// The scale, widened from f16.
    pub d: f32,
    /// Integer scales of the two halves of 16; 1 for types without.
    pub scale: [i32; 2],
    /// The integers, offset by 4, 5 or 6 bits already taken off.
    pub q: [i32; 32],
    /// What is added after the product.
    pub offset: Offset,
}

/// The part of a weight that does not depend on its integer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Offset {
    /// Nothing.
    None,
    /// `+ m`.
    Plus {
        /// The minimum, widened from f16.
        m: f32,
    },
    /// `- dmin * min[i / 16]`.
    Minus {
        /// The scale of the minima, widened from f16.
        dmin: f32,
        /// Integer minima of the two halves.
        min: [i32; 2],
    },
}

/// Row `row` of `tensor` in f32.
pub fn decode_row(tensor: &Tensor<'_>, row: usize) -> Vec<f32> {
    let bytes = row_bytes(tensor, row);
    match tensor.encoding {
        Encoding::F32 => {
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        }
        Encoding::F16 => bytes.chunks_exact(2).map(f16_at).collect(),
        Encoding::BF16 => {
            bytes.chunks_exact(2).map(|b| f32::from_bits(u32::from(u16_at(b)) << 16)).collect()
        }
        _ => unpack_row(tensor, row).iter().flat_map(decode_block).collect(),
    }
}

fn decode_block(block: &Block) -> [f32; 32] {
    std::array::from_fn(|i| {
        let value = (block.d * block.scale[i / 16] as f32) * block.q[i] as f32;
        match block.offset {
            Offset::None => value,
            Offset::Plus { m } => value + m,
            Offset::Minus { dmin, min } => value - dmin * min[i / 16] as f32,
        }
    })
}

/// Row `row` of an integer-coded `tensor` as blocks of 32.
pub fn unpack_row(tensor: &Tensor<'_>, row: usize) -> Vec<Block> {
    let (_, block_bytes) = tensor.encoding.block();
    let mut blocks = Vec::new();
    for bytes in row_bytes(tensor, row).chunks_exact(block_bytes) {
        match tensor.encoding {
            Encoding::F32 | Encoding::F16 | Encoding::BF16 => {}
            Encoding::Q4_0 => {
                blocks.push(simple(bytes, Offset::None, nibbles(&bytes[2..], [0; 4], 8)))
            }
            Encoding::Q4_1 => {
                blocks.push(simple(bytes, plus(bytes), nibbles(&bytes[4..], [0; 4], 0)))
            }
            Encoding::Q5_0 => blocks.push(simple(
                bytes,
                Offset::None,
                nibbles(&bytes[6..], high(&bytes[2..]), 16),
            )),
            Encoding::Q5_1 => {
                blocks.push(simple(bytes, plus(bytes), nibbles(&bytes[8..], high(&bytes[4..]), 0)))
            }
            Encoding::Q8_0 => {
                let q = std::array::from_fn(|i| i32::from(bytes[2 + i] as i8));
                blocks.push(simple(bytes, Offset::None, q));
            }
            Encoding::IQ4_NL => {
                blocks.push(simple(bytes, Offset::None, table_values(&bytes[2..])));
            }
            Encoding::Q2_K => (0..8).for_each(|group| blocks.push(q2_k_group(bytes, group))),
            Encoding::Q3_K => (0..8).for_each(|group| blocks.push(q3_k_group(bytes, group))),
            Encoding::Q4_K => {
                (0..8).for_each(|group| blocks.push(k_group(bytes, &[0; 32], &bytes[16..], group)))
            }
            Encoding::Q5_K => (0..8)
                .for_each(|group| blocks.push(k_group(bytes, &bytes[16..48], &bytes[48..], group))),
            Encoding::IQ4_XS => (0..8).for_each(|group| blocks.push(iq4_xs_group(bytes, group))),
            Encoding::Q6_K => (0..8).for_each(|group| blocks.push(q6_k_group(bytes, group))),
        }
    }
    blocks
}

fn row_bytes<'t>(tensor: &'t Tensor<'_>, row: usize) -> &'t [u8] {
    let (elements, bytes) = tensor.encoding.block();
    let len = tensor.cols / elements * bytes;
    &tensor.bytes[row * len..(row + 1) * len]
}

/// A block whose scale is its first f16.
fn simple(bytes: &[u8], offset: Offset, q: [i32; 32]) -> Block {
    Block { d: f16_at(bytes), scale: [1; 2], q, offset }
}

/// The minimum is the second f16.
fn plus(bytes: &[u8]) -> Offset {
    Offset::Plus { m: f16_at(&bytes[2..]) }
}

/// The fifth bits: bit i of a little-endian u32 belongs to element i.
fn high(bytes: &[u8]) -> [u8; 4] {
    [bytes[0], bytes[1], bytes[2], bytes[3]]
}

/// Byte j holds element j in its low nibble and element j + 16 in its high one.
fn nibbles(bytes: &[u8], high: [u8; 4], zero: i32) -> [i32; 32] {
    let high = u32::from_le_bytes(high);
    std::array::from_fn(|i| {
        let nibble = if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 };
        (i32::from(nibble) | ((high >> i & 1) as i32) << 4) - zero
    })
}

/// The integers that IQ4 codes stand for.
const IQ4_TABLE: [i32; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

fn table_values(bytes: &[u8]) -> [i32; 32] {
    nibbles(bytes, [0; 4], 0).map(|code| IQ4_TABLE[code as usize])
}

/// Group `group` of 32 in a Q2_K block: 16 bytes of scales (low nibble) and minima (high), 64 bytes of bit pairs, f16 d, f16 dmin. Each half
/// of 128 elements takes 32 of those bytes, and its group g the pairs at bit 2g.
fn q2_k_group(bytes: &[u8], group: usize) -> Block {
    let q =
        std::array::from_fn(|i| i32::from(bytes[16 + group / 4 * 32 + i] >> (2 * (group % 4)) & 3));
    let halves = [bytes[2 * group], bytes[2 * group + 1]];
    let min = halves.map(|byte| i32::from(byte >> 4));
    let offset = Offset::Minus { dmin: f16_at(&bytes[82..]), min };
    Block { d: f16_at(&bytes[80..]), scale: halves.map(|byte| i32::from(byte & 15)), q, offset }
}

/// Group `group` of 32 in a Q3_K block: 32 bytes of third bits (bit `group` of byte i), bit pairs as in Q2_K, 12 bytes of 6-bit scales,
/// f16 d. Scale k has its low nibble in byte k mod 8 (low half of the byte for k < 8) and its upper pair in byte 8 + k mod 4, at bit 2 (k / 4).
fn q3_k_group(bytes: &[u8], group: usize) -> Block {
    let q = std::array::from_fn(|i| {
        let pair = bytes[32 + group / 4 * 32 + i] >> (2 * (group % 4)) & 3;
        i32::from(pair | (bytes[i] >> group & 1) << 2) - 4
    });
    let s = &bytes[96..108];
    let scale = [2 * group, 2 * group + 1].map(|k| {
        let low = if k < 8 { s[k] & 15 } else { s[k - 8] >> 4 };
        i32::from(low | (s[8 + k % 4] >> (2 * (k / 4)) & 3) << 4) - 32
    });
    Block { d: f16_at(&bytes[108..]), scale, q, offset: Offset::None }
}

/// Group `group` of 32 in an IQ4_XS block: f16 d, a u16 of upper scale pairs, 4 bytes of lower scale nibbles, then 16 bytes of codes a group.
fn iq4_xs_group(bytes: &[u8], group: usize) -> Block {
    let low = bytes[4 + group / 2] >> (4 * (group % 2)) & 15;
    let high = u16_at(&bytes[2..]) >> (2 * group) & 3;
    let scale = (i32::from(low) | i32::from(high) << 4) - 32;
    let q = table_values(&bytes[8 + group * 16..]);
    Block { d: f16_at(bytes), scale: [scale; 2], q, offset: Offset::None }
}

/// Group `group` of 32 in a Q4_K or Q5_K block: f16 d, f16 dmin, 12 bytes of 6-bit scales and minima, then for Q5_K 32 bytes of
/// fifth bits (bit `group` of byte i), then nibbles: groups 2n and 2n + 1 are the low and high nibbles of 32 bytes.
fn k_group(bytes: &[u8], high: &[u8], nibbles: &[u8], group: usize) -> Block {
    let (scale, min) = k_scale_min(&bytes[4..16], group);
    let q = std::array::from_fn(|i| {
        let byte = nibbles[group / 2 * 32 + i];
        let nibble = if group.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
        i32::from(nibble) + i32::from(high[i] >> group & 1) * 16
    });
    let offset = Offset::Minus { dmin: f16_at(&bytes[2..]), min: [min; 2] };
    Block { d: f16_at(bytes), scale: [scale; 2], q, offset }
}

/// Groups 0-3 have their six bits in bytes 0-3 (scales) and 4-7 (minima). Groups 4-7 have the low four in bytes 8-11 (scale low,
/// minimum high nibble), and the upper two in the top bits of the bytes that belong to groups 0-3.
fn k_scale_min(s: &[u8], group: usize) -> (i32, i32) {
    let (scale, min) = match group {
        0..4 => (s[group] & 63, s[group + 4] & 63),
        _ => {
            (s[group + 4] & 15 | (s[group - 4] >> 6) << 4, s[group + 4] >> 4 | (s[group] >> 6) << 4)
        }
    };
    (i32::from(scale), i32::from(min))
}

/// Group `group` of 32 in a Q6_K block: 128 bytes of low nibbles, 64 of upper bit pairs, 16 signed scales, f16 d. Each half of 128
/// elements takes 64 and 32 of those bytes: its groups 0, 1 are low nibbles, 2, 3 high ones, and group g has the bit pairs at 2g.
fn q6_k_group(bytes: &[u8], group: usize) -> Block {
    let (half, g) = (group / 4, group % 4);
    let q = std::array::from_fn(|i| {
        let byte = bytes[half * 64 + g % 2 * 32 + i];
        let low = if g < 2 { byte & 15 } else { byte >> 4 };
        let pair = bytes[128 + half * 32 + i] >> (2 * g) & 3;
        i32::from(low | pair << 4) - 32
    });
    let scale = [0, 1].map(|h| i32::from(bytes[192 + group * 2 + h] as i8));
    Block { d: f16_at(&bytes[208..]), scale, q, offset: Offset::None }
}

// ---------------------------------------------------------------- functions (§5)

/// The exponential, for finite x and -infinity.
#[allow(
    clippy::excessive_precision,
    clippy::approx_constant,
    reason = "the digits of the contract"
)]
pub fn exp(x: f32) -> f32 {
    let x = if x > 88.37626 { 88.37626 } else { x };
    if x < -87.33654 {
        return 0.0;
    }
    let n = (x * 1.44269504).round_ties_even();
    let r = (x - n * 0.693359375) - n * -2.12194440e-4;
    let mut p = 1.9875691500e-4f32;
    p = p * r + 1.3981999507e-3;
    p = p * r + 8.3334519073e-3;
    p = p * r + 4.1665795894e-2;
    p = p * r + 1.6666665459e-1;
    p = p * r + 5.0000001201e-1;
    let y = (p * (r * r) + r) + 1.0;
    y * f32::from_bits(((n as i32 + 127) as u32) << 23)
}

/// `x * sigmoid(x)`.
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// The tanh form of GELU, through the logistic function.
#[allow(clippy::excessive_precision, reason = "the digits of the contract")]
pub fn gelu(x: f32) -> f32 {
    let u = 0.7978845608 * (x + ((0.044715 * x) * x) * x);
    x / (1.0 + exp(-2.0 * u))
}

/// `x / rms(x) * w`.
pub fn rms_norm(x: &[f32], w: &[f32], eps: f32) -> Vec<f32> {
    let m = dot16(x, x) / x.len() as f32;
    let r = 1.0 / (m + eps).sqrt();
    x.iter().zip(w).map(|(x, w)| (x * r) * w).collect()
}

// ---------------------------------------------------------------- reductions (§1)

/// The sum over sixteen lanes.
pub fn sum16(v: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    for (i, v) in v.iter().enumerate() {
        lanes[i % 16] += v;
    }
    reduce(lanes)
}

/// The dot product over sixteen lanes.
pub fn dot16(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        lanes[i % 16] += a * b;
    }
    reduce(lanes)
}

fn reduce(mut lanes: [f32; 16]) -> f32 {
    for step in [8, 4, 2, 1] {
        for l in 0..step {
            lanes[l] += lanes[l + step];
        }
    }
    lanes[0]
}

// ---------------------------------------------------------------- half precision

/// Exact.
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = if bits & 0x8000 == 0 { 1.0f32 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    match exponent {
        0 => sign * mantissa * power_of_two(-24),
        31 if mantissa == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * (1024.0 + mantissa) * power_of_two(exponent - 25),
    }
}

/// Rounds to nearest even; beyond the largest f16 to infinity.
pub fn f32_to_f16(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16 & 0x8000) as u16;
    if x.is_nan() {
        return sign | 0x7e00;
    }
    let magnitude = x.abs();
    if magnitude >= 65520.0 {
        return sign | 0x7c00;
    }
    // An f16 is a whole number of units, and the unit is 2^-24 or ten binary places under the leading bit. Counting in units makes one
    // code for normal and subnormal numbers, and a carry into the next exponent needs no case of its own.
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(-14);
    let units = (magnitude * power_of_two(10 - exponent)).round_ties_even() as u16;
    sign | ((((exponent + 14) as u16) << 10) + units)
}

fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

fn u16_at(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[0], bytes[1]])
}

fn f16_at(bytes: &[u8]) -> f32 {
    f16_to_f32(u16_at(bytes))
}
