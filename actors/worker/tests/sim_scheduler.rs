//! The real scheduler against the real slot table, with the simulated device between them: what the scheduler's own
//! tests show with their fake worker must hold for the worker's reading of plans too.

#![allow(clippy::unwrap_used)]

use gossamer_kernels::cost::CostModel;
use gossamer_scheduler::{Scheduler, SchedulerConfig};
use gossamer_wire::{
    FinishReason, FromScheduler, KvGroup, RequestId, SamplingParams, SequenceKey, StopRules, Submit,
    WorkerInfo,
};
use gossamer_worker::{Executor, Script, Sim, SlotLimits};
use std::collections::BTreeMap;

fn info() -> WorkerInfo {
    WorkerInfo {
        rank: 0,
        num_blocks: 90,
        block_size: 16,
        groups: vec![KvGroup { window: Some(20) }, KvGroup { window: None }],
        max_model_len: 700,
        vocab_size: 1000,
    }
}

fn request(serial: u32) -> Submit {
    // Every third request begins like the others of its kind.
    let kind = if serial.is_multiple_of(3) { 0 } else { serial };
    Submit {
        key: SequenceKey { request: RequestId::new(0, 0, serial), choice: 0 },
        prompt: (0..10 + serial * 37 % 400).map(|i| (i * 31 + kind * 7) % 1000).collect(),
        generated: Vec::new(),
        sampling: SamplingParams { seed: u64::from(serial), ..Default::default() },
        stop: StopRules {
            max_tokens: 1 + serial * 13 % 90,
            min_tokens: 2,
            stop_token_ids: (0..10).collect(),
        },
        stream_interval: 1 + serial % 4,
        priority: 0,
        tenant: u64::from(serial % 3),
        cache_salt: 0,
        deadline_unix_ms: None,
    }
}

/// Tokens of all requests, and how often a sequence was pre-empted. The worker is replaced after `lives` steps, once.
fn serve(config: SchedulerConfig, lives: u64) -> (BTreeMap<u32, Vec<u32>>, u64) {
    let limits = SlotLimits::new(config.max_num_seqs, config.max_num_batched_tokens);
    let open = || Sim::new(info(), limits, CostModel::instant(), Script::default(), 1);
    let mut scheduler = Scheduler::new(config, &info()).unwrap();
    let mut sim = open();
    (0..120).for_each(|serial| scheduler.submit(request(serial)));
    let mut outputs: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut steps = 0;
    while !scheduler.is_idle() {
        while let Some(plan) = scheduler.plan(1) {
            sim.enqueue(plan).unwrap();
        }
        steps += 1;
        if steps == lives {
            sim = open();
            scheduler.worker_ready(&info()).unwrap();
            continue;
        }
        scheduler.complete(sim.collect().unwrap()).unwrap();
        scheduler.drain_outputs(|_, message| {
            let FromScheduler::Tokens(deltas) = message else { panic!("unexpected {message:?}") };
            for delta in deltas {
                let tokens = outputs.entry(delta.key.request.0 as u32).or_default();
                assert_eq!(delta.position as usize, tokens.len());
                tokens.extend(delta.tokens);
                assert!(matches!(delta.finish, None | Some(FinishReason::Stop | FinishReason::Length)));
            }
        });
    }
    scheduler.check_invariants().unwrap();
    (outputs, scheduler.stats().preemptions)
}

#[test]
fn every_way_of_scheduling_says_the_same() {
    let plain = SchedulerConfig {
        max_num_seqs: 1,
        max_num_batched_tokens: 1000,
        max_model_len: 700,
        enable_prefix_caching: false,
        enable_chunked_prefill: false,
        steps_in_flight: 1,
        ..Default::default()
    };
    let (expected, _) = serve(plain.clone(), 0);
    assert_eq!(expected.len(), 120);
    let mut preemptions = 0;
    for (steps_in_flight, max_num_batched_tokens, enable_prefix_caching, lives) in
        [(1, 100, true, 0), (2, 100, true, 0), (2, 64, false, 0), (3, 300, true, 25), (2, 100, true, 60)]
    {
        let config = SchedulerConfig {
            max_num_seqs: 40,
            max_num_batched_tokens,
            enable_prefix_caching,
            enable_chunked_prefill: true,
            steps_in_flight,
            ..plain.clone()
        };
        let (outputs, preempted) = serve(config, lives);
        assert_eq!(outputs, expected);
        preemptions += preempted;
    }
    assert!(preemptions > 0, "pre-emption is part of the test");
}
