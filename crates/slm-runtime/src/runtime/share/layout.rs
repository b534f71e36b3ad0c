//! A folder of named files, as far as sharing needs one; the caller has the paths.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// A file's bytes, mapped or in memory.
pub type FileBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Where a layout is written. Paths are relative, of fixed words and hexadecimal digits, parts joined by `/`.
pub trait LayoutWriter {
    /// Writes a file. Equal calls write equal files, so one that is there already may stay.
    ///
    /// # Errors
    /// What the medium says.
    fn put(&mut self, path: &str, bytes: &[u8]) -> io::Result<()>;
}

/// Where a layout is read from.
pub trait LayoutReader {
    /// A file; `None` where there is none.
    ///
    /// # Errors
    /// What the medium says.
    fn get(&self, path: &str) -> io::Result<Option<FileBytes>>;
}

/// In memory.
impl LayoutWriter for BTreeMap<String, Vec<u8>> {
    fn put(&mut self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.insert(path.to_owned(), bytes.to_vec());
        Ok(())
    }
}

impl LayoutReader for BTreeMap<String, Vec<u8>> {
    fn get(&self, path: &str) -> io::Result<Option<FileBytes>> {
        Ok(BTreeMap::get(self, path).map(|bytes| Arc::new(bytes.clone()) as FileBytes))
    }
}
