//! The HTTP service and the `gossamer` binary.
//!
//! [`engine`] is the API server's side of the scheduler, [`http`] the service on top of it, [`process`] what the
//! executable does as supervisor or child, [`cli`] its command line.

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cli;
pub mod engine;
pub mod http;
mod log;
pub mod process;
