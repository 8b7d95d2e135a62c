//! Products for more than a few tokens: weights are decoded once per block of tokens, into a panel that fits the first
//! cache, and every tile of tokens meets the panel while it is there.
//!
//! A panel holds two strips of four rows over a stretch of `k`: a tile of tokens is read from the second cache for the first
//! strip and is in the first cache for the second. Between stretches the accumulators of all tiles wait in memory; loading
//! them back changes no bit, so the order of additions is that of a single walk over `k`.

#![allow(clippy::needless_range_loop)] // constants by index, so that accumulators stay in registers

use super::{CHUNK_ROWS, Epilogue, MAX_TILE, ROWS, Tokens, Weights, Write};
use crate::isa::{Core, Task};
use crate::memory::{Arena, Ptr};
use std::ops::Range;

/// Tokens of a block: their prepared rows should fit the second cache.
const TOKEN_BLOCK: usize = 66;
/// Strips of a panel.
const STRIPS: usize = 2;
/// Groups of `k` in a panel: 32 operands of a cache line, so 16 KiB beside the tokens' 12 KiB.
const PANEL_GROUPS: usize = 16;
/// Elements of a strip.
const fn strip_len<C: Core>() -> usize {
    ROWS * PANEL_GROUPS * C::GROUP
}

/// One worker's memory.
pub struct Scratch<C: Core> {
    panel: Ptr<C::Elem>,
    /// `[strip][token][row]`.
    acc: Ptr<C::Acc>,
    /// `[token][row of the chunk]`.
    sums: Ptr<f32>,
}

impl<C: Core> Clone for Scratch<C> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<C: Core> Copy for Scratch<C> {}

impl<C: Core> Scratch<C> {
    /// Memory of `slots` workers; [`Scratch::of`] picks one.
    pub fn place(slots: usize, arena: &mut Arena) -> Self {
        Self {
            panel: arena.take(slots * STRIPS * strip_len::<C>()),
            acc: arena.take(slots * STRIPS * ROWS * TOKEN_BLOCK),
            sums: arena.take(slots * TOKEN_BLOCK * CHUNK_ROWS),
        }
    }

    /// The memory of one worker.
    pub fn of(self, slot: usize) -> Self {
        Self {
            panel: self.panel.offset(slot * STRIPS * strip_len::<C>()),
            acc: self.acc.offset(slot * STRIPS * ROWS * TOKEN_BLOCK),
            sums: self.sums.offset(slot * TOKEN_BLOCK * CHUNK_ROWS),
        }
    }
}

/// A chunk of rows times all tokens.
///
/// # Safety
/// As [`super::Product::run`].
pub unsafe fn run<C: Core, W: Weights<C>, E: Epilogue>(
    weights: W,
    rows: Range<usize>,
    tokens: Tokens<C::Elem>,
    scratch: Scratch<C>,
    epilogue: E,
) {
    let first = rows.start;
    let mut first_token = 0;
    while first_token < tokens.count {
        let count = TOKEN_BLOCK.min(tokens.count - first_token);
        let mut x = [tokens.data.at(0).cast_const(); TOKEN_BLOCK];
        for at in 0..count {
            // SAFETY: the block's tokens are below the count.
            x[at] = unsafe { tokens.row(first_token + at) };
        }
        for first_row in rows.clone().step_by(STRIPS * ROWS) {
            // SAFETY: rows and tokens are valid by the caller, the scratch is the worker's own.
            unsafe {
                let rows = first_row..(first_row + STRIPS * ROWS).min(rows.end);
                strips::<C, W>(weights, rows, &x[..count], first_row - first, scratch);
            }
        }
        let task = Write {
            epilogue,
            first_token,
            first_row: rows.start,
            rows: rows.len(),
            width: count,
            sums: scratch.sums,
        };
        // SAFETY: the sums of the block's tokens and the chunk's rows were written above.
        unsafe { C::enter(task) };
        first_token += count;
    }
}

/// Up to `STRIPS * ROWS` rows times a block of tokens, to `sums[token][column..]`.
unsafe fn strips<C: Core, W: Weights<C>>(
    weights: W,
    rows: Range<usize>,
    x: &[*const C::Elem],
    column: usize,
    scratch: Scratch<C>,
) {
    let groups = weights.columns().div_ceil(C::GROUP);
    let tiles = x.len().div_ceil(C::TOKENS);
    let strips = rows.len().div_ceil(ROWS);
    let mut first = 0;
    while first < groups {
        let end = (first + PANEL_GROUPS).min(groups);
        for strip in 0..strips {
            // The last strip may repeat the last row; only sums of rows that exist are read.
            let mut at = [0; ROWS];
            for (r, at) in at.iter_mut().enumerate() {
                *at = (rows.start + strip * ROWS + r).min(rows.end - 1);
            }
            let panel = scratch.panel.offset(strip * strip_len::<C>());
            let fill = Fill::<C, W> { weights, rows: at, groups: first..end, panel };
            // SAFETY: the groups exist; the strip has room for them.
            unsafe { C::enter(fill) };
        }
        let mut token = 0;
        for tile in 0..tiles {
            let width = (x.len() - token).div_ceil(tiles - tile);
            let mut at = [x[0]; MAX_TILE];
            for m in 0..width {
                at[m] = x[token + m].wrapping_add(first * C::GROUP);
            }
            for strip in 0..strips {
                let micro = Micro {
                    panel: scratch.panel.at(strip * strip_len::<C>()),
                    x: at,
                    operands: 2 * (end - first),
                    acc: scratch.acc.at((strip * TOKEN_BLOCK + token) * ROWS),
                    sums: scratch.sums.at(token * CHUNK_ROWS + column + strip * ROWS),
                    is_first: first == 0,
                    is_last: end == groups,
                };
                // SAFETY: prepared rows have whole groups; accumulators and sums of the tile are the worker's own.
                unsafe { micro.enter::<C>(width) };
            }
            token += width;
        }
        first = end;
    }
}

/// Decodes four rows over a stretch of `k`: `[operand][row]`, so that tiles read one stream.
struct Fill<C: Core, W> {
    weights: W,
    rows: [usize; ROWS],
    groups: Range<usize>,
    panel: Ptr<C::Elem>,
}

impl<C: Core, W: Weights<C>> Task for Fill<C, W> {
    #[inline(always)]
    unsafe fn run(self) {
        let Self { weights, rows, groups, panel } = self;
        let full = (weights.columns() / C::GROUP).min(groups.end);
        // SAFETY: by the caller.
        unsafe {
            let put = |at: usize, r: usize, w: [C::Operand; 2]| {
                let to = panel.at((at * 2 * ROWS + r) * C::OPERAND);
                C::store(to, w[0]);
                C::store(to.add(ROWS * C::OPERAND), w[1]);
            };
            let mut at = [weights.row(rows[0]); ROWS];
            for r in 1..ROWS {
                at[r] = weights.row(rows[r]);
            }
            for group in groups.start..full {
                for r in 0..ROWS {
                    W::prefetch(weights.row(rows[r] + STRIPS * ROWS), group);
                    put(group - groups.start, r, W::group(at[r], group));
                }
            }
            if full < groups.end {
                for r in 0..ROWS {
                    put(full - groups.start, r, weights.tail(at[r], full));
                }
            }
        }
    }
}

/// A panel times a tile of tokens.
#[derive(Clone, Copy)]
struct Micro<E, A> {
    panel: *const E,
    /// The tokens' rows at the stretch of the panel.
    x: [*const E; MAX_TILE],
    operands: usize,
    /// `[token][row]`.
    acc: *mut A,
    /// `[token][row of the chunk]`.
    sums: *mut f32,
    is_first: bool,
    is_last: bool,
}

impl<E, A> Micro<E, A> {
    /// Each width is a function of its own.
    unsafe fn enter<C: Core<Elem = E, Acc = A>>(self, width: usize) {
        // SAFETY: by the caller.
        unsafe {
            match width {
                1 => C::enter(Width::<C, 1>(self)),
                2 => C::enter(Width::<C, 2>(self)),
                3 if C::TOKENS >= 3 => C::enter(Width::<C, 3>(self)),
                4 if C::TOKENS >= 4 => C::enter(Width::<C, 4>(self)),
                5 if C::TOKENS >= 5 => C::enter(Width::<C, 5>(self)),
                6 if C::TOKENS >= 6 => C::enter(Width::<C, 6>(self)),
                _ => unreachable!("tiles are at most {} wide", C::TOKENS),
            }
        }
    }
}

struct Width<C: Core, const M: usize>(Micro<C::Elem, C::Acc>);

impl<C: Core, const M: usize> Task for Width<C, M> {
    #[inline(always)]
    unsafe fn run(self) {
        let Micro { panel, x, operands, acc: waiting, sums, is_first, is_last } = self.0;
        // SAFETY: by the caller.
        unsafe {
            let mut acc = [[C::zero(); ROWS]; M];
            if !is_first {
                for m in 0..M {
                    for r in 0..ROWS {
                        acc[m][r] = *waiting.add(m * ROWS + r);
                    }
                }
            }
            for at in 0..operands {
                let mut tokens = [C::load(x[0].add(at * C::OPERAND)); M];
                for m in 1..M {
                    tokens[m] = C::load(x[m].add(at * C::OPERAND));
                }
                for r in 0..ROWS {
                    let w = C::load(panel.add((at * ROWS + r) * C::OPERAND));
                    for m in 0..M {
                        acc[m][r] = C::mac(acc[m][r], w, tokens[m]);
                    }
                }
            }
            for m in 0..M {
                for r in 0..ROWS {
                    if is_last {
                        *sums.add(m * CHUNK_ROWS + r) = C::sum(acc[m][r]);
                    } else {
                        *waiting.add(m * ROWS + r) = acc[m][r];
                    }
                }
            }
        }
    }
}
