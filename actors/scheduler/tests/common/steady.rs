//! A scheduler with many streams and a worker that answers at once, for the benchmark and the memory test.

#![allow(dead_code, clippy::unwrap_used)] // every program uses its own part, and all of it is test code

use gossamer_scheduler::{Scheduler, SchedulerConfig};
use gossamer_wire::{
    KvGroup, RequestId, SampledToken, SamplingParams, SequenceKey, StepPlan, StepResult, StopRules, Submit,
    WorkerInfo,
};
use std::collections::VecDeque;
use std::ops::Range;

pub struct Steady {
    pub scheduler: Scheduler,
    results: VecDeque<StepResult>,
    steps_in_flight: usize,
    pub steps: u32,
}

impl Steady {
    /// `streams` sequences that have their first token and will not end for 100,000 more.
    pub fn new(streams: u32, steps_in_flight: u32) -> Self {
        let config = SchedulerConfig {
            max_num_seqs: streams.max(64),
            max_num_batched_tokens: 8192.max(2 * streams),
            max_model_len: 1 << 20,
            steps_in_flight,
            ..Default::default()
        };
        let info = WorkerInfo {
            rank: 0,
            num_blocks: (streams + 100) * 128,
            block_size: 64,
            groups: vec![KvGroup { window: Some(128) }, KvGroup { window: None }],
            max_model_len: 1 << 20,
            vocab_size: 201_088,
        };
        let scheduler = Scheduler::new(config, &info).unwrap();
        let mut steady =
            Self { scheduler, results: VecDeque::new(), steps_in_flight: steps_in_flight as usize, steps: 0 };
        for serial in 0..streams {
            // Different lengths: block boundaries are spread over the steps, as they are in life.
            steady.submit(serial, 10 + serial % 64, 100_000);
        }
        while steady.scheduler.stats().generation_tokens < u64::from(streams) {
            steady.step(|_| ());
        }
        steady
    }

    fn submit(&mut self, serial: u32, prompt: u32, max_tokens: u32) {
        self.scheduler.submit(Submit {
            key: SequenceKey { request: RequestId::new(serial as u16 % 4, 0, serial), choice: 0 },
            prompt: (0..prompt).map(|i| (serial.wrapping_mul(2_654_435_761) ^ i) % 201_088).collect(),
            generated: Vec::new(),
            sampling: SamplingParams::default(),
            stop: StopRules { max_tokens, min_tokens: 0, stop_token_ids: vec![200_002, 200_012] },
            stream_interval: 20,
            priority: 0,
            tenant: u64::from(serial % 1000),
            cache_salt: 0,
            deadline_unix_ms: Some(u64::MAX),
        });
    }

    /// Plans one step and hands it to `planned`, then completes the oldest one if enough are in flight.
    pub fn step(&mut self, planned: impl FnOnce(Option<&StepPlan>)) {
        self.steps += 1;
        let plan = self.scheduler.plan(1);
        planned(plan);
        if let Some(plan) = plan {
            let drawn = plan.ranks[0].runs.iter().filter(|run| run.sample);
            let sampled = drawn.map(|run| SampledToken {
                slot: run.slot,
                position: run.start + run.count,
                token: run.slot,
                logprobs: None,
            });
            self.results.push_back(StepResult { step: plan.step, sampled: sampled.collect(), busy_ns: 0 });
        }
        if plan.is_none() || self.results.len() >= self.steps_in_flight {
            if let Some(result) = self.results.pop_front() {
                self.scheduler.complete(result).unwrap();
            }
            self.scheduler.drain_outputs(|_, _| ());
        }
    }

    /// Serves short requests to their end, 32 at a time.
    pub fn serve(&mut self, serials: Range<u32>) {
        for serial in serials {
            self.submit(serial, 100 + serial % 64, 3);
            while serial % 32 == 31 && !self.scheduler.is_idle() {
                self.step(|_| ());
            }
        }
        while !self.scheduler.is_idle() {
            self.step(|_| ());
        }
        self.scheduler.check_invariants().unwrap();
    }
}
