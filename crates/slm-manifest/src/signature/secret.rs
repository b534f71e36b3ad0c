//! Secret keys, and the files they are kept in.

use core::fmt;

use blake2::digest::consts::U32;
use blake2::{Blake2b, Blake2b512, Digest as _};

use super::KeyId;
use super::detached::Signature;
use super::error::{FileKind, SignatureError};
use super::public::PublicKey;
use super::text::{self, UNTRUSTED};

const KIND: FileKind = FileKind::SecretKey;
/// Algorithm, derivation, checksum, salt, operations, memory, and what the password covers.
const BYTES: usize = 2 + 2 + 2 + 32 + 8 + 8 + COVERED;
/// Id, key, checksum.
const COVERED: usize = 8 + 64 + 32;
/// Random bytes that a new key is made from.
pub const SECRET_KEY_RANDOM_BYTES: usize = 40;

const NO_PASSWORD: [u8; 2] = [0, 0];
const SCRYPT: [u8; 2] = *b"Sc";

/// A secret key. It never shows itself, and its bytes are overwritten when it is dropped.
#[derive(Clone)]
pub struct SecretKey {
    id: KeyId,
    key: ed25519_compact::SecretKey,
}

/// A secret key's file that was read; a password may be needed to open it.
#[derive(Clone)]
pub struct SecretKeyFile {
    bytes: [u8; BYTES],
}

impl SecretKey {
    /// A new key from random bytes: 8 become its id, 32 the seed. The caller's source must be fit for secrets.
    ///
    /// # Errors
    /// `random-zero` where all bytes of the seed are 0: whatever gave them has not run.
    pub fn from_random(random: [u8; SECRET_KEY_RANDOM_BYTES]) -> Result<SecretKey, SignatureError> {
        let mut rest = random.as_slice();
        let id = KeyId(text::cut(&mut rest));
        let seed = ed25519_compact::Seed::new(text::cut(&mut rest));
        let pair = ed25519_compact::KeyPair::try_from_seed(seed);
        Ok(SecretKey { id, key: pair.map_err(|_| SignatureError::RandomZero)?.sk })
    }

    /// Its id.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// The public key that belongs to it.
    pub fn public_key(&self) -> PublicKey {
        PublicKey::new(self.id, *self.key.public_key())
            .expect("BUG: a secret key's own public key is weak")
    }

    /// Signs a document in minisign's present form: over its BLAKE2b-512, and once more over signature and comment. Deterministic.
    ///
    /// # Errors
    /// `signature-comment` for a comment of more than one line, or longer than minisign reads.
    pub fn sign(
        &self,
        document: &[u8],
        trusted_comment: &str,
    ) -> Result<Signature, SignatureError> {
        let sign = |message: &[u8]| *self.key.sign(message, None);
        Signature::new(self.id, trusted_comment, sign(&Blake2b512::digest(document)), sign)
    }

    /// The file that `minisign -W -s` takes: not under a password, so it must be kept where only its owner reads.
    pub fn to_file(&self) -> String {
        self.file(NO_PASSWORD, [0; 32], 0, 0, [0; COVERED])
    }

    /// The file that `minisign -s` takes: under `password`, derived with a random `salt` at the cost that minisign takes, one gigabyte.
    ///
    /// # Errors
    /// `secret-key-derivation` where this machine cannot address that much.
    #[cfg(feature = "encrypted-keys")]
    pub fn to_encrypted_file(
        &self,
        password: &[u8],
        salt: [u8; 32],
    ) -> Result<String, SignatureError> {
        let (operations, memory) = (derivation::MAX_OPERATIONS, derivation::MAX_MEMORY);
        let stream = derivation::stream(password, &salt, operations, memory)?;
        Ok(self.file(SCRYPT, salt, operations, memory, stream))
    }

    fn file(
        &self,
        derivation: [u8; 2],
        salt: [u8; 32],
        operations: u64,
        memory: u64,
        stream: [u8; COVERED],
    ) -> String {
        let mut covered = self.id.to_bytes().to_vec();
        covered.extend(self.key.as_slice());
        covered.extend(match derivation {
            // As minisign has it: what lies open needs no proof that it was opened well.
            NO_PASSWORD => [0; 32],
            _ => checksum(self.id, &self.key),
        });
        let mut bytes = b"Ed".to_vec();
        bytes.extend(derivation);
        bytes.extend(b"B2");
        bytes.extend(salt);
        bytes.extend(operations.to_le_bytes());
        bytes.extend(memory.to_le_bytes());
        bytes.extend(covered.iter().zip(stream).map(|(byte, mask)| byte ^ mask));
        let comment = match derivation {
            NO_PASSWORD => "minisign secret key",
            _ => "minisign encrypted secret key",
        };
        format!("{UNTRUSTED}{comment}\n{}\n", text::encode(&bytes))
    }
}

impl SecretKeyFile {
    /// Reads minisign's file of two lines.
    ///
    /// # Errors
    /// `secret-key-malformed`, `signature-algorithm`, `limit-exceeded`.
    pub fn parse(file: &[u8]) -> Result<SecretKeyFile, SignatureError> {
        let [comment, line] = text::lines::<2>(KIND, file)?;
        text::after(KIND, 1, comment, UNTRUSTED)?;
        let key = SecretKeyFile { bytes: text::decode(KIND, 2, line)? };
        for (found, known) in [
            (key.field(0), [*b"Ed"].as_slice()),
            (key.field(2), &[NO_PASSWORD, SCRYPT]),
            (key.field(4), &[*b"B2"]),
        ] {
            if !known.contains(&found) {
                return Err(SignatureError::Algorithm { kind: KIND, found });
            }
        }
        Ok(key)
    }

    /// Whether it is under a password.
    pub fn is_encrypted(&self) -> bool {
        self.field::<2>(2) == SCRYPT
    }

    /// Opens a key; `password` is not looked at where none is needed. Under a password that takes seconds and up to a gigabyte.
    ///
    /// # Errors
    /// `secret-key-encrypted` where a password is needed and none given, or the feature `encrypted-keys` is off;
    /// `secret-key-derivation` for a file that asks for more than minisign itself; `secret-key-checksum` for a wrong password or a damaged file.
    pub fn open(&self, password: Option<&[u8]>) -> Result<SecretKey, SignatureError> {
        let mut covered: [u8; COVERED] = self.field(BYTES - COVERED);
        if self.is_encrypted() {
            let stream = self.stream(password.ok_or(SignatureError::Encrypted)?)?;
            covered.iter_mut().zip(stream).for_each(|(byte, mask)| *byte ^= mask);
        }
        let mut rest = covered.as_slice();
        let id = KeyId(text::cut(&mut rest));
        let key = ed25519_compact::SecretKey::new(text::cut(&mut rest));
        let found: [u8; 32] = text::cut(&mut rest);
        let unsummed = !self.is_encrypted() && found == [0; 32];
        // The public half is in the file as well; one that does not belong to the seed is damage that no checksum may have seen.
        let whole = key.validate_public_key(&key.public_key()).is_ok();
        if !whole || !(unsummed || found == checksum(id, &key)) {
            return Err(SignatureError::Checksum);
        }
        Ok(SecretKey { id, key })
    }

    #[cfg(feature = "encrypted-keys")]
    fn stream(&self, password: &[u8]) -> Result<[u8; COVERED], SignatureError> {
        let salt: [u8; 32] = self.field(6);
        let number = |at| u64::from_le_bytes(self.field(at));
        derivation::stream(password, &salt, number(38), number(46))
    }

    #[cfg(not(feature = "encrypted-keys"))]
    fn stream(&self, _: &[u8]) -> Result<[u8; COVERED], SignatureError> {
        Err(SignatureError::Encrypted)
    }

    fn field<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes[at..at + N].try_into().expect("BUG: a field has its own length")
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey({})", self.id)
    }
}

impl fmt::Debug for SecretKeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKeyFile(encrypted: {})", self.is_encrypted())
    }
}

/// BLAKE2b-256 of algorithm, id and key.
fn checksum(id: KeyId, key: &ed25519_compact::SecretKey) -> [u8; 32] {
    let mut hasher = Blake2b::<U32>::new();
    hasher.update(b"Ed");
    hasher.update(id.to_bytes());
    hasher.update(key.as_slice());
    hasher.finalize().into()
}

/// scrypt with the parameters that libsodium makes of an operation and a memory limit.
#[cfg(feature = "encrypted-keys")]
mod derivation {
    use super::{COVERED, SignatureError};

    /// `crypto_pwhash_scryptsalsa208sha256_OPSLIMIT_SENSITIVE`, which minisign takes.
    pub(super) const MAX_OPERATIONS: u64 = 1 << 25;
    /// `crypto_pwhash_scryptsalsa208sha256_MEMLIMIT_SENSITIVE`, which minisign takes.
    pub(super) const MAX_MEMORY: u64 = 1 << 30;
    /// libsodium's own lower bound.
    const MIN_OPERATIONS: u64 = 1 << 15;
    const R: u64 = 8;

    pub(super) fn stream(
        password: &[u8],
        salt: &[u8; 32],
        operations: u64,
        memory: u64,
    ) -> Result<[u8; COVERED], SignatureError> {
        let refused = SignatureError::Derivation {
            operations,
            memory,
            max_operations: MAX_OPERATIONS,
            max_memory: MAX_MEMORY,
        };
        if operations > MAX_OPERATIONS || memory > MAX_MEMORY {
            return Err(refused);
        }
        let (log_n, p) = parameters(operations, memory);
        // The length is for password hashes in text form and not used here.
        let Ok(params) = scrypt::Params::new(log_n, R as u32, p, 32) else { return Err(refused) };
        let mut stream = [0; COVERED];
        scrypt::scrypt(password, salt, &params, &mut stream).map_err(|_| refused)?;
        Ok(stream)
    }

    /// The pick of libsodium: N as large as both limits allow, then p from what is left of the operations.
    fn parameters(operations: u64, memory: u64) -> (u8, u32) {
        let operations = operations.max(MIN_OPERATIONS);
        let log_n_for = |max_n: u64| (1..63).find(|&log| 1u64 << log > max_n / 2).unwrap_or(63);
        if operations < memory / 32 {
            return (log_n_for(operations / (R * 4)), 1);
        }
        let log_n = log_n_for(memory / (R * 128));
        let p = ((operations / 4) >> log_n).min(0x3fff_ffff) / R;
        (log_n, p as u32)
    }

    #[cfg(test)]
    mod tests {
        #[test]
        fn the_limits_of_minisign_give_the_parameters_of_libsodium() {
            // libsodium's documentation: sensitive is N = 2^20, interactive N = 2^14, r = 8, p = 1.
            assert_eq!(super::parameters(1 << 25, 1 << 30), (20, 1));
            assert_eq!(super::parameters(1 << 19, 1 << 24), (14, 1));
            // Below the least number of operations, and where memory is the tighter of the two.
            assert_eq!(super::parameters(0, 1 << 30), (10, 1));
            assert_eq!(super::parameters(1 << 21, 1 << 24), (14, 4));
        }
    }
}
