//! `chat`.

use std::io::{BufRead, IsTerminal};
use std::ops::ControlFlow;

use serde_json::{Value, json};
use slm_runtime::Session;
use slm_runtime::budget::Workload;
use slm_runtime::chat::ChatMessage;
use slm_runtime::generate::generate;
use slm_runtime::tokenizer::{SpecialText, StreamDecoder};

use crate::args::ChatArgs;
use crate::command::run::{chat_ids, options, sampling};
use crate::error::CliError;
use crate::model::{check_budget, composition, engine_of, profile};
use crate::world::World;

/// Reads a line, answers it, and goes on until the end of input. What the cache holds of the conversation is kept. For a program, the whole
/// conversation is one object at the end.
pub(crate) fn chat(world: &World, args: ChatArgs) -> Result<(), CliError> {
    sampling(&args.sampling).check()?;
    let engine = engine_of(&args.engine)?;
    let composition = composition(world, &args.model, &engine)?;
    composition.base().chat_template()?;
    let tokenizer = composition.base().tokenizer()?;
    let profile = profile(&args.engine);
    // A conversation may fill the whole context.
    let work = Workload {
        positions: composition.base().config().context_length,
        chunk: args.engine.chunk,
        all_logits: false,
    };
    check_budget(world, &args.model, &composition, &engine, &profile, work)?;
    let mut session = Session::new(composition.clone(), profile, engine.clone())?;
    let options = options(&args.sampling, args.engine.chunk, tokenizer)?;
    let mut messages: Vec<ChatMessage> =
        args.system.map(|text| ChatMessage::new("system", text)).into_iter().collect();
    let mut seen: Vec<u32> = Vec::new();
    let mut turns: Vec<Value> = Vec::new();
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        world.output.note(&format!("composition {}\nend with ctrl-D", composition.id()));
    }
    let mut lines = stdin.lock().lines();
    loop {
        world.output.prompt();
        let Some(line) = lines.next() else { break };
        let line = line.map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidData => {
                CliError::Format { path: "standard input".into(), reason: "not UTF-8" }
            }
            _ => CliError::io("standard input", error),
        })?;
        messages.push(ChatMessage::new("user", line.clone()));
        let ids = chat_ids(&composition, &messages)?;
        // Positions whose tokens are still the same keep their place in the cache; the last is computed again for its logits.
        let same = seen.iter().zip(&ids).take_while(|(a, b)| a == b).count();
        let kept = same.min(ids.len().saturating_sub(1));
        session.truncate(kept);
        let mut decoder = StreamDecoder::new(tokenizer, SpecialText::Hide);
        let mut answer = String::new();
        let mut emit = |piece: &str| {
            if !world.output.json {
                world.output.print(piece);
            }
            answer.push_str(piece);
        };
        let (tokens, stop) = generate(
            &mut session,
            engine.kernels,
            &ids[..kept],
            &ids[kept..],
            &options,
            &mut || {},
            &mut |token| {
                emit(&decoder.push(token).expect("BUG: a chosen token is outside the vocabulary"));
                ControlFlow::Continue(())
            },
        )?;
        emit(&decoder.finish());
        if !world.output.json {
            world.output.print("\n");
        }
        turns.push(json!({
            "user": line, "text": answer, "prompt_tokens": ids, "reused": kept, "tokens": tokens,
            "stop": stop.name(),
        }));
        messages.push(ChatMessage::new("assistant", answer));
        seen = [ids, tokens].concat();
        seen.truncate(session.position());
    }
    let object = json!({
        "turns": turns,
        "composition": composition.id(),
        "execution": session.execution_id(),
        "kernels": session.kernels(),
    });
    world.output.result(object, &[]);
    Ok(())
}
