use super::*;
use gossamer_wire::KvGroup;

fn info() -> WorkerInfo {
    WorkerInfo {
        rank: 0,
        num_blocks: 8,
        block_size: 4,
        groups: vec![KvGroup { window: None }, KvGroup { window: Some(4) }],
        max_model_len: 32,
        vocab_size: 100,
    }
}

fn join(slot: u32, tokens: &[u32]) -> SlotJoin {
    SlotJoin {
        slot,
        tokens: tokens.to_vec(),
        prompt_len: tokens.len() as u32,
        choice: 0,
        sampling: SamplingParams::default(),
        min_tokens: 0,
        stop_token_ids: Vec::new(),
    }
}

fn grant(slot: u32, group: u32, first: u32, first_live: u32, blocks: &[u32]) -> BlockGrant {
    BlockGrant { slot, group, first, first_live, blocks: blocks.to_vec() }
}

fn run(slot: u32, start: u32, count: u32) -> Run {
    Run { slot, start, count, input: InputTokens::Known, sample: false }
}

fn plan(step: u64, rank: RankPlan) -> StepPlan {
    StepPlan { step, snapshot: step == 1, ranks: vec![rank], ..StepPlan::default() }
}

/// A sequence of six tokens in slot 1, with two blocks in each group.
fn first() -> RankPlan {
    RankPlan {
        join: vec![join(1, &[1, 2, 3, 4, 5, 6])],
        grants: vec![grant(1, 0, 0, 0, &[0, 1]), grant(1, 1, 0, 0, &[2, 3])],
        runs: vec![run(1, 0, 6)],
        ..RankPlan::default()
    }
}

fn table() -> SlotTable {
    SlotTable::new(info(), SlotLimits { slots: 4, runs: 2, tokens: 16 }, 0)
}

#[test]
fn a_sequence_joins_runs_grows_and_leaves() {
    let mut table = table();
    table.apply(&plan(1, first())).unwrap();
    table.get_mut(1).unwrap().push(7);
    let next = Run { slot: 1, start: 6, count: 1, input: InputTokens::LastSampled, sample: true };
    table.apply(&plan(2, RankPlan { runs: vec![next], ..RankPlan::default() })).unwrap();
    table.get_mut(1).unwrap().push(8);
    table.get_mut(1).unwrap().push(9);
    let grants = vec![grant(1, 0, 2, 0, &[4]), grant(1, 1, 2, 1, &[5])];
    table.apply(&plan(3, RankPlan { grants, runs: vec![run(1, 8, 1)], ..RankPlan::default() })).unwrap();
    let slot = table.get(1).unwrap();
    assert_eq!(slot.tables[0], BlockTable { first: 0, blocks: vec![0, 1, 4] });
    assert_eq!(slot.tables[1], BlockTable { first: 1, blocks: vec![3, 5] });
    table.apply(&plan(4, RankPlan { leave: vec![1], ..RankPlan::default() })).unwrap();
    assert!(table.get(1).is_none());
}

#[test]
fn a_snapshot_forgets_all_slots() {
    let mut table = table();
    table.apply(&plan(1, first())).unwrap();
    let snapshot = StepPlan { snapshot: true, ..plan(77, first()) };
    table.apply(&snapshot).unwrap();
    assert_eq!(table.get(1).unwrap().tokens.len(), 6);
}

#[test]
fn malformed_plans_are_refused_with_what_was_expected() {
    let cases: Vec<(StepPlan, &str)> = vec![
        (StepPlan { snapshot: false, ..plan(1, first()) }, "expected a snapshot as the first plan"),
        (StepPlan { ranks: vec![], ..plan(1, first()) }, "expected a section for rank 0, got 0"),
        (plan(1, RankPlan { leave: vec![9], ..first() }), "leave names slot 9, which is empty"),
        (plan(1, RankPlan { join: vec![join(4, &[1])], ..first() }), "expected a slot below 4, got 4"),
        (plan(1, RankPlan { join: vec![join(1, &[])], ..first() }), "expected 1 to 32 tokens, got 0"),
        (plan(1, RankPlan { join: vec![join(1, &[100])], ..first() }), "token ids below 100, got 100"),
        (
            plan(1, RankPlan { join: vec![join(1, &[1]), join(1, &[1])], ..first() }),
            "slot 1, which is filled",
        ),
        (plan(1, RankPlan { grants: vec![grant(1, 2, 0, 0, &[])], ..first() }), "a KV group below 2, got 2"),
        (plan(1, RankPlan { grants: vec![grant(1, 0, 0, 0, &[8])], ..first() }), "block ids below 8, got 8"),
        (
            plan(1, RankPlan { grants: vec![grant(1, 0, 1, 0, &[1])], ..first() }),
            "first block to be 0, got 1",
        ),
        (plan(1, RankPlan { grants: vec![grant(1, 1, u32::MAX, 0, &[1])], ..first() }), "at most 8 blocks"),
        (plan(1, RankPlan { grants: vec![grant(3, 0, 0, 0, &[1])], ..first() }), "grant names slot 3"),
        (plan(1, RankPlan { grants: vec![], ..first() }), "KV group 0: blocks 0..2 are needed, 0..0"),
        (plan(1, RankPlan { runs: vec![run(1, 0, 0)], ..first() }), "a run of at least 1 token"),
        (plan(1, RankPlan { runs: vec![run(1, 2, u32::MAX)], ..first() }), "in a plan, got"),
        (plan(1, RankPlan { runs: vec![run(1, u32::MAX, 1)], ..first() }), "ends at or before token 6"),
        (plan(1, RankPlan { runs: vec![run(2, 0, 1)], ..first() }), "run names slot 2, which is empty"),
        (plan(1, RankPlan { runs: vec![run(1, 0, 1), run(1, 1, 1)], ..first() }), "slot 1 runs twice"),
        (
            plan(1, RankPlan { runs: vec![Run { sample: true, ..run(1, 0, 5) }], ..first() }),
            "end at token 6, got 5",
        ),
        (
            plan(
                1,
                RankPlan { runs: vec![Run { input: InputTokens::LastSampled, ..run(1, 5, 1) }], ..first() },
            ),
            "the drawn token 5 to run alone",
        ),
    ];
    for (plan, expected) in cases {
        let error = table().apply(&plan).expect_err(expected).to_string();
        assert!(error.contains(expected), "expected '{expected}' in '{error}'");
    }
}

#[test]
fn a_gap_in_the_numbers_is_refused() {
    let mut table = table();
    table.apply(&plan(1, first())).unwrap();
    let error = table.apply(&plan(3, RankPlan::default())).unwrap_err();
    assert_eq!(error, PlanError::OutOfOrder { expected: 2, got: 3 });
}

#[test]
fn occurrences_are_counted_only_for_penalties_and_apart_for_prompt_and_output() {
    let mut join = join(1, &[5, 5, 6, 6]);
    join.prompt_len = 3;
    assert!(Slot::new(&join, 1).occurrences.is_empty());
    join.sampling.frequency_penalty = 0.5;
    let slot = Slot::new(&join, 1);
    assert_eq!(slot.occurrences[&5], Occurrences { prompt: 2, output: 0 });
    assert_eq!(slot.occurrences[&6], Occurrences { prompt: 1, output: 1 });
}

#[test]
fn a_token_that_is_being_drawn_is_generated_but_counts_once_it_is_known() {
    let mut join = join(1, &[5, 6]);
    join.sampling.presence_penalty = 0.5;
    let mut slot = Slot::new(&join, 1);
    slot.push_undrawn();
    slot.push_undrawn();
    assert_eq!((slot.generated(), slot.undrawn(), slot.occurrences.len()), (2, 2, 2));
    slot.resolve(2, 6);
    assert_eq!((slot.generated(), slot.undrawn()), (2, 1));
    assert_eq!(slot.occurrences[&6], Occurrences { prompt: 1, output: 1 });
    slot.resolve(3, 6);
    assert_eq!((slot.tokens.as_slice(), slot.undrawn()), (&[5, 6, 6, 6][..], 0));
    assert_eq!(slot.occurrences[&6], Occurrences { prompt: 1, output: 2 });
}
