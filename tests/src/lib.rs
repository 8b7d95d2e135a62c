//! End-to-end, golden, fault and compatibility tests, and what they share: a server of the real binary, and a client.
//!
//! Nothing here waits for a fixed time: [`server::eventually`] polls a condition and fails with what it last saw.

pub mod accidents;
pub mod client;
pub mod load;
pub mod processes;
pub mod server;
pub mod text;
