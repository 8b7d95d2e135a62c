//! Register tiles: four rows times a few tokens, over all of `k`.

#![allow(clippy::needless_range_loop)] // see the note above `panel_tile`

use super::{CHUNK_ROWS, MAX_TILE, Weights};
use crate::isa::{Core, Task};
use std::ops::Range;

/// Rows of a register tile.
const ROWS: usize = 4;

/// Sums of one token tile: `[token][row of the chunk]`.
pub type Sums = [[f32; CHUNK_ROWS]; MAX_TILE];

/// Products of `rows` with a tile of tokens. Each width is a function of its own, shared by all epilogues.
pub unsafe fn products<C: Core, W: Weights<C>>(
    weights: W,
    rows: Range<usize>,
    width: usize,
    x: &[*const C::Elem; MAX_TILE],
    sums: &mut Sums,
) {
    // SAFETY: by the caller.
    unsafe {
        match width {
            1 => C::enter(Strip::<C, W, 1> { weights, rows, x, sums }),
            2 => C::enter(Strip::<C, W, 2> { weights, rows, x, sums }),
            3 if C::TOKENS >= 3 => C::enter(Strip::<C, W, 3> { weights, rows, x, sums }),
            4 if C::TOKENS >= 4 => C::enter(Strip::<C, W, 4> { weights, rows, x, sums }),
            5 if C::TOKENS >= 5 => C::enter(Strip::<C, W, 5> { weights, rows, x, sums }),
            6 if C::TOKENS >= 6 => C::enter(Strip::<C, W, 6> { weights, rows, x, sums }),
            _ => unreachable!("tiles are at most {} wide", C::TOKENS),
        }
    }
}

/// All rows of a chunk times `M` tokens.
struct Strip<'a, C: Core, W, const M: usize> {
    weights: W,
    rows: Range<usize>,
    x: &'a [*const C::Elem; MAX_TILE],
    sums: &'a mut Sums,
}

impl<C: Core, W: Weights<C>, const M: usize> Task for Strip<'_, C, W, M> {
    #[inline(always)]
    unsafe fn run(self) {
        let mut row = self.rows.start;
        while row < self.rows.end {
            // The last tile may repeat the last row; only sums of rows that exist are kept.
            let mut at = [row; ROWS];
            for (r, at) in at.iter_mut().enumerate() {
                *at = (row + r).min(self.rows.end - 1);
            }
            // SAFETY: by the caller.
            let acc = unsafe {
                if W::PANEL {
                    panel_tile::<C, W, M>(self.weights, at, self.x)
                } else {
                    direct_tile::<C, W, M>(self.weights, at, self.x)
                }
            };
            for r in 0..ROWS {
                for m in 0..M {
                    // SAFETY: under `C::enter`.
                    self.sums[m][at[r] - self.rows.start] = unsafe { C::sum(acc[r][m]) };
                }
            }
            row += ROWS;
        }
    }
}

// The loops below run over constants by index, so that the compiler unrolls them and keeps accumulators in registers;
// iterator adapters over arrays defeat it.

/// Rows from a panel: plain loads, so weights need one register at a time.
#[inline(always)]
unsafe fn panel_tile<C: Core, W: Weights<C>, const M: usize>(
    weights: W,
    rows: [usize; ROWS],
    x: &[*const C::Elem; MAX_TILE],
) -> [[C::Acc; M]; ROWS] {
    // SAFETY: by the caller: rows, tokens and operands exist; panels have whole groups.
    unsafe {
        let mut acc = [[C::zero(); M]; ROWS];
        for at in 0..weights.columns() / C::OPERAND {
            let mut tokens = [C::load(x[0].add(at * C::OPERAND)); M];
            for m in 1..M {
                tokens[m] = C::load(x[m].add(at * C::OPERAND));
            }
            for r in 0..ROWS {
                let w = weights.operand(rows[r], at);
                for m in 0..M {
                    acc[r][m] = C::mac(acc[r][m], w, tokens[m]);
                }
            }
        }
        acc
    }
}

/// Rows from the checkpoint: each group is decoded once.
#[inline(always)]
unsafe fn direct_tile<C: Core, W: Weights<C>, const M: usize>(
    weights: W,
    rows: [usize; ROWS],
    x: &[*const C::Elem; MAX_TILE],
) -> [[C::Acc; M]; ROWS] {
    let full = weights.columns() / C::GROUP;
    // SAFETY: by the caller: rows, tokens and groups exist.
    unsafe {
        let mut acc = [[C::zero(); M]; ROWS];
        for group in 0..full {
            let mut w = [weights.group(rows[0], group); ROWS];
            for r in 1..ROWS {
                w[r] = weights.group(rows[r], group);
            }
            for r in 0..ROWS {
                weights.prefetch(rows[r] + ROWS, group);
            }
            step::<C, M>(&mut acc, w, x, group);
        }
        if weights.columns() % C::GROUP != 0 {
            let mut w = [weights.tail(rows[0], full); ROWS];
            for r in 1..ROWS {
                w[r] = weights.tail(rows[r], full);
            }
            step::<C, M>(&mut acc, w, x, full);
        }
        acc
    }
}

/// One group: every token's operands meet every row's.
#[inline(always)]
unsafe fn step<C: Core, const M: usize>(
    acc: &mut [[C::Acc; M]; ROWS],
    w: [[C::Operand; 2]; ROWS],
    x: &[*const C::Elem; MAX_TILE],
    group: usize,
) {
    for half in 0..2 {
        for m in 0..M {
            // SAFETY: prepared rows have whole groups.
            unsafe {
                let x = C::load(x[m].add(group * C::GROUP + half * C::OPERAND));
                for r in 0..ROWS {
                    acc[r][m] = C::mac(acc[r][m], w[r][half], x);
                }
            }
        }
    }
}
