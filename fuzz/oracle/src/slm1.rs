//! SLM1: what is accepted can be written again, and is then the same.

use slm_format::slm1::{
    RawHeader, ScaleOrder, Slm1, Slm1Dtype, Slm1Header, Slm1Tensor, TIED_OUTPUT, name_hash, write,
};
use slm_format::{Coded, Limits};

use crate::Verdict;
use crate::recipe::Recipe;

/// A tensor's name, type, rows and columns, values and scales.
type Owned = (String, Slm1Dtype, [u32; 2], Vec<u8>, Vec<u8>);

/// Both properties.
pub fn slm1(data: &[u8]) {
    slm1_file(data);
    slm1_recipe(data);
}

/// Reading never panics. Of an accepted file every scale is positive and finite, the parts do not add up to more than the file, and, written again in
/// either order of scales, they are read as they were; what was written is written again byte for byte.
pub fn slm1_file(data: &[u8]) -> Verdict {
    let file = match Slm1::parse(data, &Limits::STANDARD) {
        Ok(file) => file,
        Err(error) => return Verdict::Refused(error.code()),
    };
    let mut parts = file.tokenizer().len() + file.extension().len();
    for tensor in file.tensors() {
        parts += tensor.values.len() + tensor.scales.len();
        for scale in tensor.scales.chunks_exact(4) {
            let scale = f32::from_le_bytes(scale.try_into().expect("four bytes"));
            assert!(scale.is_finite() && scale > 0.0, "a scale is {scale}");
        }
        let elements = tensor.rows() * tensor.cols();
        let bytes = match tensor.dtype {
            Slm1Dtype::F32 => 4 * elements,
            Slm1Dtype::Q8_0 => elements,
            Slm1Dtype::Q4_0 => elements / 2,
        };
        assert_eq!(tensor.values.len() as u64, bytes, "values of another shape");
    }
    assert!(parts <= data.len(), "parts of {parts} bytes in a file of {}", data.len());
    for order in [ScaleOrder::PerTensor, ScaleOrder::Last] {
        let written = written(&file, order);
        let again = Slm1::parse(&written, &Limits::STANDARD).expect("a written file is accepted");
        // As bits: a NaN would be no header.
        assert_eq!(again, file, "written and read, the file is another");
        assert_eq!(self::written(&again, order), written, "two writings differ");
    }
    Verdict::Accepted
}

/// A file made by the recipe is accepted; cut short or with one byte changed, it is refused or holds as any file. Gives the verdict on what was bent.
pub fn slm1_recipe(data: &[u8]) -> Verdict {
    let mut recipe = Recipe::new(data);
    let bytes = valid(&mut recipe);
    assert_eq!(slm1_file(&bytes), Verdict::Accepted, "a valid file was refused");
    let mut bent = bytes.clone();
    // Header, tokenizer and the first entries are bent more often than data.
    let at =
        if recipe.rarely(4) { recipe.below(bent.len()) } else { recipe.below(512.min(bent.len())) };
    bent[at] = recipe.byte();
    slm1_file(&bytes[..recipe.below(bytes.len())]);
    slm1_file(&bent)
}

/// The file that a recipe makes.
pub fn slm1_sample(recipe: &[u8]) -> Vec<u8> {
    valid(&mut Recipe::new(recipe))
}

fn written(file: &Slm1<'_>, order: ScaleOrder) -> Vec<u8> {
    let mut out = Vec::new();
    let (header, tensors) = (file.header(), file.tensors());
    let written = write(&mut out, header, file.extension(), file.tokenizer(), tensors, order);
    assert_eq!(written.expect("accepted parts can be written"), out.len() as u64);
    out
}

fn valid(recipe: &mut Recipe<'_>) -> Vec<u8> {
    let kv_head_count = 1 + recipe.below(2) as u32;
    let header = Slm1Header::check(RawHeader {
        flags: if recipe.rarely(2) { TIED_OUTPUT } else { 0 },
        vocab_size: 260 + recipe.below(4) as u32,
        special_token_count: 4 + recipe.below(2) as u32,
        hidden_size: 8,
        layer_count: 1 + recipe.below(3) as u32,
        head_count: 2,
        kv_head_count,
        head_dim: 4,
        ffn_size: 12,
        max_context: 1 + recipe.below(512) as u32,
        rope_theta: 10_000.0,
        rms_norm_epsilon: 1e-5,
        checksum: 1 + recipe.u64() / 2,
    })
    .expect("a header that keeps every rule");
    let mut tokenizer = if recipe.rarely(2) { b"BPE1".to_vec() } else { b"BTOK".to_vec() };
    let length = recipe.below(64);
    tokenizer.extend(recipe.paint(length));
    let length = recipe.below(3) * 7;
    let extension = recipe.paint(length);
    let owned: Vec<Owned> = (0..recipe.below(5))
        .map(|at| {
            let dtype = recipe.one_of(&[Slm1Dtype::F32, Slm1Dtype::Q8_0, Slm1Dtype::Q4_0]);
            let [rows, cols] = [1 + recipe.below(4), 8 * (1 + recipe.below(3))];
            let (values, scales) = match dtype {
                Slm1Dtype::F32 => (4 * rows * cols, 0),
                Slm1Dtype::Q8_0 => (rows * cols, rows),
                Slm1Dtype::Q4_0 => (rows * cols / 2, rows * cols / 8),
            };
            let scales = recipe.paint(scales).into_iter().map(|byte| f32::from(byte) + 0.5);
            let scales = scales.flat_map(f32::to_le_bytes).collect();
            let name = format!("layers.{at}.wq.weight");
            (name, dtype, [rows as u32, cols as u32], recipe.paint(values), scales)
        })
        .collect();
    let tensors: Vec<Slm1Tensor<'_>> = owned
        .iter()
        .map(|(name, dtype, [rows, cols], values, scales)| Slm1Tensor {
            name_hash: name_hash(name),
            dtype: *dtype,
            rank: 2,
            dims: [*rows, *cols, 1, 1],
            block_size: if *dtype == Slm1Dtype::Q4_0 { 8 } else { *cols },
            reserved: 0,
            values,
            scales,
        })
        .collect();
    let order = recipe.one_of(&[ScaleOrder::PerTensor, ScaleOrder::Last]);
    let mut out = Vec::new();
    write(&mut out, &header, &extension, &tokenizer, &tensors, order).expect("valid parts");
    out
}
