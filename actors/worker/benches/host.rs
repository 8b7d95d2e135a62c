//! What the host costs: the scheduler's loop and a worker's loop over real rings, with the simulated device and API servers
//! that only count. `cargo bench -p gossamer-worker --bench host`
//!
//! Prints, for a device with steps of 5 ms, the share of the time in which it is busy with asynchronous and with
//! synchronous scheduling; for a device without step time, the tokens per second that scheduler and worker can feed at
//! stream intervals 1 and 20, and the CPU time per token of both.

#![allow(clippy::unwrap_used)]

use gossamer_channel::{Receiver, RingSpec, Sender, Spin, ring};
use gossamer_kernels::cost::CostModel;
use gossamer_scheduler::SchedulerConfig;
use gossamer_scheduler::process::{Input, Pulse, run};
use gossamer_supervisor::{ChildEvent, DuplexLink, WorkerLink, WorkersLink};
use gossamer_wire::{
    FromScheduler, KvGroup, RequestId, SamplingParams, SequenceKey, StopRules, Submit, ToScheduler,
    WorkerInfo, decode, encode,
};
use gossamer_worker::process::PlanLoop;
use gossamer_worker::{Script, Sim, SlotLimits};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

struct Quiet;

impl Pulse for Quiet {
    fn beat(&self) {}
    fn ready(&self) {}
}

fn pair(bytes: usize) -> (Sender, Receiver) {
    let spec = RingSpec { label: "bench-host", slot_size: 512, slots: bytes / 512, readers: 1, epoch: 1 };
    let segment = ring::create(&spec).unwrap();
    segment.unlink();
    let segment = Arc::new(segment);
    (
        Sender::attach(Arc::clone(&segment), Spin::auto()).unwrap(),
        Receiver::attach(segment, 0, Spin::auto()).unwrap(),
    )
}

fn submit(serial: u32, tokens: u32, stream_interval: u32) -> ToScheduler {
    ToScheduler::Submit(Box::new(Submit {
        key: SequenceKey { request: RequestId::new(0, 1, serial), choice: 0 },
        prompt: (0..32).map(|i| (serial * 31 + i) % 1000).collect(),
        generated: Vec::new(),
        sampling: SamplingParams::default(),
        stop: StopRules { max_tokens: tokens, min_tokens: 0, stop_token_ids: vec![200_002, 200_012] },
        stream_interval,
        priority: 0,
        tenant: 0,
        cache_salt: 0,
        deadline_unix_ms: None,
    }))
}

struct Outcome {
    elapsed: Duration,
    cpu: Duration,
    device_busy: f64,
    tokens: u64,
}

/// Serves `streams` requests of `tokens` tokens each.
fn serve(streams: u32, tokens: u32, step: Duration, steps_in_flight: u32, stream_interval: u32) -> Outcome {
    let config = SchedulerConfig { max_num_seqs: streams, steps_in_flight, ..Default::default() };
    let info = WorkerInfo {
        rank: 0,
        num_blocks: 1 << 16,
        block_size: 64,
        groups: vec![KvGroup { window: Some(128) }, KvGroup { window: None }],
        max_model_len: 131_072,
        vocab_size: 201_088,
    };
    let cost = CostModel { fixed_us: step.as_secs_f64() * 1e6, ..CostModel::instant() };
    let limits = SlotLimits::new(config.max_num_seqs, config.max_num_batched_tokens);
    let sim = Sim::new(info, limits, cost, Script::default(), 0);

    let (inputs, receiver) = mpsc::channel();
    let sender = inputs.clone();
    let scheduler = std::thread::spawn(move || run(config, &Quiet, sender, &receiver).unwrap());
    let (plans, plans_in) = pair(8 << 20);
    let (results, results_in) = pair(2 << 20);
    let stop = Arc::new(AtomicBool::new(false));
    let worker = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let mut turns = PlanLoop::new(Box::new(sim));
            turns.attach(WorkerLink { plans: plans_in, results }).unwrap();
            while !stop.load(Ordering::Relaxed) {
                turns.turn(Duration::from_millis(20)).unwrap();
            }
        }
    });
    let tell = |event| inputs.send(Input::Event(event)).unwrap();
    let (mut requests, requests_in) = pair(2 << 20);
    let (tokens_out, mut tokens_in) = pair(1 << 20);
    let link = DuplexLink { sender: tokens_out, receiver: requests_in };
    tell(ChildEvent::ApiServer { index: 0, epoch: 1, link });
    tell(ChildEvent::Workers { epoch: 2, link: WorkersLink { plans, results: vec![results_in] } });

    let mut next = || decode::<FromScheduler>(&tokens_in.recv(LONG).unwrap()).unwrap();
    while !matches!(next(), FromScheduler::Ready(_)) {}
    let (start, cpu) = (Instant::now(), cpu_time());
    for serial in 0..streams {
        requests.send(&encode(&submit(serial, tokens, stream_interval)).unwrap(), LONG).unwrap();
    }
    let (mut got, mut finished, mut steps) = (0, 0, 0);
    while finished < streams {
        match next() {
            FromScheduler::Tokens(deltas) => {
                got += deltas.iter().map(|delta| delta.tokens.len() as u64).sum::<u64>();
                finished += deltas.iter().filter(|delta| delta.finish.is_some()).count() as u32;
            }
            FromScheduler::Stats(stats) => steps = stats.steps,
            other => panic!("unexpected {other:?}"),
        }
    }
    let (elapsed, cpu) = (start.elapsed(), cpu_time() - cpu);
    while !matches!(next(), FromScheduler::Stats(stats) if { steps = stats.steps; stats.running == 0 }) {}
    tell(ChildEvent::Stop);
    stop.store(true, Ordering::Relaxed);
    scheduler.join().unwrap();
    worker.join().unwrap();
    let device_busy = steps as f64 * step.as_secs_f64() / elapsed.as_secs_f64();
    Outcome { elapsed, cpu, device_busy, tokens: got }
}

/// CPU time of this process. Linux counts it in hundredths of a second.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

fn main() {
    for (name, steps_in_flight) in [("asynchronous", 2), ("synchronous", 1)] {
        let outcome = serve(256, 400, Duration::from_millis(5), steps_in_flight, 1);
        println!("{name}: device busy {:.2} % at 256 streams with 5 ms steps", 100.0 * outcome.device_busy);
    }
    for streams in [16, 1024] {
        for stream_interval in [1, 20] {
            let outcome = serve(streams, 400_000 / streams, Duration::ZERO, 2, stream_interval);
            let rate = outcome.tokens as f64 / outcome.elapsed.as_secs_f64();
            let cpu = outcome.cpu.as_secs_f64() * 1e6 / outcome.tokens as f64;
            println!(
                "{streams} streams, interval {stream_interval}: {rate:.0} tokens/s, {cpu:.2} us of CPU per token \
                 (scheduler, worker and reader)"
            );
        }
    }
}
