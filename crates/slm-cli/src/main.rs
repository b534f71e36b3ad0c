//! The `slm` program: parse, call, print.

mod adapter;
mod args;
mod command;
mod error;
mod model;
mod outfile;
mod output;
mod world;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use slm_format::Coded;

use crate::args::{AdapterCommand, Cli, Command, EvalCommand, ExportCommand, KeyCommand};
use crate::error::CliError;
use crate::output::Output;
use crate::world::World;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return command_line(&error),
    };
    let output = Output { json: cli.json, quiet: cli.quiet };
    report_panics(output);
    match dispatch(cli, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output.error(&error);
            ExitCode::from(error.class().exit_status())
        }
    }
}

/// Help and the version as clap prints them; a wrong command line as every other error.
fn command_line(error: &clap::Error) -> ExitCode {
    let json = std::env::args_os().skip(1).take_while(|arg| arg != "--").any(|arg| arg == "--json");
    if !json || !error.use_stderr() {
        // A closed pipe or a full disk cannot be told to anybody.
        let _ = error.print();
        return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
    }
    let rendered = match error.kind() {
        // What clap renders then is the help.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "a subcommand is missing".to_owned(),
        _ => error.render().to_string(),
    };
    let error = CliError::command_line(&rendered);
    Output { json: true, quiet: true }.error(&error);
    ExitCode::from(error.class().exit_status())
}

/// A panic is our bug: it is reported like an error, and the exit status says so.
fn report_panics(output: Output) {
    std::panic::set_hook(Box::new(move |info| {
        let error = CliError::Panic { what: info.to_string() };
        output.error(&error);
        std::process::exit(error.class().exit_status().into());
    }));
}

fn dispatch(cli: Cli, output: Output) -> Result<(), CliError> {
    let world = World { store: cli.store, output };
    match cli.command {
        Command::Import { path, layout: Some(folder), tag, name, replace } => {
            if path.as_os_str() != "oci" {
                return Err(CliError::layout_of(&path));
            }
            command::pack::import_oci(&world, &folder, tag.as_deref(), name, replace)
        }
        Command::Import { path, name, replace, .. } => {
            command::import::base(&world, &path, name, replace)
        }
        Command::Adapter {
            command: AdapterCommand::Import { path, name, base, format, layout, factors, replace },
        } => {
            let format = (format, layout.as_deref());
            command::import::adapter(&world, &path, name, base, format, factors, replace)
        }
        Command::Adapter { command: AdapterCommand::Inspect { what, base, layout } } => {
            command::adapter::inspect(&world, &what, base.as_deref(), layout.as_deref())
        }
        Command::Adapter { command: AdapterCommand::Diff { a, b, base } } => {
            command::adapter::diff(&world, &a, &b, base.as_deref())
        }
        Command::List => command::list::list(&world),
        Command::Inspect { what, kind, cpu } => command::inspect::inspect(&world, what, kind, cpu),
        Command::Compose { name, base, adapters, out, replace } => {
            command::compose::compose(&world, &name, &base, &adapters, out, replace)
        }
        Command::Activate { what } => command::activate::activate(&world, &what),
        Command::Rollback => command::activate::rollback(&world),
        Command::Deactivate { adapter } => command::activate::deactivate(&world, &adapter),
        Command::Status => command::activate::status(&world),
        Command::History => command::activate::history(&world),
        Command::Audit => command::audit::audit(&world),
        Command::Verify { deep } => command::verify::verify(&world, deep),
        Command::Gc { keep, drop_damaged } => command::gc::gc(&world, keep, drop_damaged),
        Command::Recover { yes } => command::recover::recover(&world, yes),
        Command::Forget { name, kind } => command::forget::forget(&world, &name, kind),
        Command::Plan(args) => command::plan::plan(&world, &args),
        Command::Run(args) => command::run::run(&world, args),
        Command::Chat(args) => command::chat::chat(&world, args),
        Command::Logits(args) => command::logits::logits(&world, args),
        Command::Tokenize { text, file, model } => {
            command::tokenize::tokenize(&world, text, file, &model)
        }
        Command::Detokenize { ids, model } => command::tokenize::detokenize(&world, &ids, &model),
        Command::Eval { command: EvalCommand::Ppl { file, ctx, limit, record, model, engine } } => {
            command::eval::ppl(&world, &file, ctx, limit, record, &model, &engine)
        }
        Command::Bench(args) => command::bench::bench(&world, args),
        Command::Export { command: ExportCommand::Gguf { base, file } } => {
            command::export::gguf(&world, &base, &file)
        }
        Command::Export { command: ExportCommand::Adapter { adapter, path, format } } => {
            command::export::adapter(&world, &adapter, &path, format)
        }
        Command::Export { command: ExportCommand::Oci { what, folder, tag } } => {
            command::pack::export_oci(&world, &what, &folder, &tag)
        }
        Command::Key { command: KeyCommand::New { name, dir, password_file } } => {
            command::key::new(&world, &name, dir, password_file)
        }
        Command::Sign(args) => command::sign::sign(&world, &args),
        Command::Trust { command } => command::trust::trust(&world, command),
        Command::Pack { what, file } => command::pack::pack(&world, &what, &file),
        Command::Unpack { file, name, replace } => {
            command::pack::unpack(&world, &file, name, replace)
        }
        Command::Bake(args) => command::bake::bake(&world, &args),
        Command::Demo => command::demo::demo(&world),
    }
}
