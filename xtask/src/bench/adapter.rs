//! A LoRA active in both, and what it costs each.

use super::llama::{Job, Llama};
use super::options::{Options, Part};
use super::slm::Slm;
use super::stats::Paired;
use super::table::{Table, spread};
use crate::problems::Problems;

/// The adapter for slm, in the folder of models.
const PEFT: &str = "smollm2-kjv";

/// The same adapter for llama.cpp.
const GGUF: &str = "smollm2-kjv-f16.gguf";

/// Compares llama-completion and slm with the adapter, each also without; decode follows the prompt in both. llama.cpp's factors are f16, so
/// slm's are rounded to f16 for the race, and measured in their own precision beside it.
pub(crate) fn run(options: &Options, slm: &Slm, llama: &Llama) -> Result<String, Problems> {
    let (file, name) = Part::Lora.model();
    let model = options.need(file)?;
    let (peft, gguf) = (options.need(PEFT)?, options.need(GGUF)?);
    let store = slm.store(&model)?;
    slm.compose(&store, &peft, "f16")?;
    slm.compose(&store, &peft, "keep")?;
    let mut table =
        Table::new(&["threads", "what", "slm, tokens/s", "llama.cpp, tokens/s", "ratio"]);
    let mut costs = Table::new(&["threads", "what", "time of a decoded token, with / without"]);
    for &threads in &options.threads {
        let job =
            Job { model: &model, threads, prompt: options.prompt, generate: options.generate };
        let mut raced = [Paired::default(), Paired::default()];
        let mut bare = [Paired::default(), Paired::default()];
        let mut added = [Paired::default(), Paired::default(), Paired::default()];
        for round in 1..=options.runs {
            eprintln!("bench: adapter, {threads} thread(s), round {round} of {}", options.runs);
            let ours = slm.bench_composition(&store, "f16", job)?;
            let theirs = llama.completion(job, Some(&gguf))?;
            let ours_bare = slm.bench_composition(&store, "bare", job)?;
            let theirs_bare = llama.completion(job, None)?;
            let ours_f32 = slm.bench_composition(&store, "keep", job)?;
            raced[0].push(ours.decode, theirs.decode);
            raced[1].push(ours.prefill, theirs.prefill);
            bare[0].push(ours_bare.decode, theirs_bare.decode);
            bare[1].push(ours_bare.prefill, theirs_bare.prefill);
            added[0].push(ours_bare.decode, ours.decode);
            added[1].push(ours_bare.decode, ours_f32.decode);
            added[2].push(theirs_bare.decode, theirs.decode);
        }
        for (what, paired) in [
            ("decode, LoRA r 8 on all linear layers, f16", &raced[0]),
            ("prefill, the same", &raced[1]),
            ("decode, no adapter", &bare[0]),
            ("prefill, no adapter", &bare[1]),
        ] {
            let [ours, theirs, ratio] =
                [paired.ours(), paired.theirs(), paired.ratio()].map(spread);
            table.row(&[threads.to_string(), what.to_owned(), ours, theirs, ratio]);
        }
        for (what, paired) in [
            ("slm, f16 factors", &added[0]),
            ("slm, the file's own factors (f32)", &added[1]),
            ("llama.cpp, f16 factors", &added[2]),
        ] {
            costs.row(&[threads.to_string(), what.to_owned(), spread(paired.ratio())]);
        }
    }
    let context = format!(
        "{name} and {PEFT}; llama.cpp by llama-completion; decode follows a prompt of {} tokens",
        options.prompt
    );
    Ok(format!("{context}\n\n{}\n{}", table.finish(), costs.finish()))
}
