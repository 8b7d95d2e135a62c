//! A float32 core of any vector type: operands and accumulators are vectors.

use super::{Core, Order, Simd, Task};
use std::marker::PhantomData;

/// The float32 core of `S`.
#[derive(Clone, Copy)]
pub struct Single<S>(PhantomData<S>);

// SAFETY: hands on the contract of `Simd`.
unsafe impl<S: Simd> Core for Single<S> {
    type Elem = f32;
    type Operand = S::V;
    type Acc = S::V;
    type Vectors = S;
    const OPERAND: usize = S::LANES;
    const TOKENS: usize = S::TOKENS;
    const DENSE_ORDER: Order = Order::Split;
    const MXFP4_ORDER: Order = Order::Split;

    #[inline(always)]
    unsafe fn enter<T: Task>(task: T) {
        // SAFETY: by the caller.
        unsafe { S::enter(task) }
    }

    #[inline(always)]
    unsafe fn zero() -> S::V {
        // SAFETY: by the caller.
        unsafe { S::zero() }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> S::V {
        // SAFETY: by the caller.
        unsafe { S::load(from) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: S::V) {
        // SAFETY: by the caller.
        unsafe { S::store(to, value) }
    }

    #[inline(always)]
    unsafe fn mac(acc: S::V, w: S::V, x: S::V) -> S::V {
        // SAFETY: by the caller.
        unsafe { S::fma(w, x, acc) }
    }

    #[inline(always)]
    unsafe fn sum(acc: S::V) -> f32 {
        // SAFETY: by the caller.
        unsafe { S::sum(acc) }
    }

    #[inline(always)]
    unsafe fn bf16(from: *const u16) -> [S::V; 2] {
        // SAFETY: by the caller.
        unsafe { S::bf16(from) }
    }

    #[inline(always)]
    unsafe fn mxfp4(codes: *const u8, scales: *const u8) -> [S::V; 2] {
        // SAFETY: by the caller; a group is within one block of 32, whose scale this is.
        unsafe { S::mxfp4(codes, *scales) }
    }
}
