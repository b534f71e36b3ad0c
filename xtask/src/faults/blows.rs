//! A full disk, a medium that is read-only, no rights, damage, a second writer: the code, the exit status, and nothing changed.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::problems::{Outcome, Problems};
use crate::run;

use super::store::{Store, golden, json, run_to_end};

/// Every blow, one after the other.
pub(super) fn check(store: &Store) -> Outcome {
    store.ok(&["activate", "bare"])?;
    medium(store)?;
    rights(store)?;
    damage(store)?;
    second_writer(store)?;
    bad_paths(store)?;
    log(store)
}

/// What must come of a command: the code and the exit status. The store's files stay as they are.
fn refused(store: &Store, command: &mut Command, code: &str, exit: i32) -> Outcome {
    let before = store.files()?;
    let output = run_to_end(command)?;
    let found = json(&output.stderr)?;
    let found = found["error"]["code"].as_str().unwrap_or_default();
    if (found, output.status.code()) != (code, Some(exit)) {
        return Err(Problems::one(format!(
            "{command:?}: {found} with {}, expected {code} with {exit}",
            output.status
        )));
    }
    if store.files()? != before {
        return Err(Problems::one(format!("{command:?}: refused, but the store is another one")));
    }
    println!("faults: {code}, exit {exit}");
    Ok(())
}

fn medium(store: &Store) -> Outcome {
    let disk = store.beside("disk");
    let mount = Mount::tmpfs(&disk.path, "6m")?;
    let full = store.beside("disk/store");
    full.ok(&["import", &golden("tiny-q8_0.gguf"), "--name", "tiny"])?;
    let filler = disk.path.join("filler");
    fill(&filler)?;
    let kjv = golden("tiny-kjv");
    let import = ["adapter", "import", &kjv, "--name", "kjv", "--base", "tiny"];
    refused(&full, &mut full.command(&import), "io", 8)?;
    full.ok(&["list"])?;
    fs::remove_file(&filler)?;
    full.ok(&import)?;
    full.verify()?;
    drop(mount);

    let bare = store.beside("read-only");
    fs::create_dir_all(&bare.path)?;
    let mount = Mount::read_only(&store.path, &bare.path)?;
    refused(&bare, &mut bare.command(&["activate", "kjv"]), "io", 8)?;
    // Reading needs no right to write.
    bare.ok(&["status"])?;
    bare.ok(&["list"])?;
    drop(mount);
    Ok(())
}

fn rights(store: &Store) -> Outcome {
    refused(store, &mut store.as_nobody(&["activate", "kjv"]), "io", 8)
}

fn damage(store: &Store) -> Outcome {
    let blob = adapter_blob(store, "kjv")?;
    let good = fs::read(&blob)?;
    let mut flipped = good.clone();
    if let Some(byte) = flipped.last_mut() {
        *byte ^= 1;
    }
    for bad in [&flipped[..], &good[..good.len() / 2], &[]] {
        replace(&blob, bad)?;
        refused(store, &mut store.command(&["activate", "kjv"]), "blob-damaged", 7)?;
        // Another composition is not touched by it, and the damage is named.
        store.ok(&["activate", "python"])?;
        store.ok(&["activate", "bare"])?;
        store.ok(&["list"])?;
        let report = run_to_end(&mut store.command(&["verify", "--deep"]))?;
        let shown = String::from_utf8_lossy(&report.stdout).into_owned()
            + &String::from_utf8_lossy(&report.stderr);
        let name = blob.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if report.status.success() || !shown.contains(&name) {
            return Err(Problems::one(format!("verify does not name the damaged blob: {shown}")));
        }
    }
    replace(&blob, &good)?;
    store.ok(&["activate", "kjv"])?;
    store.ok(&["activate", "bare"])?;
    store.verify()
}

fn second_writer(store: &Store) -> Outcome {
    // `flock` of util-linux takes the kernel's lock as slm does.
    let lock = store.path.join("lock");
    let mut holder = run::command("flock");
    let mut holder = holder.arg(&lock).args(["sleep", "60"]).spawn()?;
    let held = || {
        let probe = run::command("flock").arg("--nonblock").arg(&lock).arg("true").status();
        probe.is_ok_and(|status| !status.success())
    };
    for _ in 0..200 {
        if held() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let outcome = refused(store, &mut store.command(&["activate", "kjv"]), "store-busy", 6)
        // Readers are never blocked.
        .and_then(|()| store.ok(&["status"]).map(|_| ()));
    run::must(run::command("pkill").args(["-9", "-P", &holder.id().to_string()]))?;
    holder.kill()?;
    holder.wait()?;
    outcome?;
    // The kernel has given the lock back.
    store.ok(&["activate", "kjv"])?;
    store.ok(&["activate", "bare"])?;
    Ok(())
}

fn bad_paths(store: &Store) -> Outcome {
    let manifest = store.folder.join("bad.toml");
    store.ok(&[
        "compose",
        "again",
        "--base",
        "tiny",
        "--adapter",
        "kjv",
        "--out",
        &text(&manifest),
    ])?;
    let good = fs::read_to_string(&manifest)?;
    let hash =
        good.lines().find(|line| line.starts_with("file_hash")).unwrap_or_default().to_owned();
    let bad = good.replace(&hash, "file_hash = \"sha256:../../x\"");
    fs::write(&manifest, bad)?;
    refused(store, &mut store.command(&["activate", &text(&manifest)]), "digest-spelling", 3)?;
    fs::write(&manifest, good)?;
    store.ok(&["activate", &text(&manifest)])?;
    store.ok(&["activate", "bare"])?;

    let blob = adapter_blob(store, "python")?;
    let elsewhere = store.folder.join("elsewhere");
    fs::copy(&blob, &elsewhere)?;
    fs::remove_file(&blob)?;
    symlink(&elsewhere, &blob)?;
    let outcome = refused(store, &mut store.command(&["activate", "python"]), "store-symlink", 7);
    // Another composition is not touched by it.
    let outcome = outcome.and_then(|()| store.ok(&["activate", "kjv"]).map(drop));
    if !fs::symlink_metadata(&blob)?.is_symlink() {
        return Err(Problems::one("the link in the store was replaced".to_owned()));
    }
    fs::remove_file(&blob)?;
    fs::copy(&elsewhere, &blob)?;
    outcome?;
    store.ok(&["activate", "python"])?;
    store.ok(&["activate", "bare"])?;
    Ok(())
}

/// After all of it the log is one chain.
fn log(store: &Store) -> Outcome {
    let audit = store.ok(&["audit"])?;
    let records = audit["records"].as_array().map_or(0, Vec::len);
    println!("faults: the log has {records} records, and its chain holds");
    if records > 0 { Ok(()) } else { Err(Problems::one(format!("no record in the log: {audit}"))) }
}

/// A file system that lives as long as this.
struct Mount(PathBuf);

impl Mount {
    fn tmpfs(at: &Path, size: &str) -> Result<Mount, Problems> {
        fs::create_dir_all(at)?;
        let options = format!("size={size}");
        run::must(run::command("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at))?;
        Ok(Mount(at.to_owned()))
    }

    fn read_only(from: &Path, at: &Path) -> Result<Mount, Problems> {
        run::must(run::command("mount").arg("--bind").arg(from).arg(at))?;
        let mount = Mount(at.to_owned());
        run::must(run::command("mount").args(["-o", "remount,bind,ro"]).arg(at))?;
        Ok(mount)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A mount that stays shows up in the removal of the folder.
        let _ = run::command("umount").arg(&self.0).status();
    }
}

fn adapter_blob(store: &Store, name: &str) -> Result<PathBuf, Problems> {
    let record = fs::read_to_string(store.path.join("names/adapter").join(name))?;
    let record = json(record.as_bytes())?;
    let blob = record["blob"].as_str().unwrap_or_default().trim_start_matches("sha256:").to_owned();
    Ok(store.path.join("blobs/sha256").join(blob))
}

/// Other bytes in the place of a read-only file.
fn replace(path: &Path, bytes: &[u8]) -> Outcome {
    fs::remove_file(path)?;
    Ok(fs::write(path, bytes)?)
}

/// A file that takes all room but a little of its disk.
fn fill(path: &Path) -> Outcome {
    let mut file = fs::File::create(path)?;
    while file.write_all(&[0; 1 << 14]).is_ok() {}
    let len = file.metadata()?.len();
    Ok(file.set_len(len.saturating_sub(1 << 15))?)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
