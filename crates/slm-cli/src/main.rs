//! The `slm` program: parse, call, print.

mod args;
mod command;
mod error;
mod model;
mod output;
mod world;

use std::process::ExitCode;

use clap::Parser;
use slm_format::Coded;

use crate::args::{AdapterCommand, Cli, Command, EvalCommand, ExportCommand};
use crate::error::CliError;
use crate::output::Output;
use crate::world::World;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let output = Output { json: cli.json, quiet: cli.quiet };
    match dispatch(cli, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output.error(&error);
            ExitCode::from(error.class().exit_status())
        }
    }
}

fn dispatch(cli: Cli, output: Output) -> Result<(), CliError> {
    let world = World { store: cli.store, output };
    match cli.command {
        Command::Import { path, name, replace } => {
            command::import::base(&world, &path, name, replace)
        }
        Command::Adapter {
            command: AdapterCommand::Import { path, name, base, format, factors, replace },
        } => command::import::adapter(&world, &path, name, base, format, factors, replace),
        Command::List => command::list::list(&world),
        Command::Inspect { what, cpu } => command::inspect::inspect(&world, what, cpu),
        Command::Compose { name, base, adapters, out, replace } => {
            command::compose::compose(&world, &name, &base, &adapters, out, replace)
        }
        Command::Activate { what } => command::activate::activate(&world, &what),
        Command::Rollback => command::activate::rollback(&world),
        Command::Deactivate { adapter } => command::activate::deactivate(&world, &adapter),
        Command::Status => command::activate::status(&world),
        Command::History => command::activate::history(&world),
        Command::Run(args) => command::run::run(&world, args),
        Command::Chat(args) => command::chat::chat(&world, args),
        Command::Logits(args) => command::logits::logits(&world, args),
        Command::Tokenize { text, file, model } => {
            command::tokenize::tokenize(&world, text, file, &model)
        }
        Command::Detokenize { ids, model } => command::tokenize::detokenize(&world, &ids, &model),
        Command::Eval { command: EvalCommand::Ppl { file, ctx, limit, model, engine } } => {
            command::eval::ppl(&world, &file, ctx, limit, &model, &engine)
        }
        Command::Bench(args) => command::bench::bench(&world, args),
        Command::Export { command: ExportCommand::Gguf { base, file } } => {
            command::export::gguf(&world, &base, &file)
        }
        Command::Demo => command::demo::demo(&world),
    }
}
