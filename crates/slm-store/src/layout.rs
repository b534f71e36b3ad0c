//! Every path of a store. Nothing else makes one.

use slm_format::Digest;
use slm_manifest::Name;

use crate::record::NameKind;

pub(crate) const VERSION: &str = "version";
pub(crate) const VERSION_TEXT: &str = "slm store 1";
#[cfg(any(feature = "fs", feature = "faulty"))]
pub(crate) const LOCK: &str = "lock";
pub(crate) const BLOBS: &str = "blobs/sha256";
pub(crate) const TMP: &str = "tmp";
pub(crate) const AUDIT: &str = "audit.log";
pub(crate) const POLICY: &str = "policy.toml";
pub(crate) const JOURNAL: &str = "names.journal";
/// Every folder, each after the one it is in.
pub(crate) const FOLDERS: [&str; 7] =
    ["tmp", "blobs", BLOBS, "names", "names/base", "names/adapter", "names/composition"];
pub(crate) const ROOT: &str = "";
pub(crate) const SLOTS: [&str; 2] = ["active.a", "active.b"];

pub(crate) fn blob(digest: Digest) -> String {
    format!("{BLOBS}/{}", digest.hex())
}

/// The digest of the blob whose file has this name.
pub(crate) fn blob_digest(file_name: &str) -> Option<Digest> {
    format!("sha256:{file_name}").parse().ok()
}

pub(crate) fn names(kind: NameKind) -> &'static str {
    match kind {
        NameKind::Base => "names/base",
        NameKind::Adapter => "names/adapter",
        NameKind::Composition => "names/composition",
    }
}

pub(crate) fn name(kind: NameKind, name: &Name) -> String {
    format!("{}/{name}", names(kind))
}

pub(crate) fn tmp(number: u64) -> String {
    format!("{TMP}/{number}")
}

/// The folder that `path` is in.
pub(crate) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or(ROOT, |(parent, _)| parent)
}
