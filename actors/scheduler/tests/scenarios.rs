//! Behaviour that a user or an operator can name, one test each.

mod common;
#[path = "common/driver.rs"]
mod driver;

use driver::{Driver, submit};
use gossamer_scheduler::{ConfigError, Scheduler, SchedulerConfig, WorkerError};
use gossamer_wire::{
    AbortReason, FinishReason, FromScheduler, KvGroup, Refusal, RequestId, SampledToken, SequenceKey,
    StepPlan, StepResult, Submit, WorkerInfo,
};
use std::collections::HashMap;

fn info(num_blocks: u32, block_size: u32, window: u32) -> WorkerInfo {
    WorkerInfo {
        rank: 0,
        num_blocks,
        block_size,
        groups: vec![KvGroup { window: Some(window) }, KvGroup { window: None }],
        max_model_len: 131_072,
        vocab_size: 1000,
    }
}

fn prompt(seed: u64, length: u32) -> Vec<u32> {
    (0..length).map(|i| (common::mix(seed, u64::from(i)) % 1000) as u32).collect()
}

/// A result of a plan that nobody computes: every token is `token`.
fn answer(plan: &StepPlan, token: u32) -> StepResult {
    let drawn = plan.ranks[0].runs.iter().filter(|run| run.sample);
    let sampled = drawn.map(|run| SampledToken {
        slot: run.slot,
        position: run.start + run.count,
        token,
        logprobs: None,
    });
    StepResult { step: plan.step, sampled: sampled.collect(), busy_ns: 0 }
}

#[test]
fn an_equal_prefix_is_computed_once() {
    let mut driver = Driver::new(SchedulerConfig::default(), info(200, 16, 20));
    let mut cached = |serial: u32, prompt: Vec<u32>, salt: u64| {
        let key = driver.submit(Submit { cache_salt: salt, ..submit(serial, prompt, 4) });
        driver.finish();
        driver.check_all_served();
        driver.clients[&key].cached.unwrap()
    };
    assert_eq!(cached(0, prompt(1, 100), 0), 0, "cold");
    assert_eq!(cached(1, prompt(1, 100), 0), 96, "exact");
    assert_eq!(cached(2, prompt(1, 100), 0), 96, "repeated");
    assert_eq!(cached(3, prompt(1, 100), 1), 0, "another tenant's salt");
    assert_eq!(cached(4, prompt(1, 96), 0), 80, "the last token always runs");
    let partial: Vec<u32> = prompt(1, 60).into_iter().chain(prompt(2, 40)).collect();
    assert_eq!(cached(5, partial, 0), 48, "partial");
}

#[test]
fn a_conversation_continues_from_its_own_answer() {
    let mut driver = Driver::new(SchedulerConfig::default(), info(200, 16, 20));
    let first = driver.submit(submit(0, prompt(1, 40), 60));
    driver.finish();
    let mut turn = prompt(1, 40);
    turn.extend(&driver.clients[&first].got);
    turn.extend(prompt(3, 30));
    let second = driver.submit(submit(1, turn, 4));
    driver.finish();
    driver.check_all_served();
    assert_eq!(driver.clients[&second].cached, Some(96), "the last drawn token has no keys yet");
}

#[test]
fn choices_that_arrive_together_share_their_prompt() {
    let config = SchedulerConfig { max_num_batched_tokens: 64, ..Default::default() };
    let mut driver = Driver::new(config, info(200, 16, 20));
    for choice in 0..8 {
        let key = SequenceKey { request: RequestId::new(0, 0, 1), choice };
        driver.submit(Submit { key, ..submit(1, prompt(1, 401), 5) });
    }
    driver.finish();
    driver.check_all_served();
    // 401 once, the last prompt token for the seven others, and four more inputs for each.
    assert_eq!(driver.tokens_run, 401 + 7 + 8 * 4);
}

#[test]
fn what_was_evicted_is_not_found() {
    let mut driver = Driver::new(SchedulerConfig::default(), info(30, 16, 20));
    driver.submit(submit(0, prompt(1, 100), 4));
    driver.finish();
    driver.submit(submit(1, prompt(2, 300), 4));
    driver.finish();
    let again = driver.submit(submit(2, prompt(1, 100), 4));
    driver.finish();
    driver.check_all_served();
    assert_eq!(driver.clients[&again].cached, Some(0));
}

#[test]
fn a_sequence_of_100_000_tokens_holds_about_half_of_what_full_attention_would() {
    let mut scheduler = Scheduler::new(SchedulerConfig::default(), &info(4000, 64, 128)).unwrap();
    scheduler.submit(submit(0, vec![5; 100_000], 10));
    let mut peak = 0;
    while let Some(plan) = scheduler.plan(1).cloned() {
        peak = peak.max(scheduler.stats().kv_blocks_used);
        scheduler.complete(answer(&plan, 1)).unwrap();
        scheduler.check_invariants().unwrap();
        if scheduler.stats().generation_tokens == 5 {
            assert_eq!(scheduler.stats().kv_blocks_used, 1563 + 3);
        }
    }
    assert!(scheduler.is_idle());
    assert!(peak <= 1563 + 3 + 8192 / 64, "a chunk holds its own window blocks, got {peak} blocks");
}

#[test]
fn long_prompts_leave_every_stream_its_token_in_every_step() {
    let config = SchedulerConfig { max_num_batched_tokens: 2048, ..Default::default() };
    let mut scheduler = Scheduler::new(config, &info(20_000, 64, 128)).unwrap();
    for serial in 0..256 {
        scheduler.submit(submit(serial, prompt(u64::from(serial), 20), 2000));
    }
    let step = |scheduler: &mut Scheduler| {
        let plan = scheduler.plan(1).cloned().unwrap();
        scheduler.complete(answer(&plan, 1)).unwrap();
        plan
    };
    for _ in 0..10 {
        step(&mut scheduler);
    }
    for serial in 1000..1004 {
        scheduler.submit(submit(serial, prompt(u64::from(serial), 100_000), 1));
    }
    let mut steps = 0;
    while scheduler.stats().running > 256 || scheduler.stats().waiting > 0 {
        let plan = step(&mut scheduler);
        let runs = &plan.ranks[0].runs;
        assert_eq!(runs.iter().filter(|run| run.count == 1 && run.sample).count().min(256), 256);
        let tokens: u32 = runs.iter().map(|run| run.count).sum();
        assert!(tokens <= 2048);
        steps += 1;
    }
    let least = 400_000 / (2048 - 256);
    assert!(steps >= least && steps <= least + 4, "the budget is used up: {steps} steps of at least {least}");
}

#[test]
fn a_short_prompt_of_another_tenant_does_not_wait_for_a_long_one() {
    let config = SchedulerConfig { max_num_batched_tokens: 64, ..Default::default() };
    let mut driver = Driver::new(config, info(1000, 16, 20));
    driver.submit(Submit { tenant: 1, ..submit(0, prompt(1, 2000), 4) });
    driver.plan();
    driver.complete();
    let short = driver.submit(Submit { tenant: 2, ..submit(1, prompt(2, 10), 4) });
    driver.plan();
    driver.complete();
    assert_eq!(driver.clients[&short].got.len(), 1);
    driver.finish();
    driver.check_all_served();
}

#[test]
fn a_flood_of_one_tenant_leaves_the_other_its_half() {
    let config = SchedulerConfig { max_num_seqs: 4, enable_prefix_caching: false, ..Default::default() };
    let mut driver = Driver::new(config, info(1000, 16, 20));
    for serial in 0..60 {
        driver.submit(Submit { tenant: 1, ..submit(serial, prompt(u64::from(serial), 30), 10) });
    }
    for serial in 100..120 {
        driver.submit(Submit { tenant: 2, ..submit(serial, prompt(u64::from(serial), 30), 10) });
    }
    let done = |driver: &Driver, tenant: u64| {
        let of_tenant = driver.clients.values().filter(|client| client.submit.tenant == tenant);
        of_tenant.filter(|client| client.finish.is_some()).count()
    };
    while done(&driver, 2) < 20 {
        while driver.plan() {}
        driver.complete();
        let (flood, modest) = (done(&driver, 1), done(&driver, 2));
        assert!(flood.abs_diff(modest) <= 8, "{flood} against {modest}");
    }
    driver.finish();
    driver.check_all_served();
}

#[test]
fn a_lower_priority_number_runs_earlier() {
    let config = SchedulerConfig { max_num_seqs: 1, ..Default::default() };
    let mut driver = Driver::new(config, info(100, 16, 20));
    let keys: Vec<_> = [0, 2, -1, 1]
        .into_iter()
        .zip(0..)
        .map(|(priority, serial)| driver.submit(Submit { priority, ..submit(serial, prompt(1, 5), 2) }))
        .collect();
    let mut finished = Vec::new();
    while !driver.scheduler.is_idle() {
        while driver.plan() {}
        driver.complete();
        for key in &keys {
            if driver.clients[key].finish.is_some() && !finished.contains(key) {
                finished.push(*key);
            }
        }
    }
    assert_eq!(finished, [keys[2], keys[0], keys[3], keys[1]]);
}

#[test]
fn what_never_fits_is_refused_and_holds_nobody_up() {
    let mut driver = Driver::new(SchedulerConfig::default(), info(40, 64, 128));
    let capacity = driver.scheduler.engine_info().kv_capacity_tokens;
    assert_eq!(capacity, 37 * 64);
    let large = driver.submit(submit(0, prompt(1, 4000), 10));
    let small = driver.submit(submit(1, prompt(2, 10), 10));
    assert_eq!(driver.clients[&large].refused, Some(Refusal::NeverFits { tokens: 4010, capacity }));
    let largest = driver.submit(submit(2, prompt(3, capacity as u32 - 9), 10));
    let beyond = driver.submit(submit(3, prompt(3, capacity as u32 - 8), 10));
    assert!(driver.clients[&beyond].refused.is_some());
    driver.finish();
    driver.check_all_served();
    for key in [small, largest] {
        assert_eq!(driver.clients[&key].finish, Some(FinishReason::Length));
    }
}

#[test]
fn work_for_five_caches_is_all_done() {
    let mut driver = Driver::new(SchedulerConfig::default(), info(60, 16, 20));
    for serial in 0..50 {
        driver.submit(submit(serial, prompt(u64::from(serial), 10 + serial % 7 * 20), 20 + serial % 5 * 30));
    }
    driver.finish();
    driver.check_all_served();
    assert!(driver.scheduler.stats().preemptions > 0, "the test is about a cache that is too small");
}

#[test]
fn the_oldest_sequence_is_never_preempted() {
    let config = SchedulerConfig { enable_prefix_caching: false, ..Default::default() };
    let mut driver = Driver::new(config, info(40, 16, 20));
    for serial in 0..6 {
        driver.submit(submit(serial, prompt(u64::from(serial), 64), 300));
    }
    let first = driver.order[0];
    let mut tokens = 0;
    while driver.clients[&first].finish.is_none() {
        while driver.plan() {}
        driver.complete();
        let now = driver.clients[&first].got.len();
        assert!(now > tokens, "the oldest advances in every step");
        tokens = now;
    }
    assert!(driver.scheduler.stats().preemptions > 0);
    driver.finish();
    driver.check_all_served();
}

/// Case 17: the two modes say the same, and nothing after a stop is billed.
#[test]
fn asynchronous_scheduling_changes_no_token() {
    for concurrency in [1, 7, 64, 256] {
        let mut outputs: Vec<HashMap<SequenceKey, Vec<u32>>> = Vec::new();
        for steps_in_flight in [1, 2, 4] {
            let config = SchedulerConfig {
                max_num_seqs: concurrency,
                max_num_batched_tokens: 300,
                steps_in_flight,
                ..Default::default()
            };
            let mut driver = Driver::new(config, info(50, 16, 20));
            for serial in 0..concurrency * 3 / 2 {
                let mut submit =
                    submit(serial, prompt(u64::from(serial), 10 + serial * 37 % 200), 1 + serial * 13 % 90);
                submit.stop.stop_token_ids = (0..20).collect();
                submit.stream_interval = 1 + serial % 9;
                driver.submit(submit);
            }
            driver.finish();
            driver.check_all_served();
            let stats = driver.scheduler.stats();
            let billed: usize = driver.clients.values().map(|client| client.expected.len()).sum();
            assert_eq!(stats.generation_tokens, billed as u64);
            assert!(concurrency < 64 || stats.preemptions > 0, "pre-emption is part of the test");
            assert!(concurrency == 1 || stats.finished[0] > 0, "stops are part of the test");
            outputs.push(driver.clients.into_iter().map(|(key, client)| (key, client.got)).collect());
        }
        assert!(outputs.windows(2).all(|pair| pair[0] == pair[1]), "concurrency {concurrency}");
    }
}

#[test]
fn a_length_that_is_known_costs_no_extra_run() {
    for steps_in_flight in [1, 2, 4] {
        let mut driver =
            Driver::new(SchedulerConfig { steps_in_flight, ..Default::default() }, info(100, 16, 20));
        driver.submit(submit(0, prompt(1, 10), 8));
        driver.finish();
        driver.check_all_served();
        assert_eq!(driver.tokens_run, 10 + 7);
    }
}

#[test]
fn a_full_queue_is_refused_with_a_time_to_come_back() {
    let config = SchedulerConfig { max_num_seqs: 2, max_queued_requests: 3, ..Default::default() };
    let mut driver = Driver::new(config, info(100, 16, 20));
    let keys: Vec<_> = (0..7).map(|serial| driver.submit(submit(serial, prompt(1, 5), 2))).collect();
    let refused: Vec<bool> = keys.iter().map(|key| driver.clients[key].refused.is_some()).collect();
    assert_eq!(refused, [false, false, false, false, false, true, true]);
    assert!(matches!(driver.clients[&keys[6]].refused, Some(Refusal::QueueFull { retry_after_s: 1..=60 })));
    // A further choice of an admitted request is not torn from it.
    let key = SequenceKey { choice: 1, ..keys[0] };
    driver.submit(Submit { key, ..submit(0, prompt(1, 5), 2) });
    assert_eq!(driver.clients[&key].refused, None);
    driver.finish();
    driver.check_all_served();
}

#[test]
fn a_deadline_ends_waiting_and_running_sequences() {
    let config = SchedulerConfig { max_num_seqs: 1, ..Default::default() };
    let mut driver = Driver::new(config, info(100, 16, 20));
    let keys: Vec<_> = (0..2)
        .map(|serial| {
            driver.submit(Submit { deadline_unix_ms: Some(100), ..submit(serial, prompt(1, 5), 50) })
        })
        .collect();
    driver.plan();
    driver.complete();
    assert_eq!(driver.scheduler.next_deadline(), Some(100));
    driver.now = 100;
    assert!(!driver.plan());
    for key in keys {
        assert_eq!(driver.clients[&key].finish, Some(FinishReason::Deadline));
    }
    assert!(driver.scheduler.is_idle());
    driver.check_all_served();
    assert_eq!(driver.scheduler.stats().finished, [0, 0, 0, 2, 0]);
}

#[test]
fn an_abort_frees_everything_at_once() {
    let mut driver =
        Driver::new(SchedulerConfig { max_num_seqs: 2, ..Default::default() }, info(100, 16, 20));
    let keys: Vec<_> = (0..3).map(|serial| driver.submit(submit(serial, prompt(1, 50), 50))).collect();
    driver.plan();
    driver.plan();
    for key in &keys {
        driver.abort(*key);
    }
    assert!(driver.scheduler.is_idle());
    assert_eq!(driver.scheduler.stats().kv_blocks_used, 0);
    driver.finish();
    driver.check_all_served();
    assert_eq!(driver.scheduler.stats().finished, [0, 0, 3, 0, 0]);
}

#[test]
fn a_stop_string_counts_as_a_stop_and_flushes() {
    let mut driver = Driver::new(SchedulerConfig::default(), info(100, 16, 20));
    let key = driver.submit(Submit { stream_interval: 20, ..submit(0, prompt(1, 5), 50) });
    for _ in 0..5 {
        driver.plan();
        driver.complete();
    }
    assert_eq!(driver.clients[&key].got.len(), 1);
    driver.scheduler.abort(key, AbortReason::StopString);
    let mut last = None;
    driver.scheduler.drain_outputs(|_, message| last = Some(message));
    let Some(FromScheduler::Tokens(deltas)) = last else { panic!("expected tokens, got {last:?}") };
    assert_eq!((deltas[0].position, deltas[0].tokens.len()), (1, 4));
    assert_eq!(driver.scheduler.stats().finished, [1, 0, 0, 0, 0]);
}

#[test]
fn a_restarted_scheduler_goes_on_from_the_refill() {
    let mut whole = Driver::new(SchedulerConfig::default(), info(100, 16, 20));
    let request = Submit { stream_interval: 3, ..submit(0, prompt(1, 30), 40) };
    let key = whole.submit(request.clone());
    whole.finish();
    let expected = whole.clients[&key].got.clone();

    let mut restarted = Driver::new(SchedulerConfig::default(), info(100, 16, 20));
    restarted.submit(Submit { generated: expected[..17].to_vec(), ..request.clone() });
    restarted.finish();
    restarted.check_all_served();
    assert_eq!(restarted.clients[&key].got, expected);

    // The end itself may be what got lost.
    let mut at_the_end = Driver::new(SchedulerConfig::default(), info(100, 16, 20));
    at_the_end.submit(Submit { generated: expected, ..request });
    at_the_end.finish();
    at_the_end.check_all_served();
    assert_eq!(at_the_end.tokens_run, 0);
}

#[test]
fn a_repeated_submission_changes_nothing() {
    let mut driver = Driver::new(SchedulerConfig::default(), info(100, 16, 20));
    let request = submit(0, prompt(1, 30), 10);
    driver.submit(request.clone());
    driver.plan();
    driver.complete();
    driver.scheduler.submit(request);
    driver.finish();
    driver.check_all_served();
}

#[test]
fn bad_submissions_end_with_an_error_and_nothing_else_does() {
    let mut driver = Driver::new(SchedulerConfig::default(), info(100, 16, 20));
    let good = driver.submit(submit(0, prompt(1, 30), 10));
    let bad = [submit(1, vec![3, 1000], 10), submit(2, Vec::new(), 10)];
    for request in bad {
        let key = request.key;
        driver.submit(request);
        assert!(matches!(driver.clients[&key].finish, Some(FinishReason::Error(_))), "{key:?}");
        driver.clients.remove(&key);
    }
    driver.finish();
    assert_eq!(driver.clients[&good].finish, Some(FinishReason::Length));
    driver.check_all_served();
}

#[test]
fn draining_refuses_new_work_and_finishes_the_old() {
    let mut driver = Driver::new(SchedulerConfig::default(), info(100, 16, 20));
    driver.submit(submit(0, prompt(1, 30), 10));
    driver.scheduler.drain();
    let late = driver.submit(submit(1, prompt(1, 30), 10));
    assert_eq!(driver.clients[&late].refused, Some(Refusal::Draining));
    driver.finish();
    driver.check_all_served();
}

#[test]
fn when_no_worker_comes_back_everybody_hears_of_it() {
    let mut driver =
        Driver::new(SchedulerConfig { max_num_seqs: 1, ..Default::default() }, info(100, 16, 20));
    let keys: Vec<_> = (0..2).map(|serial| driver.submit(submit(serial, prompt(1, 5), 50))).collect();
    driver.plan();
    driver.scheduler.worker_lost();
    driver.scheduler.fail_all("worker 0 died for the fourth time");
    driver.plan();
    for key in keys {
        assert!(matches!(&driver.clients[&key].finish, Some(FinishReason::Error(e)) if e.contains("fourth")));
    }
    assert!(driver.scheduler.is_idle());
}

#[test]
fn a_smaller_worker_ends_only_what_no_longer_fits() {
    let mut driver = Driver::new(SchedulerConfig::default(), info(100, 16, 20));
    let long = driver.submit(submit(0, prompt(1, 1000), 10));
    let short = driver.submit(submit(1, prompt(2, 20), 10));
    driver.plan();
    driver.worker.info.num_blocks = 20;
    driver.lose_worker();
    assert!(matches!(driver.clients[&long].finish, Some(FinishReason::Error(_))));
    driver.clients.remove(&long);
    driver.finish();
    driver.check_all_served();
    assert_eq!(driver.clients[&short].finish, Some(FinishReason::Length));
}

#[test]
fn results_that_contradict_the_plan_change_nothing() {
    let mut driver = Driver::new(SchedulerConfig::default(), info(100, 16, 20));
    driver.submit(submit(0, prompt(1, 5), 5));
    driver.plan();
    let right = driver.worker.step(&driver.plans.pop_front().unwrap());
    type Change = fn(&mut StepResult);
    let wrong: [(Change, &str); 4] = [
        (|result| result.step += 1, "expected the result of step Some(1), got that of step 2"),
        (|result| result.sampled.clear(), "expected 1 tokens from step 1, got 0"),
        (
            |result| result.sampled[0].position += 1,
            "at position 5 from step 1, got one for slot 0 at position 6",
        ),
        (|result| result.sampled[0].token = 1000, "expected token ids below 1000 from step 1, got 1000"),
    ];
    for (change, message) in wrong {
        let mut result = right.clone();
        change(&mut result);
        let error = driver.scheduler.complete(result).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    driver.scheduler.complete(right).unwrap();
    driver.finish();
    driver.check_all_served();
}

#[test]
fn only_steps_of_single_tokens_use_a_graph() {
    let config = SchedulerConfig { cuda_graph_capture_size: 24, ..Default::default() };
    let mut scheduler = Scheduler::new(config, &info(1000, 16, 20)).unwrap();
    let mut buckets = Vec::new();
    for (serial, count) in [(0, 1), (100, 17), (200, 10)] {
        for serial in serial..serial + count {
            scheduler.submit(submit(serial, prompt(u64::from(serial), 9), 50));
        }
        for _ in 0..2 {
            let plan = scheduler.plan(1).cloned().unwrap();
            buckets.push(plan.graph_bucket);
            scheduler.complete(answer(&plan, 1)).unwrap();
        }
    }
    assert_eq!(buckets, [0, 1, 0, 24, 0, 0]);
}

#[test]
fn settings_and_workers_that_cannot_work_are_refused() {
    let refuse = |config: SchedulerConfig, info: WorkerInfo| Scheduler::new(config, &info).err().unwrap();
    let whole = SchedulerConfig { enable_chunked_prefill: false, ..Default::default() };
    assert!(matches!(
        refuse(whole, info(100, 16, 20)),
        WorkerError::Config(ConfigError::PromptExceedsStep { .. })
    ));
    assert_eq!(
        refuse(SchedulerConfig::default(), info(1, 16, 20)),
        WorkerError::NoRoom { needed: 2, got: 1 }
    );
    for bad in [info(100, 0, 20), info(100, 16, 0), WorkerInfo { groups: vec![], ..info(100, 16, 20) }] {
        assert!(matches!(refuse(SchedulerConfig::default(), bad), WorkerError::Shape(_)));
    }
}
