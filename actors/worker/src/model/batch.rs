//! The inputs of one step, in the arrays that kernels read.
//!
//! The arrays keep their capacity from step to step. Nothing here checks a plan: `SlotTable::apply` did.

use super::sampling::SampleInputs;
use crate::slots::SlotTable;
use gossamer_wire::{Run, WorkerInfo};

/// Keys that a sequence of one query is measured over.
const TUNED_CONTEXT: u32 = 2048;
/// Most queries of a sequence that attention is measured with, and keys before them.
const TUNED_CHUNK: u32 = 2048;
const TUNED_BEFORE: u32 = 256;

/// KV addressing of one group.
#[derive(Debug, Default)]
pub struct GroupInputs {
    /// `[T]`: block id * block size + offset.
    pub slots: Vec<u64>,
    /// `[S, stride]`.
    pub tables: Vec<u32>,
    /// Entries per row of `tables`.
    pub stride: u32,
    /// `[S]`.
    pub first_blocks: Vec<u32>,
}

/// All inputs.
#[derive(Debug, Default)]
pub struct Batch {
    /// `[T]`.
    pub token_ids: Vec<u32>,
    /// `[T]`.
    pub positions: Vec<u32>,
    /// `[S + 1]`.
    pub query_starts: Vec<u32>,
    /// `[S]`.
    pub kv_lens: Vec<u32>,
    /// How many of the first sequences have one token.
    pub singles: u32,
    /// Most tokens of one sequence.
    pub max_query: u32,
    /// Longest sequence.
    pub max_kv: u32,
    /// One per KV group.
    pub groups: Vec<GroupInputs>,
    /// `[R]`: the row of each token that is followed by a draw.
    pub sampled_rows: Vec<u32>,
    /// How to draw.
    pub sample: SampleInputs,
}

impl Batch {
    /// Fills the arrays for the runs of a plan that was applied to `slots`.
    pub fn fill(&mut self, slots: &SlotTable, runs: &[Run], info: &WorkerInfo) {
        self.clear(info.groups.len());
        let block_size = info.block_size;
        for run in runs {
            let Some(slot) = slots.get(run.slot) else { continue };
            let end = run.start + run.count;
            self.token_ids.extend_from_slice(&slot.tokens[run.start as usize..end as usize]);
            self.positions.extend(run.start..end);
            self.query_starts.push(self.token_ids.len() as u32);
            self.kv_lens.push(end);
            self.singles += u32::from(run.count == 1 && self.singles + 1 == self.kv_lens.len() as u32);
            self.max_query = self.max_query.max(run.count);
            self.max_kv = self.max_kv.max(end);
            for (group, table) in self.groups.iter_mut().zip(&slot.tables) {
                group.first_blocks.push(table.first);
                // Only blocks that this step touches: later ones may be granted ahead.
                let used =
                    end.div_ceil(block_size).saturating_sub(table.first).min(table.blocks.len() as u32);
                group.stride = group.stride.max(used);
                group.slots.extend((run.start..end).map(|position| {
                    let block = table.blocks[(position / block_size - table.first) as usize];
                    u64::from(block) * u64::from(block_size) + u64::from(position % block_size)
                }));
            }
            if run.sample {
                self.sampled_rows.push(self.token_ids.len() as u32 - 1);
                self.sample.push(slot, end, info.vocab_size);
            }
        }
        self.fill_tables(slots, runs);
    }

    /// Fills the arrays with `tokens` sequences of one token each, the first `samples` of which draw: a step to measure.
    /// Block ids stay inside the pool; what its blocks hold is lost.
    pub fn fill_alike(&mut self, tokens: u32, samples: u32, info: &WorkerInfo) {
        self.clear(info.groups.len());
        for at in 0..tokens {
            self.token_ids.push((at * 7919 + 17) % info.vocab_size);
            self.positions.push(0);
            self.query_starts.push(at + 1);
            self.kv_lens.push(1);
            for group in &mut self.groups {
                let block = at % info.num_blocks;
                group.slots.push(u64::from(block) * u64::from(info.block_size));
                group.tables.push(block);
                group.first_blocks.push(0);
                group.stride = 1;
            }
        }
        (self.max_query, self.max_kv) = (1, 1);
        self.sampled_rows.extend(0..samples);
        self.sample.fill_greedy(samples);
    }

    /// Fills the arrays with sequences to measure attention on: of one query each over `context` keys, or of as many queries
    /// as a chunk of a prompt has over some that were there before. Block ids stay inside the pool.
    pub fn fill_attention(&mut self, tokens: u32, single: bool, info: &WorkerInfo) {
        self.clear(info.groups.len());
        let block_size = info.block_size;
        let mut next_block = 0;
        while self.tokens() < tokens {
            let left = tokens - self.tokens();
            let (count, before) =
                if single { (1, TUNED_CONTEXT) } else { (left.min(TUNED_CHUNK), TUNED_BEFORE) };
            let count = count.min(info.max_model_len);
            let end = (count + before).min(info.max_model_len);
            self.token_ids.extend(std::iter::repeat_n(0, count as usize));
            self.positions.extend(end - count..end);
            self.query_starts.push(self.token_ids.len() as u32);
            self.kv_lens.push(end);
            (self.max_query, self.max_kv) = (self.max_query.max(count), self.max_kv.max(end));
            for (group, shape) in self.groups.iter_mut().zip(&info.groups) {
                let oldest = shape.window.map_or(0, |window| (end - count + 1).saturating_sub(window));
                let first = oldest / block_size;
                group.first_blocks.push(first);
                group.stride = (TUNED_CONTEXT + TUNED_CHUNK).div_ceil(block_size).next_power_of_two();
                let mut row: Vec<u32> = (0..end.div_ceil(block_size) - first)
                    .map(|at| (next_block + at) % info.num_blocks)
                    .collect();
                next_block = (next_block + row.len() as u32) % info.num_blocks;
                group.slots.extend((end - count..end).map(|position| {
                    let block = row[(position / block_size - first) as usize];
                    u64::from(block) * u64::from(block_size) + u64::from(position % block_size)
                }));
                row.resize(group.stride as usize, 0);
                group.tables.extend(row);
            }
        }
    }

    fn fill_tables(&mut self, slots: &SlotTable, runs: &[Run]) {
        for (index, group) in self.groups.iter_mut().enumerate() {
            // Few distinct strides: captured graphs are made for one each.
            group.stride = group.stride.next_power_of_two();
            group.tables.resize(runs.len() * group.stride as usize, 0);
            for (row, run) in group.tables.chunks_exact_mut(group.stride.max(1) as usize).zip(runs) {
                let Some(slot) = slots.get(run.slot) else { continue };
                let blocks = &slot.tables[index].blocks;
                let used = blocks.len().min(row.len());
                row[..used].copy_from_slice(&blocks[..used]);
            }
        }
    }

    /// Adds sequences of one token, drawn greedily, until there are `sequences`; they use a block that is no sequence's.
    pub fn pad(&mut self, sequences: usize, scratch_block: u32, block_size: u32) {
        while self.kv_lens.len() < sequences {
            self.token_ids.push(0);
            self.positions.push(0);
            self.query_starts.push(self.token_ids.len() as u32);
            self.kv_lens.push(1);
            self.singles += u32::from(self.singles + 1 == self.kv_lens.len() as u32);
            for group in &mut self.groups {
                group.slots.push(u64::from(scratch_block) * u64::from(block_size));
                group.first_blocks.push(0);
                group.tables.extend(std::iter::repeat_n(scratch_block, group.stride as usize));
            }
            self.sampled_rows.push(self.token_ids.len() as u32 - 1);
            self.sample.push_greedy();
        }
    }

    fn clear(&mut self, groups: usize) {
        self.token_ids.clear();
        self.positions.clear();
        self.query_starts.clear();
        self.query_starts.push(0);
        self.kv_lens.clear();
        (self.singles, self.max_query, self.max_kv) = (0, 0, 0);
        self.groups.resize_with(groups, GroupInputs::default);
        for group in &mut self.groups {
            group.slots.clear();
            group.tables.clear();
            group.first_blocks.clear();
            group.stride = 0;
        }
        self.sampled_rows.clear();
        self.sample.clear();
    }

    /// `T`.
    pub fn tokens(&self) -> u32 {
        self.token_ids.len() as u32
    }

    /// `R`.
    pub fn samples(&self) -> u32 {
        self.sampled_rows.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gossamer_wire::KvGroup;

    fn info(num_blocks: u32) -> WorkerInfo {
        WorkerInfo {
            rank: 0,
            num_blocks,
            block_size: 64,
            groups: vec![KvGroup { window: None }, KvGroup { window: Some(128) }],
            max_model_len: 4096,
            vocab_size: 100,
        }
    }

    #[test]
    fn sequences_to_measure_attention_on_are_long_and_stay_inside_pool_and_tables() {
        let mut batch = Batch::default();
        for (tokens, single, num_blocks) in
            [(1, true, 1000), (64, true, 50), (5000, false, 1000), (17, false, 7)]
        {
            batch.fill_attention(tokens, single, &info(num_blocks));
            assert_eq!(batch.tokens(), tokens);
            assert_eq!(batch.query_starts.last(), Some(&tokens));
            let sequences = batch.kv_lens.len();
            if single {
                assert_eq!(
                    (sequences, batch.max_query, batch.max_kv),
                    (tokens as usize, 1, TUNED_CONTEXT + 1)
                );
            }
            for group in &batch.groups {
                assert_eq!(group.tables.len(), sequences * group.stride as usize);
                assert!(group.tables.iter().all(|block| *block < num_blocks));
                for (s, len) in batch.kv_lens.iter().enumerate() {
                    assert!(len.div_ceil(64) - group.first_blocks[s] <= group.stride, "{tokens} {s}");
                }
                assert_eq!(group.slots.len(), tokens as usize);
            }
        }
    }

    #[test]
    fn padding_counts_as_sequences_of_one_query() {
        let mut batch = Batch::default();
        batch.fill_attention(1, true, &info(40));
        batch.singles = 1;
        batch.pad(4, 40, 64);
        assert_eq!((batch.singles, batch.kv_lens.len()), (4, 4));
    }
}
