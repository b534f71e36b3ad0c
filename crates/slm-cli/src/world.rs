//! The outside world: paths, the clock, the environment, the store folder.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use slm_format::Limits;
use slm_manifest::Name;
use slm_manifest::policy::LocalPolicy;
use slm_runtime::{Engine, Runtime};
use slm_store::{FsBlob, FsStorage, Store, map_file};

use crate::error::CliError;
use crate::output::Output;

/// Limits of every decode in the program.
pub(crate) const LIMITS: Limits = Limits::STANDARD;

/// Where the policy stands in the store's folder.
pub(crate) const POLICY_FILE: &str = "policy.toml";

/// What every command needs.
#[derive(Debug)]
pub(crate) struct World {
    /// The store folder that was asked for.
    pub(crate) store: Option<PathBuf>,
    /// Where output goes.
    pub(crate) output: Output,
}

impl World {
    /// A runtime over the store folder, under the policy that stands there; the folder is made at the first use.
    pub(crate) fn runtime(&self, engine: Engine) -> Result<Runtime<FsStorage>, CliError> {
        let path = self.store_path()?;
        let store = Store::open(FsStorage::open(path))?;
        // A store that goes on with one of its two records says so; one that has neither fails where it is needed.
        if let Ok(Some(fault)) = store.slot_fault() {
            self.output.note(&format!("warning: {fault}; going on with the other record"));
        }
        Ok(Runtime::under_store_policy(store, engine, LIMITS).acting_for(actor()))
    }

    /// As [`World::runtime`], for a command that only looks: a policy that cannot be followed is told, and hinders nobody from looking.
    pub(crate) fn looking(&self, engine: Engine) -> Result<Runtime<FsStorage>, CliError> {
        let runtime = self.runtime(engine)?;
        if let Some(fault) = runtime.policy_fault() {
            let rest = "until it is mended nothing is changed, and nothing is run";
            self.output.note(&format!("warning: {POLICY_FILE}: {fault}; {rest}"));
        }
        Ok(runtime)
    }

    /// The rules of this store's owner: `policy.toml` in its folder, the defaults where there is none.
    pub(crate) fn policy(&self) -> Result<LocalPolicy, CliError> {
        let path = self.store_path()?.join(POLICY_FILE);
        match read_if_there(&path)? {
            Some(bytes) => Ok(LocalPolicy::from_toml(&text(bytes, &path)?, &LIMITS)?),
            None => Ok(LocalPolicy::default()),
        }
    }

    /// `--store`, then `$SLM_STORE`, then the platform's data folder.
    pub(crate) fn store_path(&self) -> Result<PathBuf, CliError> {
        if let Some(path) = &self.store {
            return Ok(path.clone());
        }
        if let Some(path) = std::env::var_os("SLM_STORE").filter(|path| !path.is_empty()) {
            return Ok(path.into());
        }
        dirs::data_dir().map(|dir| dir.join("slm")).ok_or(CliError::Missing { option: "--store" })
    }
}

/// Who the log shall name: the user whose process this is, as the system has it. What the environment says is anybody's to choose.
#[cfg(unix)]
pub(crate) fn actor() -> Option<Name> {
    let id = rustix::process::getuid().as_raw();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    user(&users, id).or_else(|| format!("uid-{id}").parse().ok())
}

/// Where there are no numbers of users, what the environment says.
#[cfg(not(unix))]
pub(crate) fn actor() -> Option<Name> {
    std::env::var("USERNAME").ok()?.parse().ok()
}

/// The name of the user of this number in the system's list, where it can be a name of ours.
#[cfg(unix)]
fn user(users: &str, id: u32) -> Option<Name> {
    let line = users
        .lines()
        .find(|line| line.split(':').nth(2).and_then(|number| number.parse().ok()) == Some(id))?;
    line.split(':').next()?.parse().ok()
}

/// Now, as RFC 3339 in UTC.
pub(crate) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    utc(since.as_secs())
}

/// Seconds since 1970 as RFC 3339 in UTC, by the civil-calendar arithmetic of Howard Hinnant's `days` algorithms.
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        rest / 3_600,
        rest / 60 % 60,
        rest % 60
    )
}

/// Maps a file. A pipe or a device is refused: opening one can wait for ever.
pub(crate) fn map(path: &Path) -> Result<Arc<FsBlob>, CliError> {
    let metadata = std::fs::metadata(path).map_err(|error| CliError::io(path, error))?;
    if !metadata.is_file() && !metadata.is_dir() {
        return Err(CliError::Format { path: path.to_owned(), reason: "not a file" });
    }
    let mapped = map_file(path).map_err(|error| CliError::io(path, error))?;
    Ok(Arc::new(mapped))
}

/// Reads a small file whole, refusing one over the header limit.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    let file = std::fs::File::open(path).map_err(|error| CliError::io(path, error))?;
    read_bounded(file, path)
}

/// Reads a stream to its end, or refuses it when it does not end before the header limit. A pipe or a device has no length to ask for.
pub(crate) fn read_bounded(stream: impl Read, path: &Path) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    stream
        .take(LIMITS.max_header_bytes + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| CliError::io(path, error))?;
    if bytes.len() as u64 > LIMITS.max_header_bytes {
        return Err(CliError::Format {
            path: path.to_owned(),
            reason: "too large for what it should be",
        });
    }
    Ok(bytes)
}

/// As [`read`], for text.
pub(crate) fn read_text(path: &Path) -> Result<String, CliError> {
    text(read(path)?, path)
}

/// Bytes that must be text.
pub(crate) fn text(bytes: Vec<u8>, path: &Path) -> Result<String, CliError> {
    String::from_utf8(bytes)
        .map_err(|_| CliError::Format { path: path.to_owned(), reason: "not UTF-8" })
}

/// Reads a small file if it is there.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, CliError> {
    match read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(CliError::NoFile { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #[cfg(unix)]
    #[test]
    fn users_have_names_or_numbers() {
        let users = "root:x:0:0:root:/:/bin/sh\n# 7\nbad\n-odd name:x:7:7::/:\nalice:x:1000:1000:Alice:/alice:\n";
        let name = |id| super::user(users, id).map(|name| name.to_string());
        assert_eq!(name(0).as_deref(), Some("root"));
        assert_eq!(name(1000).as_deref(), Some("alice"));
        assert_eq!((name(7), name(8)), (None, None));
    }

    #[test]
    fn times_are_rfc_3339() {
        // `date -u -d @N` by GNU coreutils.
        assert_eq!(super::utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(super::utc(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(super::utc(1_796_083_199), "2026-11-30T23:59:59Z");
    }
}
