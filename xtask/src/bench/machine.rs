//! The machine, and how fast it reads and multiplies.

use std::collections::BTreeMap;

use super::table::{Table, number};
use crate::problems::Problems;
use crate::run;

/// What was measured of the machine, by number of threads.
#[derive(Debug, PartialEq)]
pub(crate) struct Limits {
    /// GB/s by threads and megabytes.
    read: BTreeMap<(usize, usize), f64>,
    /// GMAC/s by threads.
    int8: BTreeMap<usize, f64>,
}

/// The CPU, its cores, the day, and how busy the machine is: a peer whose threads wait for each other in a loop loses most of its speed to a
/// neighbour, so that a ratio on all cores means little on a busy machine.
pub(crate) fn line() -> Result<String, Problems> {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| field(&info, name).unwrap_or("unknown").to_owned();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let day = run::output(run::command("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]))?;
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().filter(|load| !load.is_empty()).unwrap_or("unknown");
    Ok(format!(
        "Machine: {} (family {}, model {}), {cores} cores, {}. {}; load average {load} at the start.",
        field("model name"),
        field("cpu family"),
        field("model"),
        std::env::consts::ARCH,
        day.trim(),
    ))
}

/// Runs the example `bandwidth` of slm-quant.
pub(crate) fn measure_limits(threads: &[usize]) -> Result<Limits, Problems> {
    eprintln!("bench: reading and multiplying");
    let threads: Vec<String> = threads.iter().map(usize::to_string).collect();
    let mut command = run::cargo();
    command
        .args(["run", "--quiet", "--release", "--package", "slm-quant", "--example", "bandwidth"])
        .arg("--")
        .args(threads);
    let text = run::output(&mut command)?;
    parse(&text).ok_or_else(|| Problems::one(format!("bench: not understood:\n{text}")))
}

impl Limits {
    /// GB/s from the buffer that is nearest in size, and its megabytes.
    pub(crate) fn read(&self, threads: usize, bytes: u64) -> Option<(usize, f64)> {
        let distance = |megabytes: usize| (megabytes as f64 * 1e6 / bytes as f64).ln().abs();
        self.read
            .iter()
            .filter(|((of, _), _)| *of == threads)
            .min_by(|a, b| distance(a.0.1).total_cmp(&distance(b.0.1)))
            .map(|((_, megabytes), rate)| (*megabytes, *rate))
    }

    /// GMAC/s.
    pub(crate) fn int8(&self, threads: usize) -> Option<f64> {
        self.int8.get(&threads).copied()
    }

    pub(crate) fn table(&self) -> String {
        let mut table = Table::new(&["threads", "what", "rate"]);
        for ((threads, megabytes), rate) in &self.read {
            let what = format!("read {megabytes} MB, GB/s");
            table.row(&[threads.to_string(), what, number(*rate)]);
        }
        for (threads, rate) in &self.int8 {
            let what = "int8 products of slm from the cache, GMAC/s".to_owned();
            table.row(&[threads.to_string(), what, number(*rate)]);
        }
        table.finish()
    }
}

/// Lines of `read THREADS MEGABYTES RATE` and `int8 THREADS RATE`; others are for people.
fn parse(text: &str) -> Option<Limits> {
    let mut limits = Limits { read: BTreeMap::new(), int8: BTreeMap::new() };
    for line in text.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["read", threads, megabytes, rate] => {
                let key = (threads.parse().ok()?, megabytes.parse().ok()?);
                limits.read.insert(key, rate.parse().ok()?);
            }
            ["int8", threads, rate] => {
                limits.int8.insert(threads.parse().ok()?, rate.parse().ok()?);
            }
            _ => {}
        }
    }
    (!limits.read.is_empty() && !limits.int8.is_empty()).then_some(limits)
}

/// The first line of that name in /proc/cpuinfo.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_by_threads_and_nearest_size() {
        let text = "a remark\nread 1 1 170.5\nread 1 96 48.0\nread 1 256 40.0\nread 2 96 55\nint8 1 300\nint8 2 590.5\n";
        let limits = parse(text).expect("limits");
        assert_eq!(limits.read(1, 98_000_000), Some((96, 48.0)));
        assert_eq!(limits.read(1, 250_000_000), Some((256, 40.0)));
        assert_eq!(limits.read(2, 1), Some((96, 55.0)));
        assert_eq!(limits.read(3, 1), None);
        assert_eq!((limits.int8(2), limits.int8(3)), (Some(590.5), None));
        assert!(parse("read 1 1 170.5\n").is_none(), "no product");
        assert!(parse(&text.replace("48.0", "fast")).is_none());
    }

    #[test]
    fn fields_of_cpuinfo_are_whole_names() {
        let info = "model\t\t: 2\nmodel name\t: A CPU: fast\ncpu family\t: 25\n\nmodel\t\t: 3\n";
        assert_eq!(field(info, "model name"), Some("A CPU: fast"));
        assert_eq!(field(info, "model"), Some("2"));
        assert_eq!(field(info, "cpu"), None);
    }
}
