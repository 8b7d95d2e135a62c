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

use crate::admission::Admission;
use crate::pool::HashTable;
use crate::prefix;
use crate::queue::{Place, TenantId};
use crate::scheduler::Scheduler;
use crate::sequence::SeqId;
use gossamer_wire::{BlockGrant, InputTokens, RankPlan, Run, StepPlan};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Sequences that are passed over in one plan because their prefix is being computed; a bound on the search.
const MAX_DEFERRED: usize = 64;
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

/// Buffers that live from plan to plan.
#[derive(Default)]
pub(crate) struct Scratch {
    candidates: BinaryHeap<Reverse<Candidate>>,
    pub prefilling: Vec<SeqId>,
    deferred: Vec<(TenantId, Place)>,
    /// Sequences that complete blocks in this plan.
    completing: Vec<SeqId>,
    /// Hashes of those blocks. They can be shared from the next plan on.
    pub computing: HashTable<()>,
    samples: Vec<Sample>,
    /// Tokens of the sequences that join in this plan.
    pub joining: usize,
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
        self.commit_plan();
        Some(&self.plan)
    }

    pub(crate) fn section(&mut self) -> &mut RankPlan {
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

    fn commit_plan(&mut self) {
        self.plan.step = self.next_step;
        self.next_step += 1;
        self.plan.snapshot = std::mem::take(&mut self.snapshot_due);
        let section = &mut self.plan.ranks[0];
        section.leave.append(&mut self.leaving);
        self.plan.choose_graph(self.config.cuda_graph_capture_size);
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

    /// Runs up to `want` tokens of a running sequence; returns how many. 0: there was no block for it.
    pub(crate) fn run(&mut self, id: SeqId, want: u32) -> u32 {
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
}
