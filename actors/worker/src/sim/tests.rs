use super::*;
use gossamer_wire::{BlockGrant, InputTokens, RankPlan, Run, SamplingParams, SlotJoin};
use std::collections::HashMap;

fn info() -> WorkerInfo {
    WorkerInfo {
        rank: 0,
        num_blocks: 64,
        block_size: 16,
        groups: vec![KvGroup { window: None }],
        max_model_len: 200,
        vocab_size: 1000,
    }
}

fn sim(cost: CostModel, script: Script) -> Sim {
    Sim::new(info(), SlotLimits::new(4, 256), cost, script, 7)
}

fn join(tokens: &[u32]) -> SlotJoin {
    SlotJoin {
        slot: 0,
        tokens: tokens.to_vec(),
        prompt_len: 2,
        choice: 0,
        sampling: SamplingParams { seed: 3, logprobs: Some(2), ..Default::default() },
        min_tokens: 0,
        stop_token_ids: Vec::new(),
    }
}

fn first(join: SlotJoin) -> StepPlan {
    let (slot, count) = (join.slot, join.tokens.len() as u32);
    let grant = BlockGrant { slot, group: 0, first: 0, first_live: 0, blocks: (0..12).collect() };
    let run = Run { slot, start: 0, count, input: InputTokens::Known, sample: true };
    let rank = RankPlan { leave: vec![], join: vec![join], grants: vec![grant], runs: vec![run] };
    StepPlan { step: 1, snapshot: true, micro_batch: 0, graph_bucket: 0, ranks: vec![rank] }
}

fn next(step: u64, start: u32) -> StepPlan {
    let run = Run { slot: 0, start, count: 1, input: InputTokens::LastSampled, sample: true };
    let rank = RankPlan { runs: vec![run], ..Default::default() };
    StepPlan { step, snapshot: false, micro_batch: 0, graph_bucket: 1, ranks: vec![rank] }
}

fn generate(sim: &mut Sim, join: SlotJoin, count: u64) -> Vec<u32> {
    let start = join.tokens.len() as u32;
    let mut tokens = vec![sim.step(&first(join)).unwrap().sampled[0].token];
    for step in 2..=count {
        let result = sim.step(&next(step, start + step as u32 - 2)).unwrap();
        assert_eq!((result.step, result.sampled[0].position), (step, start + step as u32 - 1));
        tokens.push(result.sampled[0].token);
    }
    tokens
}

#[test]
fn a_replay_from_the_log_draws_the_same_tokens() {
    let whole = generate(&mut sim(CostModel::instant(), Script::default()), join(&[1, 2]), 20);
    let log: Vec<u32> = [1, 2].iter().chain(&whole[..8]).copied().collect();
    let rest = generate(&mut sim(CostModel::instant(), Script::default()), join(&log), 12);
    assert_eq!(rest, whole[8..]);
    let other = SlotJoin { choice: 1, ..join(&[1, 2]) };
    assert_ne!(generate(&mut sim(CostModel::instant(), Script::default()), other, 20), whole);
}

#[test]
fn a_script_is_said_word_for_word() {
    let script = Script::new(vec![vec![9, 8, 7]], HashMap::new());
    let join = SlotJoin { stop_token_ids: vec![5], ..join(&[1, 2]) };
    assert_eq!(generate(&mut sim(CostModel::instant(), script), join, 5), [9, 8, 7, 5, 5]);
}

#[test]
fn allowed_and_held_back_tokens_are_honoured() {
    let sampling = SamplingParams { allowed_token_ids: vec![10, 11, 12], ..Default::default() };
    let join = SlotJoin { sampling, min_tokens: 30, stop_token_ids: vec![11, 12], ..join(&[1, 2]) };
    let tokens = generate(&mut sim(CostModel::instant(), Script::default()), join, 60);
    assert_eq!(tokens[..30], [10; 30]);
    assert!(
        tokens[30..].iter().any(|token| *token != 10) && tokens.iter().all(|token| (10..13).contains(token))
    );
}

#[test]
fn log_probabilities_name_the_drawn_token_first() {
    let result = sim(CostModel::instant(), Script::default()).step(&first(join(&[1, 2]))).unwrap();
    let drawn = &result.sampled[0];
    let logprobs = drawn.logprobs.as_ref().unwrap();
    assert_eq!((logprobs.top.len(), logprobs.top[0]), (2, (drawn.token, logprobs.logprob)));
}

#[test]
fn steps_in_flight_run_one_after_the_other() {
    let cost = CostModel { fixed_us: 20_000.0, ..CostModel::instant() };
    let mut sim = sim(cost, Script::default());
    let start = Instant::now();
    sim.enqueue(&first(join(&[1, 2]))).unwrap();
    sim.enqueue(&next(2, 2)).unwrap();
    assert!(
        matches!(sim.poll().unwrap(), Progress::Busy { ask_again } if ask_again <= Duration::from_millis(20))
    );
    for step in 1..=2 {
        let result = sim.collect().unwrap();
        assert_eq!((result.step, result.busy_ns), (step, 20_000_000));
        assert!(start.elapsed() >= Duration::from_millis(20 * step));
    }
    assert_eq!(sim.poll().unwrap(), Progress::Idle);
    assert!(matches!(sim.enqueue(&next(9, 4)), Err(ExecutorError::Plan { step: 9, .. })));
}
