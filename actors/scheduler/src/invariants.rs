//! The integrity check: everything that the scheduler keeps twice must agree, and nothing may be left when idle.

use crate::scheduler::Scheduler;
use std::collections::{HashMap, HashSet};
use thiserror::Error;

/// What does not agree.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("the scheduler's state contradicts itself: {0}")]
pub struct Violation(String);

macro_rules! hold {
    ($condition:expr, $($message:tt)*) => {
        if !$condition {
            return Err(Violation(format!($($message)*)));
        }
    };
}

impl Scheduler {
    /// Checks everything. Takes time proportional to sequences and blocks: for tests and idle moments.
    pub fn check_invariants(&self) -> Result<(), Violation> {
        self.check_blocks()?;
        self.check_sequences()?;
        if self.is_idle() {
            let used = self.pool.used_blocks();
            hold!(used == 0, "{used} KV blocks are in use by nobody");
            hold!(self.deadlines.is_empty(), "{} deadlines are of nobody", self.deadlines.len());
            hold!(self.queue.tenants() == 0, "{} tenants have no sequence", self.queue.tenants());
        }
        Ok(())
    }

    fn check_blocks(&self) -> Result<(), Violation> {
        let mut owners: HashMap<u32, (u32, u32)> = HashMap::new();
        for sequence in self.sequences.iter() {
            for (group, table) in sequence.tables.iter().enumerate() {
                let columns = table.first + table.blocks.len() as u32;
                hold!(columns == sequence.columns, "{:?} has a table of {columns} columns", sequence.key);
                for block in &table.blocks {
                    let owner = owners.entry(*block).or_insert((group as u32, 0));
                    hold!(owner.0 == group as u32, "block {block} is owned by two groups");
                    owner.1 += 1;
                }
            }
        }
        self.pool.check(&owners).map_err(Violation)
    }

    fn check_sequences(&self) -> Result<(), Violation> {
        let (running, waiting) = (self.running.len(), self.queue.len());
        let known = self.sequences.len();
        hold!(running + waiting == known, "{running} running and {waiting} waiting sequences of {known}");
        hold!(self.by_key.len() == known, "{} keys for {known} sequences", self.by_key.len());
        hold!(self.running.is_sorted(), "running sequences are out of order");
        hold!(self.running.len() <= self.config.max_running(), "{running} sequences run");
        let mut slots: HashSet<u32> = self.free_slots.iter().copied().collect();
        hold!(slots.len() == self.free_slots.len(), "a slot is free twice");
        for place in &self.running {
            let Some(sequence) = self.sequences.find(place.id) else {
                return Err(Violation(format!("{place:?} runs and is finished")));
            };
            hold!(sequence.slot.is_some_and(|slot| slots.insert(slot)), "{place:?} has no slot of its own");
            let length = sequence.tokens.len() as u32 + sequence.pending;
            hold!(sequence.computed <= length, "{place:?} is ahead of its log");
            hold!(length <= sequence.max_total, "{place:?} runs beyond its length");
            let reach = sequence.columns * self.layout.block_size;
            hold!(sequence.computed <= reach, "{place:?} computed beyond its blocks");
        }
        hold!(slots.len() == self.config.max_num_seqs as usize, "expected all slots, got {}", slots.len());
        for place in self.queue.iter() {
            let Some(sequence) = self.sequences.find(place.id) else {
                return Err(Violation(format!("{place:?} waits and is finished")));
            };
            hold!(sequence.slot.is_none(), "{place:?} waits and has a slot");
            hold!(sequence.tables.is_empty() && sequence.computed == 0, "{place:?} waits and holds blocks");
        }
        let mut drawn: HashMap<_, u32> = HashMap::new();
        for sample in self.in_flight.iter().flat_map(|step| &step.samples) {
            *drawn.entry(sample.id).or_default() += 1;
        }
        for sequence in self.sequences.iter() {
            let expected = drawn.get(&sequence.place.id).copied().unwrap_or(0);
            hold!(sequence.pending == expected, "{:?} waits for tokens that nobody draws", sequence.key);
            hold!(sequence.reported <= sequence.generated(), "{:?} reported too much", sequence.key);
        }
        Ok(())
    }
}
