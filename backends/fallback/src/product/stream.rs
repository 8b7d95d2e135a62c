//! Products for a few tokens: weights stream from memory once and are decoded in registers.
//!
//! A tile is four rows times all tokens, over all of `k`. Loops run over constants by index, so that the compiler unrolls them
//! and keeps accumulators in registers; iterator adapters over arrays defeat it.

#![allow(clippy::needless_range_loop)]

use super::{CHUNK_ROWS, Epilogue, MAX_TILE, ROWS, Tokens, Weights, Write};
use crate::isa::{Core, Task};
use crate::memory::Ptr;
use std::ops::Range;

/// Sums, `[token][row of the chunk]`.
type Sums = [[f32; CHUNK_ROWS]; MAX_TILE];

/// A chunk of rows times all tokens, at most [`super::direct`].
///
/// # Safety
/// As [`super::Product::run`].
pub unsafe fn run<C: Core, W: Weights<C>, E: Epilogue>(
    weights: W,
    rows: Range<usize>,
    tokens: Tokens<C::Elem>,
    epilogue: E,
) {
    let mut sums: Sums = [[0f32; CHUNK_ROWS]; MAX_TILE];
    let mut x = [tokens.data.at(0).cast_const(); MAX_TILE];
    for at in 0..tokens.count {
        // SAFETY: there is a row for each token.
        x[at] = unsafe { tokens.row(at) };
    }
    let (first_row, count, width) = (rows.start, rows.len(), tokens.count);
    // SAFETY: by the caller. Each width is a function of its own, shared by all epilogues.
    unsafe {
        match width {
            1 => C::enter(Strip::<C, W, 1> { weights, rows, x: &x, sums: &mut sums }),
            2 => C::enter(Strip::<C, W, 2> { weights, rows, x: &x, sums: &mut sums }),
            3 if C::TOKENS >= 3 => C::enter(Strip::<C, W, 3> { weights, rows, x: &x, sums: &mut sums }),
            4 if C::TOKENS >= 4 => C::enter(Strip::<C, W, 4> { weights, rows, x: &x, sums: &mut sums }),
            _ => unreachable!("at most four tokens are multiplied without a panel"),
        }
        let sums = Ptr::from_mut(sums.as_mut_ptr().cast());
        C::enter(Write { epilogue, first_token: 0, first_row, rows: count, width, sums });
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
            let acc = unsafe { tile::<C, W, M>(self.weights, at, self.x) };
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

/// Four rows times `M` tokens. Each group is decoded once; the lines of the next four rows are asked for meanwhile.
#[inline(always)]
unsafe fn tile<C: Core, W: Weights<C>, const M: usize>(
    weights: W,
    rows: [usize; ROWS],
    x: &[*const C::Elem; MAX_TILE],
) -> [[C::Acc; M]; ROWS] {
    let full = weights.columns() / C::GROUP;
    let mut at = [weights.row(rows[0]); ROWS];
    let mut next = [weights.row(rows[0] + ROWS); ROWS];
    for r in 1..ROWS {
        at[r] = weights.row(rows[r]);
        next[r] = weights.row(rows[r] + ROWS);
    }
    // SAFETY: by the caller: rows, tokens and groups exist.
    unsafe {
        let mut acc = [[C::zero(); M]; ROWS];
        let mut group = 0;
        while group + W::PER_LINE <= full {
            for r in 0..ROWS {
                W::prefetch(next[r], group);
            }
            for _ in 0..W::PER_LINE {
                let mut w = [W::group(at[0], group); ROWS];
                for r in 1..ROWS {
                    w[r] = W::group(at[r], group);
                }
                step::<C, M>(&mut acc, w, x, group);
                group += 1;
            }
        }
        while group < full {
            let mut w = [W::group(at[0], group); ROWS];
            for r in 1..ROWS {
                w[r] = W::group(at[r], group);
            }
            step::<C, M>(&mut acc, w, x, group);
            group += 1;
        }
        if weights.columns() % C::GROUP != 0 {
            let mut w = [weights.tail(at[0], full); ROWS];
            for r in 1..ROWS {
                w[r] = weights.tail(at[r], full);
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
