//! Products on AMX tiles: 32 rows of weights times pairs of blocks of 16 tokens.
//!
//! Dense weights are read where they lie; MXFP4 and ragged edges go through a panel of decoded rows. Result tiles walk `k` from
//! start to end whatever the number of tokens; a short panel for few tokens changes only when weights are decoded.

use super::{CHUNK_ROWS, Epilogue, Tokens, Weights, Write, padded};
use crate::isa::amx::{Operands, ROW_BYTES, ROWS, configure, multiply, release, store};
use crate::isa::avx512::transpose16;
use crate::isa::{Core, Task};
use crate::memory::{Arena, Ptr};
use crate::pool::Pool;
use std::ops::Range;

/// Rows of weights in a chunk: two tiles.
pub const CHUNK: usize = 2 * ROWS;
/// Tokens of a block: the columns of a tile.
const BLOCK: usize = 16;
/// Groups of `k` in the short panel: 16 KiB, for the first cache.
const SHORT: usize = 4;
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
            result: arena.take(slots * CHUNK * BLOCK),
            sums: arena.take(slots * BLOCK * CHUNK_ROWS),
        }
    }

    /// The memory of one worker.
    pub fn of(self, slot: usize) -> Self {
        Self {
            panel: self.panel.offset(slot * self.panel_bytes),
            panel_bytes: self.panel_bytes,
            result: self.result.offset(slot * CHUNK * BLOCK),
            sums: self.sums.offset(slot * BLOCK * CHUNK_ROWS),
        }
    }
}

/// Packs prepared rows for [`run`]: blocks of up to 16 tokens, each `[pair of k][token]`. A block takes as many elements
/// as its rows do, so packed tokens lie at the same offsets as prepared ones.
///
/// # Safety
/// The tokens' rows are valid; `to` has room for them.
pub unsafe fn pack<C: Core>(pool: &Pool, tokens: Tokens<C::Elem>, k: usize, to: Ptr<C::Elem>) {
    pool.run(tokens.count.div_ceil(BLOCK), |_, block| {
        let first = block * BLOCK;
        let width = BLOCK.min(tokens.count - first);
        let mut rows = [tokens.data.at(0).cast_const().cast::<u32>(); BLOCK];
        for (at, row) in rows.iter_mut().enumerate().take(width) {
            // SAFETY: the block's tokens are below the count.
            *row = unsafe { tokens.row(first + at) }.cast();
        }
        let pairs = padded::<C>(k) / 2;
        let to = to.at(first * padded::<C>(k)).cast();
        // SAFETY: by the caller; each block has its own part.
        unsafe { C::enter(Pack { rows, width, pairs, to }) };
    });
}

struct Pack {
    rows: [*const u32; BLOCK],
    width: usize,
    pairs: usize,
    to: *mut u32,
}

impl Task for Pack {
    #[inline(always)]
    unsafe fn run(self) {
        let Self { rows, width, pairs, to } = self;
        // SAFETY: by the caller: rows have `pairs` elements, `to` has room for all of them; pairs are a multiple of 16.
        unsafe {
            if width < BLOCK {
                for (token, row) in rows.iter().enumerate().take(width) {
                    for pair in 0..pairs {
                        *to.add(pair * width + token) = *row.add(pair);
                    }
                }
                return;
            }
            let mut square = [0u32; BLOCK * BLOCK];
            for pair in (0..pairs).step_by(BLOCK) {
                for (token, row) in rows.iter().enumerate() {
                    std::ptr::copy_nonoverlapping(
                        row.add(pair),
                        square.as_mut_ptr().add(token * BLOCK),
                        BLOCK,
                    );
                }
                transpose16(square.as_ptr(), BLOCK, to.add(pair * BLOCK), BLOCK);
            }
        }
    }
}

/// A chunk of up to [`CHUNK`] rows times packed tokens (without an index). Elements are bfloat16.
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
    unsafe { C::enter(Chunk::<C, W, E> { weights, rows, tokens, scratch, epilogue }) };
}

struct Chunk<C: Core, W, E> {
    weights: W,
    rows: Range<usize>,
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

    /// Operands in the panel, for tokens from pair `first_pair` of `k` on.
    #[inline(always)]
    fn panel_operands(&self, blocks: &[Block; 2], first_pair: usize) -> Operands {
        Operands {
            weights: self.scratch.panel.at(0),
            row_stride: ROW_BYTES,
            tile_stride: ROWS * ROW_BYTES,
            step_stride: STEP_BYTES,
            tokens: blocks.map(|block| block.data.wrapping_add(first_pair * 4 * block.width)),
            token_strides: blocks.map(|block| 4 * block.width),
        }
    }

    /// Sums of one block to the epilogue.
    #[inline(always)]
    unsafe fn deliver(&self, first_token: usize, width: usize, second: bool) {
        let Scratch { result, sums, .. } = self.scratch;
        // SAFETY: the results are complete; the scratch is the worker's own.
        unsafe {
            store(result.at(0), second);
            for half in 0..2 {
                let from = result.at(half * ROWS * BLOCK).cast::<u32>();
                transpose16(from, BLOCK, sums.at(half * ROWS).cast(), CHUNK_ROWS);
            }
            let rows = self.rows.len();
            let first_row = self.rows.start;
            Write { epilogue: self.epilogue, first_token, first_row, rows, width, sums }.run();
        }
    }
}

/// A block of packed tokens.
#[derive(Clone, Copy)]
struct Block {
    data: *const u8,
    width: usize,
}

impl<C: Core, W: Weights<C>, E: Epilogue> Task for Chunk<C, W, E> {
    #[inline(always)]
    unsafe fn run(self) {
        let k = self.weights.columns();
        let groups = k.div_ceil(C::GROUP);
        let in_place = W::PLAIN && k.is_multiple_of(C::GROUP) && self.rows.len() == CHUNK;
        let few = self.tokens.count <= 2 * BLOCK;
        // SAFETY: by the caller.
        unsafe {
            if !in_place && !few {
                self.fill(0..groups);
            }
            let mut token = 0;
            while token < self.tokens.count {
                let blocks = [0, BLOCK].map(|skip| {
                    let first = token + skip;
                    let left = self.tokens.count.saturating_sub(first);
                    Block {
                        data: self.tokens.data.at(first * self.tokens.stride).cast(),
                        width: left.min(BLOCK),
                    }
                });
                let widths = (blocks[0].width, blocks[1].width);
                // Also makes all results zero.
                configure(widths.0, widths.1);
                if in_place {
                    let stride = 2 * k;
                    let operands = Operands {
                        weights: W::address(self.weights.row(self.rows.start)),
                        row_stride: stride,
                        tile_stride: ROWS * stride,
                        step_stride: ROW_BYTES,
                        tokens: blocks.map(|block| block.data),
                        token_strides: blocks.map(|block| 4 * block.width),
                    };
                    self.steps(&operands, 2 * groups, widths.1 > 0);
                } else if few {
                    let mut first = 0;
                    while first < groups {
                        let end = (first + SHORT).min(groups);
                        self.fill(first..end);
                        let operands = self.panel_operands(&blocks, first * C::GROUP / 2);
                        self.steps(&operands, 2 * (end - first), widths.1 > 0);
                        first = end;
                    }
                } else {
                    self.steps(&self.panel_operands(&blocks, 0), 2 * groups, widths.1 > 0);
                }
                self.deliver(token, widths.0, false);
                if widths.1 > 0 {
                    self.deliver(token + BLOCK, widths.1, true);
                }
                token += 2 * BLOCK;
            }
            release();
        }
    }
}

impl<C: Core, W: Weights<C>, E: Epilogue> Chunk<C, W, E> {
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
