//! A waiting sequence gets a slot, what is cached of its prefix, and its first blocks.
//!
//! A sequence is admitted when the blocks of all its known tokens are there, beside those that running prompts still
//! need: a prompt that was begun is not given up for want of blocks that were there when it began.

use crate::prefix;
use crate::queue::{Place, TenantId};
use crate::scheduler::Scheduler;
use crate::sequence::{BlockTable, SeqId};
use gossamer_wire::SlotJoin;
use std::ops::Range;

/// Tokens of sequences that join in one plan, unless it is one alone: a plan must fit its ring.
const MAX_JOINING: usize = 1 << 18;
/// Tokens of output that a sequence's lists make room for when it is admitted.
const ROOM: usize = 4096;

/// What became of a waiting sequence.
pub(crate) enum Admission {
    Admitted {
        tokens: u32,
    },
    /// It pays to wait for a step: its last token is being drawn, or its prefix computed.
    Deferred,
    /// It does not fit now.
    Blocked,
}

impl Scheduler {
    /// Lets the sequence run if it can, and runs its first tokens.
    pub(crate) fn admit(&mut self, place: Place, tenant: TenantId, budget: u32) -> Admission {
        let sequence = self.sequences.get(place.id);
        if sequence.pending > 0 {
            return Admission::Deferred;
        }
        let length = sequence.tokens.len() as u32;
        let Some(hit) = self.find_prefix(place.id) else { return Admission::Deferred };
        let missing = length - hit * self.layout.block_size;
        let whole_or_split = self.config.enable_chunked_prefill || missing <= budget;
        let joining = self.scratch.joining;
        let fits_the_ring = joining == 0 || joining + length as usize <= MAX_JOINING;
        if !whole_or_split || !fits_the_ring || !self.blocks_are_there(place.id, hit) {
            return Admission::Blocked;
        }
        let Some(slot) = self.free_slots.pop() else { return Admission::Blocked };
        self.queue.remove(tenant, place);
        self.take_prefix(place.id, hit);
        self.join(place.id, slot);
        let index = self.running.partition_point(|other| *other < place);
        self.running.insert(index, place);
        let tokens = self.run(place.id, missing.min(budget));
        if tokens < missing {
            self.scratch.prefilling.push(place.id);
        }
        Admission::Admitted { tokens }
    }

    /// Columns of the cached prefix. `None`: its next block is being computed, and can be shared from the next plan on.
    fn find_prefix(&mut self, id: SeqId) -> Option<u32> {
        if !self.config.enable_prefix_caching {
            return Some(0);
        }
        let size = self.layout.block_size;
        let sequence = self.sequences.get_mut(id);
        // The last token always runs: its logits are wanted.
        let blocks = (sequence.tokens.len() as u32 - 1) / size;
        let salt = sequence.cache_salt;
        prefix::extend_hashes(&mut sequence.hashes, &sequence.tokens, salt, size, blocks);
        let hashes = &sequence.hashes[..blocks as usize];
        let hit = prefix::longest_hit(&self.pool, &self.layout, hashes);
        let computing =
            hashes.get(hit as usize).is_some_and(|next| self.scratch.computing.contains_key(next));
        (!computing).then_some(hit)
    }

    /// Columns that `group` takes of a cached prefix of `hit` columns.
    fn cached_columns(&self, group: usize, hit: u32) -> Range<u32> {
        self.layout.first_live(group, hit * self.layout.block_size).min(hit)..hit
    }

    /// Whether all known tokens find their blocks. Those of the prefix that somebody owns cost nothing.
    fn blocks_are_there(&self, id: SeqId, hit: u32) -> bool {
        let sequence = self.sequences.get(id);
        let mut need = self.layout.resting_blocks(sequence.tokens.len() as u32);
        for group in 0..self.layout.windows.len() {
            for column in self.cached_columns(group, hit) {
                let block = self.pool.find(group, sequence.hashes[column as usize]);
                need -= u64::from(block.is_some_and(|block| self.pool.owners(block) > 0));
            }
        }
        need + self.promised_blocks() <= u64::from(self.pool.free_blocks())
    }

    fn take_prefix(&mut self, id: SeqId, hit: u32) {
        let size = self.layout.block_size;
        for group in 0..self.layout.windows.len() {
            let columns = self.cached_columns(group, hit);
            let sequence = self.sequences.get_mut(id);
            let room = (sequence.tokens.len() + ROOM) / size as usize + 1;
            let mut table = BlockTable { first: columns.start, blocks: Vec::with_capacity(room) };
            for column in columns {
                if let Some(block) = self.pool.find(group, sequence.hashes[column as usize]) {
                    self.pool.share(block);
                    table.blocks.push(block);
                }
            }
            sequence.tables.push(table);
        }
        let sequence = self.sequences.get_mut(id);
        (sequence.computed, sequence.columns, sequence.registered) = (hit * size, hit, hit);
        if sequence.cached_prompt_tokens.is_none() {
            let found = sequence.computed.min(sequence.prompt_len);
            sequence.cached_prompt_tokens = Some(found);
            if self.config.enable_prefix_caching {
                self.stats.prefix_queries += u64::from(sequence.prompt_len);
                self.stats.prefix_hits += u64::from(found);
            }
        }
        self.stats.prompt_tokens += u64::from(sequence.advance_charged(sequence.computed).0);
    }

    fn join(&mut self, id: SeqId, slot: u32) {
        let sequence = self.sequences.get_mut(id);
        sequence.slot = Some(slot);
        let room = ROOM.min(sequence.max_total as usize - sequence.tokens.len());
        sequence.tokens.reserve(room);
        sequence.hashes.reserve(room / self.layout.block_size as usize + 1);
        self.scratch.joining += sequence.tokens.len();
        let join = SlotJoin {
            slot,
            tokens: sequence.tokens.clone(),
            prompt_len: sequence.prompt_len,
            choice: sequence.key.choice,
            sampling: sequence.sampling.clone(),
            min_tokens: sequence.min_tokens,
            stop_token_ids: sequence.stop_token_ids.clone(),
        };
        self.section().join.push(join);
    }

    /// Blocks that admission must leave: those that running prompts still need, and a little for the next columns.
    fn promised_blocks(&self) -> u64 {
        let missing = |id: &SeqId| {
            let sequence = self.sequences.get(*id);
            match sequence.slot {
                Some(_) => {
                    let need = self.layout.resting_blocks(sequence.tokens.len() as u32);
                    need.saturating_sub(sequence.held_blocks())
                }
                None => 0,
            }
        };
        let spare = (self.running.len() as u64).min(u64::from(self.layout.num_blocks) / 100);
        self.scratch.prefilling.iter().map(missing).sum::<u64>() + spare
    }
}
