//! What the commands print: results to stdout, notes to stderr.

use std::fmt::Display;
use std::io::{self, Write};
use thiserror::Error;

/// The result cannot be printed: its reader has left, or a disk is full.
#[derive(Debug, Error)]
#[error("cannot print the result: {0}")]
pub struct OutputError(#[source] io::Error);

/// Prints a result, to the end of its last line.
pub(crate) fn result(text: impl Display) -> Result<(), OutputError> {
    let mut out = io::stdout().lock();
    write!(out, "{text}").and_then(|()| out.flush()).map_err(OutputError)
}

/// Prints a note. Nothing depends on it, so that a closed stderr stops no measurement.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}
