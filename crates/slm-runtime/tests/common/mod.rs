//! What several tests need: the tiny model, its adapters, the bits of a prompt, and stores with everything imported.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

pub mod bend;
pub mod share;
pub mod switch;
pub mod truth;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use slm_format::{Coded, Limits};
use slm_golden::{
    TINY_KJV_CONFIG, TINY_KJV_WEIGHTS, TINY_PYTHON_CONFIG, TINY_PYTHON_WEIGHTS, TINY_Q8_0,
};
use slm_manifest::{ExecutionProfile, Name};
use slm_overlay::BaseShape;
use slm_overlay::peft::PeftLora;
use slm_quant::{Inline, Kernels, RayonExecutor, Tier};
use slm_runtime::load::{Base, HfFiles};
use slm_runtime::runtime::{ClaimedTokens, ImportedAdapter, ImportedBase, ResolvedAdapter};
use slm_runtime::{Composition, Engine, Runtime, RuntimeError, Session};
use slm_store::{FsStorage, MemStorage, Storage, Store};

pub const LIMITS: Limits = Limits::STANDARD;
/// What a store tells of itself, also of what was refused.
pub const LOG: &str = "audit.log";
pub const NOW: &str = "2026-07-21T00:00:00Z";

/// "In the beginning" in the tiny model's tokens, and what follows in the Bible.
pub const TOKENS: [u32; 12] = [767, 261, 305, 71, 266, 78, 298, 28, 92, 311, 63, 307];

pub fn open(bytes: &[u8]) -> Result<Base, RuntimeError> {
    Base::open(Arc::new(bytes.to_vec()), &LIMITS, Kernels::detect(), &Inline)
}

/// The embedded model, opened once per test program.
pub fn tiny() -> Arc<Base> {
    static TINY: OnceLock<Arc<Base>> = OnceLock::new();
    Arc::clone(TINY.get_or_init(|| Arc::new(open(TINY_Q8_0).expect("the tiny model"))))
}

/// Tokens, and the logits of every position, of a safetensors file that other people's software made.
pub fn tokens_and_logits(file: &[u8]) -> (Vec<u32>, Vec<f32>) {
    let file = safetensors::SafeTensors::deserialize(file).expect("safetensors");
    let words = |name: &str| -> Vec<u32> {
        let data = file.tensor(name).expect("a tensor").data();
        data.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    (words("tokens"), words("logits").into_iter().map(f32::from_bits).collect())
}

/// The code of a refusal.
///
/// # Panics
/// When nothing was refused.
pub fn code<T>(result: Result<T, RuntimeError>) -> &'static str {
    match result {
        Ok(_) => panic!("accepted"),
        Err(error) => error.code(),
    }
}

pub fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// The configuration and weights of an adapter of the tiny model: `kjv` or `python`.
pub fn adapter_files(adapter: &str) -> (&'static [u8], &'static [u8]) {
    match adapter {
        "kjv" | "tiny-kjv" => (TINY_KJV_CONFIG, TINY_KJV_WEIGHTS),
        "python" | "tiny-python" => (TINY_PYTHON_CONFIG, TINY_PYTHON_WEIGHTS),
        other => panic!("no adapter {other}"),
    }
}

pub fn resolve(
    config: &[u8],
    weights: &[u8],
    shape: &BaseShape,
) -> Result<ResolvedAdapter, RuntimeError> {
    let (adapter, report) = PeftLora::parse(config, weights, &LIMITS)?.resolve(shape)?;
    Ok(ResolvedAdapter { adapter, report, bound_to: None, tokens: ClaimedTokens::default() })
}

/// `base` under adapters given by name and weight, without a store.
pub fn composition(base: &Arc<Base>, stack: &[(&str, f32)]) -> Arc<Composition> {
    let adapters = stack.iter().map(|&(adapter, weight)| {
        let (config, weights) = adapter_files(adapter);
        let resolved = resolve(config, weights, &base.shape()).expect("an adapter of this model");
        let bound = Arc::new(resolved.adapter).bind(base.id(), &base.shape()).expect("a binding");
        (adapter.to_owned(), Arc::new(bound), weight)
    });
    Arc::new(Composition::new(Arc::clone(base), adapters.collect()).expect("a composition"))
}

pub fn engine(tier: Tier, n_threads: usize) -> Engine {
    let kernels = Kernels::with_tier(tier).expect("an available tier");
    if n_threads == 1 {
        return Engine { kernels, exec: Arc::new(Inline) };
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().expect("a pool");
    Engine { kernels, exec: Arc::new(RayonExecutor::new(pool)) }
}

/// BLAKE3 over all logits of a prompt and the bits of the last position's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bits {
    pub all_blake3: String,
    pub last: Vec<u32>,
}

/// Runs `tokens` on a session and gives the bits of every position.
pub fn bits(session: &mut Session, tokens: &[u32], chunk: usize) -> Bits {
    let mut hasher = blake3::Hasher::new();
    let mut last = Vec::new();
    let mut next = session.position();
    session
        .advance_all(tokens, chunk, &mut |position, logits| {
            assert_eq!(position, next, "positions come one after the other");
            next += 1;
            for logit in logits {
                hasher.update(&logit.to_le_bytes());
            }
            last = to_bits(logits);
        })
        .expect("a pass");
    assert_eq!(next, session.position());
    Bits { all_blake3: hasher.finalize().to_hex().to_string(), last }
}

pub fn to_bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

pub fn session(composition: &Arc<Composition>, profile: ExecutionProfile) -> Session {
    Session::new(Arc::clone(composition), profile, Engine::inline()).expect("a session")
}

/// The bits of [`TOKENS`] under a composition, on the default path.
pub fn bits_of(composition: &Arc<Composition>) -> Bits {
    bits(&mut session(composition, ExecutionProfile::DEFAULT), &TOKENS, 64)
}

/// The files of the tiny model's Hugging Face folder.
pub struct HfFolder {
    pub config: Vec<u8>,
    pub tokenizer: Vec<u8>,
    pub tokenizer_config: Vec<u8>,
    pub generation_config: Vec<u8>,
    pub weights: Vec<u8>,
}

impl HfFolder {
    pub fn tiny() -> HfFolder {
        let read = |file: &str| {
            let path = slm_golden::path("files/tiny").join(file);
            std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        HfFolder {
            config: read("config.json"),
            tokenizer: read("tokenizer.json"),
            tokenizer_config: read("tokenizer_config.json"),
            generation_config: read("generation_config.json"),
            weights: read("model.safetensors"),
        }
    }

    pub fn open(&self) -> Result<Base, RuntimeError> {
        let files = HfFiles {
            config: &self.config,
            tokenizer: &self.tokenizer,
            tokenizer_config: Some(&self.tokenizer_config),
            generation_config: Some(&self.generation_config),
            chat_template: None,
            weights: vec![&self.weights],
        };
        Base::open_hf(&files, &LIMITS, Kernels::detect(), &Inline)
    }
}

/// A medium whose files a test can look at and damage.
pub trait Medium: Storage + Sized {
    /// All files but the log, which also tells what was refused.
    fn files(&self) -> BTreeMap<String, Vec<u8>>;
    /// Replaces or makes a file behind the store's back.
    fn put(&self, path: &str, bytes: &[u8]);
    fn delete(&self, path: &str);
    /// The same files, opened again as another process would.
    fn again(&self) -> Self;
}

/// Runs each named generic function as two tests: over memory and over a folder.
#[macro_export]
macro_rules! on_both_media {
    ($($test:ident),+ $(,)?) => { $(
        mod $test {
            #[test]
            fn in_memory() {
                super::$test(slm_store::MemStorage::new());
            }

            #[test]
            fn in_a_folder() {
                let folder = tempfile::tempdir().expect("a folder");
                super::$test(slm_store::FsStorage::open(folder.path().join("store")));
            }
        }
    )+ };
}

impl Medium for MemStorage {
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        self.paths()
            .into_iter()
            .filter(|path| path != LOG)
            .map(|path| {
                let bytes = self.read(&path, usize::MAX).expect("memory").expect("a listed file");
                (path, bytes)
            })
            .collect()
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        self.insert(path, bytes);
    }

    fn delete(&self, path: &str) {
        self.remove(path).expect("memory");
    }

    fn again(&self) -> MemStorage {
        self.clone()
    }
}

impl Medium for FsStorage {
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        collect(self.root(), "", &mut files);
        files.remove(LOG);
        files
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        let path = self.root().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        // Blobs are read-only and may be mapped: a new file takes the name, the old bytes stay what they were.
        let aside = path.with_extension("aside");
        std::fs::write(&aside, bytes).expect("a file");
        std::fs::rename(&aside, &path).expect("a rename");
    }

    fn delete(&self, path: &str) {
        std::fs::remove_file(self.root().join(path)).expect("a file");
    }

    fn again(&self) -> FsStorage {
        FsStorage::open(self.root())
    }
}

fn collect(folder: &Path, prefix: &str, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("UTF-8");
        let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        if entry.file_type().expect("a type").is_dir() {
            collect(&entry.path(), &path, files);
        } else {
            files.insert(path, std::fs::read(entry.path()).expect("a file"));
        }
    }
}

pub fn blob_path(digest: slm_format::Digest) -> String {
    format!("blobs/sha256/{}", digest.to_string().trim_start_matches("sha256:"))
}

/// A runtime over `storage` with whatever is in there.
pub fn runtime<S: Storage>(storage: S) -> Runtime<S> {
    Runtime::new(Store::open(storage).expect("a store"), Engine::inline(), LIMITS)
}

/// What [`stocked`] imported.
#[derive(Debug, Clone)]
pub struct Stock {
    pub base: ImportedBase,
    pub kjv: ImportedAdapter,
    pub python: ImportedAdapter,
}

pub fn import<S: Storage>(
    runtime: &Runtime<S>,
    adapter: &str,
    base: &str,
) -> Result<ImportedAdapter, RuntimeError> {
    let (config, weights) = adapter_files(adapter);
    runtime.load_adapter(&|shape| resolve(config, weights, shape), base, &name(adapter), NOW, false)
}

/// A runtime over `storage` with the tiny model as `tiny`, its adapters as `kjv` and `python`, and the bare base composed as `bare`.
pub fn stocked<S: Storage>(storage: S) -> (Runtime<S>, Stock) {
    let runtime = runtime(storage);
    let base = runtime.load_base(&tiny(), &name("tiny"), NOW, false).expect("an import");
    let kjv = import(&runtime, "kjv", "tiny").expect("an import");
    let python = import(&runtime, "python", "tiny").expect("an import");
    compose(&runtime, "bare", &[]);
    (runtime, Stock { base, kjv, python })
}

pub fn compose<S: Storage>(
    runtime: &Runtime<S>,
    composition: &str,
    stack: &[(&str, f32)],
) -> slm_runtime::runtime::Composed {
    runtime.compose(&name(composition), "tiny", stack, NOW, false).expect("a composition")
}

/// The bits of [`TOKENS`] under the active composition.
pub fn active_bits<S: Storage>(runtime: &Runtime<S>) -> Bits {
    let mut session = runtime.session(ExecutionProfile::DEFAULT).expect("a session");
    bits(&mut session, &TOKENS, 64)
}

/// The same numbers on every machine, for choices in tests.
pub struct Choices(pub u64);

impl Choices {
    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}
