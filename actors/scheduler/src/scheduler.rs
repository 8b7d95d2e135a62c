//! The scheduler's state, and the calls from outside that change it between steps.

use crate::config::{ConfigError, SchedulerConfig};
use crate::layout::KvLayout;
use crate::output::Outbox;
use crate::planning::{InFlight, Scratch};
use crate::pool::BlockPool;
use crate::queue::{FairQueue, Place};
use crate::sequence::{SeqId, Sequence, SequenceStore};
use gossamer_wire::{
    AbortReason, EngineInfo, FinishReason, FromScheduler, Refusal, SchedulerStats, SequenceKey, StepPlan,
    Submit, WorkerInfo,
};
use std::collections::{BTreeSet, HashMap, VecDeque};
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

/// Admission, batching, KV blocks and the token log; see the crate.
pub struct Scheduler {
    pub(crate) config: SchedulerConfig,
    pub(crate) layout: KvLayout,
    pub(crate) pool: BlockPool,
    pub(crate) sequences: SequenceStore,
    pub(crate) by_key: HashMap<SequenceKey, SeqId>,
    /// Sequences that have a slot, best place first.
    pub(crate) running: Vec<Place>,
    pub(crate) queue: FairQueue,
    pub(crate) deadlines: BTreeSet<(u64, SeqId)>,
    pub(crate) free_slots: Vec<u32>,
    /// Slots that the worker must be told to empty.
    pub(crate) leaving: Vec<u32>,
    pub(crate) in_flight: VecDeque<InFlight>,
    pub(crate) next_step: u64,
    pub(crate) plan: StepPlan,
    pub(crate) scratch: Scratch,
    /// A worker is there.
    pub(crate) attached: bool,
    pub(crate) snapshot_due: bool,
    pub(crate) draining: bool,
    pub(crate) arrivals: u64,
    pub(crate) outbox: Outbox,
    pub(crate) stats: SchedulerStats,
    pace: Pace,
}

/// How fast sequences finish: what a refused client is told to wait is derived from it.
#[derive(Default)]
struct Pace {
    since_ms: u64,
    finished_then: u64,
    per_second: f64,
}

impl Scheduler {
    /// A scheduler for the worker that reported `info`.
    pub fn new(config: SchedulerConfig, info: &WorkerInfo) -> Result<Self, WorkerError> {
        let layout = check_worker(&config, info)?;
        let mut scheduler = Self {
            pool: BlockPool::new(layout.num_blocks, layout.groups()),
            layout,
            sequences: SequenceStore::default(),
            by_key: HashMap::new(),
            running: Vec::with_capacity(config.max_running()),
            queue: FairQueue::default(),
            deadlines: BTreeSet::new(),
            free_slots: Vec::new(),
            leaving: Vec::new(),
            in_flight: VecDeque::new(),
            next_step: 1,
            plan: StepPlan::default(),
            scratch: Scratch::default(),
            attached: true,
            snapshot_due: true,
            draining: false,
            arrivals: 0,
            outbox: Outbox::default(),
            stats: SchedulerStats::default(),
            pace: Pace::default(),
            config,
        };
        scheduler.reset_slots();
        Ok(scheduler)
    }

    fn reset_slots(&mut self) {
        self.free_slots.clear();
        self.free_slots.extend((0..self.config.max_num_seqs).rev());
        self.leaving.clear();
    }

    /// What API servers must know.
    pub fn engine_info(&self) -> EngineInfo {
        EngineInfo {
            max_model_len: self.layout.max_model_len,
            kv_capacity_tokens: self.layout.capacity_tokens(),
            vocab_size: self.layout.vocab_size,
        }
    }

    /// Takes in a sequence, or answers why not. One that is known already is left alone: its API server repeats itself.
    pub fn submit(&mut self, submit: Submit) {
        let key = submit.key;
        if self.by_key.contains_key(&key) {
            return;
        }
        if let Some(refusal) = self.refusal(&submit) {
            self.outbox.refuse(key, refusal);
            return;
        }
        let bad_token =
            submit.prompt.iter().chain(&submit.generated).find(|token| **token >= self.layout.vocab_size);
        let complaint = match bad_token {
            Some(token) => Some(format!("expected token ids below {}, got {token}", self.layout.vocab_size)),
            None if submit.prompt.is_empty() => {
                Some("expected a prompt of at least one token, got none".into())
            }
            None => None,
        };
        let tenant = self.queue.enter(submit.tenant);
        self.arrivals += 1;
        let (priority, arrival) = (submit.priority, self.arrivals);
        let max_model_len = self.layout.max_model_len;
        let id = self
            .sequences
            .insert(|id| new_sequence(submit, tenant, Place { priority, arrival, id }, max_model_len));
        self.by_key.insert(key, id);
        let sequence = self.sequences.get(id);
        if let Some(deadline) = sequence.deadline_unix_ms {
            self.deadlines.insert((deadline, id));
        }
        let finish = complaint.map(FinishReason::Error).or_else(|| sequence.natural_end());
        self.queue.push(tenant, sequence.place);
        if let Some(finish) = finish {
            self.end(id, Some(finish));
        }
    }

    fn refusal(&self, submit: &Submit) -> Option<Refusal> {
        if self.draining {
            return Some(Refusal::Draining);
        }
        let prompt = submit.prompt.len() as u64;
        let longest = u64::from(self.layout.max_model_len);
        let tokens = (prompt + u64::from(submit.stop.max_tokens)).min(longest).max(prompt + 1);
        let capacity = self.layout.capacity_tokens();
        // The last token is drawn and never run: it needs no keys.
        if tokens > longest || tokens - 1 > capacity {
            return Some(Refusal::NeverFits { tokens, capacity: capacity.min(longest) });
        }
        // Refilled sequences and the further choices of an admitted request were let in before.
        let first_choice = SequenceKey { choice: 0, ..submit.key };
        if !submit.generated.is_empty() || (submit.key.choice > 0 && self.by_key.contains_key(&first_choice))
        {
            return None;
        }
        let free = self.config.max_running().saturating_sub(self.running.len());
        if self.queue.len() >= free + self.config.max_queued_requests as usize {
            let wait = self.queue.len() as f64 / self.pace.per_second.max(0.1);
            return Some(Refusal::QueueFull { retry_after_s: (wait.ceil() as u32).clamp(1, 60) });
        }
        None
    }

    /// Ends a sequence and frees what it holds. Tokens that were not sent go out with the last delta.
    pub fn abort(&mut self, key: SequenceKey, reason: AbortReason) {
        let Some(id) = self.by_key.get(&key).copied() else { return };
        self.end_anywhere(id, Some(FinishReason::Abort));
        // A stop string is a natural end that only the API server can see.
        if reason == AbortReason::StopString {
            self.stats.finished[finish_index(&FinishReason::Abort)] -= 1;
            self.stats.finished[finish_index(&FinishReason::Stop)] += 1;
        }
    }

    /// An API server (re)attached: the sequences of its other incarnations are void, and nobody is told.
    pub fn hello(&mut self, api_server: u16, epoch: u16) {
        self.void(api_server, |key| key.request.epoch() != epoch);
    }

    /// An API server died: all its sequences are void.
    pub fn forget_api_server(&mut self, api_server: u16) {
        self.void(api_server, |_| true);
    }

    fn void(&mut self, api_server: u16, which: impl Fn(SequenceKey) -> bool) {
        let is_void = |key: SequenceKey| key.request.api_server() == api_server && which(key);
        let void: Vec<SeqId> =
            self.by_key.iter().filter(|(key, _)| is_void(**key)).map(|(_, id)| *id).collect();
        for id in void {
            self.stats.finished[finish_index(&FinishReason::Abort)] += 1;
            self.end_anywhere(id, None);
        }
        self.outbox.void(api_server, is_void);
    }

    /// From now on nothing new is admitted.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Ends everything with an error: no worker will come back.
    pub fn fail_all(&mut self, message: &str) {
        let ids: Vec<SeqId> = self.by_key.values().copied().collect();
        for id in ids {
            self.end_anywhere(id, Some(FinishReason::Error(message.into())));
        }
        self.in_flight.clear();
        self.attached = false;
    }

    /// The worker is gone, and with it slots, blocks and the results of plans in flight. Sequences wait again with their
    /// token logs.
    pub fn worker_lost(&mut self) {
        if !self.attached {
            return;
        }
        self.attached = false;
        self.stats.worker_restarts += 1;
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

    /// Ends sequences whose deadline has passed.
    pub fn expire(&mut self, now_unix_ms: u64) {
        while let Some((deadline, id)) = self.deadlines.first().copied()
            && deadline <= now_unix_ms
        {
            self.end_anywhere(id, Some(FinishReason::Deadline));
        }
        let elapsed = now_unix_ms.saturating_sub(self.pace.since_ms);
        if elapsed >= 1000 {
            let finished: u64 = self.stats.finished.iter().sum();
            let recent = finished.saturating_sub(self.pace.finished_then) as f64 * 1000.0 / elapsed as f64;
            let per_second =
                if self.pace.since_ms == 0 { recent } else { 0.5 * (self.pace.per_second + recent) };
            self.pace = Pace { since_ms: now_unix_ms, finished_then: finished, per_second };
        }
    }

    /// When [`Self::expire`] will next have something to do, in milliseconds since the Unix epoch.
    pub fn next_deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Hands out messages with the API server that each is for. Refusals come first.
    pub fn drain_outputs(&mut self, send: impl FnMut(u16, FromScheduler)) {
        self.outbox.drain(send);
    }

    /// Whether [`Self::drain_outputs`] would send something.
    pub fn has_outputs(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Whether no sequence is unfinished.
    pub fn is_idle(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Plans made but not completed.
    pub fn steps_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Gauges and counters. `device_busy` is left to whoever has a clock.
    pub fn stats(&self) -> SchedulerStats {
        SchedulerStats {
            running: self.running.len() as u32,
            waiting: self.queue.len() as u32,
            kv_blocks_used: self.pool.used_blocks(),
            kv_blocks_total: self.layout.num_blocks,
            ..self.stats.clone()
        }
    }

    pub(crate) fn end_anywhere(&mut self, id: SeqId, finish: Option<FinishReason>) {
        let sequence = self.sequences.get(id);
        if sequence.slot.is_some() {
            let place = sequence.place;
            self.remove_running(place);
        }
        self.end(id, finish);
    }

    pub(crate) fn remove_running(&mut self, place: Place) {
        if let Ok(index) = self.running.binary_search(&place) {
            self.running.remove(index);
        }
    }

    /// Ends a sequence, which the caller takes out of `running` if it is there. Without a reason nobody is told.
    pub(crate) fn end(&mut self, id: SeqId, finish: Option<FinishReason>) {
        let Some(mut sequence) = self.sequences.remove(id) else { return };
        self.by_key.remove(&sequence.key);
        if let Some(deadline) = sequence.deadline_unix_ms {
            self.deadlines.remove(&(deadline, id));
        }
        match sequence.slot {
            Some(slot) => {
                sequence.release_blocks(&mut self.pool);
                self.free_slots.push(slot);
                self.leaving.push(slot);
            }
            None => self.queue.remove(sequence.tenant, sequence.place),
        }
        self.queue.leave(sequence.tenant);
        if let Some(finish) = finish {
            self.stats.finished[finish_index(&finish)] += 1;
            self.outbox.report(&mut sequence, Some(finish));
        }
    }
}

fn finish_index(finish: &FinishReason) -> usize {
    match finish {
        FinishReason::Stop => 0,
        FinishReason::Length => 1,
        FinishReason::Abort => 2,
        FinishReason::Deadline => 3,
        FinishReason::Error(_) => 4,
    }
}

fn check_worker(config: &SchedulerConfig, info: &WorkerInfo) -> Result<KvLayout, WorkerError> {
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

fn new_sequence(submit: Submit, tenant: u32, place: Place, max_model_len: u32) -> Sequence {
    let prompt_len = submit.prompt.len() as u32;
    let max_total = prompt_len.saturating_add(submit.stop.max_tokens).min(max_model_len).max(prompt_len + 1);
    let reported = submit.generated.len() as u32;
    let mut tokens = submit.prompt;
    tokens.extend(submit.generated);
    Sequence {
        computed: 0,
        pending: 0,
        max_total,
        columns: 0,
        granted: 0,
        charged: 0,
        prompt_len,
        registered: 0,
        slide_at: 0,
        tenant,
        slot: None,
        planned_step: 0,
        tokens,
        tables: Vec::new(),
        place,
        key: submit.key,
        sampling: submit.sampling,
        min_tokens: submit.stop.min_tokens,
        stop_token_ids: submit.stop.stop_token_ids,
        deadline_unix_ms: submit.deadline_unix_ms,
        cache_salt: submit.cache_salt,
        hashes: Vec::new(),
        cached_prompt_tokens: None,
        stream_interval: submit.stream_interval.max(1),
        reported,
        announced: reported > 0,
        logprobs: Vec::new(),
    }
}
