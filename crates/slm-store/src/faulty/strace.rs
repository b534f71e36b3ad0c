//! What `strace` saw of a folder, in the words of [`Event`](super::Event).

use std::path::Path;

/// What to trace: every call that changes a file or a folder, or syncs one.
pub const TRACED_CALLS: &str = "trace=write,pwrite64,writev,pwritev,pwritev2,fsync,fdatasync,sync_file_range,msync,rename,renameat,\
     renameat2,unlink,unlinkat,link,linkat,symlink,symlinkat,rmdir,truncate,ftruncate,fallocate,copy_file_range,\
     sendfile,mkdir,mkdirat,open,openat,creat";

/// The steps of a trace (`strace -f -y -s 0`) in the folder `root`, each as [`Event`](super::Event) spells it.
///
/// # Panics
/// On a call in that folder that no storage makes.
pub fn traced_steps(trace: &str, root: &Path) -> Vec<String> {
    let mut has_lock = false;
    trace.lines().filter_map(|line| step(line, root, &mut has_lock)).collect()
}

/// What a line does to the folder; nothing where it does nothing there or failed.
fn step(line: &str, root: &Path, has_lock: &mut bool) -> Option<String> {
    // `PID call(arguments) = result`
    let call = line.split_once(' ')?.1.trim_start();
    let (name, rest) = call.split_once('(')?;
    let (arguments, result) = rest.rsplit_once(" = ")?;
    let arguments = arguments.trim_end().strip_suffix(')')?;
    if result.starts_with('-') {
        return None;
    }
    let inside = |path: String| {
        Some(Path::new(&path).strip_prefix(root).ok()?.to_string_lossy().into_owned())
    };
    let paths: Vec<String> = paths(arguments).into_iter().filter_map(inside).collect();
    let path = paths.first()?;
    // The root itself is made before there is a store.
    let is_dir = |path: &str| root.join(path).is_dir();
    match name {
        "write" => Some(format!("write {path} {}", result.split(' ').next()?)),
        "fsync" if is_dir(path) => Some(format!("sync-dir {path}")),
        "fsync" => Some(format!("sync {path}")),
        "ftruncate" => Some(format!("truncate {path} {}", arguments.rsplit(", ").next()?)),
        "rename" => Some(format!("rename {path} {}", paths.get(1)?)),
        "unlink" => Some(format!("remove {path}")),
        "mkdir" if path.is_empty() => None,
        "mkdir" => Some(format!("mkdir {path}")),
        "openat" if !arguments.contains("O_CREAT") => None,
        // The lock's file is made once and opened again.
        "openat" if path == "lock" && std::mem::replace(has_lock, true) => None,
        "openat" => Some(format!("create {path}")),
        other => panic!("a call that nobody expects: {other}: {line}"),
    }
}

/// The paths in the arguments: quoted, or behind a descriptor in angle brackets.
fn paths(arguments: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = arguments;
    while let Some(at) = rest.find(['"', '<']) {
        let close = if rest[at..].starts_with('"') { '"' } else { '>' };
        let inner = &rest[at + 1..];
        let Some(end) = inner.find(close) else { break };
        found.push(inner[..end].to_owned());
        rest = &inner[end + 1..];
    }
    found
}
