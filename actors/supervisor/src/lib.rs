//! The supervision tree: child processes, their heartbeats, restarts and drain.
//!
//! The `gossamer serve` process is the supervisor: it binds the listening socket, starts every other process from one
//! permanent thread, connects neighbours by rings, watches them and replaces those that die. A child gets a
//! [`ChildContext`] and a stream of [`ChildEvent`]s; one whose work is a loop hangs it into a small tree of its own by
//! [`run_tree`].
//!
//! What this crate refuses to do: it reads no request and no token. What a child does with a lost neighbour is the
//! child's business; here is only who lives, and who is connected to whom.
//!
//! Invariant: no child outlives its supervisor, however that ends.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod child;
mod links;
mod message;
mod process_actor;
mod restart;
mod role;
mod root;
mod serve;
mod spawn;
mod status;
mod tree;

pub use child::{CHILD_COMMAND, ChildContext, ChildEvent, JoinError, Reporter, child_main};
pub use links::{DuplexLink, WorkerLink, WorkersLink};
pub use role::{ChildRole, NoSuchRole, Topology};
pub use serve::{BoardSpec, ServeError, ServeOptions, serve};
pub use spawn::Program;
pub use status::{ChildState, StatusHandle};
pub use tree::{Failure, TreeError, Work, panic_message, run_tree};
