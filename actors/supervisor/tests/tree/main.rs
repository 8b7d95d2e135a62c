//! Trees of real processes. This binary is three things: the test run, the supervisor of a tree under test
//! (`tree serve …`), and each child of such a tree (`tree child …`, see [`children`]).

// The helpers stand outside of `#[test]` functions, where the workspace would have them not panic.
#![allow(clippy::unwrap_used)]

mod cases;
mod children;
mod harness;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = gossamer_supervisor::child_main(&arguments, children::run) {
        return code;
    }
    if arguments.first().is_some_and(|first| first == "serve") {
        return harness::serve(&arguments[1..]);
    }
    cases::run(arguments.iter().find(|argument| !argument.starts_with('-')).map(String::as_str))
}
