//! The examples, run: they assert what they print.

#[path = "../examples/switch.rs"]
mod switch;

#[test]
fn switch_runs() {
    switch::main().expect("the example");
}
