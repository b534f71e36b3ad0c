//! `kill -9` at random moments of activations.

use std::time::{Duration, Instant};

use crate::problems::{Outcome, Problems};

use super::store::{COMPOSITIONS, Store};

/// The store is verified whole after so many kills; who is active is asked after each.
const VERIFY_EVERY: usize = 25;

/// Kills `kills` activations and counts what became of them.
pub(super) fn check(store: &Store, kills: usize) -> Outcome {
    let mut ids = Vec::new();
    let mut longest = Duration::ZERO;
    for (name, _) in COMPOSITIONS {
        let began = Instant::now();
        let activation = store.ok(&["activate", name])?;
        longest = longest.max(began.elapsed());
        ids.push(activation["composition"].as_str().unwrap_or_default().to_owned());
    }
    let mut random = Random(0x51a1_2026_1130_0001);
    let mut active = ids.len() - 1;
    let (mut killed, mut old, mut new, mut done, mut rounds) = (0, 0, 0, 0, 0);
    while killed < kills {
        rounds += 1;
        let wanted = (active + 1 + random.below(ids.len() as u64 - 1) as usize) % ids.len();
        let mut child = store.command(&["activate", COMPOSITIONS[wanted].0]);
        child.stdout(std::process::Stdio::null());
        let mut child = child.spawn()?;
        // Most die on the way, the rest are through before.
        std::thread::sleep(longest.mul_f64(random.unit() * 1.1));
        child.kill()?;
        let status = child.wait()?;
        let found = store.active()?;
        let was_killed = status.code().is_none();
        match (was_killed, found == ids[active], found == ids[wanted]) {
            (true, true, _) => old += 1,
            (true, _, true) => new += 1,
            (false, _, true) if status.success() => done += 1,
            _ => {
                return Err(Problems::one(format!(
                    "round {rounds}: {} to {} ended with {status}, and {found} is active",
                    COMPOSITIONS[active].0, COMPOSITIONS[wanted].0
                )));
            }
        }
        killed += usize::from(was_killed);
        if found == ids[wanted] {
            active = wanted;
        }
        if rounds % VERIFY_EVERY == 0 {
            store.verify()?;
            // And the next command works.
            let next = (active + 1) % ids.len();
            store.ok(&["activate", COMPOSITIONS[next].0])?;
            active = next;
            store.ok(&["audit"])?;
        }
    }
    store.verify()?;
    store.ok(&["gc"])?;
    store.verify()?;
    println!(
        "faults: {killed} of {rounds} activations killed (an activation takes up to {} ms): the old one active after {old}, the new one after {new}; {done} were through before and succeeded; no violation",
        longest.as_millis()
    );
    if old == 0 || new == 0 || done == 0 {
        return Err(Problems::one(format!(
            "kills: all three ends must occur: old {old}, new {new}, through {done}"
        )));
    }
    Ok(())
}

/// xorshift64*: the moments are random, but not other ones each time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
