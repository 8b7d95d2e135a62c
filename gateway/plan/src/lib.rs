//! The capacity planner: how many GPUs, in which layout, meet targets for TTFT and TPOT.
//!
//! A fleet of replicas runs in virtual time. Every replica is the scheduler that serves (`gossamer-scheduler`), told of
//! step times by the cost model that the simulated device uses (`gossamer-kernels`), so that admission, chunked prefill,
//! pre-emption and asynchronous scheduling are what they are in the server and not a formula about them.
//!
//! What it does not know: the network, HTTP, tokenisation, prefix hits (every prompt is computed), stop tokens (a request
//! generates the tokens that its trace says). A parallel layout is a set of factors of a calibration that was measured on one
//! GPU; [`cost`] states each of them. A figure for a layout that was measured beats the factor: calibrate there, plan with `tp=1`.
//!
//! | file | what it holds |
//! |---|---|
//! | `args` | the command line |
//! | `workload` | the requests: a trace, or rate and lengths |
//! | `shape` | the model's dimensions; weights and KV memory of a layout |
//! | `cost` | step times of a layout |
//! | `engine` | schedulers that share devices, and their steps in flight |
//! | `replica` | the engines of one replica; prompts that are handed from one to another |
//! | `fleet` | replicas, the router, threads, the verdict |
//! | `search` | the fewest replicas that meet the targets |
//! | `report` | the printed table and the JSON |
//!
//! Invariant: a run depends on its requests, layout, settings and seed alone: not on threads, and not on the wall clock.
//! Invariant: every request is counted: it meets both targets, or it misses one; a refused request misses.
//! Invariant: between two reports of the router replicas do not know of each other, so that threads may share them.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
pub mod cost;
mod engine;
mod fleet;
mod replica;
mod report;
mod search;
mod shape;
mod workload;

pub use args::PlanArgs;
pub use fleet::{Fleet, Outcome, Routing, Settings, Targets};
pub use report::{Report, text};
pub use search::{Answer, PlanError, plan};
pub use shape::{MemoryError, ModelShape};
pub use workload::{Request, Synthetic, WorkloadError};
