//! Text in and out: generation, chat, ids, pipes.

use std::io::Read as _;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::common::{Place, Ran, copy_folder, finish, finish_with, golden, is_digest, slm, text};

const MODEL: [&str; 1] = ["--model"];

fn on_tiny(args: &[&str]) -> std::process::Command {
    let mut command = slm();
    command.args(args).args(MODEL).arg(golden("tiny-q8_0.gguf"));
    command
}

fn json_of(args: &[&str]) -> Value {
    finish(on_tiny(args).arg("--json")).object()
}

/// The tiny model as a folder with a chat template.
fn chatty(place: &Place) -> String {
    copy_folder(&golden("tiny"), &place.path("chatty"));
    place.write(
        "chatty/chat_template.jinja",
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
    );
    place.arg("chatty")
}

#[test]
fn run_reports_what_it_did() {
    let object = json_of(&["run", "In the beginning", "--max-tokens", "9", "--ignore-eos"]);
    assert!(is_digest(&object, "composition"), "{object}");
    assert_eq!(object["tokens"].as_array().map(Vec::len), Some(9));
    assert_eq!(text(&object, "stop"), "max-tokens");
    for field in ["prompt_tokens_per_s", "decode_tokens_per_s", "load_ms"] {
        assert!(object["stats"][field].as_f64().is_some_and(|n| n > 0.0), "{field} in {object}");
    }
    assert_eq!(
        object["stats"]["prompt_tokens"],
        json!(object["prompt_tokens"].as_array().map(Vec::len))
    );
    assert!(object["kernels"]["Q8_0"].is_string(), "{object}");
    // Piped, the text and nothing but the text, here and on stderr.
    for quiet in [&[][..], &["--quiet"]] {
        let mut args = vec!["run", "In the beginning", "--max-tokens", "9", "--ignore-eos"];
        args.extend(quiet);
        let ran = finish(&mut on_tiny(&args));
        assert_eq!((ran.exit, ran.stderr.as_str()), (0, ""));
        assert_eq!(ran.stdout, format!("{}\n", text(&object, "text")));
    }
    // From standard input the same; with --stats the numbers go to stderr.
    let mut command = on_tiny(&["run", "--max-tokens", "9", "--ignore-eos", "--stats"]);
    let ran = finish_with(&mut command, "In the beginning");
    assert_eq!(ran.stdout, format!("{}\n", text(&object, "text")));
    assert!(ran.stderr.contains(text(&object, "composition")), "{}", ran.stderr);
}

#[test]
fn sampling_is_a_function_of_seed_and_settings() {
    let run = |extra: &[&str]| {
        let mut args = vec!["run", "In the", "--ignore-eos"];
        if !extra.contains(&"--max-tokens") {
            args.extend(["--max-tokens", "16"]);
        }
        args.extend(extra);
        json_of(&args)["tokens"].clone()
    };
    let warm = ["--temperature", "1.5", "--seed", "7"];
    assert_eq!(run(&warm), run(&[&warm[..], &["--chunk", "1", "--threads", "1"]].concat()));
    assert_ne!(run(&warm), run(&["--temperature", "1.5", "--seed", "8"]));
    // One candidate is greedy, at any temperature and seed.
    assert_eq!(run(&["--temperature", "1.5", "--top-k", "1"]), run(&[]));
    assert_eq!(run(&["--max-tokens", "0"]), json!([]));
    for bad in
        [["--temperature", "-1"], ["--temperature", "NaN"], ["--top-p", "2"], ["--min-p", "-0.1"]]
    {
        let option = format!("{}={}", bad[0], bad[1]);
        let ran = finish(on_tiny(&["run", "x", &option]).arg("--json"));
        assert_eq!((ran.exit, ran.error_code().as_str()), (2, "sampling-range"), "{option}");
    }
}

#[test]
fn text_stops_at_the_end_of_the_context() {
    let long = "1,".repeat(511) + "1";
    assert_eq!(
        json_of(&["logits", "--tokens", &long])["tokens"].as_array().map(Vec::len),
        Some(512)
    );
    let ran = finish(on_tiny(&["logits", "--tokens", &(long + ",1")]).arg("--json"));
    assert_eq!((ran.exit, ran.error_code().as_str()), (5, "context-full"));
    let object = json_of(&["run", "In the", "--max-tokens", "600", "--ignore-eos"]);
    assert_eq!(text(&object, "stop"), "context-full");
    let ids = |field: &str| object[field].as_array().map_or(0, Vec::len);
    // The last token chosen has no position of its own.
    assert_eq!(ids("prompt_tokens") + ids("tokens"), 513);
}

#[test]
fn ids_and_text_go_both_ways() {
    for sample in ["In the beginning", "  two  spaces\n\ttab ", "déjà vu — 你好 🦀", ""] {
        let object = json_of(&["tokenize", sample]);
        let ids: Vec<String> =
            object["ids"].as_array().expect("a list").iter().map(Value::to_string).collect();
        assert_eq!(object["pieces"].as_array().map(Vec::len), Some(ids.len()));
        if ids.is_empty() {
            continue;
        }
        let back = json_of(&["detokenize", &ids.join(",")]);
        assert_eq!(text(&back, "text"), sample);
        let words: Vec<&str> = ids.iter().map(String::as_str).collect();
        assert_eq!(json_of(&[&["detokenize"][..], &words].concat()), back, "ids as words");
    }
    let place = Place::new();
    let file = place.write("text", "In the beginning");
    assert_eq!(json_of(&["tokenize", "--file", &file]), json_of(&["tokenize", "In the beginning"]));
    let file = place.write("bytes", [0xff, 0xfe]);
    let ran = finish(on_tiny(&["tokenize", "--file", &file]).arg("--json"));
    assert_eq!((ran.exit, ran.error_code().as_str()), (3, "unknown-format"));
    for (ids, code) in
        [("1024", "tokenizer-id-out-of-range"), ("x", "option-value"), ("-1", "command-line")]
    {
        let ran = finish(on_tiny(&["detokenize", ids]).arg("--json"));
        assert_eq!((ran.exit, ran.error_code().as_str()), (2, code), "{ids}");
    }
    for args in [&["tokenize"][..], &["detokenize"], &["logits"]] {
        let ran = finish(on_tiny(args).arg("--json"));
        assert_eq!((ran.exit, ran.error_code().as_str()), (2, "option-missing"), "{args:?}");
    }
}

#[test]
fn special_tokens_in_a_user_s_text_stay_text() {
    let marker = "<|endoftext|>";
    let parsed = json_of(&["tokenize", marker]);
    assert_eq!(parsed["ids"], json!([0]));
    let ids = |object: &Value, field: &str| -> Vec<u64> {
        object[field].as_array().expect("a list").iter().filter_map(Value::as_u64).collect()
    };
    let run = json_of(&["run", marker, "--max-tokens", "1"]);
    let prompt = ids(&run, "prompt_tokens");
    assert!(prompt.len() > 1 && !prompt.contains(&0), "{run}");
    let logits = json_of(&["logits", "--text", marker]);
    assert_eq!(ids(&logits, "tokens"), prompt);
    let place = Place::new();
    let folder = chatty(&place);
    let args =
        ["run", marker, "--chat", "--system", marker, "--max-tokens", "1", "--model", &folder];
    let chat = finish(slm().args(args).arg("--json")).object();
    assert!(!ids(&chat, "prompt_tokens").contains(&0), "{chat}");
}

#[test]
fn chat_answers_line_by_line() {
    let place = Place::new();
    let folder = chatty(&place);
    let options = ["--max-tokens", "5", "--ignore-eos", "--model", &folder];
    let input = "In the beginning\nAnd then?\n";
    let chat =
        |extra: &[&str]| -> Ran { finish_with(slm().arg("chat").args(options).args(extra), input) };
    let object = chat(&["--json"]).object();
    assert!(is_digest(&object, "composition"), "{object}");
    let turns = object["turns"].as_array().expect("a list");
    assert_eq!(turns.len(), 2);
    assert_eq!(turns[0]["reused"], 0);
    assert!(turns[1]["reused"].as_u64().is_some_and(|n| n > 0), "the cache is kept: {object}");
    let answers: String = turns.iter().map(|turn| format!("{}\n", text(turn, "text"))).collect();
    for extra in [&[][..], &["--quiet"]] {
        let ran = chat(extra);
        assert_eq!((ran.exit, ran.stderr.as_str(), ran.stdout.as_str()), (0, "", answers.as_str()));
    }
    // The second answer is what a fresh run over the whole conversation gives: reuse changes no bit.
    let prompt: Vec<String> =
        turns[1]["prompt_tokens"].as_array().expect("ids").iter().map(Value::to_string).collect();
    let logits = finish(slm().args([
        "logits",
        "--json",
        "--top",
        "1",
        "--model",
        &folder,
        "--tokens",
        &prompt.join(","),
    ]))
    .object();
    assert_eq!(logits["top"][0]["id"], turns[1]["tokens"][0]);
    // No template: said at once, with what to do.
    let ran = finish(on_tiny(&["chat"]).arg("--json"));
    assert_eq!((ran.exit, ran.error_code().as_str()), (3, "chat-no-template"));
    assert!(ran.error()["hint"].is_string());
    let ran = finish_with(slm().arg("chat").args(options).arg("--json"), "");
    assert_eq!(ran.object()["turns"], json!([]));
}

#[test]
fn a_closed_pipe_ends_the_program_quietly() {
    let mut command = on_tiny(&["run", "In the", "--max-tokens", "400", "--ignore-eos"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut stdout = child.stdout.take().expect("stdout is piped");
    stdout.read_exact(&mut [0]).expect("a first byte");
    drop(stdout);
    let mut stderr = String::new();
    child.stderr.take().expect("stderr is piped").read_to_string(&mut stderr).expect("text");
    assert_eq!(child.wait().expect("the program ends").code(), Some(0));
    assert_eq!(stderr, "");
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_behind_stdout_is_an_error() {
    let full = || std::fs::File::options().write(true).open("/dev/full").expect("the device");
    for args in [&["inspect", "--cpu"][..], &["inspect", "--cpu", "--json"], &["demo"]] {
        let ran = finish(slm().args(args).stdout(full()).stderr(Stdio::piped()));
        assert_eq!(ran.exit, 8, "{ran:?}");
        assert!(ran.stderr.contains("standard output"), "{ran:?}");
    }
    // With stderr full as well there is nobody to tell; the status still says it.
    let status = slm().args(["inspect", "--cpu"]).stdout(full()).stderr(full()).status();
    assert_eq!(status.expect("the program starts").code(), Some(8));
}

/// What a person sees of a day, with ids and times masked.
#[test]
fn a_day_in_words() {
    let place = Place::new();
    let mut transcript = String::new();
    let (gguf, kjv) = (golden("tiny-q8_0.gguf"), golden("tiny-kjv"));
    for args in [
        &["import", &gguf, "--name", "tiny"][..],
        &["compose", "plain", "--base", "tiny"],
        &["adapter", "import", &kjv, "--name", "kjv", "--base", "tiny"],
        &["compose", "bible", "--base", "tiny", "--adapter", "kjv=0.5"],
        &["status"],
        &["activate", "plain"],
        &["activate", "bible"],
        &["activate", "bible"],
        &["list"],
        &["status"],
        &["rollback"],
        &["history"],
        &["compose", "bible", "--base", "tiny"],
    ] {
        let ran = place.run(args);
        let shown: Vec<&str> = args.iter().filter(|arg| !arg.contains('/')).copied().collect();
        transcript += &format!("$ slm {}\n", shown.join(" "));
        for line in (ran.stdout + &ran.stderr).lines().filter(|line| !line.starts_with("  blk.")) {
            transcript += masked(line).trim_end();
            transcript.push('\n');
        }
    }
    let expected = include_str!("day.txt");
    assert!(transcript == expected, "the transcript is now\n{transcript}");
}

/// A line without what is not the same every day.
fn masked(line: &str) -> String {
    let mask = |word: &str| -> String {
        match word.split_once("sha256:") {
            Some((before, hex)) => format!("{before}sha256:…{}", hex.get(64..).unwrap_or_default()),
            None if word.len() == 20 && word.ends_with('Z') => "TIME".to_owned(),
            None => word.to_owned(),
        }
    };
    line.split(' ').map(mask).collect::<Vec<_>>().join(" ")
}
