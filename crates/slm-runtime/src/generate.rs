//! The generation loop.

use std::ops::ControlFlow;

use crate::error::RuntimeError;
use crate::sample::{Sampling, sample};
use crate::session::Session;

/// Tokens in one prefill pass where the caller has no reason for another number.
pub const DEFAULT_CHUNK: usize = 256;

/// What to generate.
#[derive(Debug, Clone)]
pub struct GenerateOptions {
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Ids that end the text; they are not part of it. Empty: none do.
    pub stop_ids: Vec<u32>,
    /// Tokens in one prefill pass; changes no bit.
    pub chunk: usize,
}

/// Why generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// A stop id was chosen.
    EndOfText,
    /// The number of tokens asked for.
    MaxTokens,
    /// No position is left.
    ContextFull,
    /// The caller said so.
    Cancelled,
    /// Another composition was made active, and the policy is to end what runs.
    Switched,
}

impl Stop {
    /// The reason in one kebab-case word.
    pub fn name(self) -> &'static str {
        match self {
            Stop::EndOfText => "end-of-text",
            Stop::MaxTokens => "max-tokens",
            Stop::ContextFull => "context-full",
            Stop::Cancelled => "cancelled",
            Stop::Switched => "switched",
        }
    }
}

/// Takes `prompt` (everything of the sequence that the session has not seen yet) and generates, giving each token to `on_token` as soon as it is
/// chosen. `history` are the tokens the session has seen, for the repeat penalty.
///
/// The same session position, seed and settings give the same tokens, however the prompt was split.
///
/// A session by itself: no switch waits for it or ends it. [`crate::runtime::Generation::generate`] is the same under a runtime's rules.
///
/// # Errors
/// As [`Session::advance`]; settings out of range.
pub fn generate(
    session: &mut Session,
    engine_kernels: slm_quant::Kernels,
    history: &[u32],
    prompt: &[u32],
    options: &GenerateOptions,
    on_prefill: &mut dyn FnMut(),
    on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
) -> Result<(Vec<u32>, Stop), RuntimeError> {
    generate_while(
        &|| true,
        session,
        engine_kernels,
        history,
        prompt,
        options,
        on_prefill,
        on_token,
    )
}

/// As [`generate`], for as long as `may_run` says so before each pass.
pub(crate) fn generate_while(
    may_run: &dyn Fn() -> bool,
    session: &mut Session,
    engine_kernels: slm_quant::Kernels,
    history: &[u32],
    prompt: &[u32],
    options: &GenerateOptions,
    on_prefill: &mut dyn FnMut(),
    on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
) -> Result<(Vec<u32>, Stop), RuntimeError> {
    options.sampling.check()?;
    let mut generated = Vec::new();
    if !may_run() {
        return Ok((generated, Stop::Switched));
    }
    let mut seen = [history, prompt].concat();
    let mut logits = session.advance(prompt, options.chunk)?;
    on_prefill();
    loop {
        if generated.len() >= options.max_tokens {
            return Ok((generated, Stop::MaxTokens));
        }
        if !may_run() {
            return Ok((generated, Stop::Switched));
        }
        let token =
            sample(&logits, &options.sampling, session.position() as u64, &seen, engine_kernels);
        if options.stop_ids.contains(&token) {
            return Ok((generated, Stop::EndOfText));
        }
        generated.push(token);
        seen.push(token);
        if on_token(token).is_break() {
            return Ok((generated, Stop::Cancelled));
        }
        if generated.len() >= options.max_tokens {
            return Ok((generated, Stop::MaxTokens));
        }
        if session.position() as u64 >= u64::from(session.context_length()) {
            return Ok((generated, Stop::ContextFull));
        }
        session.advance_into(&mut logits, &[token], 1)?;
    }
}
