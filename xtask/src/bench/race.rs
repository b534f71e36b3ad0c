//! Prefill and decode of one file, against llama-bench.

use super::llama::{Job, Llama};
use super::options::{Options, Part};
use super::slm::Slm;
use super::stats::Paired;
use super::table::{Table, spread};
use crate::problems::Problems;

/// One file on a number of threads, tokens a second.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) part: Part,
    pub(crate) model: std::path::PathBuf,
    pub(crate) threads: usize,
    pub(crate) decode: Paired,
    pub(crate) prefill: Paired,
}

/// Runs both on one file, on every number of threads.
pub(crate) fn run(
    options: &Options,
    slm: &Slm,
    llama: &Llama,
    part: Part,
) -> Result<Vec<Row>, Problems> {
    let (file, name) = part.model();
    let model = options.need(file)?;
    let mut rows = Vec::new();
    for &threads in &options.threads {
        let (mut decode, mut prefill) = (Paired::default(), Paired::default());
        for round in 1..=options.runs {
            eprintln!("bench: {name}, {threads} thread(s), round {round} of {}", options.runs);
            let job =
                Job { model: &model, threads, prompt: options.prompt, generate: options.generate };
            // llama-bench generates in an empty context; so do we, after one token: what comes first needs logits to choose from.
            let ours = [
                slm.bench(Job { generate: 0, ..job }, 0)?.prefill,
                slm.bench(Job { prompt: 1, ..job }, 0)?.decode,
            ];
            let theirs = llama.speed(job)?;
            prefill.push(ours[0], theirs.prefill);
            decode.push(ours[1], theirs.decode);
        }
        rows.push(Row { part, model: model.clone(), threads, decode, prefill });
    }
    Ok(rows)
}

/// Medians, with the ends in parentheses.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut table =
        Table::new(&["file", "threads", "what", "slm, tokens/s", "llama.cpp, tokens/s", "ratio"]);
    for row in rows {
        for (what, paired) in [("decode", &row.decode), ("prefill", &row.prefill)] {
            table.row(&[
                row.part.model().1.to_owned(),
                row.threads.to_string(),
                what.to_owned(),
                spread(paired.ours()),
                spread(paired.theirs()),
                spread(paired.ratio()),
            ]);
        }
    }
    table.finish()
}
