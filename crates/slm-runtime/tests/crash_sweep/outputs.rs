//! Outputs outside the store that fail.

use std::collections::BTreeMap;
use std::io::{self, Write};

use slm_format::{Coded as _, ErrorClass};
use slm_store::MemStorage;

use crate::common::name;
use crate::fingerprint;
use crate::ops::{everything, over, package, text};

/// An output that takes so many writes, of at most so many bytes each, and then is full.
struct Filling {
    writes: usize,
    taken: Vec<u8>,
}

impl Write for Filling {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.writes == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.writes -= 1;
        let some = bytes.len().min(1 << 15);
        self.taken.extend_from_slice(&bytes[..some]);
        Ok(some)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Packing to an output that fails at each of its writes says so, and neither the store nor the next package is touched by it.
#[test]
fn an_output_that_fails_at_any_write() {
    let storage = MemStorage::new();
    let runtime = over(storage.clone());
    everything(&runtime);
    let before = fingerprint(&storage);
    let mut failures = 0;
    loop {
        let mut out = Filling { writes: failures, taken: Vec::new() };
        match runtime.pack(&text("kp"), &mut out) {
            Ok(_) => {
                assert!(out.taken == package(), "a package of something else");
                break;
            }
            Err(error) => {
                assert_eq!(error.class(), ErrorClass::Io, "write {failures}: {error}");
                assert!(package().starts_with(&out.taken), "write {failures}");
            }
        }
        failures += 1;
    }
    assert_eq!(fingerprint(&storage), before);
    println!("pack: {failures} writes, each of them failed once");
    assert!(failures > 20, "{failures}");

    // A layout: after any failed file there is no index, which comes last.
    let mut files = 0;
    loop {
        let mut out = FillingFolder { left: files, files: BTreeMap::new() };
        let tag = name("v1");
        match runtime.export_oci(&text("kp"), &tag, &mut out) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.class(), ErrorClass::Io, "file {files}: {error}"),
        }
        assert!(!out.files.contains_key("index.json"), "file {files}");
        files += 1;
    }
    println!("export oci: {files} files, each of them failed once");
    assert!(files >= 7, "{files}");
}

/// A folder that takes so many files, and then is full.
struct FillingFolder {
    left: usize,
    files: BTreeMap<String, Vec<u8>>,
}

impl slm_runtime::runtime::LayoutWriter for FillingFolder {
    fn put(&mut self, path: &str, bytes: &[u8]) -> io::Result<()> {
        if self.left == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.left -= 1;
        self.files.insert(path.to_owned(), bytes.to_vec());
        Ok(())
    }
}
