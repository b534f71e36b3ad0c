//! How every error of the project tells its code and its class.

/// Who is at fault, and so which exit status a program gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// The call itself is wrong (exit 2).
    Usage,
    /// Something in a file or a value is wrong; nothing was changed (exit 3).
    Refused,
    /// A name, digest or file does not exist (exit 4).
    NotFound,
    /// A budget that the caller gave would be exceeded (exit 5).
    Budget,
    /// Another holder has the lock, or a bounded wait ran out (exit 6).
    Busy,
    /// A stored blob or record no longer matches its digest (exit 7).
    Damaged,
    /// Input or output failed (exit 8).
    Io,
    /// Our own mistake (exit 70).
    Bug,
}

impl ErrorClass {
    /// The process exit status of this class.
    ///
    /// ```
    /// assert_eq!(slm_format::ErrorClass::Refused.exit_status(), 3);
    /// ```
    pub fn exit_status(self) -> u8 {
        match self {
            ErrorClass::Usage => 2,
            ErrorClass::Refused => 3,
            ErrorClass::NotFound => 4,
            ErrorClass::Budget => 5,
            ErrorClass::Busy => 6,
            ErrorClass::Damaged => 7,
            ErrorClass::Io => 8,
            ErrorClass::Bug => 70,
        }
    }
}

/// An error with a stable kebab-case code, as listed in `docs/errors.md`.
pub trait Coded: std::error::Error {
    /// The stable code, for example `digest-mismatch`.
    fn code(&self) -> &'static str;

    /// Who is at fault. Most errors of this project are refusals.
    fn class(&self) -> ErrorClass {
        ErrorClass::Refused
    }

    /// What the caller can do about it, where that is known.
    fn hint(&self) -> Option<String> {
        None
    }
}
