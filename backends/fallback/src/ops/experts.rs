//! The experts: gate and up product, SwiGLU, down product, on MXFP4 weights in checkpoint layout.
//!
//! Pairs (token, choice) are sorted by expert, so that each expert's weights are read once. Experts are run in waves of
//! about as many pairs as there are tokens, so that buffers stay small. Weight addresses hold the experts from `first_expert`
//! on, `local_experts` of them.

use super::dense::prepare_rows;
use super::scatter::Scatter;
use super::sorted::{Active, Held, Sorted};
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

/// Most pairs of a wave. One expert may have a pair of every token.
fn wave_pairs(tokens: usize) -> usize {
    tokens.max(256)
}

struct Buffers<C: Core> {
    x: Ptr<C::Elem>,
    /// Packed tokens of a wave's pairs.
    packed_x: Ptr<C::Elem>,
    packed_hidden: Ptr<C::Elem>,
    wide: Ptr<f32>,
    scratch: product::Scratch<C>,
    hidden: Ptr<C::Elem>,
    sorted: Sorted,
}

fn place<C: Core>(desc: &ExpertsDesc, tokens: usize, slots: usize, arena: &mut Arena) -> Buffers<C> {
    let (hidden, inner) = (desc.hidden as usize, desc.intermediate as usize);
    let wave = wave_pairs(tokens).min(tokens * desc.top_k as usize);
    Buffers {
        x: arena.take(tokens * padded::<C>(hidden)),
        packed_x: arena.take(product::packed::<C>(hidden, wave)),
        packed_hidden: arena.take(product::packed::<C>(inner, wave)),
        wide: arena.take(slots * hidden),
        scratch: product::Scratch::place(hidden.max(inner), slots, arena),
        hidden: arena.take(wave * padded::<C>(inner)),
        sorted: Sorted::place(held(desc), tokens, arena),
    }
}

/// Bytes of workspace.
pub fn workspace<C: Core>(desc: &ExpertsDesc, tokens: usize, slots: usize) -> u64 {
    let mut arena = Arena::new(0);
    place::<C>(desc, tokens, slots, &mut arena);
    arena.used()
}

fn held(desc: &ExpertsDesc) -> Held {
    let (first, count) = (desc.first_expert, desc.local_experts as usize);
    Held { first, count, top_k: desc.top_k as usize }
}

/// Weights and bias of an expert.
pub fn rows_of(weights: &ExpertWeights, expert: usize, rows: usize, k: usize) -> (Mxfp4Rows, Ptr<u16>) {
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
        let zero = |pair: usize| {
            Ptr::<A>::new(args.out).slice_mut(pair * hidden, hidden).fill(A::from_f32(0.0));
        };
        let count = buffers.sorted.sort(held(desc), Ptr::new(args.expert_ids), tokens, zero);
        buffers.sorted.active.slice(0, count)
    };
    let inner_stride = padded::<C>(inner);
    // Products write no padding, so it is cleared once.
    for pair in 0..wave_pairs(tokens).min(tokens * desc.top_k as usize) {
        for i in inner..inner_stride {
            let at = C::MXFP4_ORDER.position(i, C::GROUP);
            // SAFETY: positions are below the stride.
            unsafe { *buffers.hidden.at(pair * inner_stride + at) = C::Elem::default() };
        }
    }
    let mut done = 0;
    while done < active.len() {
        let mut end = done + 1;
        let mut pairs = active[done].count as usize;
        while end < active.len() && pairs + active[end].count as usize <= wave_pairs(tokens) {
            pairs += active[end].count as usize;
            end += 1;
        }
        // SAFETY: handed on; the wave's pairs fit the buffers.
        unsafe {
            Wave::<C, A> {
                pool,
                desc,
                args,
                buffers: &buffers,
                active: &active[done..end],
                pairs,
                out: Ptr::new(args.out),
            }
            .run()
        };
        done = end;
    }
    Ok(())
}

/// Some experts and all their pairs.
struct Wave<'a, C: Core, A> {
    pool: &'a Pool,
    desc: &'a ExpertsDesc,
    args: &'a ExpertsArgs,
    buffers: &'a Buffers<C>,
    active: &'a [Active],
    pairs: usize,
    out: Ptr<A>,
}

impl<C: Core, A: Activation> Wave<'_, C, A> {
    /// Place of an expert's first pair in the wave's buffers.
    fn place(&self, active: Active) -> usize {
        (active.first - self.active[0].first) as usize
    }

    /// An expert's inputs as prepared.
    fn inputs(&self, active: Active) -> Tokens<C::Elem> {
        Tokens {
            data: self.buffers.x,
            stride: padded::<C>(self.desc.hidden as usize),
            index: self.buffers.sorted.tokens.offset(active.first as usize),
            count: active.count as usize,
        }
    }

    /// An expert's hidden activations as prepared.
    fn hidden(&self, active: Active) -> Tokens<C::Elem> {
        let stride = padded::<C>(self.desc.intermediate as usize);
        let data = self.buffers.hidden.offset(self.place(active) * stride);
        Tokens { data, stride, index: Ptr::new(0), count: active.count as usize }
    }

    /// Where an expert's rows of `k` are packed.
    fn room(&self, active: Active, k: usize, base: Ptr<C::Elem>) -> Ptr<C::Elem> {
        base.offset(product::packed::<C>(k, self.place(active)))
    }

    /// Both products.
    unsafe fn run(&self) {
        let (hidden, inner) = (self.desc.hidden as usize, self.desc.intermediate as usize);
        let (packed_x, packed_hidden) = (self.buffers.packed_x, self.buffers.packed_hidden);
        // SAFETY: by the caller: inputs are prepared, the buffer has room for the wave's pairs.
        unsafe {
            product::pack_each::<C>(self.pool, self.active.len(), hidden, |i| {
                (self.inputs(self.active[i]), self.room(self.active[i], hidden, packed_x))
            });
        }
        self.each_chunk(2 * inner, |active, rows, slot| {
            let (weights, bias) = rows_of(&self.args.gate_up, active.expert as usize, 2 * inner, hidden);
            let units = self.hidden(active);
            let task = Product::<C, _, _> {
                weights,
                rows,
                tokens: product::packed_form::<C>(
                    self.inputs(active),
                    hidden,
                    self.room(active, hidden, packed_x),
                ),
                scratch: self.buffers.scratch.of(slot),
                epilogue: Activate::<C> {
                    hidden: units.data,
                    stride: units.stride,
                    bias,
                    limit: self.desc.limit,
                    alpha: self.desc.alpha,
                    narrow: size_of::<A>() == 2,
                },
            };
            // SAFETY: by the caller; each chunk writes its own columns of its expert's rows.
            unsafe { task.run() };
        });
        // SAFETY: the rows were written above; the buffer has room for the wave's pairs.
        unsafe {
            product::pack_each::<C>(self.pool, self.active.len(), inner, |i| {
                (self.hidden(self.active[i]), self.room(self.active[i], inner, packed_hidden))
            });
        }
        self.each_chunk(hidden, |active, rows, slot| {
            let (weights, bias) = rows_of(&self.args.down, active.expert as usize, hidden, inner);
            let task = Product::<C, _, _> {
                weights,
                rows,
                tokens: product::packed_form::<C>(
                    self.hidden(active),
                    inner,
                    self.room(active, inner, packed_hidden),
                ),
                scratch: self.buffers.scratch.of(slot),
                epilogue: Scatter::<A> {
                    out: self.out,
                    pairs: self.buffers.sorted.pairs.offset(active.first as usize),
                    rows: Ptr::new(0),
                    scales: Ptr::new(0),
                    bias,
                    columns: hidden,
                },
            };
            // SAFETY: by the caller; each chunk writes its own columns of its expert's pairs.
            unsafe { task.run() };
        });
    }

    /// Runs `body(expert, rows, slot)` for every chunk of `rows` rows of every expert.
    fn each_chunk(&self, rows: usize, body: impl Fn(Active, std::ops::Range<usize>, usize) + Sync) {
        let mean = self.pairs.div_ceil(self.active.len());
        let chunk = product::chunk_rows::<C>(rows, mean, self.pool.slots());
        let chunks = rows.div_ceil(chunk);
        self.pool.run(self.active.len() * chunks, |slot, index| {
            let first = index % chunks * chunk;
            body(self.active[index / chunks], first..(first + chunk).min(rows), slot);
        });
    }
}
