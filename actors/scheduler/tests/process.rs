//! The process loop over real rings, with threads in place of the other processes.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/driver.rs"]
mod driver;

use common::{FakeWorker, reference};
use driver::submit;
use gossamer_channel::{Receiver, RecvError, RingSpec, Segment, Sender, Spin, ring};
use gossamer_scheduler::SchedulerConfig;
use gossamer_scheduler::process::{Input, ProcessError, Pulse, run};
use gossamer_supervisor::{ChildEvent, ChildRole, DuplexLink, WorkersLink};
use gossamer_wire::{
    FinishReason, FromScheduler, FromWorker, KvGroup, RequestId, SchedulerStats, SequenceKey, StepPlan,
    Submit, ToScheduler, TokenDelta, WorkerInfo, decode, encode,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);

fn info() -> WorkerInfo {
    WorkerInfo {
        rank: 0,
        num_blocks: 400,
        block_size: 16,
        groups: vec![KvGroup { window: Some(20) }, KvGroup { window: None }],
        max_model_len: 4096,
        vocab_size: 1000,
    }
}

fn segment(bytes: usize, epoch: u64) -> Arc<Segment> {
    let spec = RingSpec { label: "process-test", slot_size: 64, slots: bytes / 64, readers: 1, epoch };
    let segment = ring::create(&spec).unwrap();
    segment.unlink();
    Arc::new(segment)
}

fn pair(bytes: usize, epoch: u64) -> (Sender, Receiver) {
    let segment = segment(bytes, epoch);
    let sender = Sender::attach(Arc::clone(&segment), Spin::NONE).unwrap();
    (sender, Receiver::attach(segment, 0, Spin::NONE).unwrap())
}

#[derive(Default)]
struct Beats {
    beats: AtomicU64,
    ready: AtomicBool,
}

#[derive(Clone)]
struct Shared(Arc<Beats>);

impl Pulse for Shared {
    fn beat(&self) {
        self.0.beats.fetch_add(1, Ordering::Relaxed);
    }
    fn ready(&self) {
        self.0.ready.store(true, Ordering::Relaxed);
    }
}

/// The loop in a thread, and the supervisor's part.
struct Tree {
    inputs: mpsc::Sender<Input>,
    thread: JoinHandle<Result<(), ProcessError>>,
    pulse: Shared,
    epoch: u64,
}

impl Tree {
    fn new(config: SchedulerConfig) -> Self {
        let (inputs, receiver) = mpsc::channel();
        let (sender, pulse) = (inputs.clone(), Shared(Arc::default()));
        let beats = pulse.clone();
        let thread = std::thread::spawn(move || run(config, &beats, sender, &receiver));
        Self { inputs, thread, pulse, epoch: 0 }
    }

    fn tell(&self, event: ChildEvent) {
        self.inputs.send(Input::Event(event)).unwrap();
    }

    fn api_server(&mut self, index: u16, token_bytes: usize) -> ApiServer {
        self.epoch += 1;
        let (requests, receiver) = pair(1 << 20, self.epoch);
        let (sender, tokens) = pair(token_bytes, self.epoch);
        self.tell(ChildEvent::ApiServer { index, epoch: self.epoch, link: DuplexLink { sender, receiver } });
        ApiServer { requests, tokens, got: HashMap::new(), stats: None, pauses: 0, ready: 0 }
    }

    /// A worker that runs `steps` plans and then dies without a word.
    fn worker(&mut self, steps: u64) -> JoinHandle<()> {
        self.epoch += 1;
        let (plans, mut plans_in) = pair(1 << 20, self.epoch);
        let (mut results, results_in) = pair(1 << 20, self.epoch);
        self.tell(ChildEvent::Workers {
            epoch: self.epoch,
            link: WorkersLink { plans, results: vec![results_in] },
        });
        std::thread::spawn(move || {
            let mut worker = FakeWorker::new(info());
            results.send(&encode(&FromWorker::Ready(info())).unwrap(), LONG).unwrap();
            for _ in 0..steps {
                let plan = match plans_in.recv(LONG) {
                    Ok(bytes) => decode::<StepPlan>(&bytes).unwrap(),
                    Err(RecvError::Closed) => return,
                    Err(error) => panic!("{error}"),
                };
                let done = encode(&FromWorker::Done(worker.step(&plan))).unwrap();
                if results.send(&done, LONG).is_err() {
                    return;
                }
            }
        })
    }

    fn end(self) {
        self.tell(ChildEvent::Stop);
        self.thread.join().unwrap().unwrap();
    }
}

struct ApiServer {
    requests: Sender,
    tokens: Receiver,
    got: HashMap<SequenceKey, (Vec<u32>, Option<FinishReason>)>,
    stats: Option<SchedulerStats>,
    pauses: usize,
    ready: usize,
}

impl ApiServer {
    fn send(&mut self, message: &ToScheduler) {
        self.requests.send(&encode(message).unwrap(), LONG).unwrap();
    }

    fn submit(&mut self, submit: &Submit) {
        self.got.insert(submit.key, (Vec::new(), None));
        self.send(&ToScheduler::Submit(Box::new(submit.clone())));
    }

    fn receive(&mut self) {
        match decode::<FromScheduler>(&self.tokens.recv(LONG).unwrap()).unwrap() {
            FromScheduler::Ready(engine) => {
                assert_eq!(engine.vocab_size, 1000);
                self.ready += 1;
            }
            FromScheduler::Paused => self.pauses += 1,
            FromScheduler::Tokens(deltas) => deltas.into_iter().for_each(|delta| self.take(delta)),
            FromScheduler::Refused { key, refusal } => panic!("{key:?} was refused: {refusal:?}"),
            FromScheduler::Stats(stats) => self.stats = Some(stats),
        }
    }

    fn take(&mut self, delta: TokenDelta) {
        let (tokens, finish) = self.got.get_mut(&delta.key).expect("a sequence of this server");
        assert!(finish.is_none() && delta.position as usize == tokens.len(), "{delta:?}");
        tokens.extend(delta.tokens);
        *finish = delta.finish;
    }

    fn receive_until(&mut self, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            self.receive();
        }
    }

    fn all_finished(&self) -> bool {
        self.got.values().all(|(_, finish)| finish.is_some())
    }

    fn check(&self, submits: &[Submit]) {
        for submit in submits {
            assert_eq!(self.got[&submit.key].0, reference(submit, &info()).0, "{:?}", submit.key);
        }
    }
}

fn requests(server: u16, epoch: u16, count: u32, max_tokens: u32) -> Vec<Submit> {
    let request = |serial: u32| {
        let prompt = (0..20 + serial % 50).map(|i| (i * 7 + serial) % 1000).collect();
        Submit {
            key: SequenceKey { request: RequestId::new(server, epoch, serial), choice: 0 },
            stream_interval: 1 + serial % 3,
            ..submit(serial, prompt, max_tokens)
        }
    };
    (0..count).map(request).collect()
}

#[test]
fn requests_of_two_servers_are_served_and_counted() {
    let mut tree = Tree::new(SchedulerConfig::default());
    let mut servers = [tree.api_server(0, 1 << 20), tree.api_server(1, 1 << 20)];
    // One asks before any worker is ready, the other after.
    let submits = [requests(0, 1, 40, 30), requests(1, 1, 40, 30)];
    servers[0].send(&ToScheduler::Hello { api_server: 0, epoch: 1 });
    submits[0].iter().for_each(|submit| servers[0].submit(submit));
    let worker = tree.worker(u64::MAX);
    servers[1].receive_until(|server| server.ready == 1);
    assert!(tree.pulse.0.ready.load(Ordering::Relaxed));
    submits[1].iter().for_each(|submit| servers[1].submit(submit));
    for (server, submits) in servers.iter_mut().zip(&submits) {
        server.receive_until(ApiServer::all_finished);
        server.check(submits);
        server.receive_until(|server| {
            server.stats.as_ref().is_some_and(|stats| {
                stats.generation_tokens == 2 * 40 * 30
                    && stats.finished == [0, 80, 0, 0, 0]
                    && (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)
            })
        });
    }
    assert!(tree.pulse.0.beats.load(Ordering::Relaxed) > 0);
    tree.end();
    worker.join().unwrap();
}

#[test]
fn a_dead_worker_is_a_pause_and_no_token_is_lost_or_repeated() {
    let mut tree = Tree::new(SchedulerConfig::default());
    let mut server = tree.api_server(0, 1 << 20);
    let submits = requests(0, 1, 30, 60);
    submits.iter().for_each(|submit| server.submit(submit));
    for steps in [10, 1, 15] {
        tree.worker(steps).join().unwrap();
        tree.tell(ChildEvent::Lost { peer: ChildRole::Worker(0) });
    }
    let worker = tree.worker(u64::MAX);
    server.receive_until(ApiServer::all_finished);
    server.check(&submits);
    assert_eq!((server.ready, server.pauses), (4, 3));
    tree.end();
    worker.join().unwrap();
}

#[test]
fn the_sequences_of_a_dead_api_server_end_and_those_of_others_do_not() {
    let mut tree = Tree::new(SchedulerConfig::default());
    let mut survivor = tree.api_server(1, 1 << 20);
    let mut dead = tree.api_server(0, 1 << 20);
    let worker = tree.worker(u64::MAX);
    requests(0, 1, 20, 4000).iter().for_each(|submit| dead.submit(submit));
    let submits = requests(1, 1, 20, 200);
    submits.iter().for_each(|submit| survivor.submit(submit));
    dead.receive_until(|server| server.got.values().all(|(tokens, _)| !tokens.is_empty()));
    drop(dead);
    tree.tell(ChildEvent::Lost { peer: ChildRole::ApiServer(0) });
    survivor.receive_until(ApiServer::all_finished);
    survivor.check(&submits);
    survivor.receive_until(|server| {
        server.stats.as_ref().is_some_and(|stats| stats.finished[2] == 20 && stats.kv_blocks_used == 0)
    });
    let mut successor = tree.api_server(0, 1 << 20);
    successor.send(&ToScheduler::Hello { api_server: 0, epoch: 2 });
    let submits = requests(0, 2, 5, 10);
    submits.iter().for_each(|submit| successor.submit(submit));
    successor.receive_until(ApiServer::all_finished);
    successor.check(&submits);
    tree.end();
    worker.join().unwrap();
}

#[test]
fn a_slow_reader_with_a_tiny_ring_loses_nothing_and_holds_nobody_up() {
    let mut tree = Tree::new(SchedulerConfig::default());
    // Half of it is the longest message: a step's deltas for 200 sequences must be split.
    let mut slow = tree.api_server(0, 2048);
    let mut quick = tree.api_server(1, 1 << 20);
    let worker = tree.worker(u64::MAX);
    let theirs = requests(0, 1, 200, 40);
    theirs.iter().for_each(|submit| slow.submit(submit));
    let submits = requests(1, 1, 20, 100);
    submits.iter().for_each(|submit| quick.submit(submit));
    quick.receive_until(ApiServer::all_finished);
    quick.check(&submits);
    slow.receive_until(ApiServer::all_finished);
    slow.check(&theirs);
    tree.end();
    worker.join().unwrap();
}

#[test]
fn messages_that_are_none_and_requests_of_others_are_ignored() {
    let mut tree = Tree::new(SchedulerConfig::default());
    let mut server = tree.api_server(0, 1 << 20);
    let worker = tree.worker(u64::MAX);
    server.requests.send(&[255; 100], LONG).unwrap();
    server.send(&ToScheduler::Submit(Box::new(requests(7, 1, 1, 5).remove(0))));
    let submits = requests(0, 1, 3, 5);
    submits.iter().for_each(|submit| server.submit(submit));
    server.receive_until(ApiServer::all_finished);
    server.check(&submits);
    tree.end();
    worker.join().unwrap();
}

#[test]
fn a_worker_that_contradicts_its_plan_ends_the_process_with_the_reason() {
    let mut tree = Tree::new(SchedulerConfig::default());
    let mut server = tree.api_server(0, 1 << 20);
    tree.epoch += 1;
    let (plans, mut plans_in) = pair(1 << 20, tree.epoch);
    let (mut results, results_in) = pair(1 << 20, tree.epoch);
    tree.tell(ChildEvent::Workers {
        epoch: tree.epoch,
        link: WorkersLink { plans, results: vec![results_in] },
    });
    results.send(&encode(&FromWorker::Ready(info())).unwrap(), LONG).unwrap();
    server.submit(&requests(0, 1, 1, 5)[0]);
    let plan: StepPlan = decode(&plans_in.recv(LONG).unwrap()).unwrap();
    let mut result = FakeWorker::new(info()).step(&plan);
    result.sampled.clear();
    results.send(&encode(&FromWorker::Done(result)).unwrap(), LONG).unwrap();
    let error = tree.thread.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("expected 1 tokens from step 1, got 0"), "{error}");
}

#[test]
fn the_loop_ends_when_the_supervisor_is_gone_and_when_a_drain_is_over() {
    let tree = Tree::new(SchedulerConfig::default());
    tree.inputs.send(Input::Orphaned).unwrap();
    tree.thread.join().unwrap().unwrap();

    let mut tree = Tree::new(SchedulerConfig::default());
    let mut server = tree.api_server(0, 1 << 20);
    let worker = tree.worker(u64::MAX);
    let submits = requests(0, 1, 3, 50);
    submits.iter().for_each(|submit| server.submit(submit));
    tree.tell(ChildEvent::Drain { grace: LONG });
    server.receive_until(ApiServer::all_finished);
    server.check(&submits);
    drop(server);
    tree.thread.join().unwrap().unwrap();
    worker.join().unwrap();
}
