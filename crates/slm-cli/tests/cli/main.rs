//! The program as a user meets it: real processes on the tiny model, its store in a temporary folder.

mod common;

mod adapters;
mod bake;
mod day;
mod exit_codes;
mod hostile;
mod logits;
mod manifests;
mod peft;
mod share;
mod text;
mod transcripts;
mod upkeep;
