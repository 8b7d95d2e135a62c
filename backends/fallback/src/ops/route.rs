//! Router: a product, the k largest logits, and a softmax over those.

use super::dense::prepare_rows;
use crate::isa::Core;
use crate::math::{Activation, exp, from_bf16};
use crate::memory::{Arena, Ptr};
use crate::pool::Pool;
use crate::product::{self, Bf16Rows, Epilogue, Product, Tokens, padded};
use gossamer_backend_api::BackendError;
use gossamer_backend_api::ops::{RouteArgs, RouteDesc};

#[derive(Clone, Copy)]
struct Logits {
    out: Ptr<f32>,
    bias: Ptr<u16>,
    experts: usize,
}

impl Epilogue for Logits {
    #[inline(always)]
    unsafe fn write(self, token: usize, first_row: usize, values: &[f32]) {
        // SAFETY: each chunk writes its own columns of the logits.
        let out = unsafe { self.out.slice_mut(token * self.experts + first_row, values.len()) };
        for (i, (out, value)) in out.iter_mut().zip(values).enumerate() {
            // SAFETY: the bias has one element per expert.
            *out = value + unsafe { from_bf16(*self.bias.at(first_row + i)) };
        }
    }
}

struct Buffers<C: Core> {
    x: Ptr<C::Elem>,
    packed: Ptr<C::Elem>,
    wide: Ptr<f32>,
    scratch: product::Scratch<C>,
    logits: Ptr<f32>,
}

fn place<C: Core>(desc: &RouteDesc, tokens: usize, slots: usize, arena: &mut Arena) -> Buffers<C> {
    let k = desc.hidden as usize;
    Buffers {
        x: arena.take(tokens * padded::<C>(k)),
        packed: arena.take(product::packed::<C>(k, tokens)),
        wide: arena.take(slots * k),
        scratch: product::Scratch::place(k, slots, arena),
        logits: arena.take(tokens * desc.experts as usize),
    }
}

/// Bytes of workspace.
pub fn workspace<C: Core>(desc: &RouteDesc, tokens: usize, slots: usize) -> u64 {
    let mut arena = Arena::new(0);
    place::<C>(desc, tokens, slots, &mut arena);
    arena.used()
}

/// Picks the k largest (ties and NaNs: lower expert first) and writes ids and softmax weights.
fn choose(logits: &mut [f32], ids: &mut [u32], weights: &mut [f32]) {
    for (id, weight) in ids.iter_mut().zip(weights.iter_mut()) {
        let mut best = 0;
        for (expert, logit) in logits.iter().enumerate() {
            if *logit > logits[best] || logits[best].is_nan() && !logit.is_nan() {
                best = expert;
            }
        }
        (*id, *weight) = (best as u32, logits[best]);
        // A chosen expert must not be chosen again, whatever the others are.
        logits[best] = f32::NAN;
    }
    let largest = weights.first().copied().unwrap_or(0.0);
    let mut sum = 0.0;
    for weight in weights.iter_mut() {
        *weight = exp(*weight - largest);
        sum += *weight;
    }
    for weight in weights.iter_mut() {
        *weight /= sum;
    }
}

/// Runs the operation.
///
/// # Safety
/// As `KernelBackend::launch`; the machine has `C`.
pub unsafe fn launch<C: Core, A: Activation>(
    pool: &Pool,
    desc: &RouteDesc,
    args: &RouteArgs,
    (workspace, workspace_bytes): (u64, u64),
) -> Result<(), BackendError> {
    let (k, experts, tokens) = (desc.hidden as usize, desc.experts as usize, args.tokens as usize);
    let mut arena = Arena::new(workspace);
    let buffers = place::<C>(desc, tokens, pool.slots(), &mut arena);
    arena.check(workspace_bytes)?;
    // SAFETY: the addresses are valid by the caller, the buffers by `check`.
    unsafe {
        let x = (Ptr::<A>::new(args.x), Ptr::new(0));
        prepare_rows::<C, A>(pool, x, (Ptr::new(0), 0.0), C::DENSE_ORDER, k, tokens, buffers.wide, buffers.x);
    }
    let x = Tokens { data: buffers.x, stride: padded::<C>(k), index: Ptr::new(0), count: tokens };
    // SAFETY: the rows were prepared above; the buffer has room.
    let x = unsafe { product::pack::<C>(pool, x, k, buffers.packed) };
    let chunk = product::chunk_rows::<C>(experts, tokens, pool.slots());
    pool.run(experts.div_ceil(chunk), |slot, index| {
        let task = Product::<C, _, _> {
            weights: Bf16Rows { data: Ptr::new(args.weight), k },
            rows: index * chunk..((index + 1) * chunk).min(experts),
            tokens: x,
            scratch: buffers.scratch.of(slot),
            epilogue: Logits { out: buffers.logits, bias: Ptr::new(args.bias), experts },
        };
        // SAFETY: by the caller; each chunk writes its own columns.
        unsafe { task.run() };
    });
    let (ids, weights) = (Ptr::<u32>::new(args.expert_ids), Ptr::<f32>::new(args.expert_weights));
    let top = desc.top_k as usize;
    for token in 0..tokens {
        // SAFETY: by the caller; the logits were written above.
        unsafe {
            choose(
                buffers.logits.slice_mut(token * experts, experts),
                ids.slice_mut(token * top, top),
                weights.slice_mut(token * top, top),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(logits: &[f32], expected: &[u32]) {
        let (mut ids, mut weights) = (vec![0; expected.len()], vec![0.0; expected.len()]);
        choose(&mut logits.to_vec(), &mut ids, &mut weights);
        assert_eq!(ids, expected, "of {logits:?}");
        assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6 || logits.iter().any(|l| l.is_nan()));
    }

    #[test]
    fn the_largest_come_first_and_ties_go_to_the_lower_expert() {
        check(&[1.0, 3.0, 2.0, 3.0], &[1, 3, 2]);
        check(&[0.0; 5], &[0, 1, 2, 3]);
        check(&[f32::NEG_INFINITY, -1.0, f32::NEG_INFINITY], &[1, 0]);
        check(&[f32::NAN, 1.0, 2.0], &[2, 1]);
    }
}
