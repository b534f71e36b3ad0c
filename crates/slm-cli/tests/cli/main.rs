//! The program as a user meets it: real processes on the tiny model, its store in a temporary folder.

mod common;
mod transcript;

mod adapters;
mod bake;
mod day;
mod exit_codes;
mod hostile;
mod logits;
mod manifests;
mod peft;
mod refusals;
mod share;
mod text;
mod tinyrustlm;
mod transcripts;
mod upkeep;
