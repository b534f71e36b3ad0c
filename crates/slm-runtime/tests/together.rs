//! Several sessions in one pass: each has the bits it has alone.

mod common;

use std::sync::Arc;

use common::{code, composition, engine, tiny, to_bits};
use slm_manifest::{ExecutionProfile, KvType};
use slm_quant::Tier;
use slm_runtime::{Composition, Engine, Session, Step};

const DEFAULT: ExecutionProfile = ExecutionProfile::DEFAULT;

fn compositions() -> [Arc<Composition>; 4] {
    let base = tiny();
    [
        composition(&base, &[]),
        composition(&base, &[("kjv", 1.0)]),
        composition(&base, &[("kjv", 0.7), ("python", 0.3)]),
        composition(&base, &[("python", -1.0)]),
    ]
}

fn tokens(seed: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + seed * 101 + 5) % 1024).collect()
}

/// Steps of one session: how many tokens it takes each time.
fn steps(seed: u32, lengths: &[usize]) -> Vec<Vec<u32>> {
    lengths.iter().enumerate().map(|(at, &n)| tokens(seed + 7 * at as u32, n)).collect()
}

#[test]
fn any_mix_in_any_order_gives_each_its_own_bits() {
    // Prompts beside single tokens, more rows than a block, and sequences that end within one.
    let lengths: [&[usize]; 4] = [&[1, 1, 1, 70], &[33, 1, 1, 1], &[5, 40, 1, 1], &[1, 2, 3, 4]];
    let profiles = [DEFAULT, ExecutionProfile { kv: KvType::F32, ..DEFAULT }];
    for tier in Tier::available() {
        for (n_threads, order) in [(1, [0, 1, 2, 3]), (2, [0, 1, 2, 3]), (2, [3, 1, 0, 2])] {
            let engine = engine(tier, n_threads);
            let open = |n: usize, engine: &Engine| {
                let composition = Arc::clone(&compositions()[n]);
                Session::new(composition, profiles[n % 2], engine.clone()).expect("a session")
            };
            let plans: Vec<Vec<Vec<u32>>> = (0..4).map(|n| steps(n as u32, lengths[n])).collect();
            let alone: Vec<Vec<Vec<u32>>> = (0..4)
                .map(|n| {
                    let mut session = open(n, &engine);
                    let step = |tokens: &Vec<u32>| {
                        to_bits(&session.advance(tokens, tokens.len()).expect("a pass"))
                    };
                    plans[n].iter().map(step).collect()
                })
                .collect();
            let mut sessions = order.map(|n| open(n, &engine));
            for at in 0..4 {
                let mut together = vec![Vec::new(); 4];
                let mut given: Vec<Step<'_>> = sessions
                    .iter_mut()
                    .zip(order)
                    .map(|(session, n)| Step { session, tokens: &plans[n][at] })
                    .collect();
                Session::advance_together(&mut given, &mut |index, logits| {
                    together[index] = to_bits(logits);
                })
                .expect("a common pass");
                for (index, n) in order.into_iter().enumerate() {
                    let what = format!("{tier:?}, {n_threads} threads, {order:?}, step {at}");
                    assert_eq!(together[index], alone[n][at], "session {n}: {what}");
                }
            }
        }
    }
}

#[test]
fn sessions_that_cannot_be_one_pass_are_refused_and_stay_where_they_were() {
    let engine = Engine::inline();
    let open = |profile| {
        let composition = composition(&tiny(), &[("kjv", 1.0)]);
        Session::new(composition, profile, engine.clone()).expect("a session")
    };
    let other = ExecutionProfile::ORACLE;
    let short = ExecutionProfile { context_length: Some(3), ..DEFAULT };
    for (profile, second, refusal) in [
        (DEFAULT, vec![3, 4], None),
        (other, vec![3, 4], Some("mixed-step")),
        (short, vec![3, 4], None),
        (short, vec![3, 4, 5, 6], Some("context-full")),
        (DEFAULT, vec![], Some("empty-prompt")),
        (DEFAULT, vec![4096], Some("token-out-of-range")),
    ] {
        let (mut a, mut b) = (open(DEFAULT), open(profile));
        a.advance(&[7], 1).expect("a pass");
        let expected = open(DEFAULT).advance(&[7, 1, 2], 1).expect("a pass");
        let mut steps =
            [Step { session: &mut a, tokens: &[1, 2] }, Step { session: &mut b, tokens: &second }];
        let mut first = Vec::new();
        let outcome = Session::advance_together(&mut steps, &mut |index, logits| {
            if index == 0 {
                first = to_bits(logits);
            }
        });
        match refusal {
            None => {
                outcome.expect("a common pass");
                assert_eq!(first, to_bits(&expected));
            }
            Some(expected) => {
                assert_eq!(code(outcome), expected);
                assert_eq!((a.position(), b.position()), (1, 0));
            }
        }
        // Whatever happened, the first goes on as if it had been alone.
        a.truncate(1);
        assert_eq!(to_bits(&a.advance(&[1, 2], 2).expect("a pass")), to_bits(&expected));
    }
    Session::advance_together(&mut [], &mut |_, _| {}).expect("nothing to do");
}
