//! A scheduler, a fake worker, and the books about what clients must have received.

#![allow(dead_code, clippy::unwrap_used)] // every test program uses its own part, and all of it is test code

use super::common::{FakeWorker, reference};
use gossamer_scheduler::{Scheduler, SchedulerConfig};
use gossamer_wire::{
    AbortReason, FinishReason, FromScheduler, Refusal, RequestId, SamplingParams, SequenceKey, StepPlan,
    StopRules, Submit, TokenDelta, WorkerInfo,
};
use std::collections::{HashMap, VecDeque};

/// What a client got of one sequence.
pub struct Client {
    pub submit: Submit,
    pub expected: Vec<u32>,
    pub stops: bool,
    pub got: Vec<u32>,
    pub finish: Option<FinishReason>,
    pub refused: Option<Refusal>,
    pub cached: Option<u32>,
    /// Its API server died: nothing may arrive any more.
    pub void: bool,
}

pub struct Driver {
    pub scheduler: Scheduler,
    pub worker: FakeWorker,
    pub config: SchedulerConfig,
    pub plans: VecDeque<StepPlan>,
    pub clients: HashMap<SequenceKey, Client>,
    pub order: Vec<SequenceKey>,
    pub now: u64,
    /// Tokens that the worker ran.
    pub tokens_run: u64,
    calls: u64,
}

pub fn submit(serial: u32, prompt: Vec<u32>, max_tokens: u32) -> Submit {
    Submit {
        key: SequenceKey { request: RequestId::new(0, 0, serial), choice: 0 },
        prompt,
        generated: Vec::new(),
        sampling: SamplingParams { seed: u64::from(serial), ..Default::default() },
        stop: StopRules { max_tokens, min_tokens: 0, stop_token_ids: Vec::new() },
        stream_interval: 1,
        priority: 0,
        tenant: 0,
        cache_salt: 0,
        deadline_unix_ms: None,
    }
}

impl Driver {
    pub fn new(config: SchedulerConfig, info: WorkerInfo) -> Self {
        Self {
            scheduler: Scheduler::new(config.clone(), &info).unwrap(),
            worker: FakeWorker::new(info),
            config,
            plans: VecDeque::new(),
            clients: HashMap::new(),
            order: Vec::new(),
            now: 1,
            tokens_run: 0,
            calls: 0,
        }
    }

    pub fn submit(&mut self, submit: Submit) -> SequenceKey {
        let key = submit.key;
        let (expected, stops) = reference(&submit, &self.worker.info);
        let got = submit.generated.clone();
        assert!(expected.starts_with(&got), "a refill repeats what the model said");
        let client = Client {
            submit: submit.clone(),
            expected,
            stops,
            got,
            finish: None,
            refused: None,
            cached: None,
            void: false,
        };
        self.clients.insert(key, client);
        self.order.push(key);
        self.scheduler.submit(submit);
        self.settle();
        key
    }

    pub fn abort(&mut self, key: SequenceKey) {
        self.scheduler.abort(key, AbortReason::Disconnected);
        self.settle();
    }

    pub fn hello(&mut self, api_server: u16, epoch: u16) {
        for (key, client) in &mut self.clients {
            client.void |= key.request.api_server() == api_server && key.request.epoch() != epoch;
        }
        self.scheduler.hello(api_server, epoch);
        self.settle();
    }

    /// Plans a step, if one can be.
    pub fn plan(&mut self) -> bool {
        let Some(plan) = self.scheduler.plan(self.now) else {
            self.settle();
            return false;
        };
        let runs = &plan.ranks[0].runs;
        let tokens: u32 = runs.iter().map(|run| run.count).sum();
        assert!(tokens >= 1 && tokens <= self.config.max_num_batched_tokens, "a step of {tokens} tokens");
        self.tokens_run += u64::from(tokens);
        self.plans.push_back(plan.clone());
        assert!(self.plans.len() <= self.config.steps_in_flight as usize);
        self.settle();
        true
    }

    /// Runs the oldest plan.
    pub fn complete(&mut self) -> bool {
        let Some(plan) = self.plans.pop_front() else { return false };
        let result = self.worker.step(&plan);
        self.scheduler.complete(result).unwrap();
        self.settle();
        true
    }

    pub fn lose_worker(&mut self) {
        self.plans.clear();
        self.scheduler.worker_lost();
        self.settle();
        assert!(self.scheduler.plan(self.now).is_none(), "nothing runs without a worker");
        self.worker = FakeWorker::new(self.worker.info.clone());
        self.scheduler.worker_ready(&self.worker.info).unwrap();
        self.settle();
    }

    /// Runs until nothing is left to do.
    pub fn finish(&mut self) {
        let work: usize = self.clients.values().map(|c| c.submit.prompt.len() + c.expected.len()).sum();
        for _ in 0..100 + 20 * work {
            while self.plan() {}
            if !self.complete() {
                assert!(
                    self.scheduler.is_idle(),
                    "sequences are left and nothing runs: {:?}",
                    self.scheduler.stats()
                );
                return;
            }
        }
        panic!("no end in sight: {:?}", self.scheduler.stats());
    }

    /// Every client has got all that it must get, and the scheduler is empty.
    pub fn check_all_served(&self) {
        for (key, client) in &self.clients {
            if client.void || client.refused.is_some() {
                continue;
            }
            match &client.finish {
                Some(FinishReason::Stop) => assert!(client.stops, "{key:?} stopped"),
                Some(FinishReason::Length) => assert!(!client.stops, "{key:?} did not stop"),
                Some(FinishReason::Abort | FinishReason::Deadline) => continue,
                other => panic!("{key:?} ended with {other:?}"),
            }
            assert_eq!(client.got, client.expected, "{key:?}");
        }
        let stats = self.scheduler.stats();
        assert_eq!((stats.running, stats.waiting, stats.kv_blocks_used), (0, 0, 0));
    }

    fn settle(&mut self) {
        let mut deltas = Vec::new();
        let clients = &mut self.clients;
        self.scheduler.drain_outputs(|api_server, message| match message {
            FromScheduler::Tokens(tokens) => {
                assert!(tokens.iter().all(|delta| delta.key.request.api_server() == api_server));
                deltas.extend(tokens);
            }
            FromScheduler::Refused { key, refusal } => {
                clients.get_mut(&key).expect("a known key").refused = Some(refusal);
            }
            other => panic!("unexpected {other:?}"),
        });
        for delta in deltas {
            self.receive(delta);
        }
        // The check looks at everything: with many sequences not after every call.
        self.calls += 1;
        if self.clients.len() < 100 || self.calls.is_multiple_of(16) || self.scheduler.is_idle() {
            self.scheduler.check_invariants().unwrap();
        }
    }

    fn receive(&mut self, delta: TokenDelta) {
        let client = self.clients.get_mut(&delta.key).expect("a known key");
        assert!(
            !client.void && client.refused.is_none() && client.finish.is_none(),
            "{delta:?} comes too late"
        );
        assert_eq!(delta.position as usize, client.got.len(), "no token is lost or repeated");
        let first = client.got.is_empty();
        let cached = delta.cached_prompt_tokens.is_some();
        assert!(if delta.tokens.is_empty() { first || !cached } else { first == cached }, "{delta:?}");
        client.cached = client.cached.or(delta.cached_prompt_tokens);
        if delta.finish.is_none() {
            let expected = if first { 1 } else { client.submit.stream_interval };
            assert_eq!(delta.tokens.len() as u32, expected, "the first token at once, then every k");
        }
        client.got.extend(&delta.tokens);
        assert!(client.expected.starts_with(&client.got), "{:?} got {:?}", delta.key, client.got);
        client.finish = delta.finish;
    }
}
