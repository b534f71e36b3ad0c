//! What is run: a model, its adapters, and cases.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::options::Options;
use crate::problems::Problems;
use crate::run;

/// One pass, one position in between, the whole at once: the cuts must not be seen.
const CHUNKS: [usize; 3] = [1, 5, 1000];

/// Activations and cache, as the command line spells them.
const MODES: [(&str, &str); 3] = [("int8", "f16"), ("int8", "f32"), ("f32", "f32")];

/// A model with adapters, and what to run on it.
#[derive(Debug)]
pub(crate) struct Subject {
    /// The model's file.
    pub(crate) model: PathBuf,
    /// Adapters: name and PEFT folder.
    pub(crate) adapters: Vec<(String, PathBuf)>,
    /// What to run.
    pub(crate) cases: Vec<Case>,
    /// How often each case is run under Node; the fastest is told.
    pub(crate) repeats: usize,
}

/// One call of `logits`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Case {
    /// Names of adapters and their weights as text, bottom first.
    pub(crate) stack: Vec<(String, String)>,
    /// Token ids.
    pub(crate) tokens: Vec<u32>,
    /// Tokens per pass.
    pub(crate) chunk: usize,
    /// `int8` or `f32`.
    pub(crate) activations: &'static str,
    /// `f16` or `f32`.
    pub(crate) kv: &'static str,
    /// `all_blake3` by the reference pass, where the golden vectors have it.
    pub(crate) golden: Option<String>,
}

impl Case {
    /// The case in words.
    pub(crate) fn name(&self) -> String {
        let stack: Vec<String> =
            self.stack.iter().map(|(name, weight)| format!("{name}@{weight}")).collect();
        let stack = if stack.is_empty() { "base".to_owned() } else { stack.join("+") };
        format!(
            "{stack}, {} tokens in passes of {}, {} activations, {} KV",
            self.tokens.len(),
            self.chunk,
            self.activations,
            self.kv
        )
    }
}

/// The tiny model: every golden vector in every mode, the short prompt in every cut, the long one in cuts that take turns; and one token.
pub(crate) fn tiny() -> Result<Subject, Problems> {
    let folder = run::root().join("golden/files");
    let mut cases = Vec::new();
    let golden = [("int8", "f16"), ("f32", "f32")].map(|mode| {
        let page = format!("golden/vectors/tiny-q8_0-{}.json", mode.0);
        run::read(&page).map(|text| (mode, page, text))
    });
    for read in golden {
        let ((activations, kv), page, text) = read?;
        let value: Value = serde_json::from_str(&text)
            .map_err(|error| Problems::one(format!("{page}: {error}")))?;
        let vectors = value["vectors"].as_array().map(Vec::as_slice).unwrap_or_default();
        if vectors.is_empty() || value["activations"] != activations || value["kv"] != kv {
            return Err(Problems::one(format!("{page}: not the vectors of {activations}, {kv}")));
        }
        for vector in vectors {
            add(&mut cases, vector, (activations, kv))
                .ok_or_else(|| Problems::one(format!("{page}: not a vector: {vector}")))?;
        }
    }
    let adapters = ["tiny-kjv", "tiny-python"].map(|name| (name.to_owned(), folder.join(name)));
    Ok(Subject {
        model: folder.join("tiny-q8_0.gguf"),
        adapters: adapters.into(),
        cases,
        repeats: 1,
    })
}

/// The cases of one vector, whose digest is that of `golden_mode`: that mode, and the one with the other cache.
fn add(cases: &mut Vec<Case>, vector: &Value, golden_mode: (&str, &str)) -> Option<()> {
    let ids = vector["tokens"].as_array()?;
    let ids: Option<Vec<u32>> =
        ids.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect();
    let ids = ids?;
    let stack: Option<Vec<(String, String)>> = vector["stack"]
        .as_array()?
        .iter()
        .map(|entry| Some((entry["adapter"].as_str()?.to_owned(), entry["weight"].to_string())))
        .collect();
    let stack = stack?;
    let digest = vector["all_blake3"].as_str()?;
    for (activations, kv) in MODES.into_iter().filter(|mode| mode.0 == golden_mode.0) {
        let golden = (kv == golden_mode.1).then(|| digest.to_owned());
        let mut push = |tokens: &[u32], chunk, golden| {
            let (stack, tokens) = (stack.clone(), tokens.to_vec());
            cases.push(Case { stack, tokens, chunk, activations, kv, golden });
        };
        if ids.len() > 64 {
            push(&ids, CHUNKS[stack.len() % CHUNKS.len()], golden);
        } else {
            for chunk in CHUNKS {
                push(&ids, chunk, golden.clone());
            }
            push(&ids[..1], 1, None);
        }
    }
    Some(())
}

/// The caller's model, bare and under the stack of all the adapters, token by token and at once.
pub(crate) fn of_caller(model: &Path, options: &Options) -> Result<Subject, Problems> {
    let full = |path: &Path| {
        path.canonicalize()
            .map_err(|error| Problems::one(format!("parity: {}: {error}", path.display())))
    };
    let mut adapters = Vec::new();
    let mut stack = Vec::new();
    for (folder, weight) in &options.adapters {
        let folder = full(folder)?;
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        stack.push((name.clone(), weight.clone()));
        adapters.push((name, folder));
    }
    let mut stacks = vec![Vec::new()];
    stacks.extend((!stack.is_empty()).then_some(stack));
    let mut cases = Vec::new();
    for stack in stacks {
        for (activations, kv) in [("int8", "f16"), ("f32", "f32")] {
            for chunk in [1, options.tokens.len()] {
                let (stack, tokens) = (stack.clone(), options.tokens.clone());
                cases.push(Case { stack, tokens, chunk, activations, kv, golden: None });
            }
        }
    }
    Ok(Subject { model: full(model)?, adapters, cases, repeats: 2 })
}

/// The subject for the script that runs under Node.
pub(crate) fn to_json(subject: &Subject) -> Value {
    let cases: Vec<Value> = subject
        .cases
        .iter()
        .map(|case| {
            let stack: Vec<Value> = case
                .stack
                .iter()
                .map(|(name, weight)| json!([name, weight.parse::<f64>().unwrap_or(f64::NAN)]))
                .collect();
            json!({
                "stack": stack, "tokens": case.tokens, "chunk": case.chunk,
                "activations": case.activations, "kv": case.kv,
            })
        })
        .collect();
    json!({
        "model": subject.model, "adapters": subject.adapters, "cases": cases,
        "repeats": subject.repeats,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tiny_cases_cover_what_they_should() {
        let cases = tiny().expect("the golden vectors").cases;
        let count = |is: &dyn Fn(&&Case) -> bool| cases.iter().filter(is).count();
        assert_eq!(cases.len(), MODES.len() * 4 * (3 + 1 + 1));
        assert_eq!(count(&|case| case.golden.is_some()), 2 * 4 * (3 + 1));
        for n_adapters in 0..3 {
            for mode in MODES {
                for chunk in CHUNKS {
                    let found = count(&|case| {
                        (case.activations, case.kv) == mode
                            && case.chunk == chunk
                            && case.stack.len() == n_adapters
                    });
                    assert!(found > 0, "{n_adapters} adapters, {mode:?}, {chunk}");
                }
            }
        }
    }
}
