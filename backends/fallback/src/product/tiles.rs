//! Products on AMX tiles: 32 rows of weights times pairs of blocks of tokens, a tile's 16 columns each.
//!
//! Dense weights are read where they lie; MXFP4 and ragged edges go through a panel of decoded rows. Result tiles walk `k` from
//! start to end whatever the number of tokens. For few tokens a short panel is filled and multiplied in turns, a step
//! of one group beside half of another, so that decoding hides the latency of the tiles; that changes only when weights
//! are decoded.

#![allow(clippy::needless_range_loop)] // closures would lose the target features

use super::{CHUNK_ROWS, Epilogue, Tokens, Weights, Write, padded};
use crate::isa::amx::{Operands, ROW_BYTES, ROWS, clear, configure, multiply, release, store};
use crate::isa::avx512::transpose16;
use crate::isa::{Core, Task};
use crate::math::{Activation, from_bf16, to_bf16};
use crate::memory::{Arena, Ptr};
use crate::pool::Pool;
use std::ops::Range;

/// Rows of weights in a chunk: two tiles.
pub const CHUNK: usize = 2 * ROWS;
/// Columns of a tile.
const COLUMNS: usize = 16;
/// Most chunks of a task: what is asked for early must be this worker's own to read.
const MOST_CHUNKS: usize = 4;
/// Groups of `k` in the panel for few tokens, as a ring: 16 KiB, for the first cache.
const RING: usize = 4;
/// Groups by which decoding is ahead of multiplying. Tiles are loaded from the cache, not from stores on their way to it, so
/// those of the group before must not be waited for.
const LAG: usize = 2;
/// Groups of `k` by which weights that are decoded at once are asked for early.
const AHEAD: usize = 16;
/// Bytes of a step in a panel: both tiles.
const STEP_BYTES: usize = CHUNK * ROW_BYTES;

/// One worker's memory.
#[derive(Clone, Copy)]
pub struct Scratch {
    /// `[step][row]`, 64 bytes each.
    panel: Ptr<u8>,
    panel_bytes: usize,
    /// `[row][token]` of a result.
    result: Ptr<f32>,
    /// `[token][row of the chunk]`.
    sums: Ptr<f32>,
}

impl Scratch {
    /// Memory of `slots` workers for products of up to `k` columns.
    pub fn place(k: usize, slots: usize, arena: &mut Arena) -> Self {
        let panel_bytes = k.next_multiple_of(64) * CHUNK * 2;
        Self {
            panel: arena.take(slots * panel_bytes),
            panel_bytes,
            result: arena.take(slots * CHUNK * COLUMNS),
            sums: arena.take(slots * COLUMNS * CHUNK_ROWS),
        }
    }

    /// The memory of one worker.
    pub fn of(self, slot: usize) -> Self {
        Self {
            panel: self.panel.offset(slot * self.panel_bytes),
            panel_bytes: self.panel_bytes,
            result: self.result.offset(slot * CHUNK * COLUMNS),
            sums: self.sums.offset(slot * COLUMNS * CHUNK_ROWS),
        }
    }
}

/// Tokens of a block: as many as fill the columns of a tile.
const fn block_tokens<C: Core>() -> usize {
    COLUMNS / C::PARTS
}

/// Elements from one packed token to the next; a block takes less.
pub const fn stride<C: Core>(k: usize) -> usize {
    // Three parts leave a column of each tile free; four parts' room lets a full block have rows of a cache line.
    let columns = if C::PARTS == 1 { 1 } else { C::PARTS + 1 };
    k.next_multiple_of(C::GROUP) * columns * 2 / size_of::<C::Elem>()
}

/// Columns from one pair of `k` to the next in a block.
fn row_columns<C: Core>(tokens: usize) -> usize {
    if tokens == block_tokens::<C>() { COLUMNS } else { tokens * C::PARTS }
}

/// Packs prepared rows for [`run`]: blocks of tokens, each `[pair of k][column]`, a token's parts in neighbouring columns.
///
/// # Safety
/// The tokens' rows are valid; `to` has room for `stride` elements of each.
pub unsafe fn pack<C: Core>(pool: &Pool, tokens: Tokens<C::Elem>, k: usize, to: Ptr<C::Elem>) {
    // SAFETY: handed on.
    pool.run(blocks::<C>(tokens.count), |_, block| unsafe { pack_block::<C>(tokens, block, k, to) });
}

/// Blocks of so many tokens.
pub fn blocks<C: Core>(tokens: usize) -> usize {
    tokens.div_ceil(block_tokens::<C>())
}

/// Packs one block.
///
/// # Safety
/// As [`pack`].
pub unsafe fn pack_block<C: Core>(tokens: Tokens<C::Elem>, block: usize, k: usize, to: Ptr<C::Elem>) {
    let most = block_tokens::<C>();
    let first = block * most;
    let count = most.min(tokens.count - first);
    let mut rows = [tokens.data.at(0).cast_const(); COLUMNS];
    for (at, row) in rows.iter_mut().enumerate().take(count) {
        // SAFETY: the block's tokens are below the count.
        *row = unsafe { tokens.row(first + at) };
    }
    let to = to.at(first * stride::<C>(k)).cast();
    let pairs = padded::<C>(k) / 2;
    // SAFETY: by the caller; each block has its own part.
    unsafe { C::enter(Pack::<C> { rows, count, pairs, to }) };
}

struct Pack<C: Core> {
    rows: [*const C::Elem; COLUMNS],
    count: usize,
    pairs: usize,
    to: *mut u32,
}

/// Pairs of `k` that are packed at a time.
const SQUARE: usize = 16;

impl<C: Core> Task for Pack<C> {
    #[inline(always)]
    unsafe fn run(self) {
        let Self { rows, count, pairs, to } = self;
        let columns = row_columns::<C>(count);
        let mut square = [[[0u16; 2 * SQUARE]; COLUMNS]; 2];
        for pair in (0..pairs).step_by(SQUARE) {
            for (token, row) in rows.iter().enumerate().take(count) {
                // SAFETY: prepared rows have whole groups, so whole squares.
                let values = unsafe { std::slice::from_raw_parts(row.add(2 * pair), 2 * SQUARE) };
                for part in 0..C::PARTS {
                    let to = &mut square[0][token * C::PARTS + part];
                    for (to, value) in to.iter_mut().zip(values) {
                        *to = part_of(value.to_f32(), part);
                    }
                }
            }
            // SAFETY: by the caller: `to` has room for `pairs` rows of `columns`.
            unsafe {
                let from = square[0].as_ptr().cast();
                if columns == COLUMNS {
                    transpose16(from, SQUARE, to.add(pair * COLUMNS), COLUMNS);
                } else {
                    let turned = square[1].as_mut_ptr().cast::<u32>();
                    transpose16(from, SQUARE, turned, COLUMNS);
                    for row in 0..SQUARE {
                        let to = to.add((pair + row) * columns);
                        std::ptr::copy_nonoverlapping(turned.add(row * COLUMNS), to, columns);
                    }
                }
            }
        }
    }
}

/// The bfloat16 nearest to a value, to what that leaves, or to what both leave. All three are exact together.
#[inline(always)]
fn part_of(value: f32, part: usize) -> u16 {
    let mut rest = value;
    let mut rounded = to_bf16(rest);
    for _ in 0..part {
        rest -= from_bf16(rounded);
        rounded = to_bf16(rest);
    }
    rounded
}

/// Rows of a task: a few chunks, where that leaves enough tasks for all workers.
pub fn task_rows(rows: usize, workers: usize) -> usize {
    rows.div_ceil(workers * 32).next_multiple_of(CHUNK).clamp(CHUNK, MOST_CHUNKS * CHUNK)
}

/// Rows times packed tokens (without an index), chunk by chunk.
///
/// # Safety
/// As [`super::Product::run`]; AMX is available.
pub unsafe fn run<C: Core, W: Weights<C>, E: Epilogue>(
    weights: W,
    rows: Range<usize>,
    tokens: Tokens<C::Elem>,
    scratch: Scratch,
    epilogue: E,
) {
    // SAFETY: by the caller.
    unsafe { C::enter(Chunks::<C, W, E> { weights, rows, tokens, scratch, epilogue }) };
}

struct Chunks<C: Core, W, E> {
    weights: W,
    rows: Range<usize>,
    tokens: Tokens<C::Elem>,
    scratch: Scratch,
    epilogue: E,
}

impl<C: Core, W: Weights<C>, E: Epilogue> Task for Chunks<C, W, E> {
    #[inline(always)]
    unsafe fn run(self) {
        let Self { weights, rows, tokens, scratch, epilogue } = self;
        let mut shape = None;
        for first in rows.clone().step_by(CHUNK) {
            let is_first = first == rows.start;
            let task_end = rows.end;
            let rows = first..(first + CHUNK).min(rows.end);
            let chunk = Chunk::<C, W, E> { weights, rows, task_end, is_first, tokens, scratch, epilogue };
            // SAFETY: by the caller.
            unsafe { chunk.run(&mut shape) };
        }
        // SAFETY: by the caller.
        unsafe { release() };
    }
}

struct Chunk<C: Core, W, E> {
    weights: W,
    rows: Range<usize>,
    /// End of the rows of the task.
    task_end: usize,
    /// Whether nobody asked for this chunk's weights yet.
    is_first: bool,
    tokens: Tokens<C::Elem>,
    scratch: Scratch,
    epilogue: E,
}

impl<C: Core, W: Weights<C>, E: Epilogue> Chunk<C, W, E> {
    /// Decodes a stretch of groups into the panel.
    #[inline(always)]
    unsafe fn fill(&self, groups: Range<usize>) {
        let full = (self.weights.columns() / C::GROUP).min(groups.end);
        for r in 0..CHUNK {
            let row = self.weights.row((self.rows.start + r).min(self.rows.end - 1));
            let next = self.weights.row(self.rows.start + CHUNK + r);
            // SAFETY: by the caller: row and groups exist, the panel has room for them.
            unsafe {
                let put = |group: usize, w: [C::Operand; 2]| {
                    let at = 2 * (group - groups.start) * STEP_BYTES + r * ROW_BYTES;
                    C::store(self.scratch.panel.at(at).cast(), w[0]);
                    C::store(self.scratch.panel.at(at + STEP_BYTES).cast(), w[1]);
                };
                for group in groups.start..full {
                    W::prefetch(next, group);
                    put(group, W::group(row, group));
                }
                if full < groups.end {
                    put(full, self.weights.tail(row, full));
                }
            }
        }
    }

    /// Decodes and multiplies in turns: a step of a group, half the rows of a later one. For whole chunks.
    #[inline(always)]
    unsafe fn alternate(&self, blocks: &[Block; 2], groups: usize, double: bool) {
        // SAFETY: by the caller; a group is decoded before it is multiplied.
        unsafe {
            if self.is_first {
                for group in (0..AHEAD.min(groups)).step_by(W::PER_LINE) {
                    self.ask(0, CHUNK, group);
                }
            }
            for group in 0..LAG.min(groups) {
                self.fill_half(group, 0, groups);
                self.fill_half(group, 1, groups);
            }
            for group in 0..groups {
                for step in 0..2 {
                    let mut operands = self.panel_operands(blocks, (2 * group + step) * ROWS);
                    operands.weights = self.scratch.panel.at((2 * (group % RING) + step) * STEP_BYTES);
                    self.steps(&operands, 1, double);
                    if group + LAG < groups {
                        self.fill_half(group + LAG, step, groups);
                    }
                }
            }
        }
    }

    /// Asks for a group of some rows of this chunk and after.
    #[inline(always)]
    unsafe fn ask(&self, first: usize, count: usize, group: usize) {
        let row = self.weights.row(self.rows.start + first);
        for r in 0..count {
            W::prefetch(self.weights.below(row, r), group);
        }
    }

    /// Decodes a group of half the rows into its place in the panel, and asks for a later one.
    #[inline(always)]
    unsafe fn fill_half(&self, group: usize, half: usize, groups: usize) {
        let panel = self.scratch.panel.at(2 * (group % RING) * STEP_BYTES + half * ROWS * ROW_BYTES);
        let is_full = (group + 1) * C::GROUP <= self.weights.columns();
        let row = self.weights.row(self.rows.start + half * ROWS);
        // What comes that many groups later, in this chunk or the next of this task. Groups share lines, so each row asks at
        // every `PER_LINE`-th group, neighbours at different ones: requests are spread over time.
        let ahead = group + AHEAD;
        let (asked, ahead) =
            if ahead < groups { (row, ahead) } else { (self.weights.below(row, CHUNK), ahead - groups) };
        let asks = ahead < groups && (group + AHEAD < groups || self.rows.end < self.task_end);
        // SAFETY: by the caller: rows and group exist, the panel has room for the ring.
        unsafe {
            for first in (0..ROWS).step_by(W::PER_LINE) {
                if asks {
                    let r = first + ahead % W::PER_LINE;
                    W::prefetch(self.weights.below(asked, r), ahead);
                }
                for r in first..first + W::PER_LINE {
                    let row = self.weights.below(row, r);
                    let w = if is_full { W::group(row, group) } else { self.weights.tail(row, group) };
                    let to = panel.add(r * ROW_BYTES);
                    C::store(to.cast(), w[0]);
                    C::store(to.add(STEP_BYTES).cast(), w[1]);
                }
            }
        }
    }

    /// Operands in the panel, for tokens from pair `first_pair` of `k` on.
    #[inline(always)]
    fn panel_operands(&self, blocks: &[Block; 2], first_pair: usize) -> Operands {
        Operands {
            weights: self.scratch.panel.at(0),
            row_stride: ROW_BYTES,
            tile_stride: ROWS * ROW_BYTES,
            step_stride: STEP_BYTES,
            tokens: blocks.map(|block| block.data.wrapping_add(first_pair * block.stride)),
            token_strides: blocks.map(|block| block.stride),
        }
    }

    /// Sums of one block to the epilogue.
    #[inline(always)]
    unsafe fn deliver(&self, first_token: usize, count: usize, second: bool) {
        let Scratch { result, sums, .. } = self.scratch;
        // SAFETY: the results are complete; the scratch is the worker's own.
        unsafe {
            store(result.at(0), second);
            for half in 0..2 {
                let from = result.at(half * ROWS * COLUMNS).cast::<u32>();
                transpose16(from, COLUMNS, sums.at(half * ROWS).cast(), CHUNK_ROWS);
            }
            if C::PARTS > 1 {
                // The smallest part first.
                for token in 0..count {
                    for row in 0..CHUNK {
                        let mut sum = 0.0;
                        for part in (0..C::PARTS).rev() {
                            sum += *sums.at((token * C::PARTS + part) * CHUNK_ROWS + row);
                        }
                        *sums.at(token * CHUNK_ROWS + row) = sum;
                    }
                }
            }
            let rows = self.rows.len();
            let first_row = self.rows.start;
            Write { epilogue: self.epilogue, first_token, first_row, rows, width: count, sums }.run();
        }
    }
}

/// A block of packed tokens.
#[derive(Clone, Copy)]
struct Block {
    data: *const u8,
    tokens: usize,
    /// Bytes from one pair of `k` to the next.
    stride: usize,
}

impl<C: Core, W: Weights<C>, E: Epilogue> Chunk<C, W, E> {
    /// Multiplies; `shape` is that of the tiles, which this may change.
    #[inline(always)]
    unsafe fn run(&self, shape: &mut Option<(usize, usize)>) {
        let k = self.weights.columns();
        let groups = k.div_ceil(C::GROUP);
        let in_place = W::PLAIN && k.is_multiple_of(C::GROUP) && self.rows.len() == CHUNK;
        let most = block_tokens::<C>();
        let few = self.tokens.count <= 2 * most && self.rows.len() == CHUNK;
        // SAFETY: by the caller.
        unsafe {
            if !in_place && !few {
                self.fill(0..groups);
            }
            let mut token = 0;
            while token < self.tokens.count {
                let blocks = [0, most].map(|skip| {
                    let first = token + skip;
                    let tokens = self.tokens.count.saturating_sub(first).min(most);
                    let data = self.tokens.data.at(first * self.tokens.stride).cast();
                    Block { data, tokens, stride: 4 * row_columns::<C>(tokens) }
                });
                let widths = (blocks[0].tokens * C::PARTS, blocks[1].tokens * C::PARTS);
                if *shape == Some(widths) {
                    clear();
                } else {
                    // Also makes all results zero.
                    configure(widths.0, widths.1);
                    *shape = Some(widths);
                }
                if in_place {
                    let stride = 2 * k;
                    let operands = Operands {
                        weights: W::address(self.weights.row(self.rows.start)),
                        row_stride: stride,
                        tile_stride: ROWS * stride,
                        step_stride: ROW_BYTES,
                        tokens: blocks.map(|block| block.data),
                        token_strides: blocks.map(|block| block.stride),
                    };
                    let is_last = token + 2 * most >= self.tokens.count;
                    if token > 0 && is_last && self.rows.end < self.task_end {
                        self.steps_and_ask(&operands, groups, widths.1 > 0);
                    } else {
                        self.steps(&operands, 2 * groups, widths.1 > 0);
                    }
                } else if few {
                    self.alternate(&blocks, groups, widths.1 > 0);
                } else {
                    self.steps(&self.panel_operands(&blocks, 0), 2 * groups, widths.1 > 0);
                }
                self.deliver(token, blocks[0].tokens, false);
                if widths.1 > 0 {
                    self.deliver(token + most, blocks[1].tokens, true);
                }
                token += 2 * most;
            }
        }
    }
}

impl<C: Core, W: Weights<C>, E: Epilogue> Chunk<C, W, E> {
    /// The last pass of several over weights in place: they are in the cache by now, so memory may bring the next chunk.
    #[inline(always)]
    unsafe fn steps_and_ask(&self, operands: &Operands, groups: usize, double: bool) {
        let mut operands = *operands;
        // SAFETY: by the caller.
        unsafe {
            for group in 0..groups {
                self.ask(CHUNK, CHUNK, group);
                self.steps(&operands, 2, double);
                operands.weights = operands.weights.wrapping_add(2 * operands.step_stride);
                for (tokens, stride) in operands.tokens.iter_mut().zip(operands.token_strides) {
                    *tokens = tokens.wrapping_add(2 * ROWS * stride);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn steps(&self, operands: &Operands, steps: usize, double: bool) {
        // SAFETY: by the caller.
        unsafe {
            if double {
                multiply::<true>(operands, steps);
            } else {
                multiply::<false>(operands, steps);
            }
        }
    }
}
