//! Options of `key`, `sign` and `trust`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Key commands.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key pair in minisign's form: NAME.pub and NAME.key
    New {
        /// What the files are called
        name: String,
        /// Where they go [default: the current folder]
        #[arg(long, value_name = "FOLDER")]
        dir: Option<PathBuf>,
        /// Put the secret key under the password in the first line of FILE
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
    },
}

/// `sign`.
#[derive(Debug, Args)]
pub(crate) struct SignArgs {
    /// Name, composition id, manifest digest or manifest file; or the digest of an evaluation record
    pub(crate) what: String,
    /// The secret key
    #[arg(long, value_name = "FILE", conflicts_with = "signature")]
    pub(crate) key: Option<PathBuf>,
    /// The file whose first line is the key's password
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) password_file: Option<PathBuf>,
    /// Store this signature, which another program made
    #[arg(long, value_name = "FILE")]
    pub(crate) signature: Option<PathBuf>,
    /// The key it is by: a file or minisign's line [default: the trusted key of its id]
    #[arg(long, value_name = "KEY", requires = "signature")]
    pub(crate) public_key: Option<PathBuf>,
    /// Also write the signature here
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Only write the bytes that are signed here, for another program
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key", "signature", "out"])]
    pub(crate) document: Option<PathBuf>,
}

/// Trust commands.
#[derive(Debug, Subcommand)]
pub(crate) enum TrustCommand {
    /// Trust a public key
    Add {
        /// What its owner is called here
        name: String,
        /// minisign's file, or the line that it prints
        key: String,
    },
    /// Whom this store trusts
    List,
    /// Trust a key no longer
    Remove {
        /// What its owner is called here
        name: String,
    },
    /// Show the local policy, or change what it says of trust
    Policy {
        /// Who must have signed what is activated
        #[arg(value_enum)]
        rule: Option<RuleArg>,
        /// Key ids or names of trusted keys, for signed-by
        #[arg(value_name = "KEY")]
        keys: Vec<String>,
        /// Whether the empty stack may be activated
        #[arg(long, value_enum)]
        bare_base: Option<BareBaseArg>,
    },
}

/// Who must have signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RuleArg {
    /// Nobody
    None,
    /// A trusted key
    Signed,
    /// One of these keys
    SignedBy,
}

/// Whether the empty stack may be activated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BareBaseArg {
    /// The rule decides
    AsOthers,
    /// Yes, without a signature
    Unsigned,
    /// Never
    Refused,
}
