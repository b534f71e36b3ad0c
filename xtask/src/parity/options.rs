//! The options of `cargo xtask parity`.

use std::path::PathBuf;

use crate::problems::Problems;
use crate::wasm::Toolchain;

const USAGE: &str = "\
usage: cargo xtask parity [--debian] [--model FILE [--adapter DIR[=W]]… --tokens ID,…]

  (no model)        the embedded tiny model and its golden vectors
  --model FILE      a GGUF or .slm file instead
  --adapter DIR=W   a PEFT folder for the stack on it, with its weight (1); bottom first
  --tokens ID,…     the tokens to run
  --debian          the WASM module by Debian's compiler";

/// What the command line asks for.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    /// Who compiles for WASM.
    pub(crate) toolchain: Toolchain,
    /// The caller's model, else the tiny one.
    pub(crate) model: Option<PathBuf>,
    /// Folder and weight, as text.
    pub(crate) adapters: Vec<(PathBuf, String)>,
    /// What to run.
    pub(crate) tokens: Vec<u32>,
}

impl Options {
    /// Reads the arguments behind `parity`.
    pub(crate) fn parse(args: &[&str]) -> Result<Options, Problems> {
        let mut options = Options {
            toolchain: Toolchain::Any,
            model: None,
            adapters: Vec::new(),
            tokens: Vec::new(),
        };
        let mut args = args.iter();
        while let Some(&option) = args.next() {
            if option == "--debian" {
                options.toolchain = Toolchain::Debian;
                continue;
            }
            let value = *args.next().ok_or_else(|| usage(&format!("not an option: {option}")))?;
            match option {
                "--model" => options.model = Some(PathBuf::from(value)),
                "--adapter" => {
                    let (folder, weight) = value.rsplit_once('=').unwrap_or((value, "1"));
                    if !weight.parse::<f32>().is_ok_and(f32::is_finite) {
                        return Err(usage(&format!("{value}: the weight is no number")));
                    }
                    options.adapters.push((PathBuf::from(folder), weight.to_owned()));
                }
                "--tokens" => {
                    let ids: Result<_, _> = value.split(',').map(str::parse).collect();
                    options.tokens = ids.map_err(|_| usage(&format!("{value}: no list of ids")))?;
                }
                _ => return Err(usage(&format!("not an option: {option}"))),
            }
        }
        let is_consistent = match options.model {
            None => options.adapters.is_empty() && options.tokens.is_empty(),
            Some(_) => !options.tokens.is_empty(),
        };
        if is_consistent { Ok(options) } else { Err(usage("--model and --tokens go together")) }
    }
}

fn usage(what: &str) -> Problems {
    Problems::one(format!("parity: {what}\n\n{USAGE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let options = Options::parse(&[
            "--model",
            "m.gguf",
            "--adapter",
            "a=0.7",
            "--adapter",
            "b",
            "--tokens",
            "1,2",
        ]);
        let expected = Options {
            toolchain: Toolchain::Any,
            model: Some("m.gguf".into()),
            adapters: vec![("a".into(), "0.7".to_owned()), ("b".into(), "1".to_owned())],
            tokens: vec![1, 2],
        };
        assert_eq!(options.expect("they are right"), expected);
    }

    #[test]
    fn wrong_options_are_refused() {
        let wrong: &[&[&str]] = &[
            &["--modle", "m"],
            &["--model"],
            &["--model", "m"],
            &["--tokens", "1"],
            &["--model", "m", "--tokens", "1,x"],
            &["--model", "m", "--tokens", "1", "--adapter", "a=much"],
        ];
        for args in wrong {
            assert!(Options::parse(args).is_err(), "{args:?}");
        }
        assert!(Options::parse(&["--model", "m", "--tokens", "1"]).is_ok());
    }
}
