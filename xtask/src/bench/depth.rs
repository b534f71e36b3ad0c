//! Decode at the end of long contexts, and the memory that they take.

use super::llama::{Job, Llama};
use super::options::{Options, Part};
use super::slm::{Measured, Slm};
use super::stats::{Paired, slope};
use super::table::{Table, number, spread};
use crate::problems::Problems;

/// Tokens before the timed ones; the model's context has 8,192.
const DEPTHS: [usize; 4] = [0, 2048, 4096, 8000];

/// Tokens timed at each depth.
const GENERATE: usize = 32;

/// Time of a token at each depth, its growth, and peak resident memory: ours as slm reports its own, llama-bench's as seen from outside.
pub(crate) fn run(options: &Options, slm: &Slm, llama: &Llama) -> Result<String, Problems> {
    let (file, name) = Part::Depth.model();
    let model = options.need(file)?;
    let weights = std::fs::metadata(&model)?.len();
    let mut text = String::new();
    for &threads in &options.threads {
        let job = Job { model: &model, threads, prompt: 1, generate: GENERATE };
        let mut times = DEPTHS.map(|_| Paired::default());
        let mut slopes = Paired::default();
        let mut peaks: [Option<(Measured, Option<u64>)>; DEPTHS.len()] = [None; DEPTHS.len()];
        for round in 1..=options.runs {
            let (mut ours_line, mut theirs_line) = (Vec::new(), Vec::new());
            for (at, depth) in DEPTHS.into_iter().enumerate() {
                eprintln!("bench: depth {depth}, {threads} thread(s), round {round}");
                let ours = slm.bench(job, depth)?;
                let (theirs, peak) = llama.decode_at(job, depth)?;
                let (ours_ms, theirs_ms) = (1e3 / ours.decode, 1e3 / theirs);
                times[at].push(ours_ms, theirs_ms);
                ours_line.push((depth as f64, ours_ms));
                theirs_line.push((depth as f64, theirs_ms));
                peaks[at] = Some((ours, peak));
            }
            if let (Some(ours), Some(theirs)) = (slope(&ours_line), slope(&theirs_line)) {
                // Microseconds for each thousand positions.
                slopes.push(ours * 1e6, theirs * 1e6);
            }
        }
        let mut table = Table::new(&[
            "depth",
            "slm, ms a token",
            "llama.cpp, ms a token",
            "ratio of times",
            "slm: peak MB (file + KV)",
            "llama.cpp: peak MB",
        ]);
        for (at, depth) in DEPTHS.into_iter().enumerate() {
            let paired = &times[at];
            let [ours, theirs, ratio] =
                [paired.ours(), paired.theirs(), paired.ratio()].map(spread);
            let (ours_mb, theirs_mb) = match peaks[at] {
                Some((ours, theirs)) => (
                    format!("{} ({} + {})", mb(ours.peak_rss), mb(weights), mb(ours.kv_bytes)),
                    theirs.map_or_else(|| "not told".to_owned(), mb),
                ),
                None => ("none".to_owned(), "none".to_owned()),
            };
            table.row(&[depth.to_string(), ours, theirs, ratio, ours_mb, theirs_mb]);
        }
        let [ours, theirs, ratio] = [slopes.ours(), slopes.theirs(), slopes.ratio()].map(spread);
        let growth = "growth, µs a token for each 1,000 positions".to_owned();
        table.row(&[growth, ours, theirs, ratio, String::new(), String::new()]);
        text += &format!("Context, {name}, {threads} thread(s)\n\n{}\n", table.finish());
    }
    Ok(text)
}

fn mb(bytes: u64) -> String {
    number(bytes as f64 / 1e6)
}
