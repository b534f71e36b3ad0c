//! From the start of a process to its end after one token.

use super::llama::{Job, Llama};
use super::options::{Options, Part};
use super::slm::Slm;
use super::stats::Paired;
use super::table::{Table, spread};
use crate::problems::Problems;

const PROMPT: &str = "In the beginning God created";

/// Times whole processes with the files in the page cache: slm opens a store and verifies what it loads, llama-completion maps the GGUF file.
pub(crate) fn run(options: &Options, slm: &Slm, llama: &Llama) -> Result<String, Problems> {
    let (file, name) = Part::FirstToken.model();
    let model = options.need(file)?;
    let store = slm.store(&model)?;
    let mut table = Table::new(&["threads", "slm, s", "llama.cpp, s", "ratio of times"]);
    for &threads in &options.threads {
        let job = Job { model: &model, threads, prompt: 0, generate: 1 };
        let mut paired = Paired::default();
        // Processes are short here: more rounds cost little. The first only warms the cache.
        for round in 0..=2 * options.runs {
            eprintln!("bench: first token, {threads} thread(s), round {round}");
            let ours = slm.first_token(&store, "bare", threads, PROMPT)?;
            let theirs = llama.first_token(job, PROMPT)?;
            if round > 0 {
                paired.push(ours, theirs);
            }
        }
        let [ours, theirs, ratio] = [paired.ours(), paired.theirs(), paired.ratio()].map(spread);
        table.row(&[threads.to_string(), ours, theirs, ratio]);
    }
    Ok(format!("First token, {name}, whole processes\n\n{}", table.finish()))
}
