//! The experts: gate and up product, SwiGLU, down product, on MXFP4 weights in checkpoint layout.
//!
//! Pairs (token, choice) are sorted by expert, so that each expert's weights are read once. Weight addresses hold the
//! experts from `first_expert` on, `local_experts` of them.

use super::dense::prepare_rows;
use crate::isa::Core;
use crate::math::{Activation, from_bf16, swiglu};
use crate::memory::{Arena, Ptr};
use crate::pool::Pool;
use crate::product::{self, CHUNK_ROWS, Epilogue, Mxfp4Rows, Product, Tokens, padded};
use gossamer_backend_api::BackendError;
use gossamer_backend_api::ops::{ExpertWeights, ExpertsArgs, ExpertsDesc};

/// Writes the hidden activations of an expert: prepared rows for the down product.
#[derive(Clone, Copy)]
struct Activate<C: Core> {
    hidden: Ptr<C::Elem>,
    stride: usize,
    bias: Ptr<u16>,
    limit: f32,
    alpha: f32,
    narrow: bool,
}

impl<C: Core> Epilogue for Activate<C> {
    #[inline(always)]
    unsafe fn write(self, token: usize, first_row: usize, values: &[f32]) {
        let mut units = [0f32; CHUNK_ROWS / 2];
        let count = values.len() / 2;
        // SAFETY: the bias has an element per row.
        let bias = unsafe { self.bias.slice(first_row, values.len()) };
        for (unit, (pair, bias)) in units.iter_mut().zip(values.chunks_exact(2).zip(bias.chunks_exact(2))) {
            let (gate, up) = (pair[0] + from_bf16(bias[0]), pair[1] + from_bf16(bias[1]));
            *unit = swiglu(gate, up, self.limit, self.alpha);
        }
        if self.narrow {
            for unit in &mut units {
                *unit = u16::from_f32(*unit).to_f32();
            }
        }
        for (i, unit) in units[..count].iter().enumerate() {
            let at = C::MXFP4_ORDER.position(first_row / 2 + i, C::GROUP);
            // SAFETY: positions are below the stride; each chunk has its own.
            unsafe { *self.hidden.at(token * self.stride + at) = C::Elem::from_f32(*unit) };
        }
    }
}

/// Adds the bias and writes the expert's outputs to their pairs.
struct Scatter<A> {
    out: Ptr<A>,
    pairs: Ptr<u32>,
    bias: Ptr<u16>,
    columns: usize,
}

impl<A> Clone for Scatter<A> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<A> Copy for Scatter<A> {}

impl<A: Activation> Epilogue for Scatter<A> {
    #[inline(always)]
    unsafe fn write(self, token: usize, first_row: usize, values: &[f32]) {
        // SAFETY: every pair has a row in `out`, each chunk its own columns, and the bias an element per row.
        unsafe {
            let pair = *self.pairs.at(token) as usize;
            let out = self.out.slice_mut(pair * self.columns + first_row, values.len());
            let bias = self.bias.slice(first_row, values.len());
            for ((out, value), bias) in out.iter_mut().zip(values).zip(bias) {
                *out = A::from_f32(value + from_bf16(*bias));
            }
        }
    }
}

/// An expert that has pairs, and which of the sorted pairs are its own.
#[derive(Clone, Copy)]
struct Active {
    expert: u32,
    first: u32,
    count: u32,
}

struct Buffers<C: Core> {
    x: Ptr<C::Elem>,
    /// Packed tokens of the pairs, sorted by expert.
    packed_x: Ptr<C::Elem>,
    packed_hidden: Ptr<C::Elem>,
    wide: Ptr<f32>,
    scratch: product::Scratch<C>,
    hidden: Ptr<C::Elem>,
    /// Pair ids sorted by expert.
    pairs: Ptr<u32>,
    /// Token of each sorted pair.
    tokens: Ptr<u32>,
    counts: Ptr<u32>,
    active: Ptr<Active>,
}

fn place<C: Core>(desc: &ExpertsDesc, tokens: usize, slots: usize, arena: &mut Arena) -> Buffers<C> {
    let (hidden, inner) = (desc.hidden as usize, desc.intermediate as usize);
    let (pairs, local) = (tokens * desc.top_k as usize, desc.local_experts as usize);
    Buffers {
        x: arena.take(tokens * padded::<C>(hidden)),
        packed_x: arena.take(product::packed::<C>(hidden, pairs)),
        packed_hidden: arena.take(product::packed::<C>(inner, pairs)),
        wide: arena.take(slots * hidden),
        scratch: product::Scratch::place(hidden.max(inner), slots, arena),
        hidden: arena.take(pairs * padded::<C>(inner)),
        pairs: arena.take(pairs),
        tokens: arena.take(pairs),
        counts: arena.take(local + 1),
        active: arena.take(local),
    }
}

/// Bytes of workspace.
pub fn workspace<C: Core>(desc: &ExpertsDesc, tokens: usize, slots: usize) -> u64 {
    let mut arena = Arena::new(0);
    place::<C>(desc, tokens, slots, &mut arena);
    arena.used()
}

/// Sorts pairs by expert, keeping their order; pairs of experts held elsewhere get zeros in `out`. Returns the number of
/// experts that have pairs.
unsafe fn sort<C: Core, A: Activation>(
    desc: &ExpertsDesc,
    args: &ExpertsArgs,
    buffers: &Buffers<C>,
) -> usize {
    let (top, local) = (desc.top_k as usize, desc.local_experts as usize);
    let count = args.tokens as usize * top;
    // SAFETY: by the caller: addresses and buffers are valid, and only this thread runs.
    unsafe {
        let ids = Ptr::<u32>::new(args.expert_ids).slice(0, count);
        let next = buffers.counts.slice_mut(0, local + 1);
        next.fill(0);
        let place_of = |id: u32| {
            let at = id.wrapping_sub(desc.first_expert) as usize;
            (at < local).then_some(at)
        };
        for (pair, id) in ids.iter().enumerate() {
            match place_of(*id) {
                Some(at) => next[at + 1] += 1,
                None => {
                    let columns = desc.hidden as usize;
                    let out = Ptr::<A>::new(args.out).slice_mut(pair * columns, columns);
                    out.fill(A::from_f32(0.0));
                }
            }
        }
        let mut active = 0;
        let mut first = 0;
        for expert in 0..local {
            let count = next[expert + 1];
            if count > 0 {
                *buffers.active.at(active) = Active { expert: expert as u32, first, count };
                active += 1;
            }
            next[expert] = first;
            first += count;
        }
        for (pair, id) in ids.iter().enumerate() {
            if let Some(at) = place_of(*id) {
                let to = next[at] as usize;
                next[at] += 1;
                *buffers.pairs.at(to) = pair as u32;
                *buffers.tokens.at(to) = (pair / top) as u32;
            }
        }
        active
    }
}

fn rows_of(weights: &ExpertWeights, expert: usize, rows: usize, k: usize) -> (Mxfp4Rows, Ptr<u16>) {
    let first = expert * rows;
    let data = Mxfp4Rows {
        codes: Ptr::new(weights.data).offset(first * k / 2),
        scales: Ptr::new(weights.scales).offset(first * k / 32),
        k,
    };
    (data, Ptr::new(weights.bias).offset(first))
}

/// Runs the operation.
///
/// # Safety
/// As `KernelBackend::launch`; the machine has `C`.
pub unsafe fn launch<C: Core, A: Activation>(
    pool: &Pool,
    desc: &ExpertsDesc,
    args: &ExpertsArgs,
    (workspace, workspace_bytes): (u64, u64),
) -> Result<(), BackendError> {
    let (hidden, inner, tokens) = (desc.hidden as usize, desc.intermediate as usize, args.tokens as usize);
    let mut arena = Arena::new(workspace);
    let buffers = place::<C>(desc, tokens, pool.slots(), &mut arena);
    arena.check(workspace_bytes)?;
    // SAFETY: the addresses are valid by the caller, the buffers by `check`.
    let active = unsafe {
        let x = (Ptr::<A>::new(args.x), Ptr::new(0));
        let norm = (Ptr::new(0), 0.0);
        prepare_rows::<C, A>(pool, x, norm, C::MXFP4_ORDER, hidden, tokens, buffers.wide, buffers.x);
        let count = sort::<C, A>(desc, args, &buffers);
        buffers.active.slice(0, count)
    };
    let inner_stride = padded::<C>(inner);
    let mean = (tokens * desc.top_k as usize).div_ceil(active.len().max(1));

    let rows_at = |data: Ptr<C::Elem>, stride: usize, first: u32, count: u32| Tokens {
        data: data.offset(first as usize * stride),
        stride,
        index: Ptr::new(0),
        count: count as usize,
    };
    let stride = padded::<C>(hidden);
    let inputs = |first: u32, count: u32| Tokens {
        data: buffers.x,
        stride,
        index: buffers.tokens.offset(first as usize),
        count: count as usize,
    };
    let inputs_packed = |first, count| rows_at(buffers.packed_x, stride, first, count);
    let hidden_rows = |first, count| rows_at(buffers.hidden, inner_stride, first, count);
    let hidden_packed = |first, count| rows_at(buffers.packed_hidden, inner_stride, first, count);
    for Active { first, count, .. } in active {
        let to = buffers.packed_x.offset(*first as usize * stride);
        // SAFETY: the rows were prepared above; the buffer has room for every pair.
        unsafe { product::pack::<C>(pool, inputs(*first, *count), hidden, to) };
    }

    let rows = 2 * inner;
    let chunk = product::chunk_rows::<C>(rows, mean, pool.slots());
    let chunks = rows.div_ceil(chunk);
    pool.run(active.len() * chunks, |slot, index| {
        let Active { expert, first, count } = active[index / chunks];
        let (weights, bias) = rows_of(&args.gate_up, expert as usize, rows, hidden);
        let first_row = index % chunks * chunk;
        let task = Product::<C, _, _> {
            weights,
            rows: first_row..(first_row + chunk).min(rows),
            tokens: if C::TILES { inputs_packed(first, count) } else { inputs(first, count) },
            scratch: buffers.scratch.of(slot),
            epilogue: Activate::<C> {
                hidden: buffers.hidden.offset(first as usize * inner_stride),
                stride: inner_stride,
                bias,
                limit: desc.limit,
                alpha: desc.alpha,
                narrow: size_of::<A>() == 2,
            },
        };
        // SAFETY: by the caller; each chunk writes its own columns of its expert's rows.
        unsafe { task.run() };
    });

    let padding = inner..inner_stride;
    if !padding.is_empty() {
        for pair in 0..tokens * desc.top_k as usize {
            for i in padding.clone() {
                let at = C::MXFP4_ORDER.position(i, C::GROUP);
                // SAFETY: positions are below the stride; the products above are done.
                unsafe { *buffers.hidden.at(pair * inner_stride + at) = C::Elem::default() };
            }
        }
    }

    for Active { first, count, .. } in active {
        let to = buffers.packed_hidden.offset(*first as usize * inner_stride);
        // SAFETY: the rows were written above; the buffer has room for every pair.
        unsafe { product::pack::<C>(pool, hidden_rows(*first, *count), inner, to) };
    }

    let chunk = product::chunk_rows::<C>(hidden, mean, pool.slots());
    let chunks = hidden.div_ceil(chunk);
    pool.run(active.len() * chunks, |slot, index| {
        let Active { expert, first, count } = active[index / chunks];
        let (weights, bias) = rows_of(&args.down, expert as usize, hidden, inner);
        let first_row = index % chunks * chunk;
        let task = Product::<C, _, _> {
            weights,
            rows: first_row..(first_row + chunk).min(hidden),
            tokens: if C::TILES { hidden_packed(first, count) } else { hidden_rows(first, count) },
            scratch: buffers.scratch.of(slot),
            epilogue: Scatter::<A> {
                out: Ptr::new(args.out),
                pairs: buffers.pairs.offset(first as usize),
                bias,
                columns: hidden,
            },
        };
        // SAFETY: by the caller; each chunk writes its own columns of its expert's pairs.
        unsafe { task.run() };
    });
    Ok(())
}
