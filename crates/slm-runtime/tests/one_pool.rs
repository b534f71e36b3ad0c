//! Sessions on threads of their own that share one pool: nobody waits for ever, and each has its own bits.

mod common;

use std::sync::Arc;

use common::{composition, engine, tiny, to_bits};
use slm_manifest::ExecutionProfile;
use slm_quant::Tier;
use slm_runtime::Session;

#[test]
fn several_threads_may_enter_one_pool() {
    for n_threads in [2, 3] {
        let engine = engine(Tier::detect(), n_threads);
        let stacks: [&[(&str, f32)]; 4] =
            [&[], &[("kjv", 1.0)], &[("python", 0.5)], &[("kjv", 0.7), ("python", 0.3)]];
        let open = |n: usize| {
            let composition = composition(&tiny(), stacks[n]);
            Session::new(Arc::clone(&composition), ExecutionProfile::DEFAULT, engine.clone())
                .expect("a session")
        };
        let run = |mut session: Session| -> Vec<Vec<u32>> {
            let prompt: Vec<u32> = (0..50).map(|i| i * 19 % 1024).collect();
            let first = session.advance(&prompt, 40).expect("a prompt");
            let mut all = vec![to_bits(&first)];
            for token in 0..30 {
                all.push(to_bits(&session.advance(&[token], 1).expect("a token")));
            }
            all
        };
        let alone: Vec<_> = (0..4).map(|n| run(open(n))).collect();
        let run = &run;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|n| {
                    let session = open(n);
                    scope.spawn(move || run(session))
                })
                .collect();
            for (n, thread) in threads.into_iter().enumerate() {
                assert_eq!(thread.join().expect("no panic"), alone[n], "session {n}");
            }
        });
    }
}
