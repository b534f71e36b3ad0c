//! From model options to a composition, and from engine options to an engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use slm_format::safetensors::SafeTensors;
use slm_format::{Coded, Digest, DigestWriter, ErrorClass};
use slm_manifest::{Activations, ExecutionProfile, KvType, Name};
use slm_quant::{Inline, Kernels, RayonExecutor, Tier};
use slm_runtime::budget::{Budgets, MemoryPlan, Workload};
use slm_runtime::load::{Base, HfFiles};
use slm_runtime::runtime::Reference;
use slm_runtime::{Composition, Engine, Runtime};
use slm_store::Storage;
use slm_store::{Blob as _, FsBlob};

use crate::adapter::{read_adapter, warnings};
use crate::args::{ActivationsArg, AdapterFormat, EngineArgs, KvArg, ModelArgs};
use crate::error::CliError;
use crate::world::{LIMITS, World, map, read, read_if_there};

/// Kernels and threads.
pub(crate) fn engine(threads: Option<usize>, kernel: Option<&str>) -> Result<Engine, CliError> {
    let kernels = match kernel {
        None => Kernels::detect(),
        Some(name) => {
            Tier::from_name(name).and_then(Kernels::with_tier).ok_or_else(|| CliError::Value {
                option: "--kernel",
                value: name.to_owned(),
                reason: format!("this machine has {}", tier_names().join(", ")),
            })?
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.unwrap_or(cores);
    if threads == 0 || threads > 1024 {
        return Err(CliError::Value {
            option: "--threads",
            value: threads.to_string(),
            reason: "expected 1 to 1024".to_owned(),
        });
    }
    if threads == 1 {
        return Ok(Engine { kernels, exec: Arc::new(Inline) });
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(|error| {
        CliError::Value {
            option: "--threads",
            value: threads.to_string(),
            reason: error.to_string(),
        }
    })?;
    Ok(Engine { kernels, exec: Arc::new(RayonExecutor::new(pool)) })
}

/// Names of this machine's tiers.
pub(crate) fn tier_names() -> Vec<&'static str> {
    Tier::available().into_iter().map(Tier::name).collect()
}

/// The engine that engine options ask for.
pub(crate) fn engine_of(args: &EngineArgs) -> Result<Engine, CliError> {
    engine(args.threads, args.kernel.as_deref())
}

/// The execution profile that engine options ask for.
pub(crate) fn profile(args: &EngineArgs) -> ExecutionProfile {
    let activations = match args.activations {
        ActivationsArg::Int8 => Activations::Int8,
        ActivationsArg::F32 => Activations::F32,
    };
    let kv = match (args.kv, activations) {
        (Some(KvArg::F16), _) => KvType::F16,
        (Some(KvArg::F32), _) | (None, Activations::F32) => KvType::F32,
        (None, Activations::Int8) => KvType::F16,
    };
    ExecutionProfile { activations, kv, ..ExecutionProfile::DEFAULT }
}

/// The composition that model options mean.
pub(crate) fn composition(
    world: &World,
    args: &ModelArgs,
    engine: &Engine,
) -> Result<Arc<Composition>, CliError> {
    let Some(path) = &args.model else {
        if let Some(argument) = args.adapter.first() {
            // What is wrong with the file is said before what is missing on the command line.
            let _adapter =
                read_adapter(Path::new(split_path_weight(argument)?.0), AdapterFormat::Auto, None)?;
            return Err(CliError::Missing { option: "--model" });
        }
        let runtime = world.runtime(engine.clone())?;
        return Ok(match &args.composition {
            Some(what) => runtime.open_composition(&reference(&runtime, what)?)?.0,
            None => runtime.active_composition()?,
        });
    };
    let base = Arc::new(load_base(path, engine)?);
    let mut stack = Vec::new();
    for argument in &args.adapter {
        let (path, weight) = split_path_weight(argument)?;
        let path = Path::new(path);
        let resolved = read_adapter(path, AdapterFormat::Auto, None)?(&base.shape())?;
        resolved.tokens.check(&base)?;
        if let Some(requires) = &resolved.bound_to {
            requires.check(&file_name(path), &base)?;
        }
        for warning in warnings(&resolved.report, resolved.bound_to.is_some()) {
            world.output.note(&format!("warning: {}: {warning}", file_name(path)));
        }
        let bound = Arc::new(resolved.adapter).bind(base.id(), &base.shape())?;
        stack.push((file_name(path), Arc::new(bound), weight));
    }
    Ok(Arc::new(Composition::new(base, stack)?))
}

/// Refuses a session that would not fit in the budgets of the store's policy, before anything of it is allocated. A model that is no store's has
/// no policy.
pub(crate) fn check_budget(
    world: &World,
    args: &ModelArgs,
    composition: &Composition,
    engine: &Engine,
    profile: &ExecutionProfile,
    work: Workload,
) -> Result<(), CliError> {
    if args.model.is_some() {
        return Ok(());
    }
    let plan = MemoryPlan::of_session(composition, profile, engine.exec.n_workers(), work)?;
    Ok(Budgets::from(world.policy()?.budget)
        .check(&plan)
        .map_err(slm_runtime::RuntimeError::from)?)
}

/// Text that names a composition, or the manifest file of that path. A name of the store comes before a file, unless the text is a path
/// by its look.
pub(crate) fn reference<S: Storage>(
    runtime: &Runtime<S>,
    what: &str,
) -> Result<Reference, CliError> {
    let path = Path::new(what);
    let is_file = std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_dir());
    let looks_like_a_path = what.contains(std::path::MAIN_SEPARATOR)
        || what.ends_with(".toml")
        || what.ends_with(".json");
    if looks_like_a_path && is_file {
        return Ok(Reference::Manifest(read(path)?));
    }
    if looks_like_a_path && path.is_dir() {
        let reason = "a folder; a manifest is one file";
        return Err(CliError::Format { path: path.to_owned(), reason });
    }
    let reference = Reference::Text(what.to_owned());
    match runtime.manifest_by_reference(&reference) {
        Err(error) if error.class() == ErrorClass::NotFound && is_file => {
            Ok(Reference::Manifest(read(path)?))
        }
        Err(error) if error.class() == ErrorClass::NotFound && looks_like_a_path => {
            Err(CliError::NoFile { path: path.to_owned() })
        }
        // Any other failure is the caller's to meet.
        _ => Ok(reference),
    }
}

/// A name that a person gave.
pub(crate) fn name(option: &'static str, text: &str) -> Result<Name, CliError> {
    text.parse().map_err(|error| CliError::Name { option, error })
}

/// `PATH=WEIGHT` or `PATH`; a path that exists may hold the sign itself.
fn split_path_weight(argument: &str) -> Result<(&str, f32), CliError> {
    if Path::new(argument).exists() {
        return Ok((argument, 1.0));
    }
    split_weight(argument, "--adapter")
}

/// `NAME=WEIGHT` or `NAME`, whose weight is 1.
pub(crate) fn split_weight<'a>(
    argument: &'a str,
    option: &'static str,
) -> Result<(&'a str, f32), CliError> {
    let Some((name, weight)) = argument.rsplit_once('=') else { return Ok((argument, 1.0)) };
    match weight.parse::<f32>() {
        // A weight too small for f32 would silently be none.
        Ok(0.0) if text_is_not_zero(weight) => Err(CliError::Value {
            option,
            value: argument.to_owned(),
            reason: format!("{weight} is too small for a weight"),
        }),
        Ok(weight) if weight.is_finite() => Ok((name, weight)),
        _ => Err(CliError::Value {
            option,
            value: argument.to_owned(),
            reason: format!("{weight:?} is no weight; expected a number such as 0.5"),
        }),
    }
}

/// Opens a model file or HF folder, in place where it can be.
pub(crate) fn open_base(path: &Path, engine: &Engine) -> Result<Base, CliError> {
    if path.is_dir() { open_hf(path, engine) } else { open_file(path, map(path)?, engine) }
}

/// Reads a model into memory, to run it; a mapped file does not stay in memory beside the copy.
pub(crate) fn load_base(path: &Path, engine: &Engine) -> Result<Base, CliError> {
    if path.is_dir() {
        return open_hf(path, engine);
    }
    let bytes = map(path)?;
    refuse_weights_alone(path, &bytes)?;
    let release = |range| bytes.release(range);
    Ok(Base::load((*bytes).as_ref(), &LIMITS, engine.kernels, &*engine.exec, &release)?)
}

fn open_file(path: &Path, bytes: Arc<FsBlob>, engine: &Engine) -> Result<Base, CliError> {
    refuse_weights_alone(path, &bytes)?;
    Ok(Base::open(bytes, &LIMITS, engine.kernels, &*engine.exec)?)
}

fn refuse_weights_alone(path: &Path, bytes: &FsBlob) -> Result<(), CliError> {
    if is_safetensors(path, bytes.as_ref()) {
        SafeTensors::parse(bytes.as_ref(), &LIMITS)?;
        return Err(CliError::Format {
            path: path.to_owned(),
            reason: "weights alone are no model; give the folder that also has config.json and tokenizer.json",
        });
    }
    Ok(())
}

/// Whether a file is safetensors: by its name, or by a header that begins after its length.
pub(crate) fn is_safetensors(path: &Path, bytes: &[u8]) -> bool {
    path.extension().is_some_and(|extension| extension == "safetensors")
        || bytes.get(8) == Some(&b'{')
}

fn open_hf(folder: &Path, engine: &Engine) -> Result<Base, CliError> {
    let required = |file: &str| {
        read_if_there(&folder.join(file))?.ok_or_else(|| {
            CliError::from(slm_runtime::error::ModelError::FileMissing { file: file.to_owned() })
        })
    };
    let [config, tokenizer, tokenizer_config, generation_config, template] = HF_FILES;
    let config = required(config)?;
    let tokenizer = required(tokenizer)?;
    let tokenizer_config = read_if_there(&folder.join(tokenizer_config))?;
    let generation_config = read_if_there(&folder.join(generation_config))?;
    let chat_template = read_if_there(&folder.join(template))?;
    let chat_template = chat_template.as_deref().map(|bytes| {
        std::str::from_utf8(bytes)
            .map_err(|_| CliError::Format { path: folder.join(template), reason: "not UTF-8" })
    });
    let mut weights = Vec::new();
    for path in weight_files(folder)? {
        weights.push(map(&path)?);
    }
    if weights.is_empty() {
        return Err(slm_runtime::error::ModelError::FileMissing {
            file: "*.safetensors".to_owned(),
        }
        .into());
    }
    let files = HfFiles {
        config: &config,
        tokenizer: &tokenizer,
        tokenizer_config: tokenizer_config.as_deref(),
        generation_config: generation_config.as_deref(),
        chat_template: chat_template.transpose()?,
        weights: weights.iter().map(|bytes| (**bytes).as_ref()).collect(),
    };
    Ok(Base::open_hf(&files, &LIMITS, engine.kernels, &*engine.exec)?)
}

/// The digest of what [`load_base`] reads: of a file its sha256, of a folder that of the lines that `sha256sum` prints of its files, by name.
pub(crate) fn source_digest(path: &Path) -> Result<Digest, CliError> {
    if !path.is_dir() {
        return file_digest(path);
    }
    let mut files: Vec<PathBuf> = HF_FILES.iter().map(|file| path.join(file)).collect();
    files.retain(|file| file.is_file());
    files.extend(weight_files(path)?);
    files.sort();
    let mut lines = String::new();
    for file in files {
        let digest = file_digest(&file)?;
        lines.push_str(&format!("{}  {}\n", digest.hex(), file_name(&file)));
    }
    Ok(Digest::of(lines.as_bytes()))
}

/// Read in pieces, so that memory does not hold the file.
fn file_digest(path: &Path) -> Result<Digest, CliError> {
    let io = |error| CliError::io(path, error);
    let (mut file, mut digest) = (std::fs::File::open(path).map_err(io)?, DigestWriter::new());
    let mut piece = vec![0; 1 << 20];
    loop {
        match std::io::Read::read(&mut file, &mut piece) {
            Ok(0) => return Ok(digest.finish()),
            Ok(read) => digest.update(&piece[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(io(error)),
        }
    }
}

/// What is read of a HF folder, beside the weights.
const HF_FILES: [&str; 5] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
];

fn weight_files(folder: &Path) -> Result<Vec<PathBuf>, CliError> {
    let io = |error| CliError::io(folder, error);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// The last part of a path, for people.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name()
        .map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// Whether a decimal that rounds to zero is not zero.
fn text_is_not_zero(text: &str) -> bool {
    let digits = text.split(['e', 'E']).next().unwrap_or_default();
    digits.bytes().any(|digit| (b'1'..=b'9').contains(&digit))
}
