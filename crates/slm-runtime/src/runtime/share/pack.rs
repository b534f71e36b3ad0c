//! One `.slm` file: the base's own sections, then the manifest, and behind it every other blob as the store has it.
//!
//! | section | content |
//! |---|---|
//! | config, tokenizer, source metadata | the base blob's own, in its order |
//! | manifest | canonical JSON: the stored blob |
//! | adapter, one per file | the stored blob, a `.slm` file in itself |
//! | evaluation record, signature | the stored blobs |
//! | base weights | the base blob's own, tensor for tensor |
//!
//! Every section's sha256 is a blob's digest, but for the base's: a container inside a container could not be the container's own weights.
//! The base blob is header and index over the very sections that stand here, and writing is deterministic, so putting them together
//! gives that blob again, byte for byte; packing checks that. What this buys: a package opens as the model it holds, in place
//! (`slm run --model package.slm`), and its weights can be fetched by byte range.

use std::io::{self, Write};

use slm_format::container::{Container, ContainerWriteError, ContainerWriter, SectionKind};
use slm_manifest::Name;
use slm_store::Storage;

use super::error::ShareError;
use super::package::{Package, base_form, digest_of};
use super::{Shared, Unpacked};
use crate::error::RuntimeError;
use crate::runtime::{Reference, Runtime};

impl<S: Storage> Runtime<S> {
    /// Writes a composition with everything it needs as one `.slm` file. The same composition gives the same bytes.
    ///
    /// # Errors
    /// No such composition; what opening it refuses; `blob-damaged` also where a damaged blob may be a signature or a record that belongs into it;
    /// `package-base-form`; what `out` says.
    pub fn pack(&self, reference: &Reference, out: &mut dyn Write) -> Result<Shared, RuntimeError> {
        let parts = self.parts(reference)?;
        // From here on no other process collects what is read.
        let mut blobs = parts.blobs();
        let _lease = self.store.lease(&blobs)?;
        let base = self.store.blob(parts.base)?;
        let base = Container::open((*base).as_ref(), &self.limits)?;
        let base_id = parts.manifest.base_model_hash;
        let found = digest_of(&|out| write_base(&base, out))?;
        if found != parts.base {
            return Err(base_form(base_id, parts.base, found).into());
        }
        let manifest = parts.manifest.to_canonical_json();
        let mut writer = ContainerWriter::new();
        for section in base_sections(&base) {
            writer.section(section.kind(), section.bytes())?;
        }
        writer.section(SectionKind::Manifest, manifest.as_slice())?;
        let adapters = parts.adapters.iter().map(|&digest| self.store.verified_blob(digest));
        let adapters = adapters.collect::<Result<Vec<_>, _>>()?;
        for bytes in &adapters {
            writer.section(SectionKind::Adapter, (**bytes).as_ref())?;
        }
        let records = parts.records.iter().map(|&digest| self.store.verified_blob(digest));
        let records = records.collect::<Result<Vec<_>, _>>()?;
        for bytes in &records {
            writer.section(SectionKind::EvaluationRecord, (**bytes).as_ref())?;
        }
        for (_, bytes) in &parts.signatures {
            writer.section(SectionKind::Signature, bytes.as_slice())?;
        }
        put_tensors(&base, &mut writer)?;
        let written = writer.write_to(out)?;
        blobs.push(parts.manifest.digest());
        Ok(Shared {
            composition: parts.manifest.composition_id(),
            manifest: parts.manifest.digest(),
            base: base_id,
            blobs,
            signatures: parts.signatures.len() as u64,
            bytes: written.file_length,
            digest: written.digest,
        })
    }

    /// Brings the composition of a packed file into the store under a name. Everything is verified before the store is touched: every
    /// section and tensor hash, the base, every adapter, that they bind, that the manifest says of them what they are, that records and signatures are of
    /// what is there, and that a signature by a trusted key holds. Then all names are given in one change: the composition's, and those of base and
    /// adapters that nothing has.
    ///
    /// # Errors
    /// The first thing found wrong in the file; `name-taken` when the name stands for something else and `replace` is false; `store-busy`.
    pub fn unpack(
        &self,
        file: &[u8],
        name: &Name,
        replace: bool,
        now: &str,
    ) -> Result<Unpacked, RuntimeError> {
        let container = Container::open(file, &self.limits)?;
        container.verify_all()?;
        let (mut manifest, mut manifests) = (None, 0);
        let (mut adapters, mut records, mut signatures) = (Vec::new(), Vec::new(), Vec::new());
        for section in container.sections() {
            let bytes = section.bytes();
            match section.kind() {
                SectionKind::Manifest => {
                    manifests += 1;
                    manifest = Some(bytes);
                }
                SectionKind::Adapter => adapters.push(bytes),
                SectionKind::EvaluationRecord => records.push(bytes),
                SectionKind::Signature => signatures.push(bytes),
                SectionKind::BaseWeights => {}
                SectionKind::Config | SectionKind::Tokenizer | SectionKind::SourceMetadata
                    if manifests == 0 => {}
                kind => return Err(ShareError::Section { kind: kind.to_string() }.into()),
            }
        }
        let manifest = match manifest {
            Some(manifest) if manifests == 1 => manifest,
            _ => return Err(ShareError::Manifests { found: manifests }.into()),
        };
        let package = Package {
            manifest,
            base: file,
            write_base: &|out| write_base(&container, out),
            adapters,
            records,
            signatures,
        };
        self.install(&package, name, replace, now)
    }
}

/// The base's sections but its weights.
fn base_sections<'c, 'a>(
    container: &'c Container<'a>,
) -> impl Iterator<Item = &'c slm_format::container::Section<'a>> {
    container.sections().iter().filter(|section| {
        matches!(
            section.kind(),
            SectionKind::Config | SectionKind::Tokenizer | SectionKind::SourceMetadata
        )
    })
}

fn put_tensors<'a>(
    container: &Container<'a>,
    writer: &mut ContainerWriter<'a>,
) -> Result<(), ContainerWriteError> {
    container.tensors().iter().try_for_each(|tensor| writer.entry(tensor).map(drop))
}

/// The base alone, as the store keeps it.
fn write_base(container: &Container<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut writer = ContainerWriter::new();
    let written = (|| {
        for section in base_sections(container) {
            writer.section(section.kind(), section.bytes())?;
        }
        put_tensors(container, &mut writer)?;
        writer.write_to(out)
    })();
    match written {
        Ok(_) => Ok(()),
        Err(ContainerWriteError::Io(error)) => Err(error),
        Err(other) => Err(io::Error::other(other)),
    }
}
