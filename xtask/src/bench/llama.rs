//! The peer: llama.cpp's binaries.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::options::{Options, Part};
use super::process;
use crate::problems::Problems;
use crate::run;

/// Where its binaries are.
#[derive(Debug)]
pub(crate) struct Llama {
    bench: PathBuf,
    completion: PathBuf,
}

/// Tokens a second of a prompt and of what follows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Speed {
    pub(crate) prefill: f64,
    pub(crate) decode: f64,
}

/// What to run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) model: &'a Path,
    pub(crate) threads: usize,
    pub(crate) prompt: usize,
    pub(crate) generate: usize,
}

impl Llama {
    /// llama-completion was llama-cli before the interactive program took that name.
    pub(crate) fn find(folder: &Path) -> Result<Llama, Problems> {
        let bench = folder.join("llama-bench");
        let completion = ["llama-completion", "llama-cli"]
            .map(|name| folder.join(name))
            .into_iter()
            .find(|path| path.is_file());
        match completion {
            Some(completion) if bench.is_file() => Ok(Llama { bench, completion }),
            _ => Err(Problems::one(format!(
                "bench: {} lacks llama-bench or llama-completion",
                folder.display()
            ))),
        }
    }

    /// What llama-bench says that it is.
    pub(crate) fn version(&self, options: &Options) -> Result<String, Problems> {
        let model = options.need(Part::Q4_1.model().0)?;
        let job = Job { model: &model, threads: 1, prompt: 1, generate: 0 };
        let rows = json(&process::run(&mut self.llama_bench(job, 0))?.stdout)?;
        let text = |key: &str| rows[0][key].as_str().unwrap_or("?").to_owned();
        Ok(format!(
            "commit {} ({}), {}",
            text("build_commit"),
            rows[0]["build_number"],
            text("backends")
        ))
    }

    /// llama-bench: the prompt in an empty context, and the generation in another.
    pub(crate) fn speed(&self, job: Job<'_>) -> Result<Speed, Problems> {
        parse_speed(&process::run(&mut self.llama_bench(job, 0))?.stdout)
    }

    /// Decode after `depth` tokens that are not timed, and the peak of resident memory.
    pub(crate) fn decode_at(
        &self,
        job: Job<'_>,
        depth: usize,
    ) -> Result<(f64, Option<u64>), Problems> {
        let job = Job { prompt: 0, ..job };
        let (done, peak) = process::run_watched(&mut self.llama_bench(job, depth))?;
        Ok((parse_decode(&done.stdout, depth)?, peak))
    }

    /// llama-completion with a prompt of words, under an adapter or none: llama-bench has no option for one. Decode follows the prompt here,
    /// so that its context is not empty.
    pub(crate) fn completion(
        &self,
        job: Job<'_>,
        adapter: Option<&Path>,
    ) -> Result<Speed, Problems> {
        let words = vec!["the"; job.prompt].join(" ");
        let mut command = self.llama_completion(job, &words);
        command.arg("--ignore-eos").args(["--ctx-size", &context(job)]);
        if let Some(adapter) = adapter {
            command.arg("--lora").arg(adapter);
        }
        let done = process::run(&mut command)?;
        let (speed, tokens) = parse_timings(&format!("{}\n{}", done.stdout, done.stderr))?;
        // A BOS, or a word of two tokens, would make it another prompt.
        if tokens.abs_diff(job.prompt) > job.prompt / 50 {
            let wanted = job.prompt;
            return Err(Problems::one(format!(
                "bench: llama-completion read {tokens} tokens, not {wanted}"
            )));
        }
        Ok(speed)
    }

    /// Seconds of a whole process that reads a prompt and gives one token.
    pub(crate) fn first_token(&self, job: Job<'_>, prompt: &str) -> Result<f64, Problems> {
        let mut command = self.llama_completion(job, prompt);
        // An empty pass before the first is no part of an answer.
        command.arg("--no-warmup").args(["--ctx-size", "512"]);
        Ok(process::run(&mut command)?.seconds)
    }

    fn llama_bench(&self, job: Job<'_>, depth: usize) -> Command {
        let mut command = run::command(&self.bench);
        command
            .args(["--output", "json", "--repetitions", "1", "--model"])
            .arg(job.model)
            .args(["--threads", &job.threads.to_string()])
            .args(["--n-prompt", &job.prompt.to_string()])
            .args(["--n-gen", &job.generate.to_string()])
            .args(["--n-depth", &depth.to_string()]);
        command
    }

    fn llama_completion(&self, job: Job<'_>, prompt: &str) -> Command {
        let mut command = run::command(&self.completion);
        command
            .args(["-no-cnv", "--perf", "--temp", "0", "--model"])
            .arg(job.model)
            .args(["--threads", &job.threads.to_string()])
            .args(["--n-predict", &job.generate.to_string()])
            .args(["--prompt", prompt]);
        command
    }
}

/// Room for the prompt, a BOS, and what follows.
fn context(job: Job<'_>) -> String {
    (job.prompt + job.generate + 16).next_multiple_of(256).to_string()
}

fn json(text: &str) -> Result<Value, Problems> {
    serde_json::from_str(text)
        .map_err(|error| Problems::one(format!("bench: llama-bench's output: {error}")))
}

fn parse_speed(text: &str) -> Result<Speed, Problems> {
    let rows = json(text)?;
    let prefill =
        rate(&rows, |row| number(row, "n_prompt") > Some(0) && number(row, "n_gen") == Some(0));
    let decode =
        rate(&rows, |row| number(row, "n_prompt") == Some(0) && number(row, "n_gen") > Some(0));
    match (prefill, decode) {
        (Some(prefill), Some(decode)) => Ok(Speed { prefill, decode }),
        _ => Err(Problems::one(format!("bench: llama-bench did not measure both: {text}"))),
    }
}

fn parse_decode(text: &str, depth: usize) -> Result<f64, Problems> {
    let wanted = |row: &Value| {
        number(row, "n_prompt") == Some(0)
            && number(row, "n_gen") > Some(0)
            && number(row, "n_depth") == Some(depth as u64)
    };
    rate(&json(text)?, wanted)
        .ok_or_else(|| Problems::one(format!("bench: llama-bench did not measure it: {text}")))
}

/// Tokens a second of the one test that is wanted.
fn rate(rows: &Value, wanted: impl Fn(&Value) -> bool) -> Option<f64> {
    let mut rates = rows.as_array()?.iter().filter(|row| wanted(row)).map(|row| &row["avg_ts"]);
    let rate = rates.next()?.as_f64()?;
    (rates.next().is_none() && rate > 0.0).then_some(rate)
}

fn number(row: &Value, key: &str) -> Option<u64> {
    row[key].as_u64()
}

/// The two lines of llama.cpp's timings, and how many tokens the prompt had.
fn parse_timings(text: &str) -> Result<(Speed, usize), Problems> {
    let find = |label: &str, other: &str| {
        let line = text
            .lines()
            .find(|line| line.contains(label) && (other.is_empty() || !line.contains(other)))?;
        let (_, rest) = line.split_once('/')?;
        let count: usize = rest.split_whitespace().next()?.parse().ok()?;
        let (before, _) = line.split_once(" tokens per second")?;
        let rate: f64 = before.rsplit([',', ' ']).next()?.parse().ok()?;
        (rate.is_finite() && rate > 0.0).then_some((rate, count))
    };
    match (find("prompt eval time =", ""), find("eval time =", "prompt eval time")) {
        (Some((prefill, tokens)), Some((decode, _))) => Ok((Speed { prefill, decode }, tokens)),
        _ => Err(Problems::one(format!("bench: llama-completion printed no timings:\n{text}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As llama-bench writes it, shortened to what matters here.
    const BENCH: &str = r#"[
  {
    "build_commit": "0c1e570", "build_number": 1, "backends": "CPU", "n_threads": 2,
    "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ns": 1040650000, "stddev_ns": 0,
    "avg_ts": 492.012345, "stddev_ts": 0.0, "samples_ns": [ 1040650000 ], "samples_ts": [ 492.012 ]
  },
  {
    "build_commit": "0c1e570", "build_number": 1, "backends": "CPU", "n_threads": 2,
    "n_prompt": 0, "n_gen": 128, "n_depth": 0, "avg_ns": 805030000, "stddev_ns": 0,
    "avg_ts": 159.005, "stddev_ts": 0.0, "samples_ns": [ 805030000 ], "samples_ts": [ 159.005 ]
  }
]"#;

    const TIMINGS: &str = "\
llama_perf: something else = 1 / 2
common_perf_print:        load time =     120.00 ms
common_perf_print: prompt eval time =    2048.00 ms /   512 tokens (    4.00 ms per token,   250.00 tokens per second)
common_perf_print:        eval time =    1016.00 ms /   127 runs   (    8.00 ms per token,   125.50 tokens per second)
common_perf_print:       total time =    3100.00 ms /   639 tokens
";

    #[test]
    fn both_tests_of_llama_bench_are_read() {
        let speed = parse_speed(BENCH).expect("both");
        assert_eq!(speed, Speed { prefill: 492.012345, decode: 159.005 });
        assert_eq!(parse_decode(BENCH, 0).expect("a generation"), 159.005);
    }

    #[test]
    fn a_test_that_is_missing_double_or_at_another_depth_is_refused() {
        let refused = |text: &str| parse_speed(text).is_err();
        assert!(refused("") && refused("[]") && refused("{}"));
        assert!(refused(&BENCH.replace("\"n_gen\": 128", "\"n_gen\": 0")));
        assert!(refused(&BENCH.replace("\"n_prompt\": 512", "\"n_prompt\": 0")));
        assert!(refused(&BENCH.replace("159.005,", "0.0,")));
        assert!(refused(&BENCH.replace("\"n_gen\": 128,", "")));
        let one = &BENCH[BENCH.find("\"build_commit\"").expect("a key")..];
        let one = &one[..one.find('}').expect("its end")];
        assert!(refused(&BENCH.replacen('{', &format!("{{ {one} }}, {{"), 1)), "measured twice");
        assert!(parse_decode(BENCH, 2048).is_err());
    }

    #[test]
    fn timings_are_read() {
        let (speed, tokens) = parse_timings(TIMINGS).expect("timings");
        assert_eq!((speed, tokens), (Speed { prefill: 250.0, decode: 125.5 }, 512));
        for missing in ["prompt eval time", "        eval time", "127", "125.50"] {
            assert!(parse_timings(&TIMINGS.replace(missing, "?")).is_err(), "{missing}");
        }
        assert!(parse_timings(&TIMINGS.replace("125.50", "inf")).is_err());
    }
}
