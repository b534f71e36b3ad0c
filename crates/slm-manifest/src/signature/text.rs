//! The lines of minisign's files.

use base64ct::{Base64, Encoding as _};

use super::MAX_FILE_BYTES;
use super::error::{FileKind, SignatureError};

pub(super) const UNTRUSTED: &str = "untrusted comment: ";
pub(super) const TRUSTED: &str = "trusted comment: ";

/// The lines of a file of this kind, exactly `N` of them. A line ends with LF or CR LF, the last may end with the file.
pub(super) fn lines<const N: usize>(
    kind: FileKind,
    bytes: &[u8],
) -> Result<[&str; N], SignatureError> {
    if bytes.len() > MAX_FILE_BYTES {
        let (found, limit) = (bytes.len() as u64, MAX_FILE_BYTES as u64);
        return Err(SignatureError::TooLong { kind, found, limit });
    }
    let malformed = |line, problem| SignatureError::Malformed { kind, line, problem };
    let text = core::str::from_utf8(bytes).map_err(|error| {
        let before = bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
        malformed(before as u64 + 1, "it is not UTF-8")
    })?;
    let mut rest = text.lines();
    let mut lines = [""; N];
    for (at, line) in lines.iter_mut().enumerate() {
        *line = rest.next().ok_or(malformed(at as u64 + 1, "it is missing"))?;
    }
    match rest.next() {
        None => Ok(lines),
        Some(_) => Err(malformed(N as u64 + 1, "nothing may follow")),
    }
}

/// What follows `prefix` in `line`, number `number` of the file.
pub(super) fn after<'a>(
    kind: FileKind,
    number: u64,
    line: &'a str,
    prefix: &'static str,
) -> Result<&'a str, SignatureError> {
    let problem = match prefix {
        UNTRUSTED => "it does not begin with \"untrusted comment: \"",
        _ => "it does not begin with \"trusted comment: \"",
    };
    line.strip_prefix(prefix).ok_or(SignatureError::Malformed { kind, line: number, problem })
}

/// The `N` bytes of a line in Base64, one spelling: padded, no spaces.
pub(super) fn decode<const N: usize>(
    kind: FileKind,
    number: u64,
    line: &str,
) -> Result<[u8; N], SignatureError> {
    let mut bytes = [0; N];
    match Base64::decode(line, &mut bytes) {
        Ok(decoded) if decoded.len() == N => Ok(bytes),
        _ => Err(SignatureError::Malformed {
            kind,
            line: number,
            problem: "it is not Base64 of the length it must have",
        }),
    }
}

/// Bytes in Base64.
pub(super) fn encode(bytes: &[u8]) -> String {
    Base64::encode_string(bytes)
}

/// Whether a comment is one line that shows as it is: no control character but the tabs that minisign's own comments have.
pub(super) fn is_plain(comment: &str) -> bool {
    !comment.chars().any(|c| c.is_control() && c != '\t')
}

/// Cuts `N` bytes off the front of `bytes`, which the caller knows to be longer.
pub(super) fn cut<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let (first, rest) = bytes.split_first_chunk().expect("BUG: a decoded line is too short");
    *bytes = rest;
    *first
}
