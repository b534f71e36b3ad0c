//! The slm program.

fn main() {}
