//! One sequence: its token log, its rules, and the blocks it holds.

use crate::layout::KvLayout;
use crate::pool::{BlockHash, BlockPool};
use crate::queue::{Place, TenantId};
use gossamer_wire::{SamplingParams, SequenceKey, TokenLogprobs};

/// Name of a sequence in the [`SequenceStore`]; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SeqId {
    index: u32,
    generation: u32,
}

/// Blocks of one group: columns `first ..`.
#[derive(Default)]
pub(crate) struct BlockTable {
    pub first: u32,
    pub blocks: Vec<u32>,
}

// In this order: planning reads the first fields of every running sequence in every step, and no others.
#[repr(C, align(64))]
pub(crate) struct Sequence {
    /// Positions whose keys and values are in the cache once all plans made so far have run.
    pub computed: u32,
    /// Tokens that plans in flight will draw.
    pub pending: u32,
    /// Number of tokens, prompt included, at which the sequence ends by length.
    pub max_total: u32,
    /// Columns of its block tables.
    pub columns: u32,
    /// Columns that the worker knows.
    pub granted: u32,
    /// Positions that were charged to the tenant and counted; what is computed again is free.
    pub charged: u32,
    pub prompt_len: u32,
    /// Columns that the prefix cache was told of.
    pub registered: u32,
    /// Position at which the next column leaves a window.
    pub slide_at: u32,
    pub tenant: TenantId,
    /// Slot in the worker, where it runs.
    pub slot: Option<u32>,
    /// Number of the last plan in which it runs.
    pub planned_step: u64,
    /// The token log: prompt and known output.
    pub tokens: Vec<u32>,

    /// Per group.
    pub tables: Vec<BlockTable>,
    pub place: Place,
    pub key: SequenceKey,
    pub sampling: SamplingParams,
    pub min_tokens: u32,
    pub stop_token_ids: Vec<u32>,
    pub deadline_unix_ms: Option<u64>,
    pub cache_salt: u64,
    /// One per full block of the log, as far as anybody asked.
    pub hashes: Vec<BlockHash>,
    /// Prompt tokens found in the cache at the first admission.
    pub cached_prompt_tokens: Option<u32>,

    pub stream_interval: u32,
    /// Generated tokens that were sent.
    pub reported: u32,
    /// Whether the first delta has left.
    pub announced: bool,
    /// Of generated tokens that were not sent.
    pub logprobs: Vec<TokenLogprobs>,
}

impl Sequence {
    /// Tokens, with those that plans in flight will draw.
    pub fn length(&self) -> u32 {
        self.tokens.len() as u32 + self.pending
    }

    /// Tokens that could run now: none when the last one is being drawn.
    pub fn behind(&self) -> u32 {
        if self.length() >= self.max_total { 0 } else { self.length() - self.computed }
    }

    /// Known output tokens.
    pub fn generated(&self) -> u32 {
        self.tokens.len() as u32 - self.prompt_len
    }

    pub fn held_blocks(&self) -> u64 {
        self.tables.iter().map(|table| table.blocks.len() as u64).sum()
    }

    /// Releases what has left the windows when the token at `computed` runs.
    pub fn slide(&mut self, layout: &KvLayout, pool: &mut BlockPool) {
        if self.computed < self.slide_at {
            return;
        }
        self.slide_at = u32::MAX;
        for (group, table) in self.tables.iter_mut().enumerate() {
            let first = layout.first_live(group, self.computed).min(self.columns);
            if first > table.first {
                for block in table.blocks.drain(..(first - table.first) as usize) {
                    pool.release(block);
                }
                table.first = first;
            }
            self.slide_at = self.slide_at.min(layout.leaves_at(group, table.first));
        }
    }

    /// Releases all blocks, deepest first. The sequence must be computed from the start again.
    pub fn release_blocks(&mut self, pool: &mut BlockPool) {
        for table in &mut self.tables {
            while let Some(block) = table.blocks.pop() {
                pool.release(block);
            }
        }
        self.forget_blocks();
    }

    /// As [`Self::release_blocks`], when the pool itself is gone.
    pub fn forget_blocks(&mut self) {
        self.tables.clear();
        (self.computed, self.columns, self.granted, self.registered, self.slide_at) = (0, 0, 0, 0, 0);
    }

    /// Notes that positions before `end` are being served; returns how many of them are (prompt, output) for the first
    /// time.
    pub fn advance_charged(&mut self, end: u32) -> (u32, u32) {
        let start = self.charged;
        if end <= start {
            return (0, 0);
        }
        self.charged = end;
        let prompt = end.min(self.prompt_len).saturating_sub(start);
        (prompt, end - start - prompt)
    }
}

/// All unfinished sequences.
#[derive(Default)]
pub(crate) struct SequenceStore {
    entries: Vec<(u32, Option<Box<Sequence>>)>,
    vacant: Vec<u32>,
}

impl SequenceStore {
    pub fn len(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    /// Stores what `make` builds for the new name.
    pub fn insert(&mut self, make: impl FnOnce(SeqId) -> Sequence) -> SeqId {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push((0, None));
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        let id = SeqId { index, generation: entry.0 };
        entry.1 = Some(Box::new(make(id)));
        id
    }

    pub fn remove(&mut self, id: SeqId) -> Option<Box<Sequence>> {
        let entry = self.entries.get_mut(id.index as usize).filter(|entry| entry.0 == id.generation)?;
        let sequence = entry.1.take()?;
        entry.0 = entry.0.wrapping_add(1);
        self.vacant.push(id.index);
        Some(sequence)
    }

    /// `None` when it is finished.
    pub fn find(&self, id: SeqId) -> Option<&Sequence> {
        let entry = self.entries.get(id.index as usize).filter(|entry| entry.0 == id.generation)?;
        entry.1.as_deref()
    }

    /// `None` when it is finished.
    pub fn find_mut(&mut self, id: SeqId) -> Option<&mut Sequence> {
        let entry = self.entries.get_mut(id.index as usize).filter(|entry| entry.0 == id.generation)?;
        entry.1.as_deref_mut()
    }

    /// A sequence that the caller found in a queue, and which is therefore unfinished.
    pub fn get(&self, id: SeqId) -> &Sequence {
        self.find(id).expect("queues hold unfinished sequences")
    }

    /// As [`Self::get`].
    pub fn get_mut(&mut self, id: SeqId) -> &mut Sequence {
        self.find_mut(id).expect("queues hold unfinished sequences")
    }

    pub fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.entries.iter().filter_map(|entry| entry.1.as_deref())
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.entries.iter_mut().filter_map(|entry| entry.1.as_deref_mut())
    }
}
