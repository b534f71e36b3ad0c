//! What lies in an adapter's folder beside the adapter.

use std::collections::BTreeSet;
use std::path::Path;

use slm_overlay::peft::BindingReport;

use crate::error::CliError;

/// Files that are read: the adapter, and what is compared with the base's tokenizer.
const READ: [&str; 5] = [
    "adapter_config.json",
    "adapter_model.safetensors",
    "added_tokens.json",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// Ends of names of files that could hold weights.
const WEIGHTS: [&str; 13] = [
    "safetensors",
    "bin",
    "pt",
    "pth",
    "ckpt",
    "pkl",
    "gguf",
    "lora",
    "h5",
    "msgpack",
    "npy",
    "npz",
    "onnx",
];

/// Files of a training that could hold weights by their names and hold none of the model's.
const TRAINING: [&str; 4] = ["optimizer.pt", "scaler.pt", "scheduler.pt", "training_args.bin"];

/// Tokenizers of other forms.
const TOKENIZERS: [&str; 4] = ["merges.txt", "spiece.model", "tokenizer.model", "vocab.json"];

/// Most names that are told of either sort.
const MOST: usize = 32;

/// What of an adapter's folder is not read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Beside {
    warnings: Vec<String>,
    unread: Vec<String>,
}

impl Beside {
    /// Looks at the names in a folder. PEFT reads the same two files as slm and nothing else, so nothing here changes the result; what could
    /// hold weights gets a warning.
    pub(crate) fn of(folder: &Path) -> Result<Beside, CliError> {
        let wrong = |error| CliError::io(folder, error);
        let has_tokenizer = folder.join("tokenizer.json").exists();
        let (mut warned, mut unread) = (Names::default(), Names::default());
        for entry in std::fs::read_dir(folder).map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            let is_folder = entry.file_type().map_err(wrong)?.is_dir();
            let name: String = entry.file_name().to_string_lossy().chars().take(160).collect();
            if READ.contains(&name.as_str()) {
                continue;
            }
            match reason(&name, is_folder, has_tokenizer) {
                Some(reason) => warned.put(format!("{name:?} is not read: {reason}")),
                None => unread.put(name),
            }
        }
        Ok(Beside { warnings: warned.told(), unread: unread.told() })
    }

    /// Adds it to what a binding found.
    pub(crate) fn add_to(&self, report: &mut BindingReport) {
        report.warnings.extend(self.warnings.iter().cloned());
        report.unread.extend(self.unread.iter().cloned());
    }
}

/// Why somebody should know that this is not read; nothing for what holds no weights.
fn reason(name: &str, is_folder: bool, has_tokenizer: bool) -> Option<&'static str> {
    let lower = name.to_ascii_lowercase();
    let end = lower.rsplit_once('.').map_or("", |(_, end)| end);
    if is_folder {
        let hidden = name.starts_with('.');
        return (!hidden)
            .then_some("a folder; a further adapter in it is imported by its own path");
    }
    if name == "new_embeddings.safetensors" {
        return Some(
            "rows for new tokens, which PEFT does not read either; the base's table stays as it is",
        );
    }
    if name == "adapter_model.bin" {
        return Some("adapter_model.safetensors stands beside it, which is what PEFT takes too");
    }
    if lower.ends_with(".index.json") {
        return Some("an index of several files; PEFT takes adapter_model.safetensors alone");
    }
    if TOKENIZERS.contains(&name) && !has_tokenizer {
        return Some("a tokenizer in a form that is not compared with the base's");
    }
    let of_training = TRAINING.contains(&name) || name.starts_with("rng_state");
    let could_hold = WEIGHTS.contains(&end) && !of_training;
    could_hold.then_some("it could hold weights; PEFT takes adapter_model.safetensors alone")
}

/// The first names, in order, and how many more there are, however many a folder holds.
#[derive(Default)]
struct Names {
    first: BTreeSet<String>,
    more: u64,
}

impl Names {
    fn put(&mut self, name: String) {
        self.first.insert(name);
        if self.first.len() > MOST {
            self.first.pop_last();
            self.more += 1;
        }
    }

    fn told(self) -> Vec<String> {
        let more = (self.more > 0).then(|| format!("and {} more like these", self.more));
        self.first.into_iter().chain(more).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_hold_weights_is_told_apart() {
        for (name, word) in [
            ("new_embeddings.safetensors", "rows"),
            ("adapter_model.bin", "beside"),
            ("adapter_model.safetensors.index.json", "index"),
            ("adapter_model-00001-of-00002.safetensors", "weights"),
            ("pytorch_model.BIN", "weights"),
            ("tokenizer.model", "tokenizer"),
        ] {
            assert!(reason(name, false, false).is_some_and(|why| why.contains(word)), "{name}");
        }
        for name in ["README.md", "optimizer.pt", "rng_state_0.pth", ".gitattributes", "merges"] {
            assert_eq!(reason(name, false, false), None, "{name}");
        }
        assert_eq!(reason("tokenizer.model", false, true), None);
        assert!(reason("checkpoint-8", true, false).is_some());
        assert_eq!(reason(".git", true, false), None);
    }

    #[test]
    fn of_very_many_names_the_first_are_told_and_the_rest_counted() {
        let mut names = Names::default();
        for number in (0..1000).rev() {
            names.put(format!("{number:04}"));
        }
        let told = names.told();
        assert_eq!((told.len(), told[0].as_str()), (MOST + 1, "0000"));
        assert_eq!(told[MOST], "and 968 more like these");
    }
}
