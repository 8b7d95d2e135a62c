//! Draws tokens from logits.
//!
//! Every row is drawn by one thread. The Gumbel noise is exact in float64 for the tokens that can still win; blocks whose
//! largest score could not win with the largest noise, and words below the noise that is needed, are passed over.
//! Passing over never changes the winner.

mod filter;
mod logprobs;
mod philox;

use crate::isa::{Simd, Task};
use crate::math::Activation;
use crate::memory::{Arena, Ptr};
use crate::pool::Pool;
use filter::{BUCKETS, Histogram, Last};
use gossamer_backend_api::BackendError;
use gossamer_backend_api::ops::{LogitEdit, SampleArgs, SampleDesc, SampleRow};
use philox::{Stream, gumbel, threshold};

/// Tokens of a block that is passed over as a whole.
const BLOCK: usize = 64;

/// One worker's memory.
#[derive(Clone, Copy)]
struct Scratch {
    /// `[V]`, the logits as they came.
    logits: Ptr<f32>,
    /// `[V]`, edited and divided by the temperature.
    scores: Ptr<f32>,
    columns: Ptr<u32>,
    counts: Ptr<u32>,
    masses: Ptr<f64>,
}

struct Buffers {
    logits: Ptr<f32>,
    scores: Ptr<f32>,
    columns: Ptr<u32>,
    counts: Ptr<u32>,
    masses: Ptr<f64>,
}

fn place(desc: &SampleDesc, slots: usize, arena: &mut Arena) -> Buffers {
    let vocab = desc.vocab as usize;
    Buffers {
        logits: arena.take(slots * vocab),
        scores: arena.take(slots * vocab),
        columns: arena.take(slots * vocab),
        counts: arena.take(slots * BUCKETS),
        masses: arena.take(slots * BUCKETS),
    }
}

/// Bytes of workspace.
pub fn workspace(desc: &SampleDesc, slots: usize) -> u64 {
    let mut arena = Arena::new(0);
    place(desc, slots, &mut arena);
    arena.used()
}

struct Draw<L> {
    desc: SampleDesc,
    row: SampleRow,
    index: usize,
    logits: Ptr<L>,
    args: SampleArgs,
    scratch: Scratch,
}

impl<L: Activation> Draw<L> {
    /// Copies the logits to `scores` with mask and edits; NaNs become -inf.
    #[inline(always)]
    unsafe fn edit(&self, logits: &[f32], scores: &mut [f32]) {
        for (score, logit) in scores.iter_mut().zip(logits) {
            *score = if logit.is_nan() { f32::NEG_INFINITY } else { *logit };
        }
        let mut edits: &[LogitEdit] = &[];
        if self.row.edits > 0 {
            let (first, count) = (self.row.first_edit as usize, self.row.edits as usize);
            // SAFETY: by the caller of the operation.
            edits = unsafe { Ptr::<LogitEdit>::new(self.args.edits).slice(first, count) };
        }
        let mut change = |token: u32, repetition: f32, add: f32| {
            let column = token.wrapping_sub(self.desc.vocab_offset) as usize;
            if let Some(score) = scores.get_mut(column) {
                let scaled = if *score > 0.0 { *score / repetition } else { *score * repetition };
                let edited = scaled + add;
                *score = if edited.is_nan() { f32::NEG_INFINITY } else { edited };
            }
        };
        // SAFETY: by the caller of the operation: an address that is not 0 is a token's.
        let mut pending =
            (self.row.pending != 0).then(|| unsafe { *Ptr::<u32>::new(self.row.pending).at(0) });
        for edit in edits {
            if pending == Some(edit.token) {
                pending = None;
                change(edit.token, self.row.pending_repetition, edit.pending_add);
            } else {
                change(edit.token, edit.repetition, edit.add);
            }
        }
        if let Some(token) = pending {
            change(token, self.row.pending_repetition, self.row.pending_add);
        }
        if self.row.masked == 1 {
            let words = scores.len().div_ceil(32);
            // SAFETY: by the caller of the operation.
            let mask = unsafe { Ptr::<u32>::new(self.args.masks).slice(self.index * words, words) };
            for (word, scores) in mask.iter().zip(scores.chunks_mut(32)) {
                if *word == u32::MAX {
                    continue;
                }
                for (bit, score) in scores.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *score = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }

    /// The winner among what survives; `None` where all is forbidden.
    #[inline(always)]
    fn draw(&self, scores: &[f32], last: Last) -> Option<u32> {
        /// No noise is larger: `-ln(-ln(1 - 2^-25))`, rounded up.
        const LARGEST_NOISE: f64 = 17.4;
        let stream = Stream::new(self.row.seed, self.row.position, self.row.choice);
        let offset = self.desc.vocab_offset;
        let (mut best, mut winner) = (f64::NEG_INFINITY, argmax(scores)?);
        let first = winner as usize;
        let mut consider = |column: usize, word: u32, best: &mut f64| {
            let score = f64::from(scores[column]) + gumbel(word);
            if last.keeps(scores[column], column as u32) && score > *best {
                (*best, winner) = (score, column as u32);
            }
        };
        // The likeliest token first: it makes the bar high from the start.
        let word = |column: usize| {
            let token = offset + column as u32;
            stream.words(token / 4)[token as usize % 4]
        };
        consider(first, word(first), &mut best);
        let lead = best;
        best = f64::NEG_INFINITY;
        for (block, chunk) in scores.chunks(BLOCK).enumerate() {
            let base = block * BLOCK;
            let largest = f64::from(logprobs::maximum(chunk));
            let bar = best.max(lead);
            let wanted = bar - largest;
            if wanted > LARGEST_NOISE || largest == f64::NEG_INFINITY {
                continue;
            }
            let least = threshold(wanted);
            let first_group = (offset + base as u32) / 4;
            let mut words = [[0u32; 4]; BLOCK / 4 + 1];
            for (i, words) in words.iter_mut().enumerate() {
                *words = stream.words(first_group.wrapping_add(i as u32));
            }
            let skip = (offset as usize + base) % 4;
            for (i, word) in words.as_flattened()[skip..].iter().enumerate().take(chunk.len()) {
                if *word >= least {
                    consider(base + i, *word, &mut best);
                }
            }
        }
        Some(winner)
    }
}

/// Index of the largest; ties: the lower one. `None` where all are -inf.
#[inline(always)]
fn argmax(scores: &[f32]) -> Option<u32> {
    let largest = logprobs::maximum(scores);
    let first = scores.iter().position(|score| *score == largest)?;
    (largest > f32::NEG_INFINITY).then_some(first as u32)
}

impl<L: Activation> Task for Draw<L> {
    #[inline(always)]
    unsafe fn run(self) {
        let vocab = self.desc.vocab as usize;
        // SAFETY: by the caller; the scratch is the worker's own.
        unsafe {
            let logits = self.scratch.logits.slice_mut(0, vocab);
            let scores = self.scratch.scores.slice_mut(0, vocab);
            for (to, from) in logits.iter_mut().zip(self.logits.slice(0, vocab)) {
                *to = from.to_f32();
            }
            self.edit(logits, scores);
            let column = if self.row.temperature > 0.0 {
                for score in scores.iter_mut() {
                    *score /= self.row.temperature;
                }
                let mut histogram = Histogram {
                    counts: self.scratch.counts.slice_mut(0, BUCKETS),
                    masses: self.scratch.masses.slice_mut(0, BUCKETS),
                    columns: self.scratch.columns.slice_mut(0, vocab),
                };
                let SampleRow { top_k, top_p, min_p, .. } = self.row;
                let last = filter::last(scores, top_k, top_p, min_p, &mut histogram);
                self.draw(scores, last)
            } else {
                argmax(scores)
            };
            let token = column.map_or(SampleRow::NO_TOKEN, |column| self.desc.vocab_offset + column);
            *Ptr::<u32>::new(self.args.tokens).at(self.index) = token;
            if self.row.kept != 0 {
                *Ptr::<u32>::new(self.row.kept).at(0) = token;
            }
            let Some(column) = column else {
                *Ptr::<f32>::new(self.args.logprobs).at(self.index) = f32::NAN;
                return;
            };
            let most = self.desc.max_logprobs as usize;
            let (ids, top) = (Ptr::<u32>::new(self.args.top_ids), Ptr::<f32>::new(self.args.top_logprobs));
            let mut logprob = f32::NAN;
            if self.row.logprobs != SampleRow::NO_LOGPROBS {
                let log_sum = logprobs::log_sum(logits);
                logprob = (f64::from(logits[column as usize]) - log_sum) as f32;
                let wanted = (self.row.logprobs as usize).min(most);
                if wanted > 0 && !ids.is_null() && !top.is_null() {
                    logprobs::top(
                        logits,
                        self.desc.vocab_offset,
                        log_sum,
                        ids.slice_mut(self.index * most, wanted),
                        top.slice_mut(self.index * most, wanted),
                    );
                }
            }
            *Ptr::<f32>::new(self.args.logprobs).at(self.index) = logprob;
        }
    }
}

/// Runs the operation.
///
/// # Safety
/// As `KernelBackend::launch`; the machine has `S`.
pub unsafe fn launch<S: Simd, L: Activation>(
    pool: &Pool,
    desc: &SampleDesc,
    args: &SampleArgs,
    (workspace, workspace_bytes): (u64, u64),
) -> Result<(), BackendError> {
    let vocab = desc.vocab as usize;
    let mut arena = Arena::new(workspace);
    let buffers = place(desc, pool.slots(), &mut arena);
    arena.check(workspace_bytes)?;
    let (logits, rows) = (Ptr::<L>::new(args.logits), Ptr::<SampleRow>::new(args.rows));
    pool.run(args.row_count as usize, |slot, index| {
        let scratch = Scratch {
            logits: buffers.logits.offset(slot * vocab),
            scores: buffers.scores.offset(slot * vocab),
            columns: buffers.columns.offset(slot * vocab),
            counts: buffers.counts.offset(slot * BUCKETS),
            masses: buffers.masses.offset(slot * BUCKETS),
        };
        // SAFETY: by the caller; each task has its own row.
        unsafe {
            let (row, logits) = (*rows.at(index), logits.offset(index * vocab));
            S::enter(Draw::<L> { desc: *desc, row, index, logits, args: *args, scratch });
        }
    });
    Ok(())
}
