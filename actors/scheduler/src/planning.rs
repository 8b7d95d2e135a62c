//! One step: who runs how many tokens, who is admitted, who is pre-empted.
//!
//! 1. Running sequences that are one token behind run it, best place first. There are never more of them than tokens in
//!    a step, so each advances in every step and no prompt can hold them up.
//! 2. What is left of the budget goes to those that are further behind, running or waiting, in the order of priority,
//!    tenant's virtual time, arrival. A waiting sequence is admitted when the blocks of all its known tokens are there;
//!    if they are not, nobody behind it is admitted either, so that it cannot starve.
//! 3. A sequence that finds no block takes those of the running sequence with the worst place, if that is worse than its
//!    own and did not run in this step. Otherwise it skips the step and keeps what it has.
//!
//! Invariant: when nothing is in flight and a sequence is unfinished, a plan runs something: the best-placed sequence may
//! take all blocks, and admission refused what does not fit an empty pool.
//! Invariant: a plan made in the steady state allocates no memory.

use crate::pool::HashTable;
use crate::prefix;
use crate::queue::{Place, TenantId};
use crate::scheduler::Scheduler;
use crate::sequence::{BlockTable, SeqId};
use gossamer_wire::{BlockGrant, InputTokens, RankPlan, Run, SlotJoin, StepPlan};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Sequences that are passed over in one plan because their prefix is being computed; a bound on the search.
const MAX_DEFERRED: usize = 64;
/// Tokens of sequences that join in one plan, unless it is one alone: a plan must fit its ring.
const MAX_JOINING: usize = 1 << 18;
/// Tokens of output that a sequence's lists make room for when it is admitted.
const ROOM: usize = 4096;

/// A plan whose result has not arrived.
#[derive(Default)]
pub(crate) struct InFlight {
    pub step: u64,
    /// One per run that draws a token, in batch order.
    pub samples: Vec<Sample>,
}

/// A token that a plan draws.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub id: SeqId,
    pub slot: u32,
    pub position: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Running(SeqId),
    Waiting(TenantId),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    priority: i32,
    virtual_time: u64,
    arrival: u64,
    source: Source,
}

enum Admission {
    Admitted {
        tokens: u32,
    },
    /// It pays to wait for a step: its last token is being drawn, or its prefix computed.
    Deferred,
    /// It does not fit now.
    Blocked,
}

/// Buffers that live from plan to plan.
#[derive(Default)]
pub(crate) struct Scratch {
    candidates: BinaryHeap<Reverse<Candidate>>,
    prefilling: Vec<SeqId>,
    deferred: Vec<(TenantId, Place)>,
    /// Sequences that complete blocks in this plan.
    completing: Vec<SeqId>,
    /// Hashes of those blocks. They can be shared from the next plan on.
    computing: HashTable<()>,
    samples: Vec<Sample>,
    /// Tokens of the sequences that join in this plan.
    joining: usize,
    pub spare_samples: Vec<Vec<Sample>>,
    spare_grants: Vec<Vec<u32>>,
}

impl Scheduler {
    /// Plans the next step. `None`: nothing can run, or as many steps are in flight as may be.
    pub fn plan(&mut self, now_unix_ms: u64) -> Option<&StepPlan> {
        self.expire(now_unix_ms);
        let nobody = self.running.is_empty() && self.queue.len() == 0;
        if !self.attached || nobody || self.in_flight.len() >= self.config.steps_in_flight as usize {
            return None;
        }
        self.clear_plan();
        let mut budget = self.config.max_num_batched_tokens;
        self.run_those_one_behind(&mut budget);
        self.run_and_admit_the_rest(&mut budget);
        while let Some((tenant, place)) = self.scratch.deferred.pop() {
            self.queue.push(tenant, place);
        }
        if self.section().runs.is_empty() {
            return None;
        }
        self.commit_plan(self.config.max_num_batched_tokens - budget);
        Some(&self.plan)
    }

    fn section(&mut self) -> &mut RankPlan {
        &mut self.plan.ranks[0]
    }

    fn clear_plan(&mut self) {
        if self.plan.ranks.is_empty() {
            self.plan.ranks.push(RankPlan::default());
        }
        let section = &mut self.plan.ranks[0];
        for mut grant in section.grants.drain(..) {
            grant.blocks.clear();
            self.scratch.spare_grants.push(grant.blocks);
        }
        section.leave.clear();
        section.join.clear();
        section.runs.clear();
        self.scratch.prefilling.clear();
        self.scratch.completing.clear();
        self.scratch.computing.clear();
        self.scratch.samples.clear();
        self.scratch.joining = 0;
    }

    fn commit_plan(&mut self, tokens: u32) {
        self.plan.step = self.next_step;
        self.next_step += 1;
        self.plan.snapshot = std::mem::take(&mut self.snapshot_due);
        let section = &mut self.plan.ranks[0];
        section.leave.append(&mut self.leaving);
        // Graphs are captured for steps in which every sequence runs one token.
        let buckets = &self.config.graph_buckets;
        let bucket = buckets.get(buckets.partition_point(|bucket| *bucket < tokens)).copied();
        self.plan.graph_bucket = if section.runs.len() == tokens as usize { bucket.unwrap_or(0) } else { 0 };
        let spare = self.scratch.spare_samples.pop().unwrap_or_default();
        let samples = std::mem::replace(&mut self.scratch.samples, spare);
        self.in_flight.push_back(InFlight { step: self.plan.step, samples });
        while let Some(id) = self.scratch.completing.pop() {
            self.register_blocks(id);
        }
    }

    fn run_those_one_behind(&mut self, budget: &mut u32) {
        let mut index = 0;
        while index < self.running.len() {
            let id = self.running[index].id;
            match self.sequences.get(id).behind() {
                0 => {}
                1 if *budget > 0 => *budget -= self.run(id, 1),
                _ => self.scratch.prefilling.push(id),
            }
            index += 1;
        }
    }

    fn run_and_admit_the_rest(&mut self, budget: &mut u32) {
        self.scratch.candidates.clear();
        for id in &self.scratch.prefilling {
            let sequence = self.sequences.get(*id);
            self.scratch.candidates.push(Reverse(Candidate {
                priority: sequence.place.priority,
                virtual_time: self.queue.virtual_time(sequence.tenant),
                arrival: sequence.place.arrival,
                source: Source::Running(*id),
            }));
        }
        let mut admitting = self.running.len() < self.config.max_running();
        if admitting && *budget > 0 {
            let waiting = |(tenant, head, virtual_time): (TenantId, Place, u64)| {
                let (priority, arrival) = (head.priority, head.arrival);
                Reverse(Candidate { priority, virtual_time, arrival, source: Source::Waiting(tenant) })
            };
            self.scratch.candidates.extend(self.queue.heads().map(waiting));
        }
        while *budget > 0
            && let Some(Reverse(candidate)) = self.scratch.candidates.pop()
        {
            match candidate.source {
                Source::Running(id) => {
                    let sequence = self.sequences.get(id);
                    // Pre-empted a moment ago, and perhaps admitted again.
                    if sequence.slot.is_none() || sequence.planned_step == self.next_step {
                        continue;
                    }
                    let (behind, tenant) = (sequence.behind(), sequence.tenant);
                    if !self.put_back_if_stale(candidate, tenant)
                        && (self.config.enable_chunked_prefill || behind <= *budget)
                    {
                        *budget -= self.run(id, behind.min(*budget));
                    }
                }
                Source::Waiting(tenant) => {
                    admitting &= self.running.len() < self.config.max_running();
                    if !admitting || self.put_back_if_stale(candidate, tenant) {
                        continue;
                    }
                    let Some(place) = self.queue.head(tenant) else { continue };
                    match self.admit(place, tenant, *budget) {
                        Admission::Admitted { tokens } => {
                            *budget -= tokens;
                            self.queue.serve(candidate.virtual_time);
                        }
                        Admission::Deferred => {
                            self.queue.remove(tenant, place);
                            self.scratch.deferred.push((tenant, place));
                            admitting = self.scratch.deferred.len() < MAX_DEFERRED;
                        }
                        Admission::Blocked => admitting = false,
                    }
                    if let Some(next) = self.queue.head(tenant) {
                        self.scratch.candidates.push(Reverse(Candidate {
                            priority: next.priority,
                            virtual_time: self.queue.virtual_time(tenant),
                            arrival: next.arrival,
                            source: Source::Waiting(tenant),
                        }));
                    }
                }
            }
        }
    }

    /// The tenant was charged since the candidate was put into the heap: it takes its new place.
    fn put_back_if_stale(&mut self, candidate: Candidate, tenant: TenantId) -> bool {
        let virtual_time = self.queue.virtual_time(tenant);
        let stale = virtual_time != candidate.virtual_time;
        if stale {
            self.scratch.candidates.push(Reverse(Candidate { virtual_time, ..candidate }));
        }
        stale
    }

    fn admit(&mut self, place: Place, tenant: TenantId, budget: u32) -> Admission {
        let layout = &self.layout;
        let sequence = self.sequences.get_mut(place.id);
        if sequence.pending > 0 {
            return Admission::Deferred;
        }
        let length = sequence.tokens.len() as u32;
        let mut hit = 0;
        if self.config.enable_prefix_caching {
            // The last token always runs: its logits are wanted.
            let blocks = (length - 1) / layout.block_size;
            let (salt, size) = (sequence.cache_salt, layout.block_size);
            prefix::extend_hashes(&mut sequence.hashes, &sequence.tokens, salt, size, blocks);
            let hashes = &sequence.hashes[..blocks as usize];
            hit = prefix::longest_hit(&self.pool, layout, hashes);
            if hashes.get(hit as usize).is_some_and(|next| self.scratch.computing.contains_key(next)) {
                return Admission::Deferred;
            }
        }
        let computed = hit * layout.block_size;
        let cached = |group: usize| {
            let first = layout.first_live(group, computed).min(hit);
            (first, first..hit)
        };
        let mut need = layout.resting_blocks(length);
        for group in 0..layout.windows.len() {
            for column in cached(group).1 {
                let block = self.pool.find(group, sequence.hashes[column as usize]);
                need -= u64::from(block.is_some_and(|block| self.pool.owners(block) > 0));
            }
        }
        if need + self.promised_blocks() > u64::from(self.pool.free_blocks())
            || (!self.config.enable_chunked_prefill && length - computed > budget)
            || (self.scratch.joining > 0 && self.scratch.joining + length as usize > MAX_JOINING)
        {
            return Admission::Blocked;
        }
        let Some(slot) = self.free_slots.pop() else { return Admission::Blocked };

        self.queue.remove(tenant, place);
        let sequence = self.sequences.get_mut(place.id);
        for group in 0..layout.windows.len() {
            let (first, columns) = cached(group);
            let mut blocks = Vec::with_capacity((length as usize + ROOM) / layout.block_size as usize + 1);
            for column in columns {
                if let Some(block) = self.pool.find(group, sequence.hashes[column as usize]) {
                    self.pool.share(block);
                    blocks.push(block);
                }
            }
            sequence.tables.push(BlockTable { first, blocks });
        }
        (sequence.computed, sequence.columns, sequence.registered) = (computed, hit, hit);
        sequence.slot = Some(slot);
        let room = ROOM.min((sequence.max_total - length) as usize);
        sequence.tokens.reserve(room);
        sequence.hashes.reserve(room / layout.block_size as usize + 1);
        if sequence.cached_prompt_tokens.is_none() {
            let found = computed.min(sequence.prompt_len);
            sequence.cached_prompt_tokens = Some(found);
            if self.config.enable_prefix_caching {
                self.stats.prefix_queries += u64::from(sequence.prompt_len);
                self.stats.prefix_hits += u64::from(found);
            }
        }
        self.stats.prompt_tokens += u64::from(sequence.advance_charged(computed).0);
        self.scratch.joining += length as usize;
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
        let index = self.running.partition_point(|other| *other < place);
        self.running.insert(index, place);
        let tokens = self.run(place.id, (length - computed).min(budget));
        if tokens < length - computed {
            self.scratch.prefilling.push(place.id);
        }
        Admission::Admitted { tokens }
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

    /// Runs up to `want` tokens of a running sequence; returns how many. 0: there was no block for it.
    fn run(&mut self, id: SeqId, want: u32) -> u32 {
        let count = self.reserve(id, want);
        if count == 0 {
            return 0;
        }
        let sequence = self.sequences.get_mut(id);
        let Some(slot) = sequence.slot else { return 0 };
        let (start, end) = (sequence.computed, sequence.computed + count);
        let known = end <= sequence.tokens.len() as u32;
        debug_assert!(known || count == 1, "a token that is being drawn runs alone");
        let sample = end == sequence.length();
        let section = &mut self.plan.ranks[0];
        if sequence.granted < sequence.columns {
            for (group, table) in sequence.tables.iter().enumerate() {
                let first = sequence.granted.max(table.first);
                let mut blocks = self.scratch.spare_grants.pop().unwrap_or_default();
                blocks.extend_from_slice(&table.blocks[(first - table.first) as usize..]);
                let (group, first_live) = (group as u32, table.first);
                section.grants.push(BlockGrant { slot, group, first, first_live, blocks });
            }
            sequence.granted = sequence.columns;
        }
        let input = if known { InputTokens::Known } else { InputTokens::LastSampled };
        section.runs.push(Run { slot, start, count, input, sample });
        sequence.computed = end;
        sequence.planned_step = self.next_step;
        if sample {
            sequence.pending += 1;
            self.scratch.samples.push(Sample { id, slot, position: end });
        }
        let (prompt, output) = sequence.advance_charged(end);
        self.stats.prompt_tokens += u64::from(prompt);
        self.queue.charge(sequence.tenant, prompt + output);
        if self.config.enable_prefix_caching && known && end / self.layout.block_size > sequence.registered {
            let (salt, size) = (sequence.cache_salt, self.layout.block_size);
            prefix::extend_hashes(&mut sequence.hashes, &sequence.tokens, salt, size, end / size);
            let full = sequence.registered as usize..(end / size) as usize;
            self.scratch.computing.extend(sequence.hashes[full].iter().map(|hash| (*hash, ())));
            self.scratch.completing.push(id);
        }
        count
    }

    /// Finds blocks for up to `want` tokens after `computed`; returns for how many.
    fn reserve(&mut self, id: SeqId, want: u32) -> u32 {
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
