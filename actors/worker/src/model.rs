//! The executor that computes: a graph, its weights, the KV pool, and the backends' kernels, on the host or on a CUDA
//! device.
//!
//! A plan is applied to the slots, turned into a batch, and run operation by operation. On the host the call returns when
//! the step is done, because the kernels of a CPU return when they are done; on a device it returns when the work is
//! enqueued, and tokens that are still being drawn feed the next step there (`device`).
//!
//! Invariant: every address that a launch gets points into memory that lives as long as the `Model` and is as large as
//! the operation documents for the step's token count, which the slot table has limited to what was planned for.

mod batch;
mod device;
mod launch;
mod open;
mod program;
mod sampling;
mod tune;
mod tune_device;

pub use open::{CudaOptions, ModelError, ModelOptions};
pub use program::{Choice, Program, ProgramError};
pub use tune::TuneLimits;

use crate::device::Block;
use crate::executor::{Executor, ExecutorError, Progress};
use crate::kv::KvPool;
use crate::slots::{SlotLimits, SlotTable};
use crate::weights::Weights;
use batch::Batch;
use device::Steps;
use gossamer_backend_api::ops::SampleRow;
use gossamer_kernels::Backends;
use gossamer_kernels::graph::{Op, TensorId};
use gossamer_wire::{Run, SampledToken, StepPlan, StepResult, TokenLogprobs, WorkerInfo};
use launch::{GroupPlaces, Places};
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
    arena: Block,
    workspace: Block,
    inverse_frequencies: Block,
    max_logprobs: u32,
    batch: Batch,
    drawn: Drawn,
    done: VecDeque<StepResult>,
    /// The steps under way on a CUDA device; `None` on the host.
    steps: Option<Box<Steps>>,
    keep_logits: bool,
    kept_logits: Vec<f32>,
    heartbeat: Box<dyn Fn() + Send>,
}

/// Address of a vector's elements; 0, which means absent, for an empty one.
fn address<T>(values: &[T]) -> u64 {
    if values.is_empty() { 0 } else { values.as_ptr() as u64 }
}

fn address_mut<T>(values: &mut [T]) -> u64 {
    if values.is_empty() { 0 } else { values.as_mut_ptr() as u64 }
}

impl Model {
    /// The largest step.
    pub(crate) fn limits(&self) -> &SlotLimits {
        self.slots.limits()
    }

    /// From now on each step keeps a copy of its logits, for tests and measurements.
    pub fn keep_logits(&mut self) {
        self.keep_logits = true;
    }

    /// Logits of the last step, `[drawn tokens, vocabulary]`; empty unless [`Self::keep_logits`]. On the host they are those
    /// before penalties and temperature; on a device only rows that are drawn greedily and without edits are.
    pub fn logits(&self) -> &[f32] {
        &self.kept_logits
    }

    /// The settled graph.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Names of the tactics in use.
    pub fn tactics(&self) -> String {
        self.program.summary(&self.backends)
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
        let (tokens, samples) = (self.batch.tokens(), self.batch.samples());
        self.drawn.resize(samples as usize, self.max_logprobs as usize);
        if tokens > 0 {
            let places = self.host_places();
            let mut logits = None;
            let before = |op: &Op| {
                (self.heartbeat)();
                if let Op::Sample { logits: tensor, .. } = op
                    && self.keep_logits
                {
                    logits = Some(self.copy_logits(*tensor, samples));
                }
            };
            // SAFETY: `places` are the batch's and `drawn`'s arrays, which nobody touches until the kernels have returned.
            unsafe { self.launch_all(step, (tokens, samples), &places, 0, before) }?;
            self.kept_logits = logits.unwrap_or_default();
        }
        let sampled = self.take_drawn(&section.runs)?;
        Ok(StepResult { step, sampled, busy_ns: start.elapsed().as_nanos() as u64 })
    }

    /// Launches one operation of the batch, on the host.
    fn launch_on_host(&mut self, node: usize) -> Result<(), ExecutorError> {
        let entry = &self.program.graph.nodes[node];
        let samples = entry.op.runs_on_samples();
        let tokens = if samples { self.batch.samples() } else { self.batch.tokens() };
        if tokens == 0 {
            return Ok(());
        }
        (self.heartbeat)();
        let places = self.host_places();
        let (_, choice) = self.program.choice(node, tokens);
        // SAFETY: `places` are the batch's and `drawn`'s arrays, which nobody touches until the kernel has returned.
        unsafe { self.launch(node, tokens, &places, choice, 0) }.map_err(|source| ExecutorError::Backend {
            step: 0,
            operation: self.program.graph.nodes[node].label(),
            source,
        })
    }

    fn host_places(&mut self) -> Places {
        let (batch, drawn) = (&self.batch, &mut self.drawn);
        let group = |group: &batch::GroupInputs| GroupPlaces {
            slots: address(&group.slots),
            tables: address(&group.tables),
            stride: group.stride,
            first_blocks: address(&group.first_blocks),
        };
        Places {
            token_ids: address(&batch.token_ids),
            slot_tokens: 0, // every token is known here
            positions: address(&batch.positions),
            query_starts: address(&batch.query_starts),
            kv_lens: address(&batch.kv_lens),
            sampled_rows: address(&batch.sampled_rows),
            sequences: batch.kv_lens.len() as u32,
            // One launch is best where a launch is a loop over tasks of all kinds.
            singles: 0,
            max_query: batch.max_query,
            max_kv: batch.max_kv,
            groups: batch.groups.iter().map(group).collect(),
            rows: address(&batch.sample.rows),
            edits: address(&batch.sample.edits),
            masks: address(&batch.sample.masks),
            drawn: address_mut(&mut drawn.tokens),
            logprobs: address_mut(&mut drawn.logprobs),
            top_ids: address_mut(&mut drawn.top_ids),
            top_logprobs: address_mut(&mut drawn.top_logprobs),
        }
    }

    fn copy_logits(&self, logits: TensorId, samples: u32) -> Vec<f32> {
        let count = samples as usize * self.info.vocab_size as usize;
        let from = self.tensor(logits) as *const f32;
        // SAFETY: the logits tensor is float32 and holds `samples * vocab` elements in the host's arena, which no kernel is
        // writing now; any bits are a valid float.
        unsafe { std::slice::from_raw_parts(from, count) }.to_vec()
    }

    /// Appends the drawn tokens to their slots.
    fn take_drawn(&mut self, runs: &[Run]) -> Result<Vec<SampledToken>, ExecutorError> {
        let mut sampled = Vec::with_capacity(self.drawn.tokens.len());
        for (row, run) in runs.iter().filter(|run| run.sample).enumerate() {
            let token = self.checked(self.drawn.tokens[row])?;
            if let Some(slot) = self.slots.get_mut(run.slot) {
                // A sequence that ends for want of a token may be in the next step already, which reads some token.
                slot.push(token.unwrap_or(0));
            }
            let SampleRow { position, logprobs, .. } = self.batch.sample.rows[row];
            let logprobs = (logprobs != SampleRow::NO_LOGPROBS).then(|| self.drawn.logprobs(row, logprobs));
            sampled.push(sampled_token(run.slot, position, token, logprobs));
        }
        Ok(sampled)
    }

    /// What the sampling operation wrote: a token, or that there is none.
    fn checked(&self, token: u32) -> Result<Option<u32>, ExecutorError> {
        let limit = self.info.vocab_size;
        match token {
            SampleRow::NO_TOKEN => Ok(None),
            token if token < limit => Ok(Some(token)),
            _ => Err(ExecutorError::Device(format!("drew token {token} of a vocabulary of {limit}"))),
        }
    }
}

/// A token whose log-probability is NaN was drawn from logits that are none, by a backend that did not notice.
fn sampled_token(
    slot: u32,
    position: u32,
    token: Option<u32>,
    logprobs: Option<TokenLogprobs>,
) -> SampledToken {
    match token.filter(|_| !logprobs.as_ref().is_some_and(|drawn| drawn.logprob.is_nan())) {
        Some(token) => SampledToken { slot, position, token, logprobs },
        None => SampledToken { slot, position, token: SampledToken::NOT_A_NUMBER, logprobs: None },
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
        if self.steps.is_some() {
            return self.enqueue_on_device(plan);
        }
        let result = self.run(plan)?;
        self.done.push_back(result);
        Ok(())
    }

    fn set_heartbeat(&mut self, beat: Box<dyn Fn() + Send>) {
        self.heartbeat = beat;
    }

    fn poll(&mut self) -> Result<Progress, ExecutorError> {
        match self.done.pop_front() {
            Some(result) => Ok(Progress::Done(result)),
            None if self.steps.is_some() => self.poll_device(),
            None => Ok(Progress::Idle),
        }
    }
}
