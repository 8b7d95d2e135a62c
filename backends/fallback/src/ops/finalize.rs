//! Weighted sum of the experts' outputs onto the residual stream, in the order of the choices.

use crate::isa::{Simd, Task};
use crate::math::Activation;
use crate::memory::Ptr;
use crate::pool::Pool;
use gossamer_backend_api::ops::{FinalizeArgs, FinalizeDesc};

struct Row<A> {
    experts_out: Ptr<A>,
    weights: Ptr<f32>,
    residual: Ptr<A>,
    hidden: usize,
    top_k: usize,
}

impl<A: Activation> Task for Row<A> {
    #[inline(always)]
    unsafe fn run(self) {
        /// Columns summed at a time.
        const WIDTH: usize = 64;
        let mut first = 0;
        while first < self.hidden {
            let count = WIDTH.min(self.hidden - first);
            let mut sums = [0f32; WIDTH];
            // SAFETY: rows have `hidden` elements, and `top_k` weights and rows belong to the token.
            unsafe {
                for choice in 0..self.top_k {
                    let weight = *self.weights.at(choice);
                    let out = self.experts_out.slice(choice * self.hidden + first, count);
                    for (sum, out) in sums.iter_mut().zip(out) {
                        *sum += weight * out.to_f32();
                    }
                }
                for (value, sum) in self.residual.slice_mut(first, count).iter_mut().zip(sums) {
                    *value = A::from_f32(value.to_f32() + sum);
                }
            }
            first += count;
        }
    }
}

/// Runs the operation.
///
/// # Safety
/// As `KernelBackend::launch`; the machine has `S`.
pub unsafe fn launch<S: Simd, A: Activation>(pool: &Pool, desc: &FinalizeDesc, args: &FinalizeArgs) {
    let (hidden, top_k) = (desc.hidden as usize, desc.top_k as usize);
    pool.run(args.tokens as usize, |_, token| {
        let row = Row::<A> {
            experts_out: Ptr::new(args.experts_out).offset(token * top_k * hidden),
            weights: Ptr::new(args.expert_weights).offset(token * top_k),
            residual: Ptr::new(args.residual).offset(token * hidden),
            hidden,
            top_k,
        };
        // SAFETY: by the caller; each token has its own row.
        unsafe { S::enter(row) };
    });
}
