//! Admission, batching, KV blocks and the token log: pure, single-threaded, without processes, clocks or I/O.
//!
//! [`Scheduler`] is a state machine. What happens outside comes in by [`Scheduler::submit`], [`Scheduler::abort`],
//! [`Scheduler::hello`], [`Scheduler::complete`] and the worker calls; [`Scheduler::plan`] answers with the next step;
//! [`Scheduler::drain_outputs`] hands out what the API servers must hear. Time is an argument.
//!
//! | file | what it holds |
//! |---|---|
//! | `scheduler` | the state and the calls from outside |
//! | `intake` | new sequences, and what is refused |
//! | `attachment` | workers lost and replaced |
//! | `planning` | one step: who runs how many tokens |
//! | `admission` | who is let in, and with what of its prefix |
//! | `blocks` | blocks for a run, and from whom they are taken |
//! | `completion` | results: tokens into the log, stop rules, the end of sequences |
//! | `queue` | waiting sequences, fair among tenants |
//! | `layout`, `pool` | KV block arithmetic, and the one pool of block ids |
//! | `prefix` | chained block hashes and the search for a cached prefix |
//! | `sequence` | one sequence: its token log, its block tables |
//! | `output` | token deltas per API server |
//! | `invariants` | the integrity check |
//! | `process` | the loop that joins a scheduler to rings |
//!
//! Invariant: there is no prefill phase and no decode phase. A sequence is behind by `length - computed` tokens, and a
//! step gives it some of them.
//! Invariant: a step never runs more tokens than `max_num_batched_tokens`.
//! Invariant: a token that was put into the log is never taken back, whatever happens to workers or blocks.
//! Invariant: plans are executed in the order of their numbers. Blocks are therefore reused as soon as the plan that
//! needed them last has been made, before it has run.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod admission;
mod attachment;
mod blocks;
mod completion;
mod config;
mod intake;
mod invariants;
mod layout;
mod output;
mod planning;
mod pool;
mod prefix;
#[cfg(feature = "process")]
pub mod process;
mod queue;
mod scheduler;
mod sequence;

pub use attachment::{WorkerError, check_settings};
pub use completion::CompleteError;
pub use config::{ConfigError, SchedulerConfig};
pub use invariants::Violation;
pub use scheduler::Scheduler;
