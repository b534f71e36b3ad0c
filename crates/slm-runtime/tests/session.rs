//! Sessions: going back, refusing, sampling, and what makes another execution.

mod common;

use std::ops::ControlFlow;

use common::bend::Bend;
use common::{Bits, TOKENS, bits, code, composition, open, session, tiny, to_bits};
use slm_golden::TINY_Q8_0;
use slm_manifest::{Activations, ExecutionProfile, KvType};
use slm_quant::Kernels;
use slm_runtime::generate::{GenerateOptions, Stop, generate};
use slm_runtime::sample::Sampling;
use slm_runtime::{Engine, Session};

const DEFAULT: ExecutionProfile = ExecutionProfile::DEFAULT;

fn kjv(profile: ExecutionProfile) -> Session {
    session(&composition(&tiny(), &[("kjv", 1.0)]), profile)
}

/// `n` tokens of the vocabulary, some of them in no text.
fn tokens(n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * 37 + 5) % 1024).collect()
}

#[test]
fn truncating_and_the_same_tokens_give_the_same_bits() {
    for profile in [DEFAULT, ExecutionProfile::ORACLE] {
        let text = tokens(150);
        let mut straight = kjv(profile);
        let whole: Vec<Vec<u32>> = text
            .iter()
            .map(|&token| to_bits(&straight.advance(&[token], 1).expect("a pass")))
            .collect();
        let mut session = kjv(profile);
        session.advance(&text, 64).expect("a pass");
        // Within a page, at its ends, over several pages, to the start, and twice to one place.
        for position in [149, 140, 140, 128, 64, 63, 65, 1, 0] {
            session.truncate(position);
            assert_eq!(session.position(), position.min(150));
            let rest = bits(&mut session, &text[position..], 7);
            assert_eq!(rest.last, whole[149], "back to {position}");
        }
        // Other tokens in between leave no trace.
        session.truncate(70);
        session.advance(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 3).expect("a pass");
        session.truncate(70);
        assert_eq!(bits(&mut session, &text[70..100], 64).last, whole[99]);
        // A place ahead is no place to go back to.
        session.truncate(5000);
        assert_eq!(session.position(), 100);
    }
}

#[test]
fn a_refusal_leaves_the_session_where_it_was() {
    let profile = ExecutionProfile { context_length: Some(20), ..DEFAULT };
    let text = tokens(20);
    let expected = bits(&mut kjv(profile), &text, 64).last;
    let mut session = kjv(profile);
    assert_eq!(session.context_length(), 20);
    assert_eq!(code(session.advance(&[], 64)), "empty-prompt");
    session.advance(&text[..10], 4).expect("a pass");
    for (refused, expected) in [
        (vec![], "empty-prompt"),
        (vec![1024], "token-out-of-range"),
        (vec![1, 2, 3, u32::MAX], "token-out-of-range"),
        (vec![7; 11], "context-full"),
        (vec![7; 500], "context-full"),
    ] {
        for chunk in [1, 4, 64] {
            assert_eq!(code(session.advance(&refused, chunk)), expected);
            assert_eq!(code(session.advance_all(&refused, chunk, &mut |_, _| {})), expected);
            assert_eq!(session.position(), 10);
        }
    }
    assert_eq!(bits(&mut session, &text[10..], 3).last, expected, "to the last position there is");
    assert_eq!(code(session.advance(&[7], 1)), "context-full");
    session.truncate(10);
    assert_eq!(bits(&mut session, &text[10..], 64).last, expected);
    // The model's own context is the limit where the profile gives none.
    let mut session = kjv(DEFAULT);
    assert_eq!(session.context_length(), 512);
    session.advance(&tokens(512), 128).expect("a pass");
    assert_eq!(code(session.advance(&[7], 1)), "context-full");
}

/// Weights that are finite and too large: the pass fails in the middle, after some of its positions are in the cache.
#[test]
fn a_value_that_is_not_finite_is_an_error_and_no_logit() {
    let mut bend = Bend::of(TINY_Q8_0);
    // The row of token 3 of the embedding table: every scale is f16's largest number.
    let row = 256 / 32 * 34;
    for block in bend.tensor("token_embd.weight").data.to_mut()[3 * row..4 * row].chunks_mut(34) {
        block[..2].copy_from_slice(&[0xff, 0x7b]);
    }
    for value in bend.tensor("output_norm.weight").data.to_mut().chunks_mut(4) {
        value.copy_from_slice(&3e38f32.to_le_bytes());
    }
    let base = std::sync::Arc::new(open(&bend.to_bytes()).expect("finite weights"));
    for profile in [DEFAULT, ExecutionProfile::ORACLE] {
        for chunk in [1, 2, 64] {
            let mut session = session(&composition(&base, &[]), profile);
            let error = session.advance(&[5, 6, 7, 3], chunk).expect_err("infinite logits");
            let found = slm_format::Coded::code(&error);
            assert!(
                ["non-finite-logit", "non-finite-activation", "kv-non-finite"].contains(&found),
                "{error}"
            );
            assert_eq!(session.position(), 0, "chunk {chunk}");
        }
    }
}

fn sampling(seed: u64) -> Sampling {
    Sampling {
        temperature: 1.2,
        top_k: 100,
        top_p: 0.98,
        repeat_penalty: 1.1,
        seed,
        ..Sampling::GREEDY
    }
}

fn run(
    session: &mut Session,
    history: &[u32],
    prompt: &[u32],
    sampling: Sampling,
    chunk: usize,
    max_tokens: usize,
) -> (Vec<u32>, Stop) {
    let options = GenerateOptions { max_tokens, sampling, stop_ids: Vec::new(), chunk };
    let mut streamed = Vec::new();
    let (generated, stop) =
        generate(session, Kernels::detect(), history, prompt, &options, &mut || {}, &mut |token| {
            streamed.push(token);
            ControlFlow::Continue(())
        })
        .expect("a text");
    assert_eq!(streamed, generated, "every token is given as it comes");
    (generated, stop)
}

#[test]
fn the_seed_and_nothing_else_chooses() {
    let generated =
        |seed: u64, chunk: usize| run(&mut kjv(DEFAULT), &[], &TOKENS, sampling(seed), chunk, 40);
    let first = generated(7, 64);
    assert_eq!((first.0.len(), first.1), (40, Stop::MaxTokens));
    for chunk in [1, 2, 5, 12, 1000] {
        assert_eq!(generated(7, chunk), first, "chunk {chunk}");
    }
    let others: Vec<_> = [0, 1, 8, u64::MAX].map(|seed| generated(seed, 64)).into();
    for (at, other) in others.iter().enumerate() {
        assert_ne!(*other, first);
        assert!(others[..at].iter().all(|earlier| earlier != other));
    }
    // At temperature 0 the seed has no say.
    let greedy = |seed| Sampling { seed, ..Sampling::GREEDY };
    let a = run(&mut kjv(DEFAULT), &[], &TOKENS, greedy(1), 64, 20);
    assert_eq!(run(&mut kjv(DEFAULT), &[], &TOKENS, greedy(2), 5, 20), a);
}

#[test]
fn a_text_goes_on_as_if_it_had_not_been_interrupted() {
    for sampling in [sampling(3), Sampling::GREEDY] {
        let (whole, _) = run(&mut kjv(DEFAULT), &[], &TOKENS, sampling.clone(), 64, 30);
        for at in [1, 11, 29] {
            // From a session that went another way and was truncated to the prompt.
            let mut session = kjv(DEFAULT);
            session.advance(&TOKENS, 64).expect("a pass");
            session.advance(&[9, 8, 7, 6, 5], 64).expect("a pass");
            session.truncate(TOKENS.len());
            // The tokens generated so far, but for the last, are in the cache; the last is the prompt.
            let mut history = TOKENS.to_vec();
            if at > 1 {
                session.advance(&whole[..at - 1], 3).expect("a pass");
                history.extend(&whole[..at - 1]);
            }
            let rest =
                run(&mut session, &history, &whole[at - 1..at], sampling.clone(), 1, 30 - at);
            assert_eq!(rest.0, whole[at..], "interrupted after {at}");
        }
    }
}

#[test]
fn generation_ends_for_its_reasons() {
    let (greedy, _) = run(&mut kjv(DEFAULT), &[], &TOKENS, Sampling::GREEDY, 64, 10);
    let options = |max_tokens, stop_ids| GenerateOptions {
        max_tokens,
        sampling: Sampling::GREEDY,
        stop_ids,
        chunk: 64,
    };
    let go = |session: &mut Session, options: &GenerateOptions, cancel_after: usize| {
        let mut n = 0;
        let mut prefilled = 0;
        let result = generate(
            session,
            Kernels::detect(),
            &[],
            &TOKENS,
            options,
            &mut || prefilled += 1,
            &mut |_| {
                n += 1;
                if n == cancel_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            },
        );
        result.inspect(|_| assert_eq!(prefilled, 1))
    };
    // The stop token ends the text where it first comes, and is no part of it.
    let stop = greedy[6];
    let first = greedy.iter().position(|&token| token == stop).expect("it is there");
    let found = go(&mut kjv(DEFAULT), &options(10, vec![stop]), 0).expect("a text");
    assert_eq!(found, (greedy[..first].to_vec(), Stop::EndOfText));
    let found = go(&mut kjv(DEFAULT), &options(10, vec![]), 4).expect("a text");
    assert_eq!(found, (greedy[..4].to_vec(), Stop::Cancelled));
    let found = go(&mut kjv(DEFAULT), &options(0, vec![]), 0).expect("a text");
    assert_eq!(found, (vec![], Stop::MaxTokens));
    // 12 tokens of prompt in 15 positions: the last logits come from position 15, and give a fourth token.
    let small = ExecutionProfile { context_length: Some(15), ..DEFAULT };
    let found = go(&mut kjv(small), &options(10, vec![]), 0).expect("a text");
    assert_eq!(found, (greedy[..4].to_vec(), Stop::ContextFull));
    // Settings are looked at before anything is computed.
    let mut session = kjv(DEFAULT);
    for sampling in [
        Sampling { temperature: -1.0, ..Sampling::GREEDY },
        Sampling { temperature: f32::NAN, ..Sampling::GREEDY },
        Sampling { top_p: 0.0, ..Sampling::GREEDY },
        Sampling { min_p: 1.0, ..Sampling::GREEDY },
        Sampling { repeat_penalty: 0.0, ..Sampling::GREEDY },
    ] {
        let options = GenerateOptions { sampling, ..options(10, vec![]) };
        assert_eq!(code(go(&mut session, &options, 0)), "sampling-range");
        assert_eq!(session.position(), 0);
    }
}

#[test]
fn what_changes_bits_makes_another_execution() {
    let theta = |theta: f32| ExecutionProfile { rope_theta_bits: Some(theta.to_bits()), ..DEFAULT };
    let profiles = [
        DEFAULT,
        ExecutionProfile { kv: KvType::F32, ..DEFAULT },
        ExecutionProfile::ORACLE,
        theta(20_000.0),
    ];
    // f32 activations have an f32 cache.
    let oracle_in_f16 = ExecutionProfile { activations: Activations::F32, ..DEFAULT };
    let refused = Session::new(composition(&tiny(), &[]), oracle_in_f16, Engine::inline());
    assert_eq!(code(refused.map(|_| ())), "profile-contradicts");
    let mut seen: Vec<(slm_manifest::ExecutionId, Bits)> = Vec::new();
    for stack in [&[][..], &[("kjv", 1.0)]] {
        let composition = composition(&tiny(), stack);
        for profile in profiles {
            let mut session = session(&composition, profile);
            assert_eq!(session.execution_id(), composition.execution_id(&profile));
            let found = (session.execution_id(), bits(&mut session, &TOKENS, 64));
            for earlier in &seen {
                assert_ne!(earlier.0, found.0, "{profile:?}");
                assert_ne!(earlier.1.all_blake3, found.1.all_blake3, "{profile:?}");
            }
            seen.push(found);
        }
    }
    // The model's own theta, spelt out, is another profile and the same bits.
    let spelt = bits(&mut session(&composition(&tiny(), &[]), theta(10_000.0)), &TOKENS, 64);
    assert_eq!(spelt, seen[0].1);
}

#[test]
fn sessions_share_a_base_and_do_not_touch_each_other() {
    let base = tiny();
    let (bare, kjv) = (composition(&base, &[]), composition(&base, &[("kjv", 1.0)]));
    let expected = [&bare, &kjv].map(|c| bits(&mut session(c, DEFAULT), &TOKENS, 64).last);
    // Turn by turn in one thread, and at once in two.
    let mut sessions = [session(&bare, DEFAULT), session(&kjv, DEFAULT)];
    let mut last = [Vec::new(), Vec::new()];
    for token in TOKENS {
        for (session, last) in sessions.iter_mut().zip(&mut last) {
            *last = to_bits(&session.advance(&[token], 1).expect("a pass"));
        }
    }
    assert_eq!(last, expected);
    std::thread::scope(|scope| {
        let threads = [&bare, &kjv].map(|composition| {
            scope.spawn(move || bits(&mut session(composition, DEFAULT), &TOKENS, 5).last)
        });
        assert_eq!(threads.map(|thread| thread.join().expect("a thread")), expected);
    });
}
