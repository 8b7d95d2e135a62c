//! One product of the experts on MXFP4 weights in checkpoint layout.
//!
//! E4M3 codes are exact in the products' element types: they are multiplied as they are, and a row's scale comes after its sums.

use super::dense::Prepare;
use super::experts::rows_of;
use super::scatter::Scatter;
use super::sorted::{Held, Sorted};
use crate::isa::Core;
use crate::math::Activation;
use crate::memory::{Arena, Ptr};
use crate::pool::Pool;
use crate::product::{self, Product, Tokens, padded};
use gossamer_backend_api::BackendError;
use gossamer_backend_api::ops::{ExpertProductArgs, ExpertProductDesc};

struct Buffers<C: Core> {
    x: Ptr<C::Elem>,
    packed: Ptr<C::Elem>,
    wide: Ptr<f32>,
    scratch: product::Scratch<C>,
    sorted: Sorted,
}

fn held(desc: &ExpertProductDesc) -> Held {
    let (first, count) = (desc.first_expert, desc.local_experts as usize);
    Held { first, count, top_k: desc.top_k as usize }
}

fn rows_of_x(desc: &ExpertProductDesc, tokens: usize) -> usize {
    if desc.per_pair == 1 { tokens * desc.top_k as usize } else { tokens }
}

fn place<C: Core>(desc: &ExpertProductDesc, tokens: usize, slots: usize, arena: &mut Arena) -> Buffers<C> {
    let k = desc.in_features as usize;
    Buffers {
        x: arena.take(rows_of_x(desc, tokens) * padded::<C>(k)),
        packed: arena.take(product::packed::<C>(k, tokens * desc.top_k as usize)),
        wide: arena.take(slots * k),
        scratch: product::Scratch::place(k, slots, arena),
        sorted: Sorted::place(held(desc), tokens, arena),
    }
}

/// Bytes of workspace.
pub fn workspace<C: Core>(desc: &ExpertProductDesc, tokens: usize, slots: usize) -> u64 {
    let mut arena = Arena::new(0);
    place::<C>(desc, tokens, slots, &mut arena);
    arena.used()
}

/// Runs the operation for rows of `X` and outputs of `A`.
///
/// # Safety
/// As `KernelBackend::launch`; the machine has `C`.
pub unsafe fn launch<C: Core, X: Activation, A: Activation>(
    pool: &Pool,
    desc: &ExpertProductDesc,
    args: &ExpertProductArgs,
    (workspace, workspace_bytes): (u64, u64),
) -> Result<(), BackendError> {
    let (k, tokens, rows) = (desc.in_features as usize, args.tokens as usize, desc.out_features as usize);
    let (in_columns, columns) = (desc.in_columns as usize, desc.out_columns as usize);
    let mut arena = Arena::new(workspace);
    let buffers = place::<C>(desc, tokens, pool.slots(), &mut arena);
    arena.check(workspace_bytes)?;
    let stride = padded::<C>(k);
    pool.run(rows_of_x(desc, tokens), |slot, row| {
        // SAFETY: the addresses are valid by the caller, the buffers by `check`.
        unsafe {
            C::enter(Prepare::<C, X> {
                x: Ptr::new(args.x).offset(row * in_columns),
                norm_weight: Ptr::new(0),
                eps: 0.0,
                wide: buffers.wide.offset(slot * k),
                to: buffers.x.offset(row * stride),
                k,
                order: C::MXFP4_ORDER,
            });
        }
    });
    let out = Ptr::<A>::new(args.out);
    // SAFETY: as above; each pair has its own row.
    let active = unsafe {
        let zero = |pair: usize| out.slice_mut(pair * columns, columns).fill(A::from_f32(0.0));
        let count = buffers.sorted.sort(held(desc), Ptr::new(args.expert_ids), tokens, zero);
        for pair in 0..tokens * desc.top_k as usize {
            out.slice_mut(pair * columns + rows, columns - rows).fill(A::from_f32(0.0));
        }
        buffers.sorted.active.slice(0, count)
    };
    if active.is_empty() {
        return Ok(());
    }
    let index = if desc.per_pair == 1 { buffers.sorted.pairs } else { buffers.sorted.tokens };
    let inputs = |i: usize| {
        let (first, count) = (active[i].first as usize, active[i].count as usize);
        let tokens = Tokens { data: buffers.x, stride, index: index.offset(first), count };
        (tokens, buffers.packed.offset(product::packed::<C>(k, first)))
    };
    // SAFETY: the rows were prepared above; the buffer has room for all pairs.
    unsafe { product::pack_each::<C>(pool, active.len(), k, inputs) };
    let pairs: usize = active.iter().map(|active| active.count as usize).sum();
    let chunk = product::chunk_rows::<C>(rows, pairs.div_ceil(active.len()), pool.slots());
    let chunks = rows.div_ceil(chunk);
    pool.run(active.len() * chunks, |slot, at| {
        let (i, first) = (at / chunks, at % chunks * chunk);
        let (weights, bias) = rows_of(&args.weights, active[i].expert as usize, rows, k);
        let (tokens, room) = inputs(i);
        let pair = active[i].first as usize;
        let task = Product::<C, _, _> {
            weights,
            rows: first..(first + chunk).min(rows),
            tokens: product::packed_form::<C>(tokens, k, room),
            scratch: buffers.scratch.of(slot),
            epilogue: Scatter::<A> {
                out,
                pairs: buffers.sorted.pairs.offset(pair),
                rows: index.offset(pair),
                scales: Ptr::new(args.scales),
                bias,
                columns,
            },
        };
        // SAFETY: by the caller; each chunk writes its own columns of its expert's pairs.
        unsafe { task.run() };
    });
    Ok(())
}
