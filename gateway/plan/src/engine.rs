//! Schedulers that share devices, and their steps in flight.
//!
//! ```text
//! engine ── stages (devices in a row: pipeline parallelism; else one)
//!   └── groups (as many as stages: while one group's step is in a stage, another's is in the next)
//!         └── lanes (data-parallel ranks in lock-step; else one), each with a scheduler of its own
//! ```
//!
//! One group keeps two steps in flight, as asynchronous scheduling does: what arrives while a step runs joins the step after
//! the one that is queued. With several groups each keeps one, since its next step needs the token that the last stage draws.
//!
//! Invariant: a stage works on one step at a time, in the order in which steps were planned.
//! Invariant: a group plans when it completes a step, or when it has room in flight and something arrives; never otherwise.

use crate::cost::LayoutCost;
use crate::fleet::Settings;
use crate::search::PlanError;
use crate::shape::{BLOCK_SIZE, ModelShape};
use crate::workload::Request;
use gossamer_kernels::cost::StepLoad;
use gossamer_scheduler::{Scheduler, SchedulerConfig};
use gossamer_wire::{
    FromScheduler, RequestId, SampledToken, SamplingParams, SequenceKey, StepResult, StopRules, Submit,
    WorkerInfo,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// Token budget of an engine that only takes over prompts whose keys and values were sent to it.
const TAKE_OVER_BUDGET: u32 = 1 << 24;

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Its first token is there.
    First,
    /// Its last one is.
    Finished,
    /// It can never fit.
    Refused,
}

/// Which part of a request an engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All of it.
    Whole,
    /// The prompt and the first token.
    Prefill,
    /// The tokens after the first; keys and values of the prompt have been sent.
    Decode,
}

struct Lane {
    scheduler: Scheduler,
    /// Requests that are not finished.
    open: u32,
    /// Per slot, in a decode engine: its prompt's keys and values were sent, so that running them costs nothing.
    sent: Vec<bool>,
}

struct Flight {
    done: u64,
    results: Vec<Option<StepResult>>,
}

struct Group {
    lanes: Vec<Lane>,
    flights: VecDeque<Flight>,
}

/// See the module.
pub(crate) struct Engine {
    groups: Vec<Group>,
    /// When each stage is free.
    stages: Vec<u64>,
    steps_in_flight: usize,
    part: Part,
    cost: Arc<LayoutCost>,
    loads: Vec<StepLoad>,
    /// Nanoseconds that the first stage worked.
    pub busy: u64,
}

/// What all engines of a layout have in common.
pub(crate) struct Blueprint<'a> {
    pub shape: &'a ModelShape,
    pub settings: &'a Settings,
    pub cost: Arc<LayoutCost>,
    /// KV blocks of one GPU.
    pub blocks: u32,
    pub stages: u32,
    pub lanes: u32,
    /// Longest request of the workload, prompt and output.
    pub longest: u32,
}

impl Blueprint<'_> {
    /// An engine for `part`.
    pub fn engine(&self, part: Part) -> Result<Engine, PlanError> {
        let steps_in_flight = if self.stages > 1 { 1 } else { 2 };
        let budget = match part {
            Part::Decode => TAKE_OVER_BUDGET,
            Part::Whole | Part::Prefill => self.settings.max_num_batched_tokens,
        };
        // Groups share the slots and the blocks of their GPUs.
        let slots = self.settings.max_num_seqs.div_ceil(self.stages);
        let config = SchedulerConfig {
            max_num_seqs: slots,
            max_num_batched_tokens: budget,
            max_model_len: self.shape.max_model_len,
            enable_prefix_caching: false,
            enable_chunked_prefill: true,
            steps_in_flight,
            max_queued_requests: u32::MAX / 2,
            cuda_graph_capture_size: 0,
        };
        let info = WorkerInfo {
            rank: 0,
            num_blocks: self.useful_blocks(slots),
            block_size: BLOCK_SIZE,
            groups: self.shape.groups(),
            max_model_len: self.shape.max_model_len,
            vocab_size: 2,
        };
        let lane = || -> Result<Lane, PlanError> {
            let scheduler = Scheduler::new(config.clone(), &info)?;
            Ok(Lane { scheduler, open: 0, sent: vec![false; slots as usize] })
        };
        let group = || -> Result<Group, PlanError> {
            let lanes = (0..self.lanes).map(|_| lane()).collect::<Result<_, _>>()?;
            Ok(Group { lanes, flights: VecDeque::new() })
        };
        Ok(Engine {
            groups: (0..self.stages).map(|_| group()).collect::<Result<_, _>>()?,
            stages: vec![0; self.stages as usize],
            steps_in_flight: steps_in_flight as usize,
            part,
            cost: Arc::clone(&self.cost),
            loads: Vec::new(),
            busy: 0,
        })
    }

    /// The blocks of a lane. No more than all slots can hold, with the hundredth that admission leaves: a larger pool
    /// would behave the same and cost memory for every replica.
    fn useful_blocks(&self, slots: u32) -> u32 {
        let blocks = u64::from(self.blocks / self.stages);
        let columns = u64::from(self.longest.div_ceil(BLOCK_SIZE)) + 2;
        let held = u64::from(slots) * columns * self.shape.windows.len() as u64;
        blocks.min(held + held / 64 + u64::from(slots)).min(u64::from(u32::MAX / 4)) as u32
    }
}

impl Engine {
    /// Requests that are not finished.
    pub fn open(&self) -> u32 {
        self.groups.iter().flat_map(|group| &group.lanes).map(|lane| lane.open).sum()
    }

    /// When the next step ends.
    pub fn next_done(&self) -> Option<u64> {
        self.groups.iter().filter_map(|group| group.flights.front()).map(|flight| flight.done).min()
    }

    /// Takes in a request at `now`: the lane with the fewest gets it.
    pub fn submit(
        &mut self,
        now: u64,
        serial: u32,
        request: &Request,
        events: &mut Vec<(u32, Event)>,
    ) -> Result<(), PlanError> {
        let lanes = self.groups.iter().enumerate().flat_map(|(index, group)| {
            group.lanes.iter().enumerate().map(move |(lane, state)| (state.open, index, lane))
        });
        let Some((_, group, lane)) = lanes.min() else { return Ok(()) };
        let (max_tokens, generated) = match self.part {
            Part::Whole => (request.output, Vec::new()),
            Part::Prefill => (1, Vec::new()),
            Part::Decode => (request.output, vec![0]),
        };
        let state = &mut self.groups[group].lanes[lane];
        state.open += 1;
        state.scheduler.submit(Submit {
            key: SequenceKey { request: RequestId::new(0, 0, serial), choice: 0 },
            prompt: vec![0; request.input as usize],
            generated,
            sampling: SamplingParams::default(),
            stop: StopRules { max_tokens, min_tokens: 0, stop_token_ids: Vec::new() },
            // Only the first and the last token are news.
            stream_interval: u32::MAX,
            priority: 0,
            tenant: 0,
            cache_salt: 0,
            deadline_unix_ms: None,
        });
        state.report(events);
        self.fill(now, group);
        Ok(())
    }

    /// Completes the step that ends next, and plans on.
    pub fn step(&mut self, events: &mut Vec<(u32, Event)>) -> Result<(), PlanError> {
        let due = |(_, group): &(usize, &Group)| group.flights.front().map(|flight| flight.done);
        let next = self.groups.iter().enumerate().filter(|entry| due(entry).is_some()).min_by_key(due);
        let Some((index, _)) = next else { return Ok(()) };
        let group = &mut self.groups[index];
        let Some(flight) = group.flights.pop_front() else { return Ok(()) };
        for (lane, result) in group.lanes.iter_mut().zip(flight.results) {
            if let Some(result) = result {
                lane.scheduler.complete(result)?;
                lane.report(events);
            }
        }
        self.fill(flight.done, index);
        Ok(())
    }

    /// Plans steps of a group until as many are in flight as may be.
    fn fill(&mut self, now: u64, index: usize) {
        let group = &mut self.groups[index];
        while group.flights.len() < self.steps_in_flight {
            self.loads.clear();
            let mut results = Vec::with_capacity(group.lanes.len());
            for lane in &mut group.lanes {
                let (load, result) = lane.plan(self.part);
                self.loads.push(load);
                results.push(result);
            }
            if results.iter().all(Option::is_none) {
                return;
            }
            let (work, send) = (self.cost.stage(&self.loads), self.cost.send(&self.loads));
            let mut done = now;
            for (stage, free) in self.stages.iter_mut().enumerate() {
                let arrives = if stage == 0 { done } else { done + send };
                done = arrives.max(*free) + work;
                *free = done;
            }
            self.busy += work;
            group.flights.push_back(Flight { done, results });
        }
    }
}

impl Lane {
    /// Plans a step; the work, and the result that the device will give.
    fn plan(&mut self, part: Part) -> (StepLoad, Option<StepResult>) {
        let mut load = StepLoad::default();
        // Virtual time has no deadlines.
        let Some(plan) = self.scheduler.plan(1) else { return (load, None) };
        let Some(section) = plan.ranks.first() else { return (load, None) };
        if part == Part::Decode {
            for join in &section.join {
                // With more than its first token it was pre-empted here, and must be computed again.
                self.sent[join.slot as usize] = join.tokens.len() == join.prompt_len as usize + 1;
            }
        }
        let mut sampled = Vec::with_capacity(section.runs.len());
        for run in &section.runs {
            if run.count > 1 && part == Part::Decode && self.sent[run.slot as usize] {
                load.add_run(run.start + run.count - 1, 1);
            } else {
                load.add_run(run.start, run.count);
            }
            if run.sample {
                let position = run.start + run.count;
                sampled.push(SampledToken { slot: run.slot, position, token: 0, logprobs: None });
            }
        }
        (load, Some(StepResult { step: plan.step, sampled, busy_ns: 0 }))
    }

    /// Collects what the scheduler tells clients.
    fn report(&mut self, events: &mut Vec<(u32, Event)>) {
        if !self.scheduler.has_outputs() {
            return;
        }
        let open = &mut self.open;
        self.scheduler.drain_outputs(|_, message| match message {
            FromScheduler::Tokens(deltas) => {
                for delta in deltas {
                    let serial = delta.key.request.0 as u32;
                    if delta.position == 0 && !delta.tokens.is_empty() {
                        events.push((serial, Event::First));
                    }
                    if delta.finish.is_some() {
                        *open -= 1;
                        events.push((serial, Event::Finished));
                    }
                }
            }
            FromScheduler::Refused { key, .. } => {
                *open -= 1;
                events.push((key.request.0 as u32, Event::Refused));
            }
            FromScheduler::Ready(_) | FromScheduler::Paused | FromScheduler::Stats(_) => {}
        });
    }
}
