//! The benchmark client: drives any OpenAI-compatible server and reports what its users would feel.
//!
//! `serve` sends a data set to `/v1/completions` or `/v1/chat/completions` and prints the result block and the JSON keys
//! of `vllm bench serve`, so that results stand side by side.
//!
//! `sweep` measures a grid of settings and keeps every result, `pareto` draws them, `compare` sets two sets side by side.
//!
//! Invariants:
//! - A token counts when the server says so (`usage.completion_tokens`); text is never tokenised again.
//! - The first token is the first delta that carries text, token ids or tool arguments; role-only and empty deltas are not.
//! - A request that ended with an error, or without `[DONE]`, has failed: it enters no percentile and no throughput.

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod compare;
pub mod layout;
mod output;
pub mod pareto;
pub mod results;
pub mod serve;
pub mod sweep;
pub mod workload;
