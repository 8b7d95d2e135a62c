//! The scheduler's state, and the calls from outside that change it between steps.

use crate::attachment::{WorkerError, check_worker};
use crate::config::SchedulerConfig;
use crate::layout::KvLayout;
use crate::output::Outbox;
use crate::planning::{InFlight, Scratch};
use crate::pool::BlockPool;
use crate::queue::{FairQueue, Place};
use crate::sequence::{SeqId, SequenceStore};
use gossamer_wire::{
    AbortReason, EngineInfo, FinishReason, FromScheduler, RequestId, SchedulerStats, SequenceKey, StepPlan,
    WorkerInfo,
};
use std::collections::{BTreeSet, HashMap, VecDeque};

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
    pub(crate) pace: Pace,
    /// The last request that ended because the model's output was no number.
    pub(crate) not_a_number: Option<RequestId>,
}

/// How fast sequences finish: what a refused client is told to wait is derived from it.
#[derive(Default)]
pub(crate) struct Pace {
    pub since_ms: u64,
    pub finished_then: u64,
    pub per_second: f64,
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
            not_a_number: None,
            config,
        };
        scheduler.reset_slots();
        Ok(scheduler)
    }

    /// What API servers must know.
    pub fn engine_info(&self) -> EngineInfo {
        EngineInfo {
            max_model_len: self.layout.max_model_len,
            kv_capacity_tokens: self.layout.capacity_tokens(),
            vocab_size: self.layout.vocab_size,
        }
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
