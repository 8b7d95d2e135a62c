//! A worker without arithmetic whose every mistake shows, and the straight-line model that outputs are compared with.
//!
//! The next token is a hash of the whole prefix, so that a lost, repeated or changed token changes all that follow. A KV
//! slot holds what was written there: group, position, hash of the prefix. A run looks at every position that its
//! attention would read and fails if anything else stands there.

#![allow(dead_code, clippy::unwrap_used)] // every test program uses its own part, and all of it is test code

use gossamer_wire::{InputTokens, SampledToken, SlotJoin, StepPlan, StepResult, Submit, WorkerInfo};
use std::collections::{HashMap, HashSet};

pub fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_add(0x2545_f491_4f6c_dd1d);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn extend(chain: u64, token: u32) -> u64 {
    mix(chain, u64::from(token))
}

/// The token after a prefix. Stop tokens are held back until `min_tokens` were generated.
fn draw(chain: u64, seed: u64, choice: u32, vocab: u32, held_back: &[u32]) -> u32 {
    let mut state = mix(mix(chain, seed), u64::from(choice));
    loop {
        let token = (state >> 32) as u32 % vocab;
        if !held_back.contains(&token) {
            return token;
        }
        state = mix(state, 1);
    }
}

/// What a sequence must generate, and whether it ends by a stop token.
pub fn reference(submit: &Submit, info: &WorkerInfo) -> (Vec<u32>, bool) {
    let mut chain = submit.prompt.iter().fold(0, |chain, token| extend(chain, *token));
    let room = info.max_model_len - submit.prompt.len() as u32;
    let mut output = Vec::new();
    while (output.len() as u32) < submit.stop.max_tokens.min(room) {
        let early = (output.len() as u32) < submit.stop.min_tokens;
        let held_back: &[u32] = if early { &submit.stop.stop_token_ids } else { &[] };
        let token = draw(chain, submit.sampling.seed, submit.key.choice, info.vocab_size, held_back);
        output.push(token);
        chain = extend(chain, token);
        if submit.stop.stop_token_ids.contains(&token) {
            return (output, true);
        }
    }
    (output, false)
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    group: u32,
    position: u32,
    chain: u64,
    step: u64,
    slot: u32,
}

struct Slot {
    join: SlotJoin,
    tokens: Vec<u32>,
    /// Hash of the prefix that ends with each token.
    chain: Vec<u64>,
    /// Per group: column to block.
    tables: Vec<HashMap<u32, u32>>,
}

impl Slot {
    fn push(&mut self, token: u32) {
        self.chain.push(extend(self.chain.last().copied().unwrap_or(0), token));
        self.tokens.push(token);
    }
}

pub struct FakeWorker {
    pub info: WorkerInfo,
    slots: HashMap<u32, Slot>,
    cells: HashMap<(u32, u32), Cell>,
    next_step: Option<u64>,
}

impl FakeWorker {
    pub fn new(info: WorkerInfo) -> Self {
        Self { info, slots: HashMap::new(), cells: HashMap::new(), next_step: None }
    }

    pub fn step(&mut self, plan: &StepPlan) -> StepResult {
        if plan.snapshot {
            self.slots.clear();
        } else {
            assert_eq!(Some(plan.step), self.next_step, "plans are numbered without gaps after a snapshot");
        }
        self.next_step = Some(plan.step + 1);
        let [rank] = &plan.ranks[..] else { panic!("one rank expected") };
        for slot in &rank.leave {
            if !plan.snapshot {
                assert!(self.slots.remove(slot).is_some(), "slot {slot} was empty and leaves");
            }
        }
        for join in &rank.join {
            let tables = vec![HashMap::new(); self.info.groups.len()];
            let mut slot = Slot { join: join.clone(), tokens: Vec::new(), chain: Vec::new(), tables };
            join.tokens.iter().for_each(|token| slot.push(*token));
            assert!(self.slots.insert(join.slot, slot).is_none(), "slot {} is filled twice", join.slot);
        }
        for grant in &rank.grants {
            let table = &mut self.slots.get_mut(&grant.slot).expect("grant to a filled slot").tables
                [grant.group as usize];
            table.retain(|column, _| *column >= grant.first_live);
            for (column, block) in (grant.first..).zip(&grant.blocks) {
                assert!(*block < self.info.num_blocks);
                assert!(table.insert(column, *block).is_none(), "column {column} is granted twice");
            }
        }
        let distinct: HashSet<u32> = rank.runs.iter().map(|run| run.slot).collect();
        assert_eq!(distinct.len(), rank.runs.len(), "a slot runs twice in a step");
        // All writes, then all reads: what one run breaks for another is seen whatever their order is.
        for run in &rank.runs {
            let slot = &self.slots[&run.slot];
            assert!(run.count >= 1);
            let end = run.start + run.count;
            assert!(
                end as usize <= slot.tokens.len(),
                "tokens {}..{end} of {}",
                run.start,
                slot.tokens.len()
            );
            if run.input == InputTokens::LastSampled {
                assert_eq!((run.count, end as usize), (1, slot.tokens.len()));
            }
            assert_eq!(
                run.sample,
                end as usize == slot.tokens.len(),
                "a token is drawn after the last one only"
            );
            for position in run.start..end {
                for group in 0..self.info.groups.len() as u32 {
                    let cell = Cell {
                        group,
                        position,
                        chain: slot.chain[position as usize],
                        step: plan.step,
                        slot: run.slot,
                    };
                    self.cells.insert(self.address(slot, group, position), cell);
                }
            }
        }
        for run in &rank.runs {
            for position in run.start..run.start + run.count {
                self.read(plan.step, run.slot, position);
            }
        }
        let mut sampled = Vec::new();
        for run in rank.runs.iter().filter(|run| run.sample) {
            let vocab = self.info.vocab_size;
            let slot = self.slots.get_mut(&run.slot).expect("it ran");
            let generated = slot.tokens.len() as u32 - slot.join.prompt_len;
            let early = generated < slot.join.min_tokens;
            let held_back: &[u32] = if early { &slot.join.stop_token_ids } else { &[] };
            let token = draw(
                *slot.chain.last().expect("it has tokens"),
                slot.join.sampling.seed,
                slot.join.choice,
                vocab,
                held_back,
            );
            let position = slot.tokens.len() as u32;
            slot.push(token);
            sampled.push(SampledToken { slot: run.slot, position, token, logprobs: None });
        }
        StepResult { step: plan.step, sampled, busy_ns: 0 }
    }

    fn address(&self, slot: &Slot, group: u32, position: u32) -> (u32, u32) {
        let column = position / self.info.block_size;
        let block = slot.tables[group as usize].get(&column);
        let block = block.unwrap_or_else(|| panic!("group {group} has no block for position {position}"));
        (*block, position % self.info.block_size)
    }

    fn read(&self, step: u64, slot_index: u32, position: u32) {
        let slot = &self.slots[&slot_index];
        for (group, kind) in (0..).zip(&self.info.groups) {
            let first = kind.window.map_or(0, |window| (position + 1).saturating_sub(window));
            for seen in first..=position {
                let cell = self.cells.get(&self.address(slot, group, seen)).copied();
                let cell = cell.unwrap_or_else(|| panic!("position {seen} was never written"));
                let expected = (group, seen, slot.chain[seen as usize]);
                assert_eq!((cell.group, cell.position, cell.chain), expected, "the wrong keys at {seen}");
                assert!(
                    cell.step < step || cell.slot == slot_index,
                    "read what another run writes in this step"
                );
            }
        }
    }
}
