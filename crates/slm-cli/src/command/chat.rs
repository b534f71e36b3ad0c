//! `chat`.

use std::io::BufRead;
use std::ops::ControlFlow;

use slm_runtime::Session;
use slm_runtime::chat::ChatMessage;
use slm_runtime::generate::{GenerateOptions, generate};
use slm_runtime::tokenizer::{SpecialText, StreamDecoder};

use crate::args::ChatArgs;
use crate::command::run::{chat_ids, sampling};
use crate::error::CliError;
use crate::model::{composition, engine_of, profile};
use crate::output::print_out;
use crate::world::World;

/// Reads a line, answers it, and goes on until the end of input. What the cache holds of the conversation is kept.
pub(crate) fn chat(world: &World, args: ChatArgs) -> Result<(), CliError> {
    let sampling = sampling(&args.sampling);
    sampling.check()?;
    let engine = engine_of(&args.engine)?;
    let composition = composition(world, &args.model, &engine)?;
    composition.base().chat_template()?;
    let tokenizer = composition.base().tokenizer()?;
    let mut session = Session::new(composition.clone(), profile(&args.engine), engine.clone())?;
    let options = GenerateOptions {
        max_tokens: args.sampling.max_tokens,
        sampling,
        stop_ids: if args.sampling.ignore_eos { Vec::new() } else { tokenizer.eos_ids().to_vec() },
        chunk: args.engine.chunk,
    };
    let mut messages: Vec<ChatMessage> =
        args.system.map(|text| ChatMessage::new("system", text)).into_iter().collect();
    let mut seen: Vec<u32> = Vec::new();
    world.output.note(&format!("composition {}\nend with ctrl-D", composition.id()));
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| CliError::io("standard input", error))?;
        messages.push(ChatMessage::new("user", line));
        let ids = chat_ids(&composition, &messages)?;
        // Positions whose tokens are still the same keep their place in the cache.
        let kept = seen.iter().zip(&ids).take_while(|(a, b)| a == b).count().min(ids.len() - 1);
        session.truncate(kept);
        let mut decoder = StreamDecoder::new(tokenizer, SpecialText::Hide);
        let mut answer = String::new();
        let (tokens, _) = generate(
            &mut session,
            engine.kernels,
            &ids[..kept],
            &ids[kept..],
            &options,
            &mut || {},
            &mut |token| {
                let piece =
                    decoder.push(token).expect("BUG: a chosen token is outside the vocabulary");
                print_out(&piece);
                answer.push_str(&piece);
                ControlFlow::Continue(())
            },
        )?;
        let rest = decoder.finish();
        print_out(&format!("{rest}\n"));
        answer.push_str(&rest);
        messages.push(ChatMessage::new("assistant", answer));
        seen = [ids, tokens].concat();
        seen.truncate(session.position());
    }
    Ok(())
}
