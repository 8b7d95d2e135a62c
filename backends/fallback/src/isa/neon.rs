//! NEON: four lanes.

use super::{F32_TABLES, Simd, Task};
use std::arch::aarch64::*;

/// Four lanes in a vector register. NEON is part of the aarch64 base, so nothing is to be switched on.
#[derive(Clone, Copy)]
pub struct Neon;

// SAFETY: every aarch64 machine has NEON.
unsafe impl Simd for Neon {
    type V = float32x4_t;
    const LANES: usize = 4;
    const TOKENS: usize = 6;

    #[inline(always)]
    unsafe fn enter<T: Task>(task: T) {
        // SAFETY: by the caller.
        unsafe { task.run() }
    }

    #[inline(always)]
    unsafe fn zero() -> float32x4_t {
        // SAFETY: NEON is there.
        unsafe { vdupq_n_f32(0.0) }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> float32x4_t {
        // SAFETY: NEON is there.
        unsafe { vdupq_n_f32(value) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> float32x4_t {
        // SAFETY: by the caller.
        unsafe { vld1q_f32(from) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: float32x4_t) {
        // SAFETY: by the caller.
        unsafe { vst1q_f32(to, value) }
    }

    #[inline(always)]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: NEON is there.
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: NEON is there.
        unsafe { vmulq_f32(a, b) }
    }

    #[inline(always)]
    unsafe fn sum(v: float32x4_t) -> f32 {
        // SAFETY: NEON is there.
        unsafe {
            let two = vadd_f32(vget_low_f32(v), vget_high_f32(v));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }

    #[inline(always)]
    unsafe fn bf16(from: *const u16) -> [float32x4_t; 2] {
        // SAFETY: by the caller.
        unsafe {
            let pairs = vreinterpretq_u32_u16(vld1q_u16(from));
            let odd = vandq_u32(pairs, vdupq_n_u32(0xffff_0000));
            [vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs)), vreinterpretq_f32_u32(odd)]
        }
    }

    #[inline(always)]
    unsafe fn mxfp4(codes: *const u8, scale: u8) -> [float32x4_t; 2] {
        // SAFETY: by the caller.
        let codes = unsafe { codes.cast::<[u8; 4]>().read_unaligned() };
        let table = &F32_TABLES.0[usize::from(scale)];
        let low = codes.map(|code| table[usize::from(code & 15)]);
        let high = codes.map(|code| table[usize::from(code >> 4)]);
        // SAFETY: the arrays have four elements.
        unsafe { [vld1q_f32(low.as_ptr()), vld1q_f32(high.as_ptr())] }
    }
}
