//! Blocks of running sequences: found for a run, taken from another sequence, made known to the prefix cache.

use crate::prefix;
use crate::queue::Place;
use crate::scheduler::Scheduler;
use crate::sequence::SeqId;

impl Scheduler {
    /// Finds blocks for up to `want` tokens after `computed`; returns for how many.
    pub(crate) fn reserve(&mut self, id: SeqId, want: u32) -> u32 {
        let groups = self.layout.groups();
        let size = self.layout.block_size;
        let sequence = self.sequences.get_mut(id);
        sequence.slide(&self.layout, &mut self.pool);
        let (computed, columns, place) = (sequence.computed, sequence.columns, sequence.place);
        if computed + want <= columns * size {
            return want;
        }
        let count = loop {
            let reach = u64::from(columns + self.pool.free_blocks() / groups) * u64::from(size);
            let fits = reach.saturating_sub(u64::from(computed)).min(u64::from(want)) as u32;
            if fits == want || (fits > 0 && self.config.enable_chunked_prefill) {
                break fits;
            }
            let idle = |other: &&Place| self.sequences.get(other.id).planned_step != self.next_step;
            match self.running.iter().rev().find(idle).copied() {
                Some(victim) if victim > place => self.preempt(victim),
                _ => return 0,
            }
        };
        let sequence = self.sequences.get_mut(id);
        sequence.columns = (computed + count).div_ceil(size).max(columns);
        for (group, table) in sequence.tables.iter_mut().enumerate() {
            while table.first + (table.blocks.len() as u32) < sequence.columns {
                table.blocks.push(self.pool.allocate(group).expect("free blocks were counted above"));
            }
        }
        count
    }

    /// Sends a running sequence back to wait; it will be computed again from its log, or from what is still cached.
    fn preempt(&mut self, place: Place) {
        self.remove_running(place);
        let sequence = self.sequences.get_mut(place.id);
        sequence.release_blocks(&mut self.pool);
        if let Some(slot) = sequence.slot.take() {
            self.free_slots.push(slot);
            self.leaving.push(slot);
        }
        self.queue.push(sequence.tenant, place);
        self.stats.preemptions += 1;
    }

    /// Tells the prefix cache of blocks that are full, whose tokens are known, and which plans made before compute.
    pub(crate) fn register_blocks(&mut self, id: SeqId) {
        let size = self.layout.block_size;
        let sequence = self.sequences.get_mut(id);
        let full = sequence.computed.min(sequence.tokens.len() as u32) / size;
        if !self.config.enable_prefix_caching || sequence.slot.is_none() || full <= sequence.registered {
            return;
        }
        let salt = sequence.cache_salt;
        prefix::extend_hashes(&mut sequence.hashes, &sequence.tokens, salt, size, full);
        for table in &sequence.tables {
            for column in sequence.registered.max(table.first)..full {
                let block = table.blocks[(column - table.first) as usize];
                self.pool.register(block, sequence.hashes[column as usize]);
            }
        }
        sequence.registered = full;
    }
}
