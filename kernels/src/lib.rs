//! The model graph, its fusion passes, the choice of backends and tactics, and the kernel cache.
//!
//! A model is a list of operations built from its configuration ([`graph::build`]), rewritten by passes where a loaded
//! backend can do the fused operation ([`passes`]), with memory planned once ([`graph::BufferPlan`]) and a tactic chosen
//! per operation and token count ([`tuner`]). Nothing here loads weights, owns memory or launches kernels: that is the
//! worker's.

pub mod cost;
pub mod graph;
pub mod passes;
mod select;
#[cfg(test)]
mod test_model;
pub mod tuner;

pub use select::{Backends, SelectError};
