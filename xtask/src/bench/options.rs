//! The command line, read.

use std::path::PathBuf;

use crate::problems::Problems;

const USAGE: &str = "\
usage: cargo xtask bench --peers DIR [OPTION]…

  --peers DIR      where llama-bench and llama-completion are
  --models DIR     the GGUF files [default: $SLM_MODELS]:
                     smollm2-135m-instruct-q4_1.gguf, gemma-3-270m-q4_k_m.gguf;
                     smollm2-135m-instruct-q4_0.gguf, smollm2-135m-instruct-q8_0.gguf: made from the first by
                       llama-quantize --allow-requantize IN OUT q4_0|q8_0;
                     smollm2-kjv/: a PEFT adapter, smollm2-kjv-f16.gguf: the same by convert_lora_to_gguf.py --outtype f16
  --slm BINARY     slm [default: built in the release profile]
  --runs N         rounds of each comparison [default: 5]
  --threads LIST   numbers of threads [default: 1,2]
  --prompt N       prompt tokens [default: 512]
  --generate N     tokens to generate [default: 128]
  --only PART      one of q4_1, q4_0, q8_0, gemma3, lora, first-token, depth, roofline; may be given several times
";

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Q4_1,
    Q4_0,
    Q8_0,
    Gemma3,
    Lora,
    FirstToken,
    Depth,
    Roofline,
}

impl Part {
    const ALL: [(&str, Part); 8] = [
        ("q4_1", Part::Q4_1),
        ("q4_0", Part::Q4_0),
        ("q8_0", Part::Q8_0),
        ("gemma3", Part::Gemma3),
        ("lora", Part::Lora),
        ("first-token", Part::FirstToken),
        ("depth", Part::Depth),
        ("roofline", Part::Roofline),
    ];

    /// The file of the comparison, in the folder of models, and its name in a table.
    pub(crate) fn model(self) -> (&'static str, &'static str) {
        match self {
            Part::Q4_0 => ("smollm2-135m-instruct-q4_0.gguf", "SmolLM2 Q4_0"),
            Part::Q8_0 => ("smollm2-135m-instruct-q8_0.gguf", "SmolLM2 Q8_0"),
            Part::Gemma3 => ("gemma-3-270m-q4_k_m.gguf", "Gemma 3 Q4_K_M"),
            Part::Q4_1 | Part::Lora | Part::FirstToken | Part::Depth | Part::Roofline => {
                ("smollm2-135m-instruct-q4_1.gguf", "SmolLM2 Q4_1")
            }
        }
    }
}

/// What to measure, and with what.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) peers: PathBuf,
    pub(crate) models: PathBuf,
    pub(crate) slm: Option<PathBuf>,
    pub(crate) runs: usize,
    pub(crate) threads: Vec<usize>,
    pub(crate) prompt: usize,
    pub(crate) generate: usize,
    /// Empty is everything.
    only: Vec<Part>,
}

impl Options {
    pub(crate) fn parse(args: &[&str]) -> Result<Options, Problems> {
        let bad = |what: String| Problems::one(format!("bench: {what}\n\n{USAGE}"));
        let (mut peers, mut slm) = (None, None);
        let mut models = std::env::var_os("SLM_MODELS").map(PathBuf::from);
        let (mut runs, mut prompt, mut generate) = (5, 512, 128);
        let mut threads = vec![1, 2];
        let mut only = Vec::new();
        let mut rest = args.iter();
        while let Some(&option) = rest.next() {
            let Some(&value) = rest.next() else {
                return Err(bad(format!("{option:?} is no option, or lacks its value")));
            };
            let number = |text: &str| {
                let number = text.parse::<usize>().ok().filter(|number| *number > 0);
                number.ok_or_else(|| bad(format!("{option} {value:?}: expected 1 or more")))
            };
            match option {
                "--peers" => peers = Some(PathBuf::from(value)),
                "--models" => models = Some(PathBuf::from(value)),
                "--slm" => slm = Some(PathBuf::from(value)),
                "--runs" => runs = number(value)?,
                "--prompt" => prompt = number(value)?,
                "--generate" => generate = number(value)?,
                "--threads" => threads = value.split(',').map(number).collect::<Result<_, _>>()?,
                "--only" => {
                    let part = Part::ALL.iter().find(|(name, _)| *name == value);
                    only.push(part.ok_or_else(|| bad(format!("no part is called {value:?}")))?.1);
                }
                _ => return Err(bad(format!("{option:?} is no option"))),
            }
        }
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        Ok(Options {
            peers: absolute(peers.ok_or_else(|| bad("--peers is missing".to_owned()))?),
            models: absolute(models.ok_or_else(|| bad("--models is missing".to_owned()))?),
            slm: slm.map(absolute),
            runs,
            threads,
            prompt,
            generate,
            only,
        })
    }

    pub(crate) fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// A file or folder that a comparison needs, among the models.
    pub(crate) fn need(&self, name: &str) -> Result<PathBuf, Problems> {
        let path = self.models.join(name);
        if path.exists() {
            return Ok(path);
        }
        Err(Problems::one(format!("bench: {} is missing (see the usage)", path.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_measured_unless_parts_are_named() {
        let all = Options::parse(&["--peers", "/p", "--models", "/m"]).expect("good options");
        assert_eq!((all.runs, all.prompt, all.generate), (5, 512, 128));
        assert_eq!(all.threads, [1, 2]);
        assert!(Part::ALL.iter().all(|(_, part)| all.wants(*part)));
        let some = ["--peers", "/p", "--models", "/m", "--only", "q4_0", "--only", "depth"];
        let some = Options::parse(&some).expect("good options");
        let wanted: Vec<&str> =
            Part::ALL.iter().filter(|(_, part)| some.wants(*part)).map(|(name, _)| *name).collect();
        assert_eq!(wanted, ["q4_0", "depth"]);
    }

    #[test]
    fn numbers_are_read_or_refused() {
        let parse =
            |option, value| Options::parse(&["--peers", "/p", "--models", "/m", option, value]);
        assert_eq!(parse("--runs", "7").expect("a number").runs, 7);
        assert_eq!(parse("--threads", "1,4,8").expect("a list").threads, [1, 4, 8]);
        for (option, value) in [
            ("--runs", "0"),
            ("--runs", "x"),
            ("--threads", "1,"),
            ("--threads", "0"),
            ("--prompt", "-1"),
            ("--only", "q5_0"),
            ("--seconds", "1"),
        ] {
            assert!(parse(option, value).is_err(), "{option} {value}");
        }
    }

    #[test]
    fn a_missing_value_or_folder_is_refused() {
        assert!(Options::parse(&["--peers", "/p", "--models"]).is_err());
        assert!(Options::parse(&["--models", "/m"]).is_err());
    }
}
