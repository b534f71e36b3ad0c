//! What is asked of a model that it cannot do: chat without a template, settings out of range, contexts that are full, budgets.

use slm_format::gguf::Value;

use super::VALID;
use super::bend::Bend;
use crate::common::{Place, finish_with, golden};
use crate::transcript::Transcript;

#[test]
fn settings() {
    let place = Place::with_active();
    let mut transcript = Transcript::new(&place);
    transcript.accepted(&["run", "x", "--max-tokens", "1", "--temperature", "0.5"]);
    for args in [
        &["run", "x", "--temperature", "-1"][..],
        &["run", "x", "--top-p", "1.5"],
        &["run", "x", "--min-p", "-0.5"],
        &["run", "x", "--repeat-penalty", "0"],
        &["run", "x", "--activations", "f32", "--kv", "f16"],
        &["run", "x", "--system", "be kind"],
        &["run", "x", "--adapter", &golden("tiny-kjv")],
        &["logits", "--tokens", "1024"],
        &["logits"],
        &["run", ""],
        &["bench", "--prompt", "0"],
        &["import", "one", "two"],
        &["unpack", "x.slm"],
        &["eval"],
    ] {
        if args == ["unpack", "x.slm"] {
            // What is wrong with a file is said before what is missing on the command line.
            transcript.refused(4, args);
            continue;
        }
        transcript.refused(2, args);
    }
    insta::assert_snapshot!(transcript.finish());
}

#[test]
fn room() {
    let place = Place::with_active();
    let mut transcript = Transcript::new(&place);
    transcript.accepted(&["bench", "--prompt", "504", "--generate", "8", "--runs", "1"]);
    transcript.refused(5, &["bench", "--prompt", "505", "--generate", "8"]);
    transcript.refused(5, &["run", &"word ".repeat(600)]);
    for component in ["base", "adapters", "kv", "scratch", "total"] {
        place.write("store/policy.toml", format!("budget = {{ {component}_bytes = 1000 }}\n"));
        transcript.refused(5, &["plan", "--composition", "kjv", "--threads", "1"]);
    }
    // Whatever computes is held to the budgets for what it allocates.
    let text = place.write("text.txt", "In the beginning God created the heaven and the earth.");
    let computing: [&[&str]; 4] = [
        &["run", "x", "--threads", "1"],
        &["logits", "--tokens", "1,2", "--threads", "1"],
        &["eval", "ppl", &text, "--threads", "1"],
        &["eval", "ppl", &text, "--record", "--threads", "1"],
    ];
    for component in ["kv", "scratch"] {
        place.write("store/policy.toml", format!("budget = {{ {component}_bytes = 1000 }}\n"));
        computing.iter().for_each(|args| transcript.refused(5, args));
    }
    place
        .write("store/policy.toml", "budget = { kv_bytes = 99000000, scratch_bytes = 99000000 }\n");
    computing.iter().for_each(|args| transcript.accepted(args));
    std::fs::remove_file(place.store().join("policy.toml")).expect("it is removed");
    transcript.accepted(&["plan", "--composition", "kjv", "--threads", "1"]);
    insta::assert_snapshot!(transcript.finish());
}

#[test]
fn chat() {
    let place = Place::new();
    let mut transcript = Transcript::new(&place);
    let model = |file: &str, template: Option<&'static str>| {
        let good = Bend::of(VALID);
        let bent = match template {
            Some(template) => good.set("tokenizer.chat_template", Value::Str(template)),
            None => good,
        };
        place.write(file, bent.to_bytes())
    };
    let run = |transcript: &mut Transcript<'_>, exit: i32, model: &str| {
        let args = ["run", "hello", "--chat", "--max-tokens", "1", "--model", model];
        match exit {
            0 => transcript.accepted(&args),
            _ => transcript.refused(exit, &args),
        }
    };
    let good = model("good.gguf", Some("{{ messages[0].content }}"));
    run(&mut transcript, 0, &good);
    for (file, template) in [
        ("no-template.gguf", None),
        ("unclosed.gguf", Some("{% for m in messages %}")),
        ("no-such-filter.gguf", Some("{{ messages | shout }}")),
        (
            "endless.gguf",
            Some("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
        ),
        ("raises.gguf", Some("{{ raise_exception('only after a system message') }}")),
    ] {
        let model = model(file, template);
        run(&mut transcript, 3, &model);
    }
    // What a user wrote is marked by a character that it does not hold, and here it holds all there are.
    let all: String = ('\u{F0000}'..='\u{10FFFD}').collect();
    let args = ["run", "--chat", "--max-tokens", "1", "--model", &good];
    transcript.refused_with(3, &args, &all);
    let text = transcript.finish();
    let mut command = place.command(["chat", "--model", &good, "--max-tokens", "1"]);
    let ran = finish_with(&mut command, "hello\n");
    assert_eq!(ran.exit, 0, "{ran:?}");
    insta::assert_snapshot!(text);
}

/// Numbers too large for f32 where they meet: the weights are finite, what they make is not.
#[test]
fn numbers_that_are_not_finite() {
    let place = Place::new();
    let mut transcript = Transcript::new(&place);
    let mut bent = Bend::of(VALID);
    let norm = bent.tensor("output_norm.weight").data.to_mut();
    for value in norm.chunks_exact_mut(4) {
        value.copy_from_slice(&3e38f32.to_le_bytes());
    }
    let good = place.write("good.gguf", VALID);
    transcript.accepted(&["logits", "--tokens", "1,2", "--model", &good]);
    let bent = place.write("huge.gguf", bent.to_bytes());
    transcript.refused(3, &["logits", "--tokens", "1,2", "--model", &bent]);
    transcript.refused(3, &["run", "he", "--model", &bent, "--activations", "f32"]);
    for (file, tensor, value) in [
        ("attention-of-1e30.gguf", "blk.0.attn_norm.weight", 1e30f32),
        ("feed-forward-of-3e38.gguf", "blk.0.ffn_norm.weight", 3e38),
    ] {
        let mut bent = Bend::of(VALID);
        let norm = bent.tensor(tensor).data.to_mut();
        norm.chunks_exact_mut(4).for_each(|chunk| chunk.copy_from_slice(&value.to_le_bytes()));
        let bent = place.write(file, bent.to_bytes());
        transcript.refused(3, &["logits", "--tokens", "1,2", "--model", &bent]);
    }
    insta::assert_snapshot!(transcript.finish());
}
