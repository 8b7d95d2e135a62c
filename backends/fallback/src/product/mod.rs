//! Rows of weights times tokens: the one product that dense layers, the router and the experts share.
//!
//! Invariant: element (row, token) is one accumulator that walks the groups of `k` from first to last, then a tree over its
//! lanes. Tiles of any height and width, and panels, keep that order; so the result does not depend on them.

mod blocked;
mod stream;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod weights;

pub use weights::{Bf16Rows, Mxfp4Rows, Weights};

use crate::isa::{Core, Order, Task};
use crate::memory::{Arena, Ptr};
use crate::pool::Pool;
use std::ops::Range;

/// Most rows of one chunk.
pub const CHUNK_ROWS: usize = 64;
/// Rows of one chunk where weights are read once and no panel is made.
const STREAM_ROWS: usize = 32;
/// Rows of a register tile.
const ROWS: usize = 4;
/// Most tokens of a register tile, over all instruction sets.
const MAX_TILE: usize = 8;

/// Most tokens for which weights are decoded in registers alone: beyond, a panel costs less than decoding again, or than
/// the registers that decoding takes.
const fn direct<C: Core>() -> usize {
    if C::TOKENS < 4 { C::TOKENS } else { 4 }
}

/// Elements of a prepared row or panel row of `k` elements.
pub fn padded<C: Core>(k: usize) -> usize {
    k.next_multiple_of(C::GROUP)
}

/// Prepared rows of activations: `[*, padded(k)]` in the order of the weights that they meet.
pub struct Tokens<E> {
    /// The rows.
    pub data: Ptr<E>,
    /// Elements from one row to the next.
    pub stride: usize,
    /// Row of each token; null: token `t` is row `t`.
    pub index: Ptr<u32>,
    /// Tokens.
    pub count: usize,
}

impl<E> Clone for Tokens<E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for Tokens<E> {}

impl<E> Tokens<E> {
    #[inline(always)]
    unsafe fn row(self, token: usize) -> *const E {
        // SAFETY: the index has `count` entries.
        let row = if self.index.is_null() { token } else { unsafe { *self.index.at(token) as usize } };
        self.data.at(row * self.stride)
    }
}

/// Rows per chunk for a product of `rows` rows with `tokens` tokens on `workers` workers. A multiple of four.
pub fn chunk_rows<C: Core>(rows: usize, tokens: usize, workers: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if C::TILES {
        return tiles::task_rows(rows, workers);
    }
    let most = if tokens <= direct::<C>() { STREAM_ROWS } else { CHUNK_ROWS };
    rows.div_ceil(workers * 8).next_multiple_of(4).clamp(4, most)
}

/// One worker's memory, for whichever way products go.
pub struct Scratch<C: Core> {
    blocked: blocked::Scratch<C>,
    #[cfg(target_arch = "x86_64")]
    tiles: tiles::Scratch,
}

impl<C: Core> Clone for Scratch<C> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<C: Core> Copy for Scratch<C> {}

impl<C: Core> Scratch<C> {
    /// Memory of `slots` workers for products of up to `k` columns; [`Scratch::of`] picks one.
    pub fn place(k: usize, slots: usize, arena: &mut Arena) -> Self {
        let (on_operands, on_tiles) = if C::TILES { (0, slots) } else { (slots, 0) };
        let _ = (k, on_tiles);
        Self {
            blocked: blocked::Scratch::place(on_operands, arena),
            #[cfg(target_arch = "x86_64")]
            tiles: tiles::Scratch::place(k, on_tiles, arena),
        }
    }

    /// The memory of one worker.
    pub fn of(self, slot: usize) -> Self {
        Self {
            blocked: self.blocked.of(slot),
            #[cfg(target_arch = "x86_64")]
            tiles: self.tiles.of(slot),
        }
    }
}

/// Elements that packing `tokens` prepared rows takes.
pub fn packed<C: Core>(k: usize, tokens: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if C::TILES {
        return tokens * tiles::stride::<C>(k);
    }
    let _ = (k, tokens);
    0
}

/// The form of prepared rows that products read: as they are, or packed into `to`, which is for [`pack`] to fill.
pub fn packed_form<C: Core>(tokens: Tokens<C::Elem>, k: usize, to: Ptr<C::Elem>) -> Tokens<C::Elem> {
    #[cfg(target_arch = "x86_64")]
    if C::TILES {
        return Tokens { data: to, stride: tiles::stride::<C>(k), index: Ptr::new(0), count: tokens.count };
    }
    let _ = (k, to);
    tokens
}

/// Packs several sets of tokens, each on one thread; `set(i)` is a set and its room.
///
/// # Safety
/// As [`pack`].
pub unsafe fn pack_each<C: Core>(
    pool: &Pool,
    sets: usize,
    k: usize,
    set: impl Fn(usize) -> (Tokens<C::Elem>, Ptr<C::Elem>) + Sync,
) {
    #[cfg(target_arch = "x86_64")]
    if C::TILES {
        pool.run(sets, |_, i| {
            let (tokens, to) = set(i);
            for block in 0..tiles::blocks::<C>(tokens.count) {
                // SAFETY: by the caller; each set has its own room.
                unsafe { tiles::pack_block::<C>(tokens, block, k, to) };
            }
        });
    }
    let _ = (pool, sets, k, set);
}

/// Brings prepared rows into the form that products read and returns it.
///
/// # Safety
/// The tokens' rows are valid; `to` has room for [`packed`] elements.
pub unsafe fn pack<C: Core>(
    pool: &Pool,
    tokens: Tokens<C::Elem>,
    k: usize,
    to: Ptr<C::Elem>,
) -> Tokens<C::Elem> {
    #[cfg(target_arch = "x86_64")]
    if C::TILES {
        // SAFETY: handed on.
        unsafe { tiles::pack::<C>(pool, tokens, k, to) };
    }
    let _ = pool;
    packed_form::<C>(tokens, k, to)
}

/// Where results go.
pub trait Epilogue: Copy {
    /// Takes the sums of rows `first_row..first_row + values.len()` for one token. Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// As for the task that calls it.
    unsafe fn write(self, token: usize, first_row: usize, values: &[f32]);
}

/// One chunk of rows times all tokens.
pub struct Product<C: Core, W, E> {
    /// The weights.
    pub weights: W,
    /// Rows of this chunk, as many as [`chunk_rows`] says.
    pub rows: Range<usize>,
    /// The tokens.
    pub tokens: Tokens<C::Elem>,
    /// The worker's scratch.
    pub scratch: Scratch<C>,
    /// Where results go.
    pub epilogue: E,
}

impl<C: Core, W: Weights<C>, E: Epilogue> Product<C, W, E> {
    /// Multiplies.
    ///
    /// # Safety
    /// The machine has `C`; weights, tokens and scratch are valid for their extents, and what the epilogue writes to.
    pub unsafe fn run(self) {
        let Self { weights, rows, tokens, scratch, epilogue } = self;
        // SAFETY: by the caller.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if C::TILES {
                return tiles::run::<C, W, E>(weights, rows, tokens, scratch.tiles, epilogue);
            }
            if tokens.count <= direct::<C>() {
                stream::run::<C, W, E>(weights, rows, tokens, epilogue);
            } else {
                blocked::run::<C, W, E>(weights, rows, tokens, scratch.blocked, epilogue);
            }
        }
    }
}

/// Hands sums, `[token][row of the chunk]`, to the epilogue.
struct Write<E> {
    epilogue: E,
    first_token: usize,
    first_row: usize,
    rows: usize,
    width: usize,
    sums: Ptr<f32>,
}

impl<E: Epilogue> Task for Write<E> {
    #[inline(always)]
    unsafe fn run(self) {
        for at in 0..self.width {
            // SAFETY: by the caller.
            unsafe {
                let values = self.sums.slice(at * CHUNK_ROWS, self.rows);
                self.epilogue.write(self.first_token + at, self.first_row, values);
            }
        }
    }
}

/// Writes a float32 row as a prepared row: ordered, converted, padded with zeros.
#[inline(always)]
pub fn prepare_row<C: Core>(from: &[f32], order: Order, to: &mut [C::Elem]) {
    use crate::math::Activation;
    let group = C::GROUP;
    for (chunk, out) in from.chunks(group).zip(to.chunks_exact_mut(group)) {
        if chunk.len() < group {
            out.fill(C::Elem::default());
        }
        match order {
            Order::Natural => {
                for (value, out) in chunk.iter().zip(out) {
                    *out = C::Elem::from_f32(*value);
                }
            }
            Order::Split => {
                let (even, odd) = out.split_at_mut(group / 2);
                for ((pair, even), odd) in chunk.chunks(2).zip(even).zip(odd) {
                    *even = C::Elem::from_f32(pair[0]);
                    *odd = C::Elem::from_f32(pair.get(1).copied().unwrap_or(0.0));
                }
            }
        }
    }
}
