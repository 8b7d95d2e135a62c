//! The operations that fused ones are put together from, row by row.

use crate::isa::{Simd, Task};
use crate::math::{Activation, E4m3, swiglu};
use crate::memory::{Arena, Ptr};
use crate::pool::Pool;
use gossamer_backend_api::ops::{
    AddArgs, AddDesc, CombineArgs, CombineDesc, QuantiseArgs, QuantiseDesc, ResizeArgs, ResizeDesc,
    ScaleArgs, ScaleDesc, SwigluArgs, SwigluDesc,
};
use gossamer_backend_api::{BackendError, DType};

/// A closure as a task: what it calls must be `#[inline(always)]` or cheap.
struct Run<F>(F);

impl<F: FnOnce()> Task for Run<F> {
    #[inline(always)]
    unsafe fn run(self) {
        (self.0)();
    }
}

/// Scales the first columns of rows.
///
/// # Safety
/// As `KernelBackend::launch`; the machine has `S`. So for all launches here.
pub unsafe fn scale<S: Simd, A: Activation>(pool: &Pool, desc: &ScaleDesc, args: &ScaleArgs) {
    let (columns, stride) = (desc.columns as usize, desc.stride as usize);
    pool.run(args.tokens as usize, |_, token| {
        // SAFETY: by the caller; each token has its own row.
        unsafe {
            let row = Ptr::<A>::new(args.x).slice_mut(token * stride, columns);
            S::enter(Run(|| row.iter_mut().for_each(|x| *x = A::from_f32(x.to_f32() * desc.factor))));
        }
    });
}

/// Copies rows to another width.
///
/// # Safety
/// As [`scale`].
pub unsafe fn resize<A: Activation>(pool: &Pool, desc: &ResizeDesc, args: &ResizeArgs) {
    let (from, to) = (desc.from as usize, desc.to as usize);
    let common = from.min(to);
    pool.run(args.tokens as usize * desc.rows as usize, |_, row| {
        // SAFETY: by the caller; each row has its own place.
        unsafe {
            let out = Ptr::<A>::new(args.out).slice_mut(row * to, to);
            out[..common].copy_from_slice(Ptr::<A>::new(args.x).slice(row * from, common));
            out[common..].fill(A::from_f32(0.0));
        }
    });
}

/// Rounds a row to E4M3 with a scale that takes its largest value to 448; the rest of the codes are zeros.
#[inline(always)]
fn quantise_row<A: Activation>(x: &[A], codes: &mut [E4m3], scale: &mut f32) {
    // A row of zeros keeps a scale.
    let mut top = 1e-20f32;
    for value in x {
        let magnitude = value.to_f32().abs();
        top = if magnitude > top { magnitude } else { top };
    }
    *scale = top / 448.0;
    let inverse = 448.0 / top;
    let (used, rest) = codes.split_at_mut(x.len());
    for (code, value) in used.iter_mut().zip(x) {
        *code = E4m3::from_f32(value.to_f32() * inverse);
    }
    rest.fill(E4m3(0));
}

/// Rounds rows to E4M3.
///
/// # Safety
/// As [`scale`].
pub unsafe fn quantise<S: Simd, A: Activation>(pool: &Pool, desc: &QuantiseDesc, args: &QuantiseArgs) {
    let (columns, padded) = (desc.columns as usize, desc.padded as usize);
    pool.run(args.tokens as usize * desc.rows as usize, |_, row| {
        // SAFETY: by the caller; each row has its own place.
        unsafe {
            let x = Ptr::<A>::new(args.x).slice(row * columns, columns);
            let codes = Ptr::<E4m3>::new(args.codes).slice_mut(row * padded, padded);
            let scale = &mut *Ptr::<f32>::new(args.scales).at(row);
            S::enter(Run(|| quantise_row(x, codes, scale)));
        }
    });
}

/// A row of the gated unit per worker.
pub fn swiglu_layout<A: Activation>(desc: &SwigluDesc, slots: usize, arena: &mut Arena) -> Ptr<A> {
    arena.take(if desc.out == DType::F8E4M3 { slots * desc.columns as usize } else { 0 })
}

#[inline(always)]
fn swiglu_row<A: Activation>(desc: &SwigluDesc, x: &[A], out: &mut [A]) {
    for (out, pair) in out.iter_mut().zip(x.chunks_exact(2)) {
        *out = A::from_f32(swiglu(pair[0].to_f32(), pair[1].to_f32(), desc.limit, desc.alpha));
    }
}

/// The gated unit.
///
/// # Safety
/// As [`scale`].
pub unsafe fn swiglu_rows<S: Simd, A: Activation>(
    pool: &Pool,
    desc: &SwigluDesc,
    args: &SwigluArgs,
    (workspace, workspace_bytes): (u64, u64),
) -> Result<(), BackendError> {
    let mut arena = Arena::new(workspace);
    let wide = swiglu_layout::<A>(desc, pool.slots(), &mut arena);
    arena.check(workspace_bytes)?;
    let (columns, padded) = (desc.columns as usize, desc.padded as usize);
    pool.run(args.tokens as usize * desc.rows as usize, |slot, row| {
        // SAFETY: by the caller; each row has its own place, each worker its own scratch.
        unsafe {
            let x = Ptr::<A>::new(args.x).slice(row * 2 * columns, 2 * columns);
            if desc.out == DType::F8E4M3 {
                let wide = wide.slice_mut(slot * columns, columns);
                let codes = Ptr::<E4m3>::new(args.out).slice_mut(row * padded, padded);
                let scale = &mut *Ptr::<f32>::new(args.scales).at(row);
                S::enter(Run(|| {
                    swiglu_row(desc, x, wide);
                    quantise_row(wide, codes, scale);
                }));
            } else {
                let out = Ptr::<A>::new(args.out).slice_mut(row * columns, columns);
                S::enter(Run(|| swiglu_row(desc, x, out)));
            }
        }
    });
    Ok(())
}

/// Weighted sum of the experts' outputs. The order of additions is that of `finalize`.
///
/// # Safety
/// As [`scale`].
pub unsafe fn combine<S: Simd, A: Activation>(pool: &Pool, desc: &CombineDesc, args: &CombineArgs) {
    /// Columns summed at a time.
    const WIDTH: usize = 64;
    let (columns, top_k) = (desc.columns as usize, desc.top_k as usize);
    pool.run(args.tokens as usize, |_, token| {
        // SAFETY: by the caller; each token has its own row.
        unsafe {
            let rows = Ptr::<A>::new(args.experts_out).slice(token * top_k * columns, top_k * columns);
            let weights = Ptr::<f32>::new(args.expert_weights).slice(token * top_k, top_k);
            let out = Ptr::<A>::new(args.out).slice_mut(token * columns, columns);
            S::enter(Run(|| {
                for (chunk, out) in out.chunks_mut(WIDTH).enumerate() {
                    let mut sums = [0f32; WIDTH];
                    for (row, weight) in rows.chunks_exact(columns).zip(weights) {
                        let row = &row[chunk * WIDTH..][..out.len()];
                        for (sum, value) in sums.iter_mut().zip(row) {
                            *sum += weight * value.to_f32();
                        }
                    }
                    for (out, sum) in out.iter_mut().zip(sums) {
                        *out = A::from_f32(sum);
                    }
                }
            }));
        }
    });
}

/// Adds onto the residual stream.
///
/// # Safety
/// As [`scale`].
pub unsafe fn add<S: Simd, A: Activation>(pool: &Pool, desc: &AddDesc, args: &AddArgs) {
    let columns = desc.columns as usize;
    pool.run(args.tokens as usize, |_, token| {
        // SAFETY: by the caller; each token has its own row.
        unsafe {
            let x = Ptr::<A>::new(args.x).slice(token * columns, columns);
            let residual = Ptr::<A>::new(args.residual).slice_mut(token * columns, columns);
            S::enter(Run(|| {
                for (residual, x) in residual.iter_mut().zip(x) {
                    *residual = A::from_f32(residual.to_f32() + x.to_f32());
                }
            }));
        }
    });
}
