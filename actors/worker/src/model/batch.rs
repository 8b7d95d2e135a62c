//! The inputs of one step, in the arrays that kernels read.
//!
//! The arrays keep their capacity from step to step. Nothing here checks a plan: `SlotTable::apply` did.

use super::sampling::SampleInputs;
use crate::slots::SlotTable;
use gossamer_wire::{Run, WorkerInfo};

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
        (self.max_query, self.max_kv) = (0, 0);
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
