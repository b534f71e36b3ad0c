//! Adapters as files: which format each is in, read and checked as far as no base is needed.

mod folder;

pub(crate) use folder::Beside;

use std::path::Path;

use slm_format::gguf::Gguf;
use slm_format::safetensors::SafeTensors;
use slm_overlay::binary::{BinaryFormat, Compact, Layout, LoraAdapter};
use slm_overlay::delta::DeltaFile;
use slm_overlay::gguf::GgufAdapter;
use slm_overlay::peft::{BindingReport, PeftAdapter};
use slm_runtime::runtime::{ClaimedTokens, Declared, Requires, ResolvedAdapter};

use crate::args::AdapterFormat;
use crate::error::CliError;
use crate::model::is_safetensors;
use crate::world::{LIMITS, map, read, read_if_there};

/// What resolves an adapter against a base's shape.
pub(crate) type ReadAdapter =
    Box<dyn Fn(&slm_overlay::BaseShape<'_>) -> Result<ResolvedAdapter, slm_runtime::RuntimeError>>;

/// What a foreign format says nothing of; the user's `--base` decides instead.
const UNDECLARED: &str = "undeclared: the format names no digest of a base, no tokenizer, no quantization and no numerics";

/// Why a layout is refused that nothing would read.
pub(crate) const NO_LAYOUT: &str =
    "--layout is for plan008 files; this format names its tensors itself";

/// Reads an adapter's files; what only the base can tell is checked when the result is called.
pub(crate) fn read_adapter(
    path: &Path,
    format: AdapterFormat,
    layout: Option<&Path>,
) -> Result<ReadAdapter, CliError> {
    let is_folder = std::fs::metadata(path).map_err(|error| CliError::io(path, error))?.is_dir();
    let wrong = |reason| Err(CliError::Format { path: path.to_owned(), reason });
    if is_folder {
        return match format {
            AdapterFormat::Peft | AdapterFormat::Auto if layout.is_some() => wrong(NO_LAYOUT),
            AdapterFormat::Peft | AdapterFormat::Auto => read_peft(path),
            _ => wrong("a folder, as a PEFT adapter is, and not a file of the format asked for"),
        };
    }
    let bytes = map(path)?;
    let head: &[u8] = (*bytes).as_ref();
    let found = match format {
        AdapterFormat::Peft => return wrong("not a folder, as a PEFT adapter is"),
        AdapterFormat::Auto if head.starts_with(&slm_format::container::layout::MAGIC) => {
            AdapterFormat::Slm
        }
        AdapterFormat::Auto if head.starts_with(b"GGUF") => AdapterFormat::Gguf,
        AdapterFormat::Auto => match BinaryFormat::detect(head) {
            Some(BinaryFormat::Plan008) => AdapterFormat::Plan008,
            Some(BinaryFormat::Compact) => AdapterFormat::Compact,
            None if is_safetensors(path, head) => {
                if DeltaFile::is_delta(&SafeTensors::parse(head, &LIMITS)?) {
                    return if layout.is_some() { wrong(NO_LAYOUT) } else { read_delta(head) };
                }
                return wrong(
                    "factors alone are no adapter; give the folder that also has adapter_config.json",
                );
            }
            None if is_pickle(path, head) => {
                return Err(CliError::Pickle { path: path.to_owned() });
            }
            None => {
                return wrong("neither a PEFT folder nor a .slm, GGUF or binary LoRA file");
            }
        },
        format => format,
    };
    if layout.is_some() && found != AdapterFormat::Plan008 {
        return wrong(NO_LAYOUT);
    }
    match found {
        AdapterFormat::Gguf => read_gguf(path, head),
        AdapterFormat::Plan008 => read_plan008(head, layout),
        AdapterFormat::Compact => {
            let file = Compact::load(head, &LIMITS)?;
            Ok(foreign(move |shape| {
                let adapter = file.to_adapter(shape)?;
                let report = BindingReport::of(&adapter);
                Ok((adapter, report))
            }))
        }
        _ => read_slm(head),
    }
}

fn read_peft(folder: &Path) -> Result<ReadAdapter, CliError> {
    let missing =
        |file: &str| slm_runtime::error::ModelError::FileMissing { file: file.to_owned() };
    let config = read_if_there(&folder.join("adapter_config.json"))?
        .ok_or_else(|| missing("adapter_config.json"))?;
    let weights_path = folder.join("adapter_model.safetensors");
    if !weights_path.exists() {
        let pickled = folder.join("adapter_model.bin");
        if pickled.exists() {
            return Err(CliError::Pickle { path: pickled });
        }
        return Err(missing("adapter_model.safetensors").into());
    }
    let weights = map(&weights_path)?;
    // Everything that can be wrong without a base is found now, before a missing option is complained of.
    PeftAdapter::parse(&config, (*weights).as_ref(), &LIMITS)?.resolve_alone()?;
    let tokenizer = read_if_there(&folder.join("tokenizer.json"))?;
    let added = read_if_there(&folder.join("added_tokens.json"))?;
    let special = read_if_there(&folder.join("tokenizer_config.json"))?;
    let beside = Beside::of(folder)?;
    let tokens = ClaimedTokens::read(tokenizer.as_deref(), added.as_deref(), special.as_deref())?;
    Ok(Box::new(move |shape| {
        let parsed = PeftAdapter::parse(&config, (*weights).as_ref(), &LIMITS)?;
        let (adapter, mut report) = parsed.resolve(shape)?;
        beside.add_to(&mut report);
        Ok(ResolvedAdapter { adapter, report, bound_to: None, tokens: tokens.clone() })
    }))
}

/// Whether a file is what `torch.save` writes: a pickle, or a zip of pickles under one of the names that those have.
pub(crate) fn is_pickle(path: &Path, head: &[u8]) -> bool {
    let named = ["bin", "pt", "pth", "ckpt", "pkl"]
        .iter()
        .any(|end| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(end)));
    named && head.starts_with(b"PK\x03\x04") || matches!(head, [0x80, 2..=5, ..])
}

fn read_gguf(path: &Path, bytes: &[u8]) -> Result<ReadAdapter, CliError> {
    if !GgufAdapter::is_adapter(&Gguf::parse(bytes, &LIMITS)?) {
        let reason = "a GGUF file that is no adapter; slm import is for models";
        return Err(CliError::Format { path: path.to_owned(), reason });
    }
    let parsed = GgufAdapter::parse(bytes, &LIMITS)?;
    parsed.resolve_alone()?;
    Ok(foreign(move |shape| parsed.resolve(shape)))
}

fn read_plan008(bytes: &[u8], layout: Option<&Path>) -> Result<ReadAdapter, CliError> {
    let pairs = LoraAdapter::load(bytes, &LIMITS)?;
    let layout = layout.ok_or(CliError::Missing { option: "--layout" })?;
    let layout = Layout::parse(&read(layout)?)?;
    Ok(foreign(move |shape| {
        let adapter = layout.to_adapter(&pairs, shape)?;
        let report = BindingReport::of(&adapter);
        Ok((adapter, report))
    }))
}

fn read_delta(bytes: &[u8]) -> Result<ReadAdapter, CliError> {
    let file = DeltaFile::parse(bytes, &LIMITS)?;
    let identity = file.identity();
    let quantization = identity.quantization.iter();
    let declared = Declared {
        tokenizer: identity.tokenizer,
        quantization: quantization.map(|(encoding, n)| (encoding.name().to_owned(), *n)).collect(),
        numerics: identity.numerics,
    };
    let bound = Requires { base: identity.base, declared: Some(declared) };
    Ok(Box::new(move |shape| {
        let (adapter, report) = file.resolve(shape)?;
        let bound_to = Some(bound.clone());
        Ok(ResolvedAdapter { adapter, report, bound_to, tokens: ClaimedTokens::default() })
    }))
}

fn read_slm(bytes: &[u8]) -> Result<ReadAdapter, CliError> {
    let resolved = resolved_slm(bytes)?;
    Ok(Box::new(move |_| Ok(resolved.clone())))
}

/// An adapter of our container, which is in its normal form without a base.
pub(crate) fn resolved_slm(bytes: &[u8]) -> Result<ResolvedAdapter, CliError> {
    let container = slm_format::container::Container::open(bytes, &LIMITS)?;
    let (adapter, bound) = slm_runtime::runtime::read_adapter(&container, &LIMITS)?;
    let report = BindingReport::of(&adapter);
    Ok(ResolvedAdapter { adapter, report, bound_to: Some(bound), tokens: ClaimedTokens::default() })
}

/// What a person should know of a binding: what is odd in it, and that a format declares nothing.
pub(crate) fn warnings(report: &BindingReport, declares: bool) -> Vec<String> {
    let undeclared = (!declares).then(|| UNDECLARED.to_owned());
    report.warnings.iter().cloned().chain(undeclared).collect()
}

/// What a binding matched and left out, and its warnings, as lines.
pub(crate) fn report_lines(report: &BindingReport, warnings: &[String]) -> Vec<String> {
    let patterns =
        report.patterns.iter().map(|p| format!("pattern {} matched {}", p.pattern, p.matched));
    let dropped = report.dropped.iter().map(|tensor| format!("dropped {tensor}"));
    let unread = report.unread.iter().map(|file| format!("not read {file:?}"));
    let warnings = warnings.iter().map(|warning| format!("warning: {warning}"));
    patterns.chain(dropped).chain(unread).chain(warnings).collect()
}

/// An adapter of a format that names no base.
fn foreign(
    resolve: impl Fn(
        &slm_overlay::BaseShape<'_>,
    ) -> Result<(slm_overlay::Adapter, BindingReport), slm_overlay::OverlayError>
    + 'static,
) -> ReadAdapter {
    Box::new(move |shape| {
        let (adapter, report) = resolve(shape)?;
        Ok(ResolvedAdapter { adapter, report, bound_to: None, tokens: ClaimedTokens::default() })
    })
}
