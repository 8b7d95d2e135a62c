//! The scheduler's settings, checked once.

use thiserror::Error;

/// What an operator can set. Field names follow the command line's flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Most sequences that run at once: the number of slots in the worker.
    pub max_num_seqs: u32,
    /// Most tokens in a step.
    pub max_num_batched_tokens: u32,
    /// Longest sequence, prompt and output together; the worker's own limit applies beside it.
    pub max_model_len: u32,
    /// Reuse KV blocks of equal prefixes.
    pub enable_prefix_caching: bool,
    /// Split prompts over steps. Without it a prompt runs in one step, and window layers briefly hold all of it.
    pub enable_chunked_prefill: bool,
    /// Steps planned but not completed: 1 is synchronous scheduling, 2 asynchronous; pipelines need more.
    pub steps_in_flight: u32,
    /// Most sequences that may wait beyond the free slots before [`gossamer_wire::Refusal::QueueFull`].
    pub max_queued_requests: u32,
    /// Token counts of the captured graphs, rising; see [`graph_buckets`]. Empty: no graphs.
    pub graph_buckets: Vec<u32>,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            max_num_seqs: 1024,
            max_num_batched_tokens: 8192,
            max_model_len: 131_072,
            enable_prefix_caching: true,
            enable_chunked_prefill: true,
            steps_in_flight: 2,
            max_queued_requests: 8192,
            graph_buckets: Vec::new(),
        }
    }
}

/// Settings that cannot work.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    /// A count is zero.
    #[error("expected {name} of at least 1, got 0: leave it out for the default")]
    Zero {
        /// The flag's name.
        name: &'static str,
    },
    /// Whole prompts must fit a step.
    #[error(
        "expected max_num_batched_tokens of at least max_model_len ({max_model_len}) without chunked prefill, got \
         {max_num_batched_tokens}: raise it, lower max_model_len, or enable chunked prefill"
    )]
    PromptExceedsStep {
        /// The step's token budget.
        max_num_batched_tokens: u32,
        /// The longest sequence.
        max_model_len: u32,
    },
    /// Graph sizes are out of order.
    #[error("expected graph buckets in rising order, got {next} after {previous}")]
    BucketOrder {
        /// A bucket.
        previous: u32,
        /// The one after it.
        next: u32,
    },
}

impl SchedulerConfig {
    /// Checks what does not depend on a worker.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (name, value) in [
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_model_len", self.max_model_len),
            ("steps_in_flight", self.steps_in_flight),
        ] {
            if value == 0 {
                return Err(ConfigError::Zero { name });
            }
        }
        if let Some(pair) = self.graph_buckets.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(ConfigError::BucketOrder { previous: pair[0], next: pair[1] });
        }
        Ok(())
    }

    /// Sequences that run at once. No more than a step has tokens: each of them then advances in every step.
    pub(crate) fn max_running(&self) -> usize {
        self.max_num_seqs.min(self.max_num_batched_tokens) as usize
    }
}

/// More sequences than any step decodes, whatever is asked for.
const LARGEST_GRAPH: u32 = 1 << 16;

/// Graph sizes up to `capture_size`: each of 1 to 16, then steps of 8, 16, 32 and 64 that keep padding under an eighth.
pub fn graph_buckets(capture_size: u32) -> Vec<u32> {
    let capture_size = capture_size.min(LARGEST_GRAPH);
    let mut buckets = Vec::new();
    let mut next = 1;
    while next <= capture_size {
        buckets.push(next);
        next += match next {
            0..16 => 1,
            16..128 => 8,
            128..256 => 16,
            256..512 => 32,
            _ => 64,
        };
    }
    if buckets.last().is_some_and(|last| *last < capture_size) {
        buckets.push(capture_size);
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_rise_to_the_capture_size() {
        assert_eq!(graph_buckets(0), Vec::<u32>::new());
        assert_eq!(graph_buckets(3), [1, 2, 3]);
        assert_eq!(graph_buckets(20).last(), Some(&20));
        assert_eq!(graph_buckets(u32::MAX).last(), Some(&LARGEST_GRAPH));
        let buckets = graph_buckets(2048);
        assert_eq!(buckets[..17], (1..=16).chain([24]).collect::<Vec<_>>());
        assert_eq!(buckets.last(), Some(&2048));
        SchedulerConfig { graph_buckets: buckets, ..Default::default() }.validate().unwrap();
    }

    #[test]
    fn zero_counts_are_named() {
        let config = SchedulerConfig { max_num_seqs: 0, ..Default::default() };
        assert_eq!(config.validate(), Err(ConfigError::Zero { name: "max_num_seqs" }));
    }
}
