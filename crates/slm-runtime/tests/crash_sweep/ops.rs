//! The operations, over any medium, and the stores that they begin with.

use std::io::{self, BufWriter};
use std::sync::OnceLock;

use slm_runtime::runtime::Reference;
use slm_runtime::{Engine, Runtime, RuntimeError};
use slm_store::faulty::{CrashStorage, FailingStorage};
use slm_store::{
    Access, Change, Intent, MemStorage, NameKind, Operation, Storage, StorageFile as _, Store,
    StoreError,
};

use crate::common::{LIMITS, NOW, adapter_files, compose, import, name, resolve, tiny};

/// The file that a composition is packed to, on the medium itself.
pub const PACKAGE: &str = "package.slm";

/// Something that changes a store.
pub struct Op {
    pub name: &'static str,
    /// Each run reads the whole package again: in a build with checks only every fifth of its operations fails, and fewer states are looked at.
    pub heavy: bool,
    pub before: fn(&Runtime<MemStorage>),
    pub run: &'static dyn Run,
}

/// An operation over any medium.
pub trait Run: Sync {
    fn mem(&self, runtime: &Runtime<MemStorage>) -> Result<(), RuntimeError>;
    fn crash(&self, runtime: &Runtime<CrashStorage>) -> Result<(), RuntimeError>;
    fn fail(&self, runtime: &Runtime<FailingStorage<MemStorage>>) -> Result<(), RuntimeError>;
}

/// One body for each medium.
macro_rules! run {
    ($kind:ident, $runtime:ident => $body:expr) => {{
        struct $kind;
        impl $kind {
            fn any<S: Storage>($runtime: &Runtime<S>) -> Result<(), RuntimeError> {
                $body
            }
        }
        impl Run for $kind {
            fn mem(&self, runtime: &Runtime<MemStorage>) -> Result<(), RuntimeError> {
                $kind::any(runtime)
            }
            fn crash(&self, runtime: &Runtime<CrashStorage>) -> Result<(), RuntimeError> {
                $kind::any(runtime)
            }
            fn fail(
                &self,
                runtime: &Runtime<FailingStorage<MemStorage>>,
            ) -> Result<(), RuntimeError> {
                $kind::any(runtime)
            }
        }
        &$kind
    }};
}

pub fn text(composition: &str) -> Reference {
    Reference::Text(composition.to_owned())
}

pub fn nothing(_: &Runtime<MemStorage>) {}

pub fn tiny_alone(runtime: &Runtime<MemStorage>) {
    runtime.load_base(&tiny(), &name("tiny"), NOW, false).expect("an import");
}

pub fn everything(runtime: &Runtime<MemStorage>) {
    tiny_alone(runtime);
    import(runtime, "kjv", "tiny").expect("an import");
    import(runtime, "python", "tiny").expect("an import");
    compose(runtime, "bare", &[]);
    compose(runtime, "kp", &[("kjv", 0.5), ("python", 1.0)]);
}

pub fn one_active(runtime: &Runtime<MemStorage>) {
    everything(runtime);
    runtime.activate_composition(&text("bare"), NOW).expect("active");
}

pub fn two_active(runtime: &Runtime<MemStorage>) {
    one_active(runtime);
    runtime.activate_composition(&text("kp"), NOW).expect("active");
}

/// Neither active record can be read.
pub fn both_slots_damaged(runtime: &Runtime<MemStorage>) {
    two_active(runtime);
    for slot in ["active.a", "active.b"] {
        runtime.store().storage().insert(slot, b"damaged");
    }
}

/// There is no active record, though something was made active.
pub fn both_slots_lost(runtime: &Runtime<MemStorage>) {
    two_active(runtime);
    for slot in ["active.a", "active.b"] {
        runtime.store().storage().remove(slot).expect("memory");
    }
}

/// Generations to collect, and a base that no name has any more.
pub fn garbage(runtime: &Runtime<MemStorage>) {
    two_active(runtime);
    runtime.deactivate_adapter("kjv", NOW).expect("a switch");
    runtime.activate_composition(&text("bare"), NOW).expect("active");
}

pub fn ops() -> Vec<Op> {
    vec![
        Op {
            name: "import",
            heavy: false,
            before: nothing,
            run: run!(Import, runtime => runtime.load_base(&tiny(), &name("tiny"), NOW, false).map(drop)),
        },
        Op {
            name: "adapter import",
            heavy: false,
            before: tiny_alone,
            run: run!(AdapterImport, runtime => import(runtime, "kjv", "tiny").map(drop)),
        },
        Op {
            name: "compose",
            heavy: false,
            before: everything,
            run: run!(Compose, runtime => {
                runtime.compose(&name("k"), "tiny", &[("kjv", 1.0)], NOW, false).map(drop)
            }),
        },
        Op {
            name: "first activate",
            heavy: false,
            before: everything,
            run: run!(First, runtime => runtime.activate_composition(&text("kp"), NOW).map(drop)),
        },
        Op {
            name: "activate",
            heavy: false,
            before: one_active,
            run: run!(Activate, runtime => runtime.activate_composition(&text("kp"), NOW).map(drop)),
        },
        Op {
            name: "rollback",
            heavy: false,
            before: two_active,
            run: run!(Rollback, runtime => match runtime.status()?.generation {
                2 => runtime.rollback(NOW).map(drop),
                _ => Ok(()),
            }),
        },
        Op {
            name: "deactivate",
            heavy: false,
            before: two_active,
            run: run!(Deactivate, runtime => runtime.deactivate_adapter("kjv", NOW).map(drop)),
        },
        Op {
            name: "gc",
            heavy: false,
            before: garbage,
            run: run!(Gc, runtime => runtime.gc(2, NOW).map(drop)),
        },
        Op {
            name: "pack",
            heavy: true,
            before: everything,
            // To a file aside that takes its name when it is whole and synced, as the program writes it.
            run: run!(Pack, runtime => {
                let medium = runtime.store().storage();
                let io = |error: io::Error| StoreError::io(PACKAGE, &error);
                medium.remove("tmp/package")?;
                let mut out = BufWriter::with_capacity(1 << 16, medium.create("tmp/package")?);
                runtime.pack(&text("kp"), &mut out)?;
                let file = out.into_inner().map_err(|error| io(error.into_error()))?;
                file.seal(Access::ReadOnly).map_err(io)?;
                medium.publish("tmp/package", PACKAGE)?;
                Ok(medium.sync_dir("")?)
            }),
        },
        Op {
            name: "unpack",
            heavy: true,
            before: nothing,
            run: run!(Unpack, runtime => {
                runtime.unpack(package(), &name("shared"), false, NOW).map(drop)
            }),
        },
        Op {
            name: "unpack over other names",
            heavy: true,
            before: a_composition_in_the_way,
            run: run!(UnpackOver, runtime => {
                runtime.unpack(package(), &name("bare"), true, NOW).map(drop)
            }),
        },
        Op {
            name: "remove a name",
            heavy: false,
            before: everything,
            run: run!(Remove, runtime => {
                runtime.remove_name(NameKind::Composition, &name("kp"), NOW).map(drop)
            }),
        },
        Op {
            name: "recover",
            heavy: false,
            before: both_slots_damaged,
            run: run!(Recover, runtime => runtime.recover(NOW).map(drop)),
        },
        Op {
            name: "recover lost slots",
            heavy: false,
            before: both_slots_lost,
            run: run!(RecoverLost, runtime => runtime.recover(NOW).map(drop)),
        },
        Op {
            name: "trust",
            heavy: false,
            before: one_active,
            // As the program changes the policy: named in the log, written, told.
            run: run!(Trust, runtime => {
                let mut lock = runtime.lock(NOW)?;
                let intent = Intent {
                    operation: Operation::Trust,
                    time: NOW.to_owned(),
                    actor: None,
                    composition: None,
                    manifest: None,
                };
                let pending = runtime.store().begin(&mut lock, intent)?;
                let change = Change::SetPolicy(b"[trust]\nbare_base = \"refused\"\n".to_vec());
                pending.stage(change)?.commit()?;
                Ok(())
            }),
        },
    ]
}

/// The name that the package is to have stands for something else, and one of its adapters' names for another adapter.
pub fn a_composition_in_the_way(runtime: &Runtime<MemStorage>) {
    tiny_alone(runtime);
    let python = |shape: &slm_overlay::BaseShape| {
        let (config, weights) = adapter_files("python");
        resolve(config, weights, shape)
    };
    runtime.load_adapter(&python, "tiny", &name("kjv"), NOW, false).expect("an import");
    compose(runtime, "bare", &[]);
}

/// Both adapters on the base, as one file.
pub fn package() -> &'static [u8] {
    static PACKAGE: OnceLock<Vec<u8>> = OnceLock::new();
    PACKAGE.get_or_init(|| {
        let runtime = over(MemStorage::new());
        everything(&runtime);
        let mut file = Vec::new();
        runtime.pack(&text("kp"), &mut file).expect("a package");
        file
    })
}

pub fn over<S: Storage>(storage: S) -> Runtime<S> {
    Runtime::new(Store::open(storage).expect("a store"), Engine::inline(), LIMITS)
}
