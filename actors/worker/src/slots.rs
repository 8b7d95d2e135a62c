//! Request slots: the tokens, sampling state and block tables of the sequences that run.
//!
//! Every executor keeps its slots here. [`SlotTable::apply`] is the one place where a plan's numbers are believed, and
//! only after they were checked: what it returns may index memory. It does not know devices or kernels.
//!
//! Invariant: a plan that was applied names only slots that are filled, blocks inside the pool and tokens inside the
//! vocabulary, and every run's window of the KV cache is covered by its slot's tables.

use gossamer_wire::{BlockGrant, InputTokens, RankPlan, Run, SamplingParams, SlotJoin, StepPlan, WorkerInfo};
use std::collections::BTreeMap;
use thiserror::Error;

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// Plans are numbered without gaps, and the first is a snapshot.
    #[error("expected plan {expected}, got {got}; only a snapshot may start anew")]
    OutOfOrder {
        /// Number that should have come.
        expected: u64,
        /// Number that came.
        got: u64,
    },
    /// The first plan was no snapshot.
    #[error("expected a snapshot as the first plan, got a delta")]
    NotASnapshot,
    /// The plan has no section for this rank.
    #[error("expected a section for rank {rank}, got {sections} sections")]
    NoSection {
        /// This rank.
        rank: usize,
        /// Sections in the plan.
        sections: usize,
    },
    /// A slot index is beyond the limit.
    #[error("expected a slot below {limit}, got {slot}")]
    SlotRange {
        /// The slot.
        slot: u32,
        /// Number of slots.
        limit: u32,
    },
    /// A slot that should be filled is empty.
    #[error("{what} names slot {slot}, which is empty")]
    SlotEmpty {
        /// The slot.
        slot: u32,
        /// Part of the plan that names it.
        what: &'static str,
    },
    /// A slot that should be empty is filled.
    #[error("join names slot {slot}, which is filled")]
    SlotFilled {
        /// The slot.
        slot: u32,
    },
    /// A number is out of its range.
    #[error("slot {slot}: expected {expected}, got {got}")]
    Value {
        /// The slot.
        slot: u32,
        /// The range, in words.
        expected: String,
        /// The number.
        got: u64,
    },
    /// Two runs name one slot.
    #[error("slot {slot} runs twice in one plan")]
    RunsTwice {
        /// The slot.
        slot: u32,
    },
    /// A run needs KV blocks that were not granted.
    #[error("slot {slot}, KV group {group}: blocks {needed:?} are needed, {granted:?} are granted")]
    Blocks {
        /// The slot.
        slot: u32,
        /// The group.
        group: usize,
        /// Logical blocks that the run touches.
        needed: std::ops::Range<u32>,
        /// Logical blocks in the table.
        granted: std::ops::Range<u32>,
    },
    /// The plan is larger than the worker's buffers.
    #[error("expected at most {limit} {what} in a plan, got {got}; raise {flag}")]
    TooLarge {
        /// What is too many.
        what: &'static str,
        /// The limit.
        limit: usize,
        /// The number in the plan.
        got: usize,
        /// The flag that sets the limit.
        flag: &'static str,
    },
}

/// What the worker's buffers were made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLimits {
    /// Slots: sequences that run at one time, those that leave late included.
    pub slots: u32,
    /// Runs in one plan.
    pub runs: usize,
    /// Tokens in one plan.
    pub tokens: usize,
}

impl SlotLimits {
    /// Limits that follow from `--max-num-seqs` and `--max-num-batched-tokens`.
    pub fn new(max_num_seqs: u32, max_num_batched_tokens: u32) -> Self {
        // A sequence that finished keeps its slot while steps that were planned ahead still name it.
        let slots = max_num_seqs.saturating_mul(2).saturating_add(16);
        Self { slots, runs: max_num_seqs as usize, tokens: max_num_batched_tokens as usize }
    }
}

/// The blocks of one slot in one KV group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockTable {
    /// Logical index of `blocks[0]`.
    pub first: u32,
    /// Block ids.
    pub blocks: Vec<u32>,
}

impl BlockTable {
    fn range(&self) -> std::ops::Range<u32> {
        self.first..self.first + self.blocks.len() as u32
    }
}

/// How often a token occurs in a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occurrences {
    /// In the prompt.
    pub prompt: u32,
    /// Among the generated tokens.
    pub output: u32,
}

/// One sequence.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Prompt and generated tokens.
    pub tokens: Vec<u32>,
    /// How many of them are the prompt.
    pub prompt_len: u32,
    /// Index of the choice.
    pub choice: u32,
    /// How to draw.
    pub sampling: SamplingParams,
    /// Stop tokens are held back before this many tokens were generated.
    pub min_tokens: u32,
    /// The tokens held back.
    pub stop_token_ids: Vec<u32>,
    /// One table per KV group.
    pub tables: Vec<BlockTable>,
    /// Occurrences per token; kept only where a penalty needs them.
    pub occurrences: BTreeMap<u32, Occurrences>,
    counts: bool,
    /// How many of the last `tokens` are places for tokens that are being drawn.
    undrawn: u32,
}

impl Slot {
    fn new(join: &SlotJoin, groups: usize) -> Self {
        let sampling = &join.sampling;
        let counts = sampling.repetition_penalty != 1.0
            || sampling.presence_penalty != 0.0
            || sampling.frequency_penalty != 0.0;
        let mut slot = Self {
            tokens: Vec::new(),
            prompt_len: join.prompt_len,
            choice: join.choice,
            sampling: sampling.clone(),
            min_tokens: join.min_tokens,
            stop_token_ids: join.stop_token_ids.clone(),
            tables: vec![BlockTable::default(); groups],
            occurrences: BTreeMap::new(),
            counts,
            undrawn: 0,
        };
        for token in &join.tokens {
            slot.push(*token);
        }
        slot
    }

    /// Appends a token.
    pub fn push(&mut self, token: u32) {
        if self.counts {
            let entry = self.occurrences.entry(token).or_default();
            match (self.tokens.len() as u32) < self.prompt_len {
                true => entry.prompt += 1,
                false => entry.output += 1,
            }
        }
        self.tokens.push(token);
    }

    /// Appends a place for a token that is being drawn.
    pub fn push_undrawn(&mut self) {
        self.tokens.push(0);
        self.undrawn += 1;
    }

    /// Fills the place at `position` with the token that was drawn for it.
    pub fn resolve(&mut self, position: u32, token: u32) {
        let Some(place) = self.tokens.get_mut(position as usize) else { return };
        *place = token;
        self.undrawn = self.undrawn.saturating_sub(1);
        if self.counts {
            self.occurrences.entry(token).or_default().output += 1;
        }
    }

    /// Whether a penalty counts tokens.
    pub fn counts(&self) -> bool {
        self.counts
    }

    /// Tokens that are being drawn.
    pub fn undrawn(&self) -> u32 {
        self.undrawn
    }

    /// Tokens generated so far.
    pub fn generated(&self) -> u32 {
        self.tokens.len() as u32 - self.prompt_len
    }
}

/// All slots of one rank.
#[derive(Debug)]
pub struct SlotTable {
    info: WorkerInfo,
    limits: SlotLimits,
    rank: usize,
    slots: Vec<Option<Slot>>,
    next_step: Option<u64>,
    /// Step in which a slot last ran, to find slots that run twice.
    last_run: Vec<Option<u64>>,
}

impl SlotTable {
    /// Empty slots for the data-parallel rank `rank`.
    pub fn new(info: WorkerInfo, limits: SlotLimits, rank: usize) -> Self {
        Self { info, limits, rank, slots: Vec::new(), next_step: None, last_run: Vec::new() }
    }

    /// The limits.
    pub fn limits(&self) -> &SlotLimits {
        &self.limits
    }

    /// A filled slot.
    pub fn get(&self, slot: u32) -> Option<&Slot> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// A filled slot, to append drawn tokens.
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Slot> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// Applies everything of a plan but its runs, checks the runs, and returns this rank's section. The caller runs it
    /// and then appends one token (with [`Slot::push`]) to each slot whose run has `sample`, before the next plan.
    pub fn apply<'plan>(&mut self, plan: &'plan StepPlan) -> Result<&'plan RankPlan, PlanError> {
        match self.next_step {
            _ if plan.snapshot => {
                self.slots.clear();
                self.last_run.clear();
            }
            None => return Err(PlanError::NotASnapshot),
            Some(expected) if expected != plan.step => {
                return Err(PlanError::OutOfOrder { expected, got: plan.step });
            }
            Some(_) => {}
        }
        self.next_step = Some(plan.step.wrapping_add(1));
        let sections = plan.ranks.len();
        let section = plan.ranks.get(self.rank).ok_or(PlanError::NoSection { rank: self.rank, sections })?;
        for slot in &section.leave {
            let empty = PlanError::SlotEmpty { slot: *slot, what: "leave" };
            self.slots.get_mut(*slot as usize).and_then(Option::take).ok_or(empty)?;
        }
        for join in &section.join {
            self.join(join)?;
        }
        for grant in &section.grants {
            self.grant(grant)?;
        }
        self.check_runs(plan.step, &section.runs)?;
        Ok(section)
    }

    fn join(&mut self, join: &SlotJoin) -> Result<(), PlanError> {
        let slot = join.slot;
        if slot >= self.limits.slots {
            return Err(PlanError::SlotRange { slot, limit: self.limits.slots });
        }
        let invalid = |expected: String, got: u64| Err(PlanError::Value { slot, expected, got });
        let len = join.tokens.len() as u64;
        if len == 0 || len > u64::from(self.info.max_model_len) {
            return invalid(format!("1 to {} tokens", self.info.max_model_len), len);
        }
        if join.prompt_len == 0 || u64::from(join.prompt_len) > len {
            return invalid(format!("a prompt of 1 to {len} tokens"), join.prompt_len.into());
        }
        if let Some(token) = join.tokens.iter().find(|token| **token >= self.info.vocab_size) {
            return invalid(format!("token ids below {}", self.info.vocab_size), (*token).into());
        }
        if self.slots.len() <= slot as usize {
            self.slots.resize_with(slot as usize + 1, || None);
        }
        match &mut self.slots[slot as usize] {
            Some(_) => Err(PlanError::SlotFilled { slot }),
            place => {
                *place = Some(Slot::new(join, self.info.groups.len()));
                Ok(())
            }
        }
    }

    fn grant(&mut self, grant: &BlockGrant) -> Result<(), PlanError> {
        let slot = grant.slot;
        let invalid = |expected: String, got: u64| Err(PlanError::Value { slot, expected, got });
        let Some(group) = self.info.groups.get(grant.group as usize) else {
            return invalid(format!("a KV group below {}", self.info.groups.len()), grant.group.into());
        };
        if let Some(block) = grant.blocks.iter().find(|block| **block >= self.info.num_blocks) {
            return invalid(format!("block ids below {}", self.info.num_blocks), (*block).into());
        }
        let max_blocks = u64::from(self.info.max_model_len.div_ceil(self.info.block_size));
        let end = u64::from(grant.first) + grant.blocks.len() as u64;
        if end > max_blocks {
            return invalid(format!("at most {max_blocks} blocks"), end);
        }
        if group.window.is_none() && grant.first_live != 0 {
            return invalid("a full group to keep all its blocks".to_owned(), grant.first_live.into());
        }
        let full = group.window.is_none();
        let filled = self.slots.get_mut(slot as usize).and_then(Option::as_mut);
        let table =
            &mut filled.ok_or(PlanError::SlotEmpty { slot, what: "grant" })?.tables[grant.group as usize];
        if table.blocks.is_empty() {
            if full && grant.first != 0 {
                return invalid("a full group's first block to be 0".to_owned(), grant.first.into());
            }
            table.first = grant.first;
        }
        if grant.first != table.range().end && !(grant.blocks.is_empty()) {
            return invalid(format!("blocks from {} on", table.range().end), grant.first.into());
        }
        table.blocks.extend_from_slice(&grant.blocks);
        let dropped = grant.first_live.saturating_sub(table.first).min(table.blocks.len() as u32);
        table.blocks.drain(..dropped as usize);
        table.first += dropped;
        Ok(())
    }

    fn check_runs(&mut self, step: u64, runs: &[Run]) -> Result<(), PlanError> {
        let limits = self.limits;
        let too_large = |what, limit, got, flag| Err(PlanError::TooLarge { what, limit, got, flag });
        if runs.len() > limits.runs {
            return too_large("runs", limits.runs, runs.len(), "--max-num-seqs");
        }
        let tokens = runs.iter().map(|run| run.count as usize).sum();
        if tokens > limits.tokens {
            return too_large("tokens", limits.tokens, tokens, "--max-num-batched-tokens");
        }
        self.last_run.resize(self.slots.len().max(self.last_run.len()), None);
        for run in runs {
            let slot = run.slot;
            let filled = self.get(slot).ok_or(PlanError::SlotEmpty { slot, what: "run" })?;
            self.check_run(run, filled)?;
            if self.last_run[slot as usize].replace(step) == Some(step) {
                return Err(PlanError::RunsTwice { slot });
            }
        }
        Ok(())
    }

    fn check_run(&self, run: &Run, slot: &Slot) -> Result<(), PlanError> {
        let index = run.slot;
        let invalid = |expected: String, got: u64| Err(PlanError::Value { slot: index, expected, got });
        let len = slot.tokens.len() as u64;
        let end = u64::from(run.start) + u64::from(run.count);
        if run.count == 0 {
            return invalid("a run of at least 1 token".to_owned(), 0);
        }
        if end > len || end > u64::from(self.info.max_model_len) {
            let most = len.min(self.info.max_model_len.into());
            return invalid(format!("a run that ends at or before token {most}"), end);
        }
        if run.input == InputTokens::LastSampled && (run.count != 1 || end != len || slot.generated() == 0) {
            return invalid(format!("the drawn token {} to run alone", len - 1), run.start.into());
        }
        if run.sample && end != len {
            return invalid(format!("a run that samples to end at token {len}"), end);
        }
        for (group, (table, spec)) in slot.tables.iter().zip(&self.info.groups).enumerate() {
            let oldest = spec.window.map_or(0, |window| (run.start + 1).saturating_sub(window));
            let needed = oldest / self.info.block_size..(end as u32).div_ceil(self.info.block_size);
            let granted = table.range();
            if needed.start < granted.start || needed.end > granted.end {
                return Err(PlanError::Blocks { slot: index, group, needed, granted });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
