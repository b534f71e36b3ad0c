//! The clean base: every matrix in f32.

use std::path::Path;

use half::f16;
use slm_format::{Encoding, Limits};
use slm_quant::{Kernels, codec};
use slm_runtime::Engine;
use slm_runtime::load::{Base, HfFiles};

use crate::Outcome;

pub(crate) fn base(path: &Path, engine: &Engine) -> Outcome<Base> {
    let base = match path.is_dir() {
        true => folder(path, engine)?,
        false => {
            let file = std::fs::read(path)?;
            Base::load(&file, &Limits::STANDARD, engine.kernels, &*engine.exec, &|_| {})?
        }
    };
    let mut changed = Vec::new();
    for (at, tensor) in base.tensors().iter().enumerate() {
        if tensor.encoding() == Encoding::F32 {
            continue;
        }
        let bytes = base.tensor_bytes(at);
        let n: u64 = tensor.shape().iter().product();
        let mut values = vec![0.0; n as usize];
        codec::decode(tensor.encoding(), &bytes, &mut values)?;
        off_the_grid(tensor.encoding(), &bytes, &mut values, at as u64)?;
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        changed.push((tensor.name().to_owned(), Encoding::F32, bytes));
    }
    Ok(base.with_tensors(changed, Kernels::detect(), &*engine.exec)?)
}

/// Moves each weight of a quantized tensor by an even draw from half a step below to half a step above: a base that its file could have been made
/// of, and that no type's grid favours.
fn off_the_grid(encoding: Encoding, bytes: &[u8], values: &mut [f32], seed: u64) -> Outcome<()> {
    if matches!(encoding, Encoding::F16 | Encoding::BF16) {
        return Ok(());
    }
    let one_step = [Encoding::Q4_0, Encoding::Q4_1, Encoding::Q5_0, Encoding::Q5_1, Encoding::Q8_0];
    if !one_step.contains(&encoding) {
        return Err(
            format!("the steps of {encoding} are not those of one scale for each block").into()
        );
    }
    let blocks = bytes.chunks_exact(encoding.block_bytes());
    for (n, (block, values)) in
        blocks.zip(values.chunks_exact_mut(encoding.block_elements())).enumerate()
    {
        let step = f16::from_le_bytes([block[0], block[1]]).to_f32().abs();
        for (i, value) in values.iter_mut().enumerate() {
            *value += step * draw(seed << 40 | (n * encoding.block_elements() + i) as u64);
        }
    }
    Ok(())
}

/// From -0.5 to 0.5, by SplitMix64.
fn draw(at: u64) -> f32 {
    let mut z = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32 - 0.5
}

fn folder(path: &Path, engine: &Engine) -> Outcome<Base> {
    let read = |file: &str| std::fs::read(path.join(file));
    let (config, tokenizer, weights) =
        (read("config.json")?, read("tokenizer.json")?, read("model.safetensors")?);
    let (tokenizer_config, generation_config) =
        (read("tokenizer_config.json").ok(), read("generation_config.json").ok());
    let files = HfFiles {
        config: &config,
        tokenizer: &tokenizer,
        tokenizer_config: tokenizer_config.as_deref(),
        generation_config: generation_config.as_deref(),
        chat_template: None,
        weights: vec![&weights],
    };
    Ok(Base::open_hf(&files, &Limits::STANDARD, engine.kernels, &*engine.exec)?)
}
