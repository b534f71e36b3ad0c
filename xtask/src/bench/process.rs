//! Whole processes: how long they took and how much memory they held.

use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::problems::Problems;

/// A process that ended well.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// From before the start to after the end.
    pub(crate) seconds: f64,
}

/// Runs to the end.
pub(crate) fn run(command: &mut Command) -> Result<Finished, Problems> {
    let shown = format!("{command:?}");
    let started = Instant::now();
    let output = quiet(command).output();
    let seconds = started.elapsed().as_secs_f64();
    finished(&shown, output.map_err(|error| Problems::one(format!("{shown}: {error}")))?, seconds)
}

/// Runs to the end and watches the largest resident memory that the kernel has counted, every 5 ms. The count only rises, so all that is
/// missed is what it rose by in the last 5 ms. `None` where the system does not tell.
pub(crate) fn run_watched(command: &mut Command) -> Result<(Finished, Option<u64>), Problems> {
    let shown = format!("{command:?}");
    let failed = |error| Problems::one(format!("{shown}: {error}"));
    let started = Instant::now();
    let child = quiet(command).spawn().map_err(failed)?;
    let status = format!("/proc/{}/status", child.id());
    let ended = AtomicBool::new(false);
    let (output, peak) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut peak = None;
            while !ended.load(Ordering::Relaxed) {
                let seen = std::fs::read_to_string(&status).ok().and_then(|text| high_water(&text));
                peak = peak.max(seen);
                std::thread::sleep(Duration::from_millis(5));
            }
            peak
        });
        let output = child.wait_with_output();
        ended.store(true, Ordering::Relaxed);
        (output, watcher.join().unwrap_or_default())
    });
    let seconds = started.elapsed().as_secs_f64();
    Ok((finished(&shown, output.map_err(failed)?, seconds)?, peak))
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped())
}

fn finished(shown: &str, output: Output, seconds: f64) -> Result<Finished, Problems> {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    if output.status.success() {
        return Ok(Finished { stdout, stderr, seconds });
    }
    let mut last: Vec<&str> = stderr.lines().rev().take(5).collect();
    last.reverse();
    Err(Problems::one(format!("{shown}: {}\n{}", output.status, last.join("\n"))))
}

/// `VmHWM` of a process's status, in bytes.
fn high_water(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_water_mark_is_read() {
        let status = "Name:\tx\nVmPeak:\t  900 kB\nVmHWM:\t  1234 kB\nVmRSS:\t 7 kB\n";
        assert_eq!(high_water(status), Some(1234 * 1024));
        assert_eq!(high_water("Name:\tzombie\n"), None);
        assert_eq!(high_water("VmHWM:\t  12 pages\n"), None);
    }

    #[test]
    fn output_is_kept_and_failure_told() {
        let mut cargo = crate::run::cargo();
        let done = run(cargo.arg("--version")).expect("cargo");
        assert!(done.stdout.starts_with("cargo ") && done.seconds > 0.0);
        let (done, _) = run_watched(crate::run::cargo().arg("--version")).expect("cargo");
        assert!(done.stdout.starts_with("cargo "));
        assert!(run(crate::run::cargo().arg("--no-such-option")).is_err());
        assert!(run(&mut Command::new("no-such-program-of-anybody")).is_err());
    }
}
