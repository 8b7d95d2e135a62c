//! The `gossamer` binary.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let texts: Vec<String> =
        arguments.iter().map(|argument| argument.to_string_lossy().into_owned()).collect();
    match gossamer::process::run_child(&texts) {
        Some(status) => status,
        None => gossamer::cli::run(arguments),
    }
}
