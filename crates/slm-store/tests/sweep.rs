//! Every change, stopped or failed at every operation: what is found afterwards is the old state or the new, whole, and work goes on.

mod common;

use common::commands::{COMMANDS, Command, State, check, prepare, state};
use common::{NOW, activate, assert_clean, manifest};
use slm_format::{Coded as _, ErrorClass};
use slm_store::faulty::{CrashStorage, FailingStorage, Failure};
use slm_store::{MemStorage, Storage, Store};

fn prepared() -> MemStorage {
    let storage = MemStorage::new();
    prepare(&open(storage.clone()));
    storage
}

fn copy(storage: &MemStorage) -> MemStorage {
    let copy = MemStorage::new();
    for path in storage.paths() {
        copy.insert(&path, &storage.open(&path).unwrap().unwrap());
    }
    copy
}

fn open<S: Storage>(storage: S) -> Store<S> {
    Store::open(storage).unwrap()
}

#[derive(Default)]
struct Count {
    steps: usize,
    cases: usize,
}

/// Old and new state, and how many steps a command takes.
fn whole(command: Command, before: &MemStorage) -> (State, State, usize) {
    let storage = CrashStorage::holding(before);
    let store = open(storage.clone());
    let old = state(&store, "before");
    command.run(&store).unwrap();
    (old, state(&store, "after"), storage.steps())
}

#[test]
fn a_power_cut_at_every_step() {
    let before = prepared();
    let mut count = Count::default();
    for command in COMMANDS {
        let (old, new, steps) = whole(command, &before);
        for at in 0..=steps {
            let storage = CrashStorage::holding(&before);
            let store = open(storage.clone());
            storage.stop_at(at);
            let said = command.run(&store);
            // It may be done and durable before the log says so.
            assert!(said.is_ok() || at < steps, "{command:?} {at}: {said:?}");
            let states: &[&State] = if said.is_ok() { &[&new] } else { &[&old, &new] };
            for image in storage.images(96) {
                let context = format!("{command:?}, power cut at step {at}: {}", image.what);
                check(&open(image.files), command, states, &context);
                count.cases += 1;
            }
        }
        count.steps += steps;
    }
    println!("{} steps of {} commands, {} images", count.steps, COMMANDS.len(), count.cases);
    assert!(count.steps >= 180 && count.cases >= 5_000, "{} {}", count.steps, count.cases);
}

#[test]
fn a_kill_at_every_step() {
    let before = prepared();
    let mut count = Count::default();
    for command in COMMANDS {
        let (old, new, steps) = whole(command, &before);
        for at in 0..steps {
            let storage = CrashStorage::holding(&before);
            let store = open(storage.clone());
            storage.stop_at(at);
            let said = command.run(&store);
            storage.restart();
            let context = format!("{command:?}, killed at step {at}");
            let states: &[&State] = if said.is_ok() { &[&new] } else { &[&old, &new] };
            check(&store, command, states, &context);
            count.cases += 1;
        }
        count.steps += steps;
    }
    println!("{} steps, {} kills", count.steps, count.cases);
    assert!(count.cases >= 180);
}

/// What a killed writer left is seen by the next one, and may go with a power cut while that one works.
#[test]
fn a_power_cut_in_the_command_after_a_kill() {
    let before = prepared();
    let mut count = Count::default();
    for (command, next) in [
        (Command::Activate, Command::Rollback),
        (Command::Activate, Command::Gc),
        (Command::Rollback, Command::Activate),
        (Command::ReplaceName, Command::Gc),
        (Command::Gc, Command::Activate),
        (Command::RemoveName, Command::Gc),
        (Command::Record, Command::Record),
        (Command::SetNames, Command::Gc),
        (Command::SetNames, Command::ReplaceName),
        (Command::SetPolicy, Command::Activate),
    ] {
        let (old, _, steps) = whole(command, &before);
        for at in 0..steps {
            let killed = || {
                let storage = CrashStorage::holding(&before);
                let store = open(storage.clone());
                storage.stop_at(at);
                let _ = command.run(&store);
                storage.restart();
                storage
            };
            // What the second command takes, from where it begins.
            let storage = killed();
            let first = storage.steps();
            let store = open(storage.clone());
            drop(store.lock_at(NOW).unwrap());
            let between = state(&store, "between");
            next.run(&store).unwrap();
            let after = state(&store, "after");
            let last = storage.steps();
            for stop in first..=last {
                let storage = killed();
                let store = open(storage.clone());
                storage.stop_at(stop);
                let _ = next.run(&store);
                // The first command was not acknowledged: it may be undone, until the second has built on it.
                for image in storage.images(3) {
                    let context = format!(
                        "{command:?} killed at {at}, power cut in {next:?} at {stop}: {}",
                        image.what
                    );
                    let found = open(image.files);
                    check(&found, Command::Gc, &[&old, &between, &after], &context);
                    count.cases += 1;
                }
            }
            count.steps += last - first;
        }
    }
    println!("{} steps, {} images", count.steps, count.cases);
    assert!(count.cases >= 8_000, "{}", count.cases);
}

/// A power cut in the recovery from a power cut.
#[test]
fn a_power_cut_in_the_recovery() {
    let before = prepared();
    let mut cases = 0;
    for command in [
        Command::Activate,
        Command::ReplaceName,
        Command::Gc,
        Command::SetNames,
        Command::SetPolicy,
    ] {
        let (old, new, steps) = whole(command, &before);
        for at in 0..steps {
            let storage = CrashStorage::holding(&before);
            let store = open(storage.clone());
            storage.stop_at(at);
            let said = command.run(&store);
            let states: &[&State] = if said.is_ok() { &[&new] } else { &[&old, &new] };
            for image in storage.images(8) {
                for stop in 0.. {
                    let storage = CrashStorage::holding(&image.files);
                    let store = open(storage.clone());
                    storage.stop_at(stop);
                    let recovered = store.lock_at(NOW).is_ok();
                    for again in storage.images(4) {
                        let context = format!(
                            "{command:?} cut at {at}: {}, recovery cut at {stop}: {}",
                            image.what, again.what
                        );
                        check(&open(again.files), command, states, &context);
                        cases += 1;
                    }
                    if recovered {
                        break;
                    }
                }
            }
        }
    }
    println!("{cases} images");
    assert!(cases >= 2_000, "{cases}");
}

#[test]
fn a_failure_at_every_operation() {
    let before = prepared();
    let mut count = Count::default();
    for command in COMMANDS {
        let (old, new, _) = whole(command, &before);
        let storage = FailingStorage::new(copy(&before));
        let store = open(storage.clone());
        let opened = storage.operations();
        command.run(&store).unwrap();
        let operations = storage.operations() - opened;
        for nth in 0..operations {
            let once = Failure::once(opened + nth);
            for failure in [
                once,
                Failure { after_effect: true, ..once },
                Failure::lasting(opened + nth),
                Failure { after_effect: true, ..Failure::lasting(opened + nth) },
                Failure {
                    writes_only: true,
                    kind: std::io::ErrorKind::StorageFull,
                    ..Failure::lasting(opened + nth)
                },
            ] {
                let storage = FailingStorage::new(copy(&before));
                let store = open(storage.clone());
                storage.fail(Some(failure));
                let said = command.run(&store);
                storage.fail(None);
                let context = format!("{command:?}, {failure:?}: {said:?}");
                let states: &[&State] = match &said {
                    Ok(()) => &[&new],
                    Err(error) => {
                        assert_eq!(error.class(), ErrorClass::Io, "{context}");
                        &[&old, &new]
                    }
                };
                check(&store, command, states, &context);
                count.cases += 1;
            }
        }
        count.steps += operations as usize;
    }
    println!("{} operations, {} failures", count.steps, count.cases);
    assert!(count.steps >= 300 && count.cases >= 1_500, "{} {}", count.steps, count.cases);
}

/// From nothing: the first lock, the first names, the first activation.
#[test]
fn a_power_cut_in_the_first_commands() {
    let run = |store: &Store<CrashStorage>| {
        Command::Import.run(store)?;
        let lock = &mut store.lock_at(NOW)?;
        activate(store, lock, &manifest(b"new base", &[])).map(|_| ())
    };
    let storage = CrashStorage::new();
    run(&open(storage.clone())).unwrap();
    let steps = storage.steps();
    let mut cases = 0;
    for at in 0..steps {
        let storage = CrashStorage::new();
        let store = open(storage.clone());
        storage.stop_at(at);
        let _ = run(&store);
        for image in storage.images(64) {
            let context = format!("power cut at step {at}: {}", image.what);
            let storage = CrashStorage::holding(&image.files);
            let store = open(storage.clone());
            drop(store.lock_at(NOW).expect(&context));
            assert_clean(&store, &context);
            run(&store).expect(&context);
            // Everything acknowledged outlives one more power cut.
            let new = state(&store, &context);
            for last in storage.images(3) {
                let store = open(last.files);
                assert_eq!(state(&store, &context), new, "{context}; then {}", last.what);
                cases += 1;
            }
        }
    }
    // After a kill: the folders that were made and not synced must not go with what was acknowledged since.
    for at in 0..steps {
        let storage = CrashStorage::new();
        let store = open(storage.clone());
        storage.stop_at(at);
        let _ = run(&store);
        storage.restart();
        let store = open(storage.clone());
        let context = format!("killed at step {at}");
        run(&store).expect(&context);
        let new = state(&store, &context);
        for last in storage.images(16) {
            let store = open(last.files);
            assert_eq!(state(&store, &context), new, "{context}; then {}", last.what);
            cases += 1;
        }
    }
    println!("{steps} steps, {cases} images");
    assert!(steps >= 50 && cases >= 500, "{steps} {cases}");
}
