use super::*;
use crate::executor::ExecutorError;
use crate::slots::{SlotLimits, SlotTable};
use gossamer_channel::{Receiver, RingSpec, Sender, Spin, ring};
use gossamer_wire::{
    BlockGrant, InputTokens, KvGroup, RankPlan, Run, SampledToken, SamplingParams, SlotJoin, StepResult,
    WorkerInfo, encode,
};
use std::collections::VecDeque;
use std::sync::Arc;

const LONG: Duration = Duration::from_secs(10);

fn info() -> WorkerInfo {
    WorkerInfo {
        rank: 0,
        num_blocks: 4,
        block_size: 64,
        groups: vec![KvGroup { window: None }],
        max_model_len: 128,
        vocab_size: 100,
    }
}

/// Draws the number of tokens in the slot, at once.
struct Counting {
    info: WorkerInfo,
    slots: SlotTable,
    done: VecDeque<StepResult>,
}

impl Executor for Counting {
    fn info(&self) -> &WorkerInfo {
        &self.info
    }

    fn enqueue(&mut self, plan: &StepPlan) -> Result<(), ExecutorError> {
        let step = plan.step;
        let section = self.slots.apply(plan).map_err(|source| ExecutorError::Plan { step, source })?;
        let mut sampled = Vec::new();
        for run in section.runs.iter().filter(|run| run.sample) {
            let position = run.start + run.count;
            self.slots.get_mut(run.slot).unwrap().push(position);
            sampled.push(SampledToken { slot: run.slot, position, token: position, logprobs: None });
        }
        self.done.push_back(StepResult { step, sampled, busy_ns: 1 });
        Ok(())
    }

    fn poll(&mut self) -> Result<Progress, ExecutorError> {
        Ok(self.done.pop_front().map_or(Progress::Idle, Progress::Done))
    }
}

struct Scheduler {
    plans: Sender,
    results: Receiver,
}

impl Scheduler {
    fn send(&mut self, plan: &StepPlan) {
        self.plans.send(&encode(plan).unwrap(), LONG).unwrap();
    }

    fn receive(&mut self) -> FromWorker {
        decode(&self.results.recv(LONG).unwrap()).unwrap()
    }
}

fn link() -> (Scheduler, WorkerLink) {
    let make = |label| {
        let spec = RingSpec { label, slot_size: 512, slots: 256, readers: 1, epoch: 1 };
        let segment = ring::create(&spec).unwrap();
        segment.unlink();
        Arc::new(segment)
    };
    let (plans, results) = (make("plans"), make("results"));
    let scheduler = Scheduler {
        plans: Sender::attach(Arc::clone(&plans), Spin::NONE).unwrap(),
        results: Receiver::attach(Arc::clone(&results), 0, Spin::NONE).unwrap(),
    };
    let worker = WorkerLink {
        plans: Receiver::attach(plans, 0, Spin::NONE).unwrap(),
        results: Sender::attach(results, Spin::NONE).unwrap(),
    };
    (scheduler, worker)
}

fn plan_loop() -> PlanLoop {
    let slots = SlotTable::new(info(), SlotLimits { slots: 4, runs: 4, tokens: 64 }, 0);
    PlanLoop::new(Box::new(Counting { info: info(), slots, done: VecDeque::new() }))
}

fn first(step: u64) -> StepPlan {
    let join = SlotJoin {
        slot: 0,
        tokens: vec![1, 2, 3],
        prompt_len: 3,
        choice: 0,
        sampling: SamplingParams::default(),
        min_tokens: 0,
        stop_token_ids: vec![],
    };
    let section = RankPlan {
        join: vec![join],
        grants: vec![BlockGrant { slot: 0, group: 0, first: 0, first_live: 0, blocks: vec![2] }],
        runs: vec![Run { slot: 0, start: 0, count: 3, input: InputTokens::Known, sample: true }],
        ..RankPlan::default()
    };
    StepPlan { step, snapshot: true, ranks: vec![section], ..StepPlan::default() }
}

fn next(step: u64, start: u32) -> StepPlan {
    let run = Run { slot: 0, start, count: 1, input: InputTokens::LastSampled, sample: true };
    let section = RankPlan { runs: vec![run], ..RankPlan::default() };
    StepPlan { step, ranks: vec![section], ..StepPlan::default() }
}

fn tokens(message: FromWorker) -> (u64, Vec<u32>) {
    let FromWorker::Done(result) = message else { panic!("expected a result, got {message:?}") };
    (result.step, result.sampled.iter().map(|sampled| sampled.token).collect())
}

#[test]
fn plans_become_results_in_order_and_a_new_scheduler_starts_anew() {
    let mut plans = plan_loop();
    let (mut scheduler, worker) = link();
    plans.attach(worker).unwrap();
    assert_eq!(scheduler.receive(), FromWorker::Ready(info()));
    scheduler.send(&first(1));
    scheduler.send(&next(2, 3));
    for _ in 0..4 {
        plans.turn(LONG).unwrap();
    }
    assert_eq!(tokens(scheduler.receive()), (1, vec![3]));
    assert_eq!(tokens(scheduler.receive()), (2, vec![4]));

    drop(scheduler);
    plans.turn(LONG).unwrap();
    let (mut successor, worker) = link();
    plans.attach(worker).unwrap();
    assert_eq!(successor.receive(), FromWorker::Ready(info()));
    successor.send(&first(9));
    plans.turn(LONG).unwrap();
    plans.turn(LONG).unwrap();
    assert_eq!(tokens(successor.receive()), (9, vec![3]));
}

#[test]
fn what_is_no_plan_or_a_malformed_one_is_a_fault_and_the_scheduler_hears_it() {
    let cases: [(Vec<u8>, &str); 3] = [
        (vec![7; 40], "expected a step plan"),
        (encode(&next(2, 3)).unwrap(), "expected a snapshot as the first plan"),
        (encode(&StepPlan { ranks: vec![], ..first(1) }).unwrap(), "expected a section for rank 0"),
    ];
    for (bytes, expected) in cases {
        let mut plans = plan_loop();
        let (mut scheduler, worker) = link();
        plans.attach(worker).unwrap();
        scheduler.receive();
        scheduler.plans.send(&bytes, LONG).unwrap();
        let error = plans.turn(LONG).expect_err(expected).to_string();
        assert!(error.contains(expected), "expected '{expected}' in '{error}'");
        let FromWorker::Fault { message } = scheduler.receive() else { panic!("expected a fault") };
        assert_eq!(message, error);
    }
}

#[test]
fn a_full_ring_of_results_holds_plans_back_and_loses_nothing() {
    let mut plans = plan_loop();
    let (mut scheduler, worker) = link();
    plans.attach(worker).unwrap();
    let empty = |step| StepPlan {
        step,
        snapshot: step == 1,
        ranks: vec![RankPlan::default()],
        ..StepPlan::default()
    };
    let mut sent = 0;
    // Nobody reads: results fill their ring, then plans theirs.
    while scheduler.plans.try_send(&encode(&empty(sent + 1)).unwrap()).is_ok() {
        sent += 1;
        assert!(sent < 10_000, "plans were never held back");
        plans.turn(Duration::ZERO).unwrap();
        plans.turn(Duration::ZERO).unwrap();
    }
    assert_eq!(scheduler.receive(), FromWorker::Ready(info()));
    for step in 1..=sent {
        let message = loop {
            match scheduler.results.try_recv() {
                Ok(bytes) => break decode(&bytes).unwrap(),
                Err(_) => plans.turn(Duration::ZERO).unwrap(),
            }
        };
        assert_eq!(tokens(message), (step, vec![]));
    }
}
