//! The switchboard under shuttle, which runs it in many interleavings: the words are shuttle's, the pointer is a value under shuttle's lock
//! (arc-swap's own atomics are invisible to it), and the medium is one more word.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::{Pointer, Slot, Switchboard, Word};
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;
use slm_manifest::policy::DuringGeneration;

use crate::error::SwitchError;

struct Modelled(AtomicU64);

impl Word for Modelled {
    fn new(value: u64) -> Modelled {
        Modelled(AtomicU64::new(value))
    }

    fn load(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn compare_exchange(&self, current: u64, new: u64) -> bool {
        self.0.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn fetch_add(&self, n: u64) -> u64 {
        self.0.fetch_add(n, Ordering::SeqCst)
    }

    fn fetch_sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::SeqCst);
    }

    fn fetch_and(&self, mask: u64) {
        self.0.fetch_and(mask, Ordering::SeqCst);
    }

    fn fetch_max(&self, value: u64) {
        self.0.fetch_max(value, Ordering::SeqCst);
    }
}

struct ModelledPointer<T>(Mutex<Option<Arc<T>>>);

impl<T: Send + Sync> Pointer<T> for ModelledPointer<T> {
    fn new() -> ModelledPointer<T> {
        ModelledPointer(Mutex::new(None))
    }

    fn load(&self) -> Option<Arc<T>> {
        self.0.lock().expect("no panics").clone()
    }

    fn replace_if(&self, new: &Arc<T>, older: &dyn Fn(&T) -> bool) {
        let mut slot = self.0.lock().expect("no panics");
        if slot.as_deref().is_none_or(older) {
            *slot = Some(Arc::clone(new));
        }
    }
}

type Board = Switchboard<u64, Modelled, ModelledPointer<Slot<u64>>>;

/// The store's record of what is active, and the runtime's way to it.
struct World {
    board: Arc<Board>,
    medium: AtomicU64,
    /// Raised by each switch that is between its gate and its pointer, so that a generation can see one.
    switching: AtomicU64,
}

impl World {
    fn new() -> Arc<World> {
        let board = Arc::new(Board::new());
        board.offer(0, 0);
        Arc::new(World { board, medium: AtomicU64::new(0), switching: AtomicU64::new(0) })
    }

    /// As `Runtime::active_slot` does: the medium says which, memory has it or is given it.
    fn active(&self, epoch: u64) -> u64 {
        let wanted = self.medium.load(Ordering::SeqCst);
        match self.board.slot().filter(|slot| slot.value == wanted) {
            Some(slot) => slot.value,
            None => self.board.offer(epoch, wanted).value,
        }
    }

    /// Generates three tokens; how many came, and under what. Tells whether it was told to end.
    fn generate(self: &Arc<World>, policy: DuringGeneration) -> Option<(u64, usize, bool)> {
        let user = self.board.enter(&mut patience(3)).ok()?;
        let value = self.active(user.epoch());
        for token in 0..3 {
            if policy != DuringGeneration::Abort {
                assert_eq!(
                    self.switching.load(Ordering::SeqCst),
                    0,
                    "a switch beside a generation"
                );
                assert_eq!(self.medium.load(Ordering::SeqCst), value, "what is active changed");
            }
            if user.has_ended() {
                return Some((value, token, true));
            }
            thread::yield_now();
        }
        Some((value, 3, false))
    }

    fn switch(self: &Arc<World>, policy: DuringGeneration, value: u64) -> Result<(), SwitchError> {
        let closed = self.board.close(policy, &mut patience(4))?;
        self.switching.fetch_add(1, Ordering::SeqCst);
        let others = self.board.running();
        assert!(policy == DuringGeneration::Abort || others == 0, "{others} are inside");
        self.medium.store(value, Ordering::SeqCst);
        thread::yield_now();
        self.switching.fetch_sub(1, Ordering::SeqCst);
        closed.swap(value);
        Ok(())
    }
}

/// So many looks, and then no more.
fn patience(mut looks: usize) -> impl FnMut() -> ControlFlow<()> {
    move || {
        thread::yield_now();
        looks = looks.saturating_sub(1);
        if looks == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Two generations and two switches at once, in as many interleavings as `check` tries.
fn two_of_each(policy: DuringGeneration) {
    let world = World::new();
    let generations: Vec<_> = (0..2)
        .map(|_| {
            let world = Arc::clone(&world);
            thread::spawn(move || world.generate(policy))
        })
        .collect();
    let switches: Vec<_> = (1..3)
        .map(|value| {
            let world = Arc::clone(&world);
            thread::spawn(move || world.switch(policy, value))
        })
        .collect();
    let switched = switches.into_iter().map(|thread| thread.join().expect("a switch"));
    let n_switched = switched.filter(Result::is_ok).count();
    for thread in generations {
        if let Some((_, tokens, ended)) = thread.join().expect("a generation") {
            assert!(ended || tokens == 3);
            assert!(!ended || (policy == DuringGeneration::Abort && n_switched > 0));
        }
    }
    // Nobody is left inside, and the gate is open.
    assert_eq!(world.board.running(), 0);
    assert!(world.board.enter(&mut patience(1)).is_ok());
    let medium = world.medium.load(Ordering::SeqCst);
    assert_eq!(n_switched > 0, medium != 0);
    assert_eq!(world.active(world.board.draw_epoch()), medium);
    // After a switch everything that is offered from before it is stale.
    world.board.offer(0, 7);
    assert_ne!(world.board.slot().expect("a slot").value, 7);
}

#[test]
fn reject_lets_no_switch_beside_a_generation() {
    shuttle::check_random(|| two_of_each(DuringGeneration::Reject), 5_000);
    shuttle::check_pct(|| two_of_each(DuringGeneration::Reject), 5_000, 3);
}

#[test]
fn drain_waits_for_those_inside_and_gives_up_in_time() {
    shuttle::check_random(|| two_of_each(DuringGeneration::Drain), 5_000);
    shuttle::check_pct(|| two_of_each(DuringGeneration::Drain), 5_000, 3);
}

#[test]
fn abort_switches_past_those_inside() {
    shuttle::check_random(|| two_of_each(DuringGeneration::Abort), 5_000);
    shuttle::check_pct(|| two_of_each(DuringGeneration::Abort), 5_000, 3);
}

/// Under `abort` a generation that has what was active before a switch is always told, at the latest when the switch is done.
#[test]
fn abort_reaches_everybody_with_the_old_value() {
    let all_are_told = || {
        let world = World::new();
        let generation = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let user = world.board.enter(&mut patience(50)).expect("the gate opens");
                let value = world.active(user.epoch());
                (user, value)
            })
        };
        let switch = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.switch(DuringGeneration::Abort, 1))
        };
        switch.join().expect("a switch").expect("abort waits for nobody");
        let (user, value) = generation.join().expect("a generation");
        assert!(value == 1 || user.has_ended(), "a generation goes on with the old value");
    };
    shuttle::check_random(all_are_told, 10_000);
    shuttle::check_pct(all_are_told, 10_000, 3);
}
