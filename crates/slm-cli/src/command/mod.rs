//! One file per command.

pub(crate) mod activate;
pub(crate) mod adapter;
pub(crate) mod audit;
pub(crate) mod bake;
pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod compose;
pub(crate) mod demo;
pub(crate) mod document;
pub(crate) mod eval;
pub(crate) mod export;
pub(crate) mod forget;
pub(crate) mod gc;
pub(crate) mod import;
pub(crate) mod inspect;
pub(crate) mod key;
pub(crate) mod list;
pub(crate) mod logits;
pub(crate) mod pack;
pub(crate) mod plan;
pub(crate) mod record;
pub(crate) mod run;
pub(crate) mod sign;
pub(crate) mod tokenize;
pub(crate) mod trust;
pub(crate) mod verify;
