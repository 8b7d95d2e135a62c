//! Plain Rust: eight lanes that any compiler can map to what the machine has.

use super::{F32_TABLES, Simd, Task};
use crate::math::from_bf16;

/// Eight lanes in an array.
#[derive(Clone, Copy)]
pub struct Scalar;

/// Lanes.
const N: usize = 8;

// SAFETY: needs no instruction set.
unsafe impl Simd for Scalar {
    type V = [f32; N];
    const LANES: usize = N;
    const TOKENS: usize = 2;

    #[inline(always)]
    unsafe fn enter<T: Task>(task: T) {
        // SAFETY: by the caller.
        unsafe { task.run() }
    }

    #[inline(always)]
    unsafe fn zero() -> [f32; N] {
        [0.0; N]
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> [f32; N] {
        [value; N]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> [f32; N] {
        // SAFETY: by the caller.
        unsafe { from.cast::<[f32; N]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: [f32; N]) {
        // SAFETY: by the caller.
        unsafe { to.cast::<[f32; N]>().write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn fma(a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N] {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    unsafe fn mul(a: [f32; N], b: [f32; N]) -> [f32; N] {
        std::array::from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    unsafe fn sum(v: [f32; N]) -> f32 {
        let four: [f32; 4] = std::array::from_fn(|i| v[i] + v[i + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }

    #[inline(always)]
    unsafe fn bf16(from: *const u16) -> [[f32; N]; 2] {
        // SAFETY: by the caller.
        let bits = unsafe { from.cast::<[u16; 2 * N]>().read_unaligned() };
        [std::array::from_fn(|i| from_bf16(bits[2 * i])), std::array::from_fn(|i| from_bf16(bits[2 * i + 1]))]
    }

    #[inline(always)]
    unsafe fn mxfp4(codes: *const u8, scale: u8) -> [[f32; N]; 2] {
        // SAFETY: by the caller.
        let codes = unsafe { codes.cast::<[u8; N]>().read_unaligned() };
        let table = &F32_TABLES.0[usize::from(scale)];
        [
            std::array::from_fn(|i| table[usize::from(codes[i] & 15)]),
            std::array::from_fn(|i| table[usize::from(codes[i] >> 4)]),
        ]
    }
}
