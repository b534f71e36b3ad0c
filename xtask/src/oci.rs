//! A composition through a real registry and through the minisign program: export, skopeo, docker-registry, import, the same ids and bits.
//!
//! Needs Debian's `skopeo`, `docker-registry` and `minisign` on the path. Everything stays on loopback.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::problems::{Outcome, Problems};
use crate::run;

const PROGRAMS: &[(&str, &str)] =
    &[("skopeo", "--version"), ("docker-registry", "--version"), ("minisign", "-v")];

/// How long the registry may take to answer.
const START: Duration = Duration::from_secs(20);

/// Runs the whole way, and the tests that run the minisign program.
pub(crate) fn check() -> Outcome {
    for (program, version) in PROGRAMS {
        let shown = run::output(run::command(program).arg(version)).map_err(|_| {
            Problems::one(format!("{program} is not there: apt-get install {program}"))
        })?;
        println!("oci: {}", shown.lines().next().unwrap_or_default());
    }
    run::must(run::cargo().args([
        "test",
        "-p",
        "slm-manifest",
        "--features",
        "minisign-program",
        "--test",
        "minisign_program",
    ]))?;
    run::must(run::cargo().args(["build", "--release", "-p", "slm-cli"]))?;
    let place = Place::new()?;
    let outcome = whole_way(&place);
    // What is left behind in a temporary folder harms nobody.
    let _ = std::fs::remove_dir_all(&place.folder);
    outcome
}

fn whole_way(place: &Place) -> Outcome {
    let origin = place.store("origin");
    let file = |name: &str| run::root().join("golden/files").join(name);
    origin.json(&["import", &text(&file("tiny-q8_0.gguf")), "--name", "tiny"])?;
    for (name, folder) in [("kjv", "tiny-kjv"), ("python", "tiny-python")] {
        let path = text(&file(folder));
        origin.json(&["adapter", "import", &path, "--name", name, "--base", "tiny"])?;
    }
    let stack = ["--adapter", "kjv=0.7", "--adapter", "python=0.3"];
    let composed = origin.json(&[&["compose", "pair", "--base", "tiny"], &stack[..]].concat())?;
    let composition = field(&composed, "composition")?;

    // Signed by ours, and by the program over the bytes that we say are signed.
    let folder = text(&place.folder);
    origin.json(&["key", "new", "alice", "--dir", &folder])?;
    origin.json(&["sign", "pair", "--key", &place.path("alice.key")])?;
    let document = place.path("manifest.json");
    origin.json(&["sign", "pair", "--document", &document])?;
    let (public, secret) = (place.path("bob.pub"), place.path("bob.key"));
    run::must(run::command("minisign").args(["-G", "-W", "-p", &public, "-s", &secret]))?;
    run::must(run::command("minisign").args(["-S", "-s", &secret, "-m", &document]))?;
    let signature = format!("{document}.minisig");
    origin.json(&["sign", "pair", "--signature", &signature, "--public-key", &public])?;
    let ours = place.path("ours.minisig");
    origin.json(&["sign", "pair", "--key", &place.path("alice.key"), "--out", &ours])?;
    let key = place.path("alice.pub");
    run::must(run::command("minisign").args(["-V", "-p", &key, "-x", &ours, "-m", &document]))?;

    let layout = place.path("layout");
    let exported = origin.json(&["export", "oci", "pair", &layout, "--tag", "v1"])?;
    let source = format!("oci:{layout}:v1");
    let seen = run::output(run::command("skopeo").args(["inspect", &source]))?;
    let seen: Value = serde_json::from_str(&seen)
        .map_err(|error| Problems::one(format!("skopeo inspect: {error}")))?;
    same("the image's digest", &field(&seen, "Digest")?, &field(&exported, "digest")?)?;
    same("the label", &field(&seen["Labels"], "slm.composition")?, &composition)?;

    let registry = Registry::start(place)?;
    let remote = format!("docker://127.0.0.1:{}/slm/pair:v1", registry.port);
    let back = place.path("back");
    run::must(run::command("skopeo").args(["copy", "--dest-tls-verify=false", &source, &remote]))?;
    let target = format!("oci:{back}:v1");
    run::must(run::command("skopeo").args(["copy", "--src-tls-verify=false", &remote, &target]))?;
    drop(registry);

    let fresh = place.store("fresh");
    let imported = fresh.json(&["import", "oci", &back, "--name", "pair"])?;
    same("the composition", &field(&imported, "composition")?, &composition)?;
    same("the manifest", &field(&imported, "manifest")?, &field(&composed, "manifest")?)?;
    for key in [&key, &public] {
        // Either signature alone is enough.
        fresh.json(&["trust", "add", "signer", key])?;
        fresh.json(&["trust", "policy", "signed"])?;
        fresh.json(&["activate", "pair"])?;
        fresh.json(&["trust", "policy", "none"])?;
        fresh.json(&["trust", "remove", "signer"])?;
    }
    let packed = place.path("pair.slm");
    fresh.json(&["pack", "pair", &packed])?;
    let third = place.store("third");
    third.json(&["unpack", &packed, "--name", "pair"])?;
    let mut bits = Vec::new();
    for store in [&origin, &fresh, &third] {
        let logits =
            store.json(&["logits", "--tokens", "767,261,305,71", "--composition", "pair"])?;
        bits.push((field(&logits, "composition")?, field(&logits, "all_blake3")?));
    }
    if bits.iter().any(|found| *found != bits[0]) {
        return Err(Problems::one(format!("oci: not the same bits everywhere: {bits:?}")));
    }
    println!("oci: {composition}");
    println!(
        "oci: the same ids and the same bits ({}) here, through the registry, and packed",
        bits[0].1
    );
    Ok(())
}

struct Place {
    folder: PathBuf,
}

struct Store {
    program: PathBuf,
    folder: String,
}

impl Place {
    fn new() -> Result<Place, Problems> {
        let folder = std::env::temp_dir().join(format!("slm-oci-{}", std::process::id()));
        std::fs::create_dir(&folder)
            .map_err(|error| Problems::one(format!("{}: {error}", folder.display())))?;
        Ok(Place { folder })
    }

    fn path(&self, name: &str) -> String {
        text(&self.folder.join(name))
    }

    fn store(&self, name: &str) -> Store {
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| run::root().join("target"), PathBuf::from);
        Store { program: target.join("release/slm"), folder: self.path(name) }
    }
}

impl Store {
    fn json(&self, arguments: &[&str]) -> Result<Value, Problems> {
        let mut command = run::command(&self.program);
        command.args(["--json", "--store", &self.folder]).args(arguments);
        let printed = run::output(&mut command)?;
        serde_json::from_str(&printed)
            .map_err(|error| Problems::one(format!("slm {}: {error}", arguments.join(" "))))
    }
}

/// A registry on a port of its own, ended when this is dropped.
struct Registry {
    child: Child,
    port: u16,
}

impl Registry {
    fn start(place: &Place) -> Result<Registry, Problems> {
        let problem = |what: &str, error: std::io::Error| Problems::one(format!("{what}: {error}"));
        // Free a moment ago; whoever takes it in between makes the start fail, not the test lie.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.local_addr())
            .map_err(|error| problem("a port", error))?
            .port();
        let config = place.path("registry.yml");
        let text = format!(
            "version: 0.1\nlog: {{ level: error }}\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:{port}\n",
            place.path("registry")
        );
        std::fs::write(&config, text).map_err(|error| problem(&config, error))?;
        let child = Command::new("docker-registry")
            .args(["serve", &config])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| problem("docker-registry", error))?;
        let registry = Registry { child, port };
        let began = Instant::now();
        while began.elapsed() < START {
            if registry.answers() {
                return Ok(registry);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(Problems::one(format!("docker-registry does not answer on port {port}")))
    }

    fn answers(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)) else {
            return false;
        };
        let mut start = [0; 12];
        let request = b"GET /v2/ HTTP/1.0\r\n\r\n";
        stream.write_all(request).is_ok()
            && stream.read_exact(&mut start).is_ok()
            && start.ends_with(b"200")
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn field(object: &Value, name: &str) -> Result<String, Problems> {
    object[name]
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| Problems::one(format!("no text {name} in {object}")))
}

fn same(what: &str, found: &str, expected: &str) -> Outcome {
    if found == expected {
        Ok(())
    } else {
        Err(Problems::one(format!("oci: {what} is {found}, expected {expected}")))
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
