//! Every project command.

fn main() {}
