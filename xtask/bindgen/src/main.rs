//! Writes the JavaScript glue of a WASM module for Node: `slm-bindgen MODULE FOLDER`.
//!
//! The generator is the library behind the program `wasm-bindgen`, so that nothing is fetched but crates, and the lock file gives it the
//! version of the macros, which it must have. It is a program of its own because it takes a minute to build: `cargo xtask` alone goes without.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use wasm_bindgen_cli_support::Bindgen;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [module, folder] = arguments.as_slice() else {
        eprintln!("usage: slm-bindgen MODULE FOLDER");
        return ExitCode::from(2);
    };
    let mut bindgen = Bindgen::new();
    let written = bindgen
        .input_path(module)
        .typescript(true)
        .nodejs(true)
        .and_then(|bindgen| bindgen.generate(folder));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slm-bindgen: {module}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
