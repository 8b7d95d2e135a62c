//! The executor that computes: a graph, its weights, the KV pool, and the backends' kernels, on the host's memory.
//!
//! A plan is applied to the slots, turned into a batch, and run operation by operation; the call returns when the step is
//! done, because the kernels of a CPU return when they are done.
//!
//! Invariant: every address that a launch gets points into memory that lives as long as the `Model` and is as large as
//! the operation documents for the step's token count, which the slot table has limited to what was planned for.

mod batch;
mod launch;
mod open;
mod program;
mod sampling;
mod tune;

pub use open::{ModelError, ModelOptions};
pub use program::{Choice, Program, ProgramError};
pub use tune::TuneLimits;

use crate::executor::{Executor, ExecutorError, Progress};
use crate::kv::KvPool;
use crate::memory::Region;
use crate::slots::SlotTable;
use crate::weights::Weights;
use batch::Batch;
use gossamer_backend_api::ops::SampleRow;
use gossamer_kernels::Backends;
use gossamer_wire::{Run, SampledToken, StepPlan, StepResult, TokenLogprobs, WorkerInfo};
use std::collections::VecDeque;
use std::time::Instant;

/// What the sampling operation writes.
#[derive(Debug, Default)]
struct Drawn {
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    top_ids: Vec<u32>,
    top_logprobs: Vec<f32>,
}

/// The model on this device.
pub struct Model {
    info: WorkerInfo,
    slots: SlotTable,
    program: Program,
    backends: Backends,
    weights: Weights,
    kv: KvPool,
    arena: Region,
    workspace: Region,
    inverse_frequencies: Vec<f32>,
    max_logprobs: u32,
    batch: Batch,
    drawn: Drawn,
    done: VecDeque<StepResult>,
    keep_logits: bool,
    kept_logits: Vec<f32>,
    heartbeat: Box<dyn Fn() + Send>,
}

impl Model {
    /// From now on each step keeps a copy of its logits, for tests and measurements.
    pub fn keep_logits(&mut self) {
        self.keep_logits = true;
    }

    /// Logits of the last step, `[drawn tokens, vocabulary]`, before penalties; empty unless [`Self::keep_logits`].
    pub fn logits(&self) -> &[f32] {
        &self.kept_logits
    }

    /// The settled graph.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Bytes of the KV pool.
    pub fn kv_bytes(&self) -> u64 {
        self.kv.bytes(&self.program.graph.kv)
    }

    fn run(&mut self, plan: &StepPlan) -> Result<StepResult, ExecutorError> {
        let start = Instant::now();
        let step = plan.step;
        let section = self.slots.apply(plan).map_err(|source| ExecutorError::Plan { step, source })?;
        self.batch.fill(&self.slots, &section.runs, &self.info);
        let samples = self.batch.samples() as usize;
        self.drawn.resize(samples, self.max_logprobs as usize);
        if self.batch.tokens() > 0 {
            self.launch_all(step)?;
        }
        let sampled = self.take_drawn(&section.runs)?;
        Ok(StepResult { step, sampled, busy_ns: start.elapsed().as_nanos() as u64 })
    }

    /// Appends the drawn tokens to their slots.
    fn take_drawn(&mut self, runs: &[Run]) -> Result<Vec<SampledToken>, ExecutorError> {
        let mut sampled = Vec::with_capacity(self.drawn.tokens.len());
        for (row, run) in runs.iter().filter(|run| run.sample).enumerate() {
            let token = self.drawn.tokens[row];
            if token >= self.info.vocab_size {
                let limit = self.info.vocab_size;
                return Err(ExecutorError::Device(format!("drew token {token} of a vocabulary of {limit}")));
            }
            if let Some(slot) = self.slots.get_mut(run.slot) {
                slot.push(token);
            }
            let SampleRow { position, logprobs, .. } = self.batch.sample.rows[row];
            let logprobs = (logprobs != SampleRow::NO_LOGPROBS).then(|| self.drawn.logprobs(row, logprobs));
            sampled.push(SampledToken { slot: run.slot, position, token, logprobs });
        }
        Ok(sampled)
    }
}

impl Drawn {
    fn resize(&mut self, rows: usize, alternatives: usize) {
        // A value that no kernel draws: what is not written is noticed.
        self.tokens.clear();
        self.tokens.resize(rows, u32::MAX);
        self.logprobs.resize(rows, 0.0);
        self.top_ids.resize(rows * alternatives, 0);
        self.top_logprobs.resize(rows * alternatives, 0.0);
    }

    fn logprobs(&self, row: usize, wanted: u32) -> TokenLogprobs {
        let alternatives = self.top_ids.len() / self.tokens.len().max(1);
        let first = row * alternatives;
        let range = first..first + alternatives.min(wanted as usize);
        let top = self.top_ids[range.clone()].iter().copied().zip(self.top_logprobs[range].iter().copied());
        TokenLogprobs { logprob: self.logprobs[row], top: top.collect() }
    }
}

impl Executor for Model {
    fn info(&self) -> &WorkerInfo {
        &self.info
    }

    fn enqueue(&mut self, plan: &StepPlan) -> Result<(), ExecutorError> {
        let result = self.run(plan)?;
        self.done.push_back(result);
        Ok(())
    }

    fn set_heartbeat(&mut self, beat: Box<dyn Fn() + Send>) {
        self.heartbeat = beat;
    }

    fn poll(&mut self) -> Result<Progress, ExecutorError> {
        Ok(self.done.pop_front().map_or(Progress::Idle, Progress::Done))
    }
}
