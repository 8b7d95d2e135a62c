//! The executor without arithmetic: a device that takes as long as a cost model says and draws seeded or scripted tokens.
//!
//! Plans are checked and slots kept as on a real device, so that scheduler, rings and API servers are what is measured.
//! It knows no weights and no logits: of the sampling parameters it honours `seed`, `allowed_token_ids`, `logprobs` (the
//! numbers are made up) and the stop tokens that `min_tokens` holds back.
//!
//! Invariant: a token depends on the whole prefix, the seed and the choice, or on the script, and on nothing else; what is
//! computed again draws the same token.
//! Invariant: the device runs one step at a time. A step starts when it was enqueued and the step before has ended, however
//! late anybody looks.

mod script;

pub use script::{Script, ScriptError};

use crate::executor::{Executor, ExecutorError, Progress};
use crate::slots::{Slot, SlotLimits, SlotTable};
use gossamer_config::{ModelConfig, ModelConfigError, ServeConfig};
use gossamer_kernels::cost::{CalibrationError, CostModel, StepLoad};
use gossamer_wire::{KvGroup, SampledToken, StepPlan, StepResult, TokenLogprobs, WorkerInfo};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use thiserror::Error;

/// KV blocks where the operator names no number: what the memory of a large device holds of a large model.
const DEFAULT_BLOCKS: u32 = 32_768;

/// Why the simulated device could not be opened.
#[derive(Debug, Error)]
pub enum SimError {
    /// The model's configuration was refused.
    #[error(transparent)]
    Config(#[from] ModelConfigError),
    /// The calibration file was refused.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    /// The script was refused.
    #[error(transparent)]
    Script(#[from] ScriptError),
}

/// A simulated device; see the module.
pub struct Sim {
    info: WorkerInfo,
    slots: SlotTable,
    /// Per slot: the hash of its first tokens, and how many those are.
    prefixes: Vec<(u64, usize)>,
    cost: CostModel,
    script: Script,
    seed: u64,
    /// Seeded tokens are below this, so that they are text and end nothing.
    plain_tokens: u32,
    /// Steps in flight, with the time at which they are done.
    steps: VecDeque<(Instant, StepResult)>,
    free_at: Instant,
}

impl Sim {
    /// Opens the device that `config` describes: the model's shape, `--sim-calibration`, `--sim-script`, `--seed`.
    pub fn open(config: &ServeConfig, rank: u32) -> Result<Self, SimError> {
        let model = ModelConfig::load(&config.model)?;
        let limit = model.max_position_embeddings;
        let info = WorkerInfo {
            rank,
            num_blocks: config.num_gpu_blocks_override.unwrap_or(DEFAULT_BLOCKS),
            block_size: config.block_size,
            groups: model.kv_windows().into_iter().map(|window| KvGroup { window }).collect(),
            max_model_len: config.max_model_len.map_or(limit, |wanted| wanted.min(limit)),
            vocab_size: model.vocab_size,
        };
        let cost =
            config.sim_calibration.as_deref().map_or_else(|| Ok(CostModel::instant()), CostModel::load)?;
        let script = match &config.sim_script {
            Some(path) => Script::load(path, model.vocab_size)?,
            None => Script::default(),
        };
        let limits = SlotLimits::new(config.max_num_seqs, config.max_num_batched_tokens);
        let plain_tokens = model.eos_token_ids.iter().copied().min().unwrap_or(model.vocab_size).max(1);
        Ok(Self { plain_tokens, ..Self::new(info, limits, cost, script, config.seed) })
    }

    /// A device with these properties.
    pub fn new(info: WorkerInfo, limits: SlotLimits, cost: CostModel, script: Script, seed: u64) -> Self {
        Self {
            slots: SlotTable::new(info.clone(), limits, 0),
            prefixes: Vec::new(),
            plain_tokens: info.vocab_size,
            info,
            cost,
            script,
            seed,
            steps: VecDeque::new(),
            free_at: Instant::now(),
        }
    }

    fn draw(&mut self, plan: &StepPlan) -> Result<(StepLoad, Vec<SampledToken>), ExecutorError> {
        let step = plan.step;
        let section = self.slots.apply(plan).map_err(|source| ExecutorError::Plan { step, source })?;
        for join in &section.join {
            let slot = join.slot as usize;
            if self.prefixes.len() <= slot {
                self.prefixes.resize(slot + 1, (0, 0));
            }
            self.prefixes[slot] = (self.seed, 0);
            self.script.join(join);
        }
        let mut load = StepLoad::default();
        section.runs.iter().for_each(|run| load.add_run(run.start, run.count));
        let mut sampled = Vec::new();
        for run in section.runs.iter().filter(|run| run.sample) {
            // The table has checked that the slot is filled.
            let Some(slot) = self.slots.get_mut(run.slot) else { continue };
            let (hash, known) = &mut self.prefixes[run.slot as usize];
            *hash = slot.tokens[*known..].iter().fold(*hash, |hash, token| mix(hash, u64::from(*token)));
            *known = slot.tokens.len();
            let state = mix(mix(*hash, slot.sampling.seed), u64::from(slot.choice));
            let scripted = self.script.token(run.slot, slot.generated());
            let token = scripted.unwrap_or_else(|| seeded(state, slot, self.plain_tokens));
            let logprobs =
                slot.sampling.logprobs.map(|count| alternatives(token, count, self.info.vocab_size));
            let position = slot.tokens.len() as u32;
            slot.push(token);
            sampled.push(SampledToken { slot: run.slot, position, token, logprobs });
        }
        Ok((load, sampled))
    }
}

/// A token below `limit`, or one of those that alone are allowed, and none that is held back.
fn seeded(state: u64, slot: &Slot, limit: u32) -> u32 {
    let allowed = &slot.sampling.allowed_token_ids;
    let held_back: &[u32] = if slot.generated() < slot.min_tokens { &slot.stop_token_ids } else { &[] };
    let choices = if allowed.is_empty() { limit as usize } else { allowed.len() };
    let start = (state >> 32) as usize % choices;
    let candidate = |index: usize| allowed.get(index).copied().unwrap_or(index as u32);
    // The next one that is not held back; when all are, the first has to do.
    let mut candidates = (start..choices).chain(0..start).map(candidate);
    candidates.find(|token| !held_back.contains(token)).unwrap_or_else(|| candidate(start))
}

/// Made-up log-probabilities: the drawn token is the likeliest.
fn alternatives(token: u32, count: u32, vocab_size: u32) -> TokenLogprobs {
    let count = count.min(vocab_size);
    let top = (0..count).map(|rank| ((token + rank) % vocab_size, -0.5 - rank as f32));
    TokenLogprobs { logprob: -0.5, top: top.collect() }
}

fn mix(a: u64, b: u64) -> u64 {
    // The finalizer of SplitMix64 over both.
    let mut x = a.rotate_left(25).wrapping_add(b).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Executor for Sim {
    fn info(&self) -> &WorkerInfo {
        &self.info
    }

    fn enqueue(&mut self, plan: &StepPlan) -> Result<(), ExecutorError> {
        let (load, sampled) = self.draw(plan)?;
        let time = self.cost.step(&load);
        let start = self.free_at.max(Instant::now());
        self.free_at = start.checked_add(time).unwrap_or(start);
        let busy_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.steps.push_back((self.free_at, StepResult { step: plan.step, sampled, busy_ns }));
        Ok(())
    }

    fn poll(&mut self) -> Result<Progress, ExecutorError> {
        let Some((done_at, _)) = self.steps.front() else { return Ok(Progress::Idle) };
        let left = done_at.saturating_duration_since(Instant::now());
        if left > Duration::ZERO {
            return Ok(Progress::Busy { ask_again: left });
        }
        Ok(self.steps.pop_front().map_or(Progress::Idle, |(_, result)| Progress::Done(result)))
    }
}

#[cfg(test)]
mod tests;
