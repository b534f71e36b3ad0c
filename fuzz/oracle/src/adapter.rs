//! Adapters of other formats: binary LoRA files, GGUF and typed deltas.

use slm_format::safetensors::SafeTensors;
use slm_format::{Coded, ContentHash, Digest, Encoding, Limits};
use slm_manifest::{BaseId, TokenizerId};
use slm_overlay::binary::{BinaryFormat, Compact, Layout, LoraAdapter};
use slm_overlay::delta::{BaseMatrices, DeltaFile, DeltaIdentity, to_delta};
use slm_overlay::gguf::{GgufAdapter, to_gguf};
use slm_overlay::peft::BindingReport;
use slm_overlay::{Adapter, Delta, DenseDelta, Factor, Module, SourceDigest, SparseDelta};

use crate::Verdict;
use crate::peft::{base, holds};
use crate::recipe::Recipe;

/// All formats on the same bytes, and as a recipe.
pub fn adapter(data: &[u8]) {
    plan008(data);
    compact(data);
    gguf_adapter(data);
    delta(data);
    delta_recipe(data);
}

/// Reading never panics. Of an accepted file every number is finite and every length is what its dimensions need, and it is written again byte for
/// byte.
pub fn plan008(data: &[u8]) -> Verdict {
    let pairs = match LoraAdapter::load(data, &Limits::STANDARD) {
        Ok(pairs) => pairs,
        Err(error) => return Verdict::Refused(error.code()),
    };
    check(&pairs);
    let (rank, alpha) = (pairs[0].rank, pairs[0].alpha);
    let again = LoraAdapter::save(&pairs.iter().collect::<Vec<_>>(), rank, alpha);
    assert_eq!(again.as_deref(), Ok(data), "written, the file is another");
    assert_eq!(BinaryFormat::detect(data), Some(BinaryFormat::Plan008));
    Verdict::Accepted
}

/// Reading never panics. Of an accepted file every number is finite, every length is what its dimensions need, and every position has its tensor;
/// where they fit the base, the adapter holds.
pub fn compact(data: &[u8]) -> Verdict {
    let file = match Compact::load(data, &Limits::STANDARD) {
        Ok(file) => file,
        Err(error) => return Verdict::Refused(error.code()),
    };
    check(&file.adapters);
    assert_eq!(file.layout().len(), file.adapters.len(), "a position without a tensor");
    assert_eq!(BinaryFormat::detect(data), Some(BinaryFormat::Compact));
    let base = base();
    match file.to_adapter(&base) {
        Ok(adapter) => {
            let report = BindingReport::of(&adapter);
            holds(adapter, &report, &base);
            Verdict::Accepted
        }
        Err(error) => Verdict::Refused(error.code()),
    }
}

/// Reading never panics. An accepted adapter holds, and written as GGUF it is read again.
pub fn gguf_adapter(data: &[u8]) -> Verdict {
    let limits = Limits::STANDARD;
    let base = base();
    let resolved = GgufAdapter::parse(data, &limits).and_then(|read| read.resolve(&base));
    let (adapter, report) = match resolved {
        Ok(both) => both,
        Err(error) => return Verdict::Refused(error.code()),
    };
    // Folding a scale may leave f32; whatever is written must be read.
    if let Ok(file) = to_gguf(&adapter, "llama") {
        let again = GgufAdapter::parse(&file, &limits).and_then(|read| read.resolve(&base));
        let (again, _) = again.expect("a written adapter can be read");
        assert_eq!(again.modules().len(), adapter.modules().len(), "a module is lost");
        assert_eq!(again.invocation(), adapter.invocation(), "the invocation is lost");
    }
    holds(adapter, &report, &base);
    Verdict::Accepted
}

/// Reading never panics. An accepted typed delta holds, carries no more bytes than its file, and written again is read as it was.
pub fn delta(data: &[u8]) -> Verdict {
    let limits = Limits::STANDARD;
    let base = base();
    let parsed = DeltaFile::parse(data, &limits);
    let resolved = parsed.and_then(|file| Ok((file.resolve(&base)?, file)));
    let ((adapter, report), file) = match resolved {
        Ok(both) => both,
        Err(error) => return Verdict::Refused(error.code()),
    };
    assert!(adapter.bytes() <= data.len() as u64, "more bytes than the file has");
    let again = to_delta(&adapter, file.identity()).expect("an accepted delta can be written");
    let second = DeltaFile::parse(&again, &limits).expect("a written delta can be read");
    let (other, _) = second.resolve(&base).expect("a written delta fits the same base");
    assert_eq!((other.id(), other.sources()), (adapter.id(), adapter.sources()));
    assert_eq!(second.identity(), file.identity(), "written, the identity is another");
    // A delta may be beyond f32 with the base's weights: then it binds to none, which is no fault of reading.
    if std::sync::Arc::new(adapter.clone()).bind(file.identity().base, &base).is_ok() {
        holds(adapter, &report, &base);
    }
    Verdict::Accepted
}

/// A typed delta made by the recipe is accepted; with one byte bent it is refused or holds as any.
pub fn delta_recipe(data: &[u8]) -> Verdict {
    let mut recipe = Recipe::new(data);
    let mut file = valid_delta(&mut recipe);
    assert_eq!(delta(&file), Verdict::Accepted, "a valid delta was refused");
    let at = 8 + recipe.below(file.len() - 8);
    file[at] = recipe.byte();
    delta(&file)
}

fn valid_delta(recipe: &mut Recipe<'_>) -> Vec<u8> {
    let identity = DeltaIdentity {
        matrices: BaseMatrices::of(&base()),
        tokenizer: TokenizerId::of_canonical(b"tokenizer"),
        base: BaseId::of_canonical(b"base"),
        quantization: vec![(Encoding::F32, 15)],
        numerics: 1,
    };
    let factor = |recipe: &mut Recipe<'_>, rows: u64, cols: u64| {
        let painted = recipe.paint((rows * cols) as usize).into_iter();
        let bytes = painted.flat_map(|byte| (f32::from(byte) / 64.0 + 0.01).to_le_bytes());
        Factor::new("x", Encoding::F32, rows, cols, bytes.collect()).expect("a factor")
    };
    let kind = recipe.below(3);
    let targets = [("blk.0.attn_v.weight", 4, 8), ("blk.1.ffn_down.weight", 8, 12)];
    let modules = targets.map(|(target, rows, cols)| {
        let delta = match kind {
            0 => Delta::Dense(DenseDelta { scale: 1.0, delta: factor(recipe, rows, cols) }),
            1 => {
                let n = 1 + recipe.below(16) as u64;
                Delta::Sparse(SparseDelta {
                    scale: 1.0,
                    rows: rows as u32,
                    cols: cols as u32,
                    indices: (0..n).map(|at| at * 2).collect(),
                    values: factor(recipe, 1, n),
                })
            }
            _ => {
                let rank = 1 + recipe.below(3) as u64;
                let (a, b) = (factor(recipe, rank, cols), factor(recipe, rows, rank));
                Delta::Lora(slm_overlay::Lora { scale: 1.0, a, b, bias: None })
            }
        };
        Module { target: target.to_owned(), delta }
    });
    let source = SourceDigest { name: "source".to_owned(), digest: Digest::of(b"source") };
    let sources = if kind == 2 { vec![source] } else { Vec::new() };
    let adapter = Adapter::new(modules.into()).expect("valid modules").with_sources(sources);
    to_delta(&adapter, &identity).expect("a valid delta can be written")
}

fn check(pairs: &[LoraAdapter]) {
    assert!(!pairs.is_empty(), "a file without pairs was accepted");
    for pair in pairs {
        assert!(pair.rank > 0 && pair.in_dim > 0 && pair.out_dim > 0, "a dimension is 0");
        assert_eq!(pair.a.len(), pair.rank * pair.in_dim, "A is not as long as its dimensions");
        assert_eq!(pair.b.len(), pair.out_dim * pair.rank, "B is not as long as its dimensions");
        let mut values = pair.a.iter().chain(&pair.b).chain([&pair.alpha]);
        assert!(values.all(|value| value.is_finite()), "a number is not finite");
    }
}

/// The verdict of the format that `data` is in.
pub fn adapter_file(data: &[u8]) -> Verdict {
    match BinaryFormat::detect(data) {
        Some(BinaryFormat::Plan008) => plan008(data),
        Some(BinaryFormat::Compact) => compact(data),
        None => match SafeTensors::parse(data, &Limits::STANDARD) {
            Ok(file) if DeltaFile::is_delta(&file) => delta(data),
            _ => gguf_adapter(data),
        },
    }
}

/// The typed delta that a recipe makes.
pub fn delta_sample(recipe: &[u8]) -> Vec<u8> {
    valid_delta(&mut Recipe::new(recipe))
}

/// A file made by the recipe is accepted; with one byte bent and its hash made right again it is refused or holds as any. Gives the verdict on
/// what was bent.
pub fn adapter_recipe(data: &[u8]) -> Verdict {
    let mut recipe = Recipe::new(data);
    let mut file = valid(&mut recipe);
    assert_eq!(adapter_file(&file), Verdict::Accepted, "a valid adapter was refused");
    let format = BinaryFormat::detect(&file);
    // The numbers of a header are bent more often than those of factors.
    let at =
        if recipe.rarely(3) { recipe.below(file.len()) } else { recipe.below(96.min(file.len())) };
    file[at] = recipe.byte();
    match format {
        Some(BinaryFormat::Plan008) => {
            let hash = ContentHash::of(&file[40..]).to_bytes();
            file[8..40].copy_from_slice(&hash);
        }
        Some(BinaryFormat::Compact) => {
            let end = file.len() - 32;
            let hash = ContentHash::of(&file[..end]).to_bytes();
            file[end..].copy_from_slice(&hash);
        }
        None => {}
    }
    adapter_file(&file)
}

/// The file that a recipe makes.
pub fn adapter_sample(recipe: &[u8]) -> Vec<u8> {
    valid(&mut Recipe::new(recipe))
}

fn valid(recipe: &mut Recipe<'_>) -> Vec<u8> {
    let rank = 1 + recipe.below(4);
    let value = |recipe: &mut Recipe<'_>| f32::from(recipe.byte()) / 16.0 - 7.5;
    let pair = |recipe: &mut Recipe<'_>, in_dim: usize, out_dim: usize| LoraAdapter {
        rank,
        in_dim,
        out_dim,
        a: (0..rank * in_dim).map(|_| value(recipe)).collect(),
        b: (0..out_dim * rank).map(|_| value(recipe)).collect(),
        alpha: 2.0 * rank as f32,
    };
    // Layer by layer v and down, as the base has them.
    let pairs: Vec<LoraAdapter> =
        (0..2).flat_map(|_| [pair(recipe, 8, 4), pair(recipe, 12, 8)]).collect();
    match recipe.below(3) {
        0 => LoraAdapter::save(&pairs.iter().collect::<Vec<_>>(), rank, 2.0 * rank as f32)
            .expect("valid pairs can be written"),
        1 => {
            let mut file = b"LORA\x01".to_vec();
            let word = |file: &mut Vec<u8>, n: usize| {
                file.extend(u16::try_from(n).expect("a small number").to_le_bytes());
            };
            [rank, 2, 2, 2, 6].into_iter().for_each(|n| word(&mut file, n));
            for pair in &pairs {
                for (rows, cols, values) in
                    [(rank, pair.in_dim, &pair.a), (pair.out_dim, rank, &pair.b)]
                {
                    word(&mut file, rows);
                    word(&mut file, cols);
                    values.iter().for_each(|value| file.extend(value.to_le_bytes()));
                }
            }
            let hash = ContentHash::of(&file).to_bytes();
            [file, hash.to_vec()].concat()
        }
        _ => {
            let names = [
                "blk.0.attn_v.weight",
                "blk.0.ffn_down.weight",
                "blk.1.attn_v.weight",
                "blk.1.ffn_down.weight",
            ];
            let layout = Layout::parse(format!("{names:?}").as_bytes()).expect("a layout");
            let adapter = layout.to_adapter(&pairs, &base()).expect("pairs that fit the base");
            to_gguf(&adapter, "llama").expect("a LoRA adapter can be written")
        }
    }
}
