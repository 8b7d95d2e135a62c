//! What the scheduler tells about itself, for `/metrics`.

use serde::{Deserialize, Serialize};

/// Gauges and counters of the scheduler. Counters only grow within one scheduler incarnation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SchedulerStats {
    /// Sequences in the running batch.
    pub running: u32,
    /// Sequences that wait for admission.
    pub waiting: u32,
    /// KV blocks in use by sequences (cached blocks without an owner are free).
    pub kv_blocks_used: u32,
    /// All KV blocks.
    pub kv_blocks_total: u32,
    /// Steps done.
    pub steps: u64,
    /// Prompt tokens computed or found in the cache.
    pub prompt_tokens: u64,
    /// Tokens generated and reported.
    pub generation_tokens: u64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Prompt tokens found there.
    pub prefix_hits: u64,
    /// Sequences pre-empted for want of KV blocks.
    pub preemptions: u64,
    /// Finished sequences: stop, length, abort, deadline, error.
    pub finished: [u64; 5],
    /// Fraction of the last second in which the device was busy, 0..1.
    pub device_busy: f32,
}
