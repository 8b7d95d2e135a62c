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
    /// Most sequences of a step that runs from a captured graph; 0: no graphs.
    pub cuda_graph_capture_size: u32,
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
            cuda_graph_capture_size: 0,
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
        Ok(())
    }

    /// Sequences that run at once. No more than a step has tokens: each of them then advances in every step.
    pub(crate) fn max_running(&self) -> usize {
        self.max_num_seqs.min(self.max_num_batched_tokens) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_counts_are_named() {
        let config = SchedulerConfig { max_num_seqs: 0, ..Default::default() };
        assert_eq!(config.validate(), Err(ConfigError::Zero { name: "max_num_seqs" }));
    }
}
