//! An OCI image layout: every blob as the store has it is one layer, under its own digest.
//!
//! The config is an OCI image config, because tools that look into images read no other: skopeo 1.9.3 refuses to inspect an artifact with a
//! config type of its own. The composition's ids stand in its labels, for people; what counts are the layers.

use std::collections::BTreeMap;
use std::io::Write;

use serde::{Deserialize, Serialize};
use serde_json::json;
use slm_format::Digest;
use slm_manifest::{Manifest, Name};
use slm_store::Storage;

use super::error::ShareError;
use super::layout::{FileBytes, LayoutReader, LayoutWriter};
use super::package::{Package, Parts};
use super::{Shared, Unpacked};
use crate::error::RuntimeError;
use crate::runtime::{Reference, Runtime};

/// The types of a layout's blobs.
pub mod media_type {
    /// A base, as a `.slm` file.
    pub const BASE: &str = "application/vnd.slm.base.v0";
    /// An adapter, as a `.slm` file.
    pub const ADAPTER: &str = "application/vnd.slm.adapter.v0";
    /// A composition's manifest, canonical JSON.
    pub const MANIFEST: &str = "application/vnd.slm.manifest.v1+json";
    /// An evaluation record, canonical JSON.
    pub const EVALUATION_RECORD: &str = "application/vnd.slm.evaluation-record.v1+json";
    /// A detached signature in minisign's form.
    pub const SIGNATURE: &str = "application/vnd.slm.signature.v1";
    /// What the whole is.
    pub const COMPOSITION: &str = "application/vnd.slm.composition.v1";
    /// An OCI image manifest.
    pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    /// An OCI image index.
    pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
    /// An OCI image config.
    pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
}

const LAYOUT_FILE: &str = "oci-layout";
const INDEX_FILE: &str = "index.json";
const LAYOUT_VERSION: &str = "1.0.0";
const REF_NAME: &str = "org.opencontainers.image.ref.name";
const TITLE: &str = "org.opencontainers.image.title";
/// The largest of the layout's own documents that is read; the OCI distribution specification has registries take manifests of that size.
const MAX_DOCUMENT: usize = 4 << 20;
/// Most layers of one composition.
const MAX_LAYERS: usize = 4_096;

/// A descriptor, as far as it matters here. Fields that it has besides are ignored, as the OCI specification asks.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Descriptor {
    #[serde(rename = "mediaType")]
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct LayoutFile {
    #[serde(rename = "imageLayoutVersion")]
    version: String,
}

#[derive(Deserialize)]
struct IndexFile {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct ManifestFile {
    #[serde(rename = "schemaVersion")]
    schema_version: u64,
    layers: Vec<Descriptor>,
}

impl<S: Storage> Runtime<S> {
    /// Writes a composition with everything it needs as an OCI image layout with one image, called `tag`. The same composition gives the
    /// same files; blobs come first and the index last, so that a layout that was not finished has no index.
    ///
    /// # Errors
    /// No such composition; what opening it refuses; what the folder says.
    pub fn export_oci(
        &self,
        reference: &Reference,
        tag: &Name,
        folder: &mut dyn LayoutWriter,
    ) -> Result<Shared, RuntimeError> {
        let parts = self.parts(reference)?;
        let mut blobs = parts.blobs();
        let _lease = self.store.lease(&blobs)?;
        let mut export = Export { folder, layers: Vec::new(), bytes: 0 };
        let manifest = parts.manifest.to_canonical_json();
        export.layer(media_type::MANIFEST, "manifest.json", &manifest)?;
        let stored = |digest| self.store.verified_blob(digest);
        export.layer(media_type::BASE, "base.slm", (*stored(parts.base)?).as_ref())?;
        for &digest in &parts.adapters {
            let title = adapter_title(&parts, digest);
            export.layer(media_type::ADAPTER, &title, (*stored(digest)?).as_ref())?;
        }
        for (nth, &digest) in parts.records.iter().enumerate() {
            let title = match nth {
                0 => "evaluation.json".to_owned(),
                nth => format!("evaluation-{}.json", nth + 1),
            };
            export.layer(media_type::EVALUATION_RECORD, &title, (*stored(digest)?).as_ref())?;
        }
        for (_, bytes) in &parts.signatures {
            export.layer(media_type::SIGNATURE, "manifest.json.minisig", bytes)?;
        }
        let config = canonical(&config(&parts.manifest, &export.layers));
        let config = export.blob(media_type::OCI_CONFIG, &config)?;
        let image = canonical(&json!({
            "schemaVersion": 2,
            "mediaType": media_type::OCI_MANIFEST,
            "artifactType": media_type::COMPOSITION,
            "config": config,
            "layers": export.layers,
            "annotations": labels(&parts.manifest),
        }));
        let mut image_descriptor = export.blob(media_type::OCI_MANIFEST, &image)?;
        image_descriptor.annotations.insert(REF_NAME.to_owned(), tag.to_string());
        let layout = canonical(&json!({ "imageLayoutVersion": LAYOUT_VERSION }));
        export.put(LAYOUT_FILE, &layout)?;
        let index = canonical(&json!({
            "schemaVersion": 2,
            "mediaType": media_type::OCI_INDEX,
            "manifests": [image_descriptor],
        }));
        export.put(INDEX_FILE, &index)?;
        blobs.push(parts.manifest.digest());
        Ok(Shared {
            composition: parts.manifest.composition_id(),
            manifest: parts.manifest.digest(),
            base: parts.manifest.base_model_hash,
            blobs,
            signatures: parts.signatures.len() as u64,
            bytes: export.bytes,
            digest: Digest::of(&image),
        })
    }

    /// Brings the composition of an OCI image layout into the store under a name: the image called `tag`, or the only one. Every blob is
    /// compared with its descriptor, then checked as [`Runtime::unpack`] does, before the store is touched.
    ///
    /// # Errors
    /// The first thing found wrong in the layout; `name-taken` when the name stands for something else and `replace` is false; `store-busy`.
    pub fn import_oci(
        &self,
        folder: &dyn LayoutReader,
        tag: Option<&str>,
        name: &Name,
        replace: bool,
        now: &str,
    ) -> Result<Unpacked, RuntimeError> {
        let layers = layers(folder, tag)?;
        let of = |kind: &str| -> Vec<&[u8]> {
            let files = layers.iter().filter(|(layer, _)| layer == kind);
            files.map(|(_, bytes)| (**bytes).as_ref()).collect()
        };
        let manifests = of(media_type::MANIFEST);
        let [manifest] = manifests[..] else {
            return Err(ShareError::Manifests { found: manifests.len() as u64 }.into());
        };
        let bases = of(media_type::BASE);
        let [base] = bases[..] else {
            let problem = format!("it has {} bases, expected 1", bases.len());
            return Err(ShareError::layout(INDEX_FILE, problem).into());
        };
        let package = Package {
            manifest,
            base,
            write_base: &|out: &mut dyn Write| out.write_all(base),
            adapters: of(media_type::ADAPTER),
            records: of(media_type::EVALUATION_RECORD),
            signatures: of(media_type::SIGNATURE),
        };
        self.install(&package, name, replace, now)
    }
}

struct Export<'a> {
    folder: &'a mut dyn LayoutWriter,
    layers: Vec<Descriptor>,
    bytes: u64,
}

impl Export<'_> {
    fn put(&mut self, path: &str, bytes: &[u8]) -> Result<(), ShareError> {
        self.bytes += bytes.len() as u64;
        self.folder.put(path, bytes).map_err(|error| ShareError::io(path, &error))
    }

    fn blob(&mut self, media_type: &str, bytes: &[u8]) -> Result<Descriptor, ShareError> {
        let digest = Digest::of(bytes);
        self.put(&blob_path(digest), bytes)?;
        Ok(Descriptor {
            media_type: media_type.to_owned(),
            digest: digest.to_string(),
            size: bytes.len() as u64,
            annotations: BTreeMap::new(),
        })
    }

    fn layer(&mut self, media_type: &str, title: &str, bytes: &[u8]) -> Result<(), ShareError> {
        let mut descriptor = self.blob(media_type, bytes)?;
        descriptor.annotations.insert(TITLE.to_owned(), title.to_owned());
        self.layers.push(descriptor);
        Ok(())
    }
}

/// An image config that says what it can: no programs and no root file system but the layers as they are.
fn config(manifest: &Manifest, layers: &[Descriptor]) -> serde_json::Value {
    let layers: Vec<&str> = layers.iter().map(|layer| layer.digest.as_str()).collect();
    json!({
        "created": manifest.timestamp_utc,
        "architecture": "unknown",
        "os": "unknown",
        "config": { "Labels": labels(manifest) },
        "rootfs": { "type": "layers", "diff_ids": layers },
    })
}

fn labels(manifest: &Manifest) -> serde_json::Value {
    json!({
        "org.opencontainers.image.created": manifest.timestamp_utc,
        "slm.base": manifest.base_model_hash.to_string(),
        "slm.composition": manifest.composition_id().to_string(),
        "slm.manifest": manifest.digest().to_string(),
    })
}

fn adapter_title(parts: &Parts, digest: Digest) -> String {
    let named = parts.manifest.adapters.iter().find(|entry| entry.file_hash == digest);
    format!("{}.slm", named.map_or("adapter", |entry| entry.name.as_str()))
}

/// The layers of the one image that is meant, by media type, each compared with its descriptor.
fn layers(
    folder: &dyn LayoutReader,
    tag: Option<&str>,
) -> Result<Vec<(String, FileBytes)>, ShareError> {
    let layout: LayoutFile = document(LAYOUT_FILE, &file(folder, LAYOUT_FILE)?)?;
    if layout.version != LAYOUT_VERSION {
        let version: String = layout.version.chars().take(80).collect();
        return Err(ShareError::layout(LAYOUT_FILE, format!("layout version {version:?}")));
    }
    let index: IndexFile = document(INDEX_FILE, &file(folder, INDEX_FILE)?)?;
    let meant: Vec<&Descriptor> = index
        .manifests
        .iter()
        .filter(|image| {
            tag.is_none_or(|tag| image.annotations.get(REF_NAME).is_some_and(|r| r == tag))
        })
        .collect();
    let [image] = meant[..] else {
        let problem = format!("{} images fit, expected 1: say which tag", meant.len());
        return Err(ShareError::layout(INDEX_FILE, problem));
    };
    if image.media_type != media_type::OCI_MANIFEST {
        let found = image.media_type.chars().take(120).collect();
        return Err(ShareError::MediaType { found });
    }
    let (path, bytes) = blob(folder, image)?;
    let image: ManifestFile = document(&path, &bytes)?;
    if image.schema_version != 2 || image.layers.len() > MAX_LAYERS {
        let problem =
            format!("schema version {}, {} layers", image.schema_version, image.layers.len());
        return Err(ShareError::layout(&path, problem));
    }
    let mut layers = Vec::new();
    for layer in image.layers {
        let known = [
            media_type::BASE,
            media_type::ADAPTER,
            media_type::MANIFEST,
            media_type::EVALUATION_RECORD,
            media_type::SIGNATURE,
        ];
        if !known.contains(&layer.media_type.as_str()) {
            let found = layer.media_type.chars().take(120).collect();
            return Err(ShareError::MediaType { found });
        }
        let (_, bytes) = blob(folder, &layer)?;
        layers.push((layer.media_type, bytes));
    }
    Ok(layers)
}

/// The blob of a descriptor. Its digest is parsed before a path is made of it.
fn blob(
    folder: &dyn LayoutReader,
    descriptor: &Descriptor,
) -> Result<(String, FileBytes), ShareError> {
    let digest: Digest = descriptor.digest.parse().map_err(|error: slm_format::DigestError| {
        ShareError::layout(INDEX_FILE, error.to_string())
    })?;
    let path = blob_path(digest);
    let bytes = file(folder, &path)?;
    let (found, found_size) = (Digest::of((*bytes).as_ref()), (*bytes).as_ref().len() as u64);
    if found != digest || found_size != descriptor.size {
        let size = descriptor.size;
        return Err(ShareError::BlobDigest { path, size, found_size, found });
    }
    Ok((path, bytes))
}

fn file(folder: &dyn LayoutReader, path: &str) -> Result<FileBytes, ShareError> {
    match folder.get(path) {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err(ShareError::layout(path, "it is missing")),
        Err(error) => Err(ShareError::io(path, &error)),
    }
}

fn document<T: for<'de> Deserialize<'de>>(path: &str, bytes: &FileBytes) -> Result<T, ShareError> {
    let bytes = (**bytes).as_ref();
    if bytes.len() > MAX_DOCUMENT {
        return Err(ShareError::layout(path, format!("it has more than {MAX_DOCUMENT} bytes")));
    }
    serde_json::from_slice(bytes).map_err(|error| ShareError::layout(path, error.to_string()))
}

fn blob_path(digest: Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// JSON of sorted keys; a map of serde_json has them sorted.
fn canonical(value: &serde_json::Value) -> Vec<u8> {
    serde_json::to_vec(value).expect("BUG: a document of our own has no JSON form")
}
