//! RMSNorm. The fused norms of other operations call [`normalise`], so fused and unfused agree to the bit.

use crate::isa::{Simd, Task};
use crate::math::{Activation, from_bf16, sum_of_squares};
use crate::memory::{Arena, Ptr};
use crate::pool::Pool;
use gossamer_backend_api::BackendError;
use gossamer_backend_api::ops::{RmsNormArgs, RmsNormDesc};

/// Normalises `row` in place and rounds it to the activation type.
#[inline(always)]
pub fn normalise<A: Activation>(row: &mut [f32], weight: &[u16], eps: f32) {
    let mean = sum_of_squares(row) / row.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    for (value, weight) in row.iter_mut().zip(weight) {
        *value = A::from_f32(*value * scale * from_bf16(*weight)).to_f32();
    }
}

/// Reads a row as float32.
#[inline(always)]
pub fn widen<A: Activation>(from: &[A], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.to_f32();
    }
}

struct Row<A> {
    x: Ptr<A>,
    out: Ptr<A>,
    weight: Ptr<u16>,
    wide: Ptr<f32>,
    hidden: usize,
    eps: f32,
}

impl<A: Activation> Task for Row<A> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: rows have `hidden` elements; `x` may equal `out`, so it is read to the end before `out` is borrowed.
        unsafe {
            let wide = self.wide.slice_mut(0, self.hidden);
            widen(self.x.slice(0, self.hidden), wide);
            normalise::<A>(wide, self.weight.slice(0, self.hidden), self.eps);
            for (to, from) in self.out.slice_mut(0, self.hidden).iter_mut().zip(wide) {
                *to = A::from_f32(*from);
            }
        }
    }
}

/// A float32 row per worker.
pub fn layout(desc: &RmsNormDesc, slots: usize, arena: &mut Arena) -> Ptr<f32> {
    arena.take(slots * desc.hidden as usize)
}

/// Runs the operation.
///
/// # Safety
/// As `KernelBackend::launch`; the machine has `S`.
pub unsafe fn launch<S: Simd, A: Activation>(
    pool: &Pool,
    desc: &RmsNormDesc,
    args: &RmsNormArgs,
    (workspace, workspace_bytes): (u64, u64),
) -> Result<(), BackendError> {
    let mut arena = Arena::new(workspace);
    let wide = layout(desc, pool.slots(), &mut arena);
    arena.check(workspace_bytes)?;
    let hidden = desc.hidden as usize;
    let (x, out, weight) = (Ptr::<A>::new(args.x), Ptr::<A>::new(args.out), Ptr::new(args.weight));
    pool.run(args.tokens as usize, |slot, token| {
        let row = Row {
            x: x.offset(token * hidden),
            out: out.offset(token * hidden),
            weight,
            wide: wide.offset(slot * hidden),
            hidden,
            eps: desc.eps,
        };
        // SAFETY: by the caller; the scratch row is the slot's own.
        unsafe { S::enter(row) };
    });
    Ok(())
}
