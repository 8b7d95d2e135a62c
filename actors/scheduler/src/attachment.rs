//! Workers come and go: what is lost with one, and what its successor starts from.
//!
//! Invariant: a lost worker costs computing, never a token: sequences wait again with their logs, and tokens that were
//! drawn but not reported are drawn again by the same generator.

use crate::config::{ConfigError, SchedulerConfig};
use crate::layout::KvLayout;
use crate::pool::BlockPool;
use crate::scheduler::Scheduler;
use crate::sequence::{SeqId, Sequence};
use gossamer_wire::{FinishReason, WorkerInfo};
use thiserror::Error;

/// Why a worker's report cannot be worked with.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum WorkerError {
    /// The settings do not fit.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The pool has no shape.
    #[error("expected a worker with blocks, KV groups and windows of at least one token, got {0}")]
    Shape(String),
    /// Not even the shortest sequence fits.
    #[error(
        "expected at least {needed} KV blocks, one for each group, got {got}: give the KV cache more memory"
    )]
    NoRoom {
        /// Blocks for one token.
        needed: u32,
        /// Blocks in the pool.
        got: u32,
    },
}

impl Scheduler {
    /// The worker is gone, and with it slots, blocks and the results of plans in flight. Sequences wait again with their
    /// token logs.
    pub fn worker_lost(&mut self) {
        if !self.attached {
            return;
        }
        self.attached = false;
        self.in_flight.clear();
        for place in self.running.drain(..) {
            let sequence = self.sequences.get_mut(place.id);
            sequence.slot = None;
            self.queue.push(sequence.tenant, place);
        }
        for sequence in self.sequences.iter_mut() {
            sequence.pending = 0;
            sequence.forget_blocks();
        }
        self.pool = BlockPool::new(self.layout.num_blocks, self.layout.groups());
        self.reset_slots();
    }

    /// A worker is ready for a snapshot. A sequence that its pool can no longer hold ends with an error.
    pub fn worker_ready(&mut self, info: &WorkerInfo) -> Result<(), WorkerError> {
        let layout = check_worker(&self.config, info)?;
        self.worker_lost();
        if layout != self.layout {
            if layout.block_size != self.layout.block_size {
                self.sequences.iter_mut().for_each(|sequence| sequence.hashes.clear());
            }
            self.pool = BlockPool::new(layout.num_blocks, layout.groups());
            self.layout = layout;
            let capacity = self.layout.capacity_tokens();
            let too_long = |sequence: &&Sequence| u64::from(sequence.max_total) > capacity + 1;
            let lost: Vec<SeqId> =
                self.sequences.iter().filter(too_long).map(|sequence| sequence.place.id).collect();
            for id in lost {
                let message =
                    format!("the restarted worker's KV cache holds {capacity} tokens, which is too few");
                self.end(id, Some(FinishReason::Error(message)));
            }
        }
        self.attached = true;
        self.snapshot_due = true;
        Ok(())
    }

    pub(crate) fn reset_slots(&mut self) {
        self.free_slots.clear();
        self.free_slots.extend((0..self.config.max_num_seqs).rev());
        self.leaving.clear();
    }
}

/// Whether a worker with these properties can be worked with under these settings. Asked before it is started, it saves the
/// time of loading weights for a server that could answer nothing.
///
/// # Errors
/// What [`Scheduler::worker_ready`] will say of such a worker.
pub fn check_settings(config: &SchedulerConfig, info: &WorkerInfo) -> Result<(), WorkerError> {
    check_worker(config, info).map(|_| ())
}

pub(crate) fn check_worker(config: &SchedulerConfig, info: &WorkerInfo) -> Result<KvLayout, WorkerError> {
    config.validate()?;
    let windows_are_open = info.groups.iter().all(|group| group.window != Some(0));
    if info.block_size == 0 || info.groups.is_empty() || info.vocab_size == 0 || !windows_are_open {
        return Err(WorkerError::Shape(format!("{info:?}")));
    }
    let layout = KvLayout::new(info, config.max_model_len, !config.enable_chunked_prefill);
    if layout.num_blocks < layout.groups() {
        return Err(WorkerError::NoRoom { needed: layout.groups(), got: layout.num_blocks });
    }
    if layout.whole_prompts && config.max_num_batched_tokens < layout.max_model_len {
        return Err(WorkerError::Config(ConfigError::PromptExceedsStep {
            max_num_batched_tokens: config.max_num_batched_tokens,
            max_model_len: layout.max_model_len,
        }));
    }
    Ok(layout)
}
