//! `bake`: a composition as a new base. One way.

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use slm_format::DigestWriter;
use slm_quant::Executor;
use slm_runtime::RuntimeError;
use slm_runtime::bake::{Bake, BakeOptions, Baked};

use crate::args::{BakeArgs, BakeFormat};
use crate::error::CliError;
use crate::model::{composition, engine};
use crate::outfile::{OutFile, new_folder};
use crate::world::World;

const ONE_WAY: &str = "one-way: this merges adapters into weights for good. No arithmetic brings the base or the adapters back from what was written; \
                       keep them. slm itself never merges: a composition is undone by a shorter stack over the same bytes";

/// Writes a composition as a new base. The file or folder appears whole or not at all.
pub(crate) fn bake(world: &World, args: &BakeArgs) -> Result<(), CliError> {
    let engine = engine(args.threads, None)?;
    let composition = composition(world, &args.model, &engine)?;
    let options = BakeOptions { encoding: args.encoding(), untie: args.untie };
    let bake = Bake::new(&composition, options)?;
    let progress = world.output.spinner("baking");
    let (baked, digest) = match args.format {
        BakeFormat::Gguf => {
            let out = match args.replace {
                true => OutFile::create(&args.path)?,
                false => OutFile::create_new(&args.path)?,
            };
            write(out, &*engine.exec, &|exec, out| bake.write_gguf(exec, out))?
        }
        BakeFormat::Safetensors => folder(&bake, &args.path, &*engine.exec)?,
    };
    progress.finish_and_clear();
    let warnings = warnings(&bake, &baked, composition.base().config().tied_embeddings);
    for warning in &warnings {
        world.output.note(&format!("WARNING {warning}"));
    }
    let tensors: Vec<Value> = baked
        .tensors
        .iter()
        .filter(|tensor| tensor.changed || tensor.from != tensor.to)
        .map(|tensor| {
            json!({
                "tensor": tensor.name,
                "from": tensor.from.name(),
                "to": tensor.to.name(),
                "changed": tensor.changed,
                "error": tensor.error,
            })
        })
        .collect();
    let object = json!({
        "base": baked.base,
        "from": { "composition": composition.id(), "base": composition.base_id() },
        "file": args.path,
        "bytes": baked.bytes,
        "digest": digest,
        "changed": bake.n_changed(),
        "tensors": tensors,
        "warnings": warnings,
    });
    let lines = [
        format!("wrote {} ({} bytes, {digest})", args.path.display(), baked.bytes),
        format!("base {}, from composition {}", baked.base, composition.id()),
        format!("{} tensors changed of {}", bake.n_changed(), baked.tensors.len()),
    ];
    world.output.result(object, &lines);
    Ok(())
}

/// A HF folder, put together beside its place and then renamed.
fn folder(bake: &Bake<'_>, path: &Path, exec: &dyn Executor) -> Result<(Baked, String), CliError> {
    // What the documents cannot say is found before the long work.
    let documents = bake.hf_documents()?;
    new_folder(path, &mut |folder| {
        let mut files = vec![
            ("config.json", &documents.config[..]),
            ("tokenizer.json", &documents.tokenizer),
            ("tokenizer_config.json", &documents.tokenizer_config),
            ("generation_config.json", &documents.generation_config),
        ];
        if let Some(template) = &documents.chat_template {
            files.push(("chat_template.jinja", template.as_bytes()));
        }
        for (name, bytes) in files {
            let path = folder.join(name);
            OutFile::create(&path)?.write(&mut |out| {
                out.write_all(bytes).map_err(|error| CliError::io(&path, error))
            })?;
        }
        let out = OutFile::create(&folder.join("model.safetensors"))?;
        write(out, exec, &|exec, out| bake.write_safetensors(exec, out))
    })
}

type WriteBaked<'a> = &'a dyn Fn(&dyn Executor, &mut dyn Write) -> Result<Baked, RuntimeError>;

/// Writes the file; its digest is that of the bytes that went out.
fn write(
    out: OutFile,
    exec: &dyn Executor,
    write: WriteBaked<'_>,
) -> Result<(Baked, String), CliError> {
    let mut done = None;
    out.write(&mut |out| {
        let mut out = Digested { out, digest: DigestWriter::new() };
        let baked = write(exec, &mut out)?;
        done = Some((baked, out.digest.finish().to_string()));
        Ok(())
    })?;
    Ok(done.expect("BUG: a file was written and nothing baked"))
}

/// What a person must know of what was written.
fn warnings(bake: &Bake<'_>, baked: &Baked, was_tied: bool) -> Vec<String> {
    let mut warnings = vec![ONE_WAY.to_owned()];
    if bake.n_changed() == 0 {
        warnings.push(
            "unchanged: the stack changes no tensor; these are the base's weights".to_owned(),
        );
    }
    let lossy = baked.tensors.iter().filter(|tensor| tensor.error > 0.0);
    let (n, worst) = lossy.fold((0, 0.0f64), |(n, worst), tensor| (n + 1, worst.max(tensor.error)));
    if n > 0 {
        warnings.push(format!(
            "rounded: {n} tensors were stored less exactly than they were worked out, by up to {worst:.1e} of their norm; the overlay has no such error"
        ));
    }
    if let Some(head) =
        baked.tensors.iter().find(|tensor| was_tied && tensor.name == slm_overlay::HEAD)
    {
        warnings.push(format!(
            "untied: the head is a table of its own now, {} as the embedding's source was {}",
            head.to, head.from
        ));
    }
    warnings
}

/// Digests what passes through.
struct Digested<'a> {
    out: &'a mut dyn Write,
    digest: DigestWriter,
}

impl Write for Digested<'_> {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        let n = self.out.write(buffer)?;
        self.digest.update(&buffer[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}
