//! Why a composition cannot be shared, or a package is refused.

use std::io;

use slm_format::{Coded, Digest, ErrorClass};
use slm_manifest::EvaluationError;
use slm_manifest::signature::SignatureError;

/// A package that is refused, or that cannot be made. Nothing was changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// Not one manifest.
    #[error("the package has {found} manifests, expected 1")]
    Manifests {
        /// How many.
        found: u64,
    },
    /// The manifest is not in the form that its digest is taken of.
    #[error("the manifest in the package is not canonical JSON, so {found} is not its digest")]
    NotCanonical {
        /// The digest of its bytes.
        found: Digest,
    },
    /// What the manifest names is not in the package.
    #[error("the package has no {what} {digest}, which its manifest names")]
    Absent {
        /// adapter or evaluation record.
        what: &'static str,
        /// Its digest.
        digest: Digest,
    },
    /// The package holds what nothing in it names, or one thing twice.
    #[error(
        "the package holds the {what} {digest}, which nothing in it needs or which is there twice"
    )]
    Stray {
        /// What it is.
        what: &'static str,
        /// Its digest.
        digest: Digest,
    },
    /// A section of a kind that no package has, or in another place.
    #[error("the package has a {kind} section where none can be")]
    Section {
        /// Its kind.
        kind: String,
    },
    /// The base's blob is not what putting its sections together gives, so that it would be another blob after unpacking.
    #[error("the sections of base {base} give the blob {found}, expected {expected}")]
    BaseForm {
        /// The base.
        base: slm_manifest::BaseId,
        /// The blob it is, or should be.
        expected: Digest,
        /// The blob that its sections give.
        found: Digest,
    },
    /// A signature in it cannot be read, or one that is to be stored does not hold.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// An evaluation record in it is none.
    #[error(transparent)]
    Evaluation(#[from] EvaluationError),
    /// The folder is not an OCI image layout of a composition.
    #[error("{path}: {problem}")]
    Layout {
        /// The file.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// A layer of a type that no composition has, compressed ones among them.
    #[error("a layer has the media type {found:?}, which is none of a composition's")]
    MediaType {
        /// The type, cut to 120 characters.
        found: String,
    },
    /// A blob of a layout is not what its name and its descriptor say.
    #[error("{path} has {found_size} bytes of {found}, its descriptor says {size}")]
    BlobDigest {
        /// The file.
        path: String,
        /// Its length by the descriptor.
        size: u64,
        /// Its length.
        found_size: u64,
        /// Its digest.
        found: Digest,
    },
    /// A file of a layout cannot be read or written.
    #[error("{path}: {message}")]
    Io {
        /// The file.
        path: String,
        /// The kind of failure.
        kind: io::ErrorKind,
        /// The system's words.
        message: String,
    },
}

impl ShareError {
    pub(super) fn io(path: &str, error: &io::Error) -> ShareError {
        ShareError::Io { path: path.to_owned(), kind: error.kind(), message: error.to_string() }
    }

    pub(super) fn layout(path: &str, problem: impl Into<String>) -> ShareError {
        ShareError::Layout { path: path.to_owned(), problem: problem.into() }
    }
}

impl Coded for ShareError {
    fn code(&self) -> &'static str {
        match self {
            ShareError::Manifests { .. } => "package-manifests",
            ShareError::NotCanonical { .. } => "package-not-canonical",
            ShareError::Absent { .. } => "package-incomplete",
            ShareError::Stray { .. } => "package-stray",
            ShareError::Section { .. } => "package-section",
            ShareError::BaseForm { .. } => "package-base-form",
            ShareError::Signature(error) => error.code(),
            ShareError::Evaluation(error) => error.code(),
            ShareError::Layout { .. } => "oci-layout",
            ShareError::MediaType { .. } => "oci-media-type",
            ShareError::BlobDigest { .. } => "oci-blob-digest",
            ShareError::Io { .. } => "io",
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            ShareError::Io { .. } => ErrorClass::Io,
            ShareError::Signature(error) => error.class(),
            ShareError::Evaluation(error) => error.class(),
            _ => ErrorClass::Refused,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            ShareError::BaseForm { .. } => {
                Some("import the base's source file again with --replace".to_owned())
            }
            _ => None,
        }
    }
}
