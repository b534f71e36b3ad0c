//! `key new`.

use std::path::{Path, PathBuf};

use serde_json::json;
use slm_manifest::Name;
use slm_manifest::signature::{SECRET_KEY_RANDOM_BYTES, SecretKey, SecretKeyFile};

use crate::error::CliError;
use crate::outfile::write_new;
use crate::world::{World, read};

/// Makes a key pair: NAME.pub for others, NAME.key for nobody else. Neither replaces a file.
pub(crate) fn new(
    world: &World,
    name: &str,
    folder: Option<PathBuf>,
    password_file: Option<PathBuf>,
) -> Result<(), CliError> {
    let name: Name = crate::model::name("NAME", name)?;
    let folder = folder.unwrap_or_else(|| PathBuf::from("."));
    let secret = SecretKey::from_random(random::<SECRET_KEY_RANDOM_BYTES>()?)?;
    let secret_text = match &password_file {
        None => secret.to_file(),
        Some(file) => {
            let spinner = world.output.spinner("deriving a key from the password");
            let text = secret.to_encrypted_file(&password(file)?, random::<32>()?)?;
            spinner.finish_and_clear();
            text
        }
    };
    let (public_path, secret_path) =
        (folder.join(format!("{name}.pub")), folder.join(format!("{name}.key")));
    // The secret half first: a public key whose secret half could not be written is of no use to anybody.
    write_new(&secret_path, secret_text.as_bytes(), true)?;
    if let Err(error) = write_new(&public_path, secret.public_key().to_file().as_bytes(), false) {
        // Half a pair would stand in the way of the next try; the first error is what the caller must hear.
        let _ = std::fs::remove_file(&secret_path);
        return Err(error);
    }
    let object = json!({
        "name": name.as_str(),
        "key": secret.id().to_string(),
        "public": secret.public_key().to_base64(),
        "public_file": public_path,
        "secret_file": secret_path,
        "encrypted": password_file.is_some(),
    });
    let lines = [
        format!("key {} for {name}", secret.id()),
        format!("public: {} ({})", public_path.display(), secret.public_key().to_base64()),
        format!("secret: {}; keep it, and keep it to yourself", secret_path.display()),
    ];
    world.output.result(object, &lines);
    Ok(())
}

/// The secret key in a file, opened with the password in another, where it needs one.
pub(crate) fn open_secret(
    world: &World,
    file: &Path,
    password_file: Option<&Path>,
) -> Result<SecretKey, CliError> {
    let key = SecretKeyFile::parse(&read(file)?)?;
    let password = password_file.map(password).transpose()?;
    let spinner = world.output.spinner("opening the secret key");
    let opened = key.open(password.as_deref());
    spinner.finish_and_clear();
    Ok(opened?)
}

/// The first line of a file.
fn password(file: &Path) -> Result<Vec<u8>, CliError> {
    let bytes = read(file)?;
    let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    Ok(line.strip_suffix(b"\r").unwrap_or(line).to_vec())
}

/// Random bytes of the system's source.
fn random<const N: usize>() -> Result<[u8; N], CliError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        CliError::io("the system's random source", std::io::Error::other(error.to_string()))
    })?;
    Ok(bytes)
}
