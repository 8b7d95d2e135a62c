//! The service over a scripted engine: everything between the socket and the scheduler's ring.

mod chat;
mod completions;
mod errors;
mod support;
