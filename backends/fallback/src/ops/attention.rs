//! Attention over the paged cache.
//!
//! A task is one KV head of a run of up to [`QUERY_TILE`] query rows of one sequence, with all query heads of the group. It
//! visits KV blocks in order; per block: transpose K, scores with keys in lanes, one online-softmax step per query,
//! then the weighted sum of V with dimensions in lanes.
//!
//! Invariant: a query's result depends on its own position and keys alone. Blocks are cut at absolute positions; a
//! block without a key for the query is skipped for it; keys it may not see have weight zero and no part in the maximum.

#![allow(clippy::needless_range_loop)] // constants by index, so that arrays of vectors stay in registers

use super::norm::widen;
use crate::isa::{Simd, Task};
use crate::math::{Activation, exp, from_bf16, tree16};
use crate::memory::{Arena, Ptr};
use crate::pool::Pool;
use gossamer_backend_api::ops::{AttentionArgs, AttentionDesc};
use gossamer_backend_api::{BackendError, DType};

/// Query rows of one task.
const QUERY_TILE: usize = 16;
/// Query rows of a register tile.
const ROWS: usize = 4;

/// A run of query rows of one sequence.
#[derive(Clone, Copy)]
struct Run {
    sequence: u32,
    first: u32,
    count: u32,
}

/// One worker's memory, in float32.
#[derive(Clone, Copy)]
struct Scratch {
    /// `[rows, D]`, scaled queries.
    q: Ptr<f32>,
    /// `[D, block]`.
    keys: Ptr<f32>,
    /// `[block, D]`.
    values: Ptr<f32>,
    /// `[rows, block]`, scores and then weights.
    scores: Ptr<f32>,
    /// `[rows, D]`, weighted sums.
    sums: Ptr<f32>,
    /// `[rows]`, running maxima.
    maxima: Ptr<f32>,
    /// `[rows]`, running denominators.
    totals: Ptr<f32>,
}

struct Buffers {
    runs: Ptr<Run>,
    scratch: Ptr<f32>,
    per_slot: usize,
}

fn scratch_at(desc: &AttentionDesc, base: Ptr<f32>) -> (Scratch, usize) {
    let (dim, block) = (desc.head_dim as usize, desc.block_size as usize);
    let rows = tile_rows(desc);
    let mut used = 0;
    let mut take = |count: usize| {
        let at = base.offset(used);
        used += count;
        at
    };
    let scratch = Scratch {
        q: take(rows * dim),
        keys: take(dim * block),
        values: take(block * dim),
        scores: take(rows * block),
        sums: take(rows * dim),
        maxima: take(rows),
        totals: take(rows),
    };
    (scratch, used.next_multiple_of(16))
}

/// Rows of a task's tile, padded to whole register tiles.
fn tile_rows(desc: &AttentionDesc) -> usize {
    (QUERY_TILE * (desc.heads / desc.kv_heads) as usize).next_multiple_of(ROWS)
}

fn place(desc: &AttentionDesc, tokens: usize, slots: usize, arena: &mut Arena) -> Buffers {
    let (_, per_slot) = scratch_at(desc, Ptr::new(0));
    Buffers { runs: arena.take(tokens), scratch: arena.take(slots * per_slot), per_slot }
}

/// Bytes of workspace.
pub fn workspace(desc: &AttentionDesc, tokens: usize, slots: usize) -> u64 {
    let mut arena = Arena::new(0);
    place(desc, tokens, slots, &mut arena);
    arena.used()
}

struct Tile<A, K> {
    desc: AttentionDesc,
    q: Ptr<A>,
    q_stride: usize,
    out: Ptr<A>,
    sinks: Ptr<u16>,
    kv: Ptr<K>,
    table: Ptr<u32>,
    first_block: usize,
    /// Position of the first query.
    position: usize,
    /// Query rows.
    count: usize,
    kv_head: usize,
    /// What a key's and a value's number in the cache stands for.
    scales: [f32; 2],
    scratch: Scratch,
}

impl<A: Activation, K: Activation> Tile<A, K> {
    fn group(&self) -> usize {
        (self.desc.heads / self.desc.kv_heads) as usize
    }

    /// First and one past the last key that the query at `position` sees.
    #[inline(always)]
    fn span(&self, position: usize) -> (usize, usize) {
        let window = self.desc.window as usize;
        (if window == 0 { 0 } else { (position + 1).saturating_sub(window) }, position + 1)
    }

    /// Reads and scales queries, and starts the running softmax at the sinks.
    #[inline(always)]
    unsafe fn start(&self) {
        let (dim, group) = (self.desc.head_dim as usize, self.group());
        let rows = (self.count * group).next_multiple_of(ROWS);
        let scale = self.desc.scale * self.scales[0];
        // SAFETY: by the caller of `run`.
        unsafe {
            self.scratch.sums.slice_mut(0, rows * dim).fill(0.0);
            self.scratch.q.slice_mut(0, rows * dim).fill(0.0);
            self.scratch.maxima.slice_mut(0, rows).fill(0.0);
            self.scratch.totals.slice_mut(0, rows).fill(1.0);
            for row in 0..self.count * group {
                let (query, head) = (row / group, self.kv_head * group + row % group);
                let from = self.q.slice(query * self.q_stride + head * dim, dim);
                for (to, from) in self.scratch.q.slice_mut(row * dim, dim).iter_mut().zip(from) {
                    *to = from.to_f32() * scale;
                }
                let (maximum, total) = match self.desc.sinks {
                    1 => (from_bf16(*self.sinks.at(head)), 1.0),
                    _ => (f32::NEG_INFINITY, 0.0),
                };
                *self.scratch.maxima.at(row) = maximum;
                *self.scratch.totals.at(row) = total;
            }
        }
    }

    /// Reads tokens `first..end` of one KV block: keys transposed, values as they lie. What lies around them in the scratch
    /// is finite or not; nobody uses it.
    #[inline(always)]
    unsafe fn read_block<S: Simd>(&self, block: usize, first: usize, end: usize) {
        let (dim, size) = (self.desc.head_dim as usize, self.desc.block_size as usize);
        let heads = self.desc.kv_heads as usize;
        let Scratch { keys: to_keys, values: to_values, .. } = self.scratch;
        // SAFETY: the table has an entry for every block that a query sees; the plane has the block; sizes are multiples of
        // the lanes.
        unsafe {
            let id = *self.table.at(block - self.first_block) as usize;
            let keys = self.kv.offset((id * 2 * heads + self.kv_head) * size * dim);
            let values = self.kv.offset(((id * 2 + 1) * heads + self.kv_head) * size * dim);
            // Keys pass through the place of the values, as float32.
            widen(
                keys.slice(first * dim, (end - first) * dim),
                to_values.slice_mut(first * dim, (end - first) * dim),
            );
            for token in (first / S::LANES * S::LANES..end).step_by(S::LANES) {
                for d in (0..dim).step_by(S::LANES) {
                    S::transpose(to_values.at(token * dim + d), dim, to_keys.at(d * size + token), size);
                }
            }
            let from = values.slice(first * dim, (end - first) * dim);
            widen(from, to_values.slice_mut(first * dim, (end - first) * dim));
        }
    }
}

/// Scores of [`ROWS`] rows: `scores[row, key] = sum over d of q[row, d] * keys[d, key]`, d ascending; `N` vectors of keys
/// at a time.
#[inline(always)]
unsafe fn score<S: Simd, const N: usize>(scratch: &Scratch, row: usize, dim: usize, size: usize) {
    // SAFETY: the rows are in the tile; the block is a multiple of `N` vectors.
    unsafe {
        for key in (0..size).step_by(N * S::LANES) {
            let mut acc = [[S::zero(); N]; ROWS];
            for d in 0..dim {
                let mut keys = [S::load(scratch.keys.at(d * size + key)); N];
                for n in 1..N {
                    keys[n] = S::load(scratch.keys.at(d * size + key + n * S::LANES));
                }
                for r in 0..ROWS {
                    let q = S::splat(*scratch.q.at((row + r) * dim + d));
                    for n in 0..N {
                        acc[r][n] = S::fma(q, keys[n], acc[r][n]);
                    }
                }
            }
            for r in 0..ROWS {
                for n in 0..N {
                    S::store(scratch.scores.at((row + r) * size + key + n * S::LANES), acc[r][n]);
                }
            }
        }
    }
}

/// `sums[row] += sum over keys of weight * values[key]`, keys ascending; `N` vectors of dimensions at a time.
#[inline(always)]
unsafe fn accumulate<S: Simd, const N: usize>(
    scratch: &Scratch,
    row: usize,
    dim: usize,
    size: usize,
    (first, end): (usize, usize),
) {
    // SAFETY: the rows are in the tile; `D` is a multiple of `N` vectors.
    unsafe {
        for d in (0..dim).step_by(N * S::LANES) {
            let mut acc = [[S::zero(); N]; ROWS];
            for r in 0..ROWS {
                for n in 0..N {
                    acc[r][n] = S::load(scratch.sums.at((row + r) * dim + d + n * S::LANES));
                }
            }
            for key in first..end {
                let mut values = [S::load(scratch.values.at(key * dim + d)); N];
                for n in 1..N {
                    values[n] = S::load(scratch.values.at(key * dim + d + n * S::LANES));
                }
                for r in 0..ROWS {
                    let weight = S::splat(*scratch.scores.at((row + r) * size + key));
                    for n in 0..N {
                        acc[r][n] = S::fma(weight, values[n], acc[r][n]);
                    }
                }
            }
            for r in 0..ROWS {
                for n in 0..N {
                    S::store(scratch.sums.at((row + r) * dim + d + n * S::LANES), acc[r][n]);
                }
            }
        }
    }
}

/// One online-softmax step of a row over keys `first..end` of the block: scores become weights, sums are rescaled.
#[inline(always)]
unsafe fn soften(scratch: &Scratch, row: usize, dim: usize, size: usize, (first, end): (usize, usize)) {
    // SAFETY: the row is in the tile.
    unsafe {
        let scores = scratch.scores.slice_mut(row * size, size);
        if first >= end {
            scores.fill(0.0);
            return;
        }
        scores[..first].fill(f32::NEG_INFINITY);
        scores[end..].fill(f32::NEG_INFINITY);
        let before = *scratch.maxima.at(row);
        let mut lanes = [before; 16];
        let (chunks, _) = scores.as_chunks_mut::<16>();
        for chunk in chunks.iter() {
            for (lane, score) in lanes.iter_mut().zip(chunk) {
                *lane = if *score > *lane { *score } else { *lane };
            }
        }
        let maximum = lanes.iter().fold(before, |most, lane| if *lane > most { *lane } else { most });
        let mut lanes = [0f32; 16];
        for chunk in chunks {
            for (lane, score) in lanes.iter_mut().zip(chunk) {
                *score = exp(*score - maximum);
                *lane += *score;
            }
        }
        let correction = exp(before - maximum);
        *scratch.maxima.at(row) = maximum;
        *scratch.totals.at(row) = *scratch.totals.at(row) * correction + tree16(lanes);
        if correction != 1.0 {
            for sum in scratch.sums.slice_mut(row * dim, dim) {
                *sum *= correction;
            }
        }
    }
}

struct Work<S, A, K>(Tile<A, K>, std::marker::PhantomData<S>);

impl<S: Simd, A: Activation, K: Activation> Task for Work<S, A, K> {
    #[inline(always)]
    unsafe fn run(self) {
        let tile = &self.0;
        let (dim, size, group) = (tile.desc.head_dim as usize, tile.desc.block_size as usize, tile.group());
        let rows = tile.count * group;
        let (oldest, _) = tile.span(tile.position);
        let (_, newest) = tile.span(tile.position + tile.count - 1);
        // SAFETY: by the caller: queries, table and cache are valid, the scratch is the worker's own.
        unsafe {
            tile.start();
            for block in oldest / size..newest.div_ceil(size) {
                let base = block * size;
                let clip = |(first, end): (usize, usize)| {
                    (first.saturating_sub(base).min(size), end.saturating_sub(base).min(size))
                };
                let (first, end) = (clip((oldest, newest)).0, clip((oldest, newest)).1);
                tile.read_block::<S>(block, first, end);
                for row in (0..rows).step_by(ROWS) {
                    match S::LANES * 4 {
                        wide if S::TOKENS >= 6 && size % wide == 0 => {
                            score::<S, 4>(&tile.scratch, row, dim, size)
                        }
                        _ => score::<S, 1>(&tile.scratch, row, dim, size),
                    }
                    let mut union = (size, 0);
                    for r in row..row + ROWS {
                        let span = match r < rows {
                            true => clip(tile.span(tile.position + r / group)),
                            false => (0, 0),
                        };
                        soften(&tile.scratch, r, dim, size, span);
                        if span.0 < span.1 {
                            union = (union.0.min(span.0), union.1.max(span.1));
                        }
                    }
                    match S::LANES * 4 {
                        wide if S::TOKENS >= 6 && dim % wide == 0 => {
                            accumulate::<S, 4>(&tile.scratch, row, dim, size, union);
                        }
                        _ => accumulate::<S, 1>(&tile.scratch, row, dim, size, union),
                    }
                }
            }
            for row in 0..rows {
                let (query, head) = (row / group, tile.kv_head * group + row % group);
                let total = *tile.scratch.totals.at(row);
                let at = query * tile.desc.heads as usize * dim + head * dim;
                let sums = tile.scratch.sums.slice(row * dim, dim);
                for (to, sum) in tile.out.slice_mut(at, dim).iter_mut().zip(sums) {
                    *to = A::from_f32(sum / total * tile.scales[1]);
                }
            }
        }
    }
}

/// Runs the operation.
///
/// # Safety
/// As `KernelBackend::launch`; the machine has `S`.
pub unsafe fn launch<S: Simd, A: Activation, K: Activation>(
    pool: &Pool,
    desc: &AttentionDesc,
    args: &AttentionArgs,
    (workspace, workspace_bytes): (u64, u64),
) -> Result<(), BackendError> {
    let mut arena = Arena::new(workspace);
    let buffers = place(desc, args.tokens as usize, pool.slots(), &mut arena);
    arena.check(workspace_bytes)?;
    let starts = Ptr::<u32>::new(args.query_starts);
    let mut runs = 0;
    for sequence in 0..args.sequences {
        // SAFETY: there are `sequences + 1` starts, ascending, the last at most `tokens`; a run has a row at least.
        unsafe {
            let (mut first, end) = (*starts.at(sequence as usize), *starts.at(sequence as usize + 1));
            let len = *Ptr::<u32>::new(args.kv_lens).at(sequence as usize);
            let first_block = *Ptr::<u32>::new(args.first_blocks).at(sequence as usize);
            let blocks = len.div_ceil(desc.block_size);
            if end.saturating_sub(first) > len || blocks.saturating_sub(first_block) > args.table_stride {
                let message = format!(
                    "expected sequence {sequence} to have its {} queries in the cache and its blocks in a table row of {}, \
                     got {len} cached tokens from block {first_block} on",
                    end.saturating_sub(first),
                    args.table_stride
                );
                return Err(BackendError::failed("launch", message));
            }
            while first < end {
                let count = (end - first).min(QUERY_TILE as u32);
                if runs >= args.tokens as usize {
                    let message = format!("expected query_starts to end at {}, got {end}", args.tokens);
                    return Err(BackendError::failed("launch", message));
                }
                *buffers.runs.at(runs) = Run { sequence, first, count };
                runs += 1;
                first += count;
            }
        }
    }
    let kv_heads = desc.kv_heads as usize;
    let scaled = desc.kv == DType::F8E4M3 && args.kv_scales != 0;
    let heads_dim = (desc.heads * desc.head_dim) as usize;
    pool.run(runs * kv_heads, |slot, index| {
        // SAFETY: by the caller; runs were written above; each task has its own rows and heads of `out`.
        unsafe {
            let run = *buffers.runs.at(index / kv_heads);
            let sequence = run.sequence as usize;
            let end = *starts.at(sequence + 1);
            let kv_len = *Ptr::<u32>::new(args.kv_lens).at(sequence);
            S::enter(Work::<S, A, K>(
                Tile {
                    desc: *desc,
                    q: Ptr::new(args.q).offset(run.first as usize * args.q_stride as usize),
                    q_stride: args.q_stride as usize,
                    out: Ptr::new(args.out).offset(run.first as usize * heads_dim),
                    sinks: Ptr::new(args.sinks),
                    kv: Ptr::new(args.kv),
                    table: Ptr::new(args.block_tables).offset(sequence * args.table_stride as usize),
                    first_block: *Ptr::<u32>::new(args.first_blocks).at(sequence) as usize,
                    position: (kv_len - (end - run.first)) as usize,
                    count: run.count as usize,
                    kv_head: index % kv_heads,
                    scales: [0, 1].map(|part| match scaled {
                        true => *Ptr::<f32>::new(args.kv_scales).at(part * kv_heads + index % kv_heads),
                        false => 1.0,
                    }),
                    scratch: scratch_at(desc, buffers.scratch.offset(slot * buffers.per_slot)).0,
                },
                std::marker::PhantomData,
            ));
        }
    });
    Ok(())
}
