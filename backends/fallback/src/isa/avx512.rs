//! AVX-512: sixteen lanes.

#![allow(clippy::needless_range_loop)] // constants by index, so that arrays of vectors stay in registers

use super::{F32_TABLES, Simd, Task};
use std::arch::x86_64::*;

/// Sixteen lanes in a zmm register.
#[derive(Clone, Copy)]
pub struct Avx512;

#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn with_features<T: Task>(task: T) {
    // SAFETY: by the caller.
    unsafe { task.run() }
}

// SAFETY: functions need AVX-512, which the caller vouches for.
unsafe impl Simd for Avx512 {
    type V = __m512;
    const LANES: usize = 16;
    const TOKENS: usize = 6;

    #[inline(always)]
    unsafe fn enter<T: Task>(task: T) {
        // SAFETY: by the caller.
        unsafe { with_features(task) }
    }

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        // SAFETY: by the caller.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        // SAFETY: by the caller.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: by the caller.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: __m512) {
        // SAFETY: by the caller.
        unsafe { _mm512_storeu_ps(to, value) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: by the caller.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: by the caller.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sum(v: __m512) -> f32 {
        // SAFETY: by the caller.
        unsafe {
            let eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: by the caller.
        unsafe { transpose16(from.cast(), from_stride, to.cast(), to_stride) }
    }

    #[inline(always)]
    unsafe fn bf16(from: *const u16) -> [__m512; 2] {
        // SAFETY: by the caller.
        unsafe {
            let pairs = _mm512_loadu_si512(from.cast());
            let odd = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000u32 as i32));
            [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(odd)]
        }
    }

    #[inline(always)]
    unsafe fn mxfp4(codes: *const u8, scale: u8) -> [__m512; 2] {
        // The permute looks at four bits of an index, so the high nibble needs no mask in the first one.
        // SAFETY: by the caller; a table row has sixteen entries.
        unsafe {
            let table = _mm512_load_ps(F32_TABLES.0[usize::from(scale)].as_ptr());
            let low = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes.cast()));
            [_mm512_permutexvar_ps(low, table), _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(low), table)]
        }
    }
}

/// Transposes sixteen rows of sixteen 32-bit elements; strides in elements.
///
/// # Safety
/// Under [`Simd::enter`]; both squares are valid and do not overlap.
#[inline(always)]
pub unsafe fn transpose16(from: *const u32, from_stride: usize, to: *mut u32, to_stride: usize) {
    // SAFETY: by the caller.
    unsafe {
        let mut a = [_mm512_setzero_si512(); 16];
        for i in 0..16 {
            a[i] = _mm512_loadu_si512(from.add(i * from_stride).cast());
        }
        // Pairs of rows, then pairs of pairs, within 128-bit lanes; then lanes.
        let mut b = a;
        for i in 0..8 {
            b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
            b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
        }
        for i in 0..4 {
            a[4 * i] = _mm512_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
            a[4 * i + 1] = _mm512_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
            a[4 * i + 2] = _mm512_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
            a[4 * i + 3] = _mm512_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
        }
        // a[4 * i + j] holds columns j, j + 4, j + 8, j + 12 of rows 4 * i..4 * i + 4.
        for j in 0..4 {
            let low = _mm512_shuffle_i32x4::<0x88>(a[j], a[4 + j]);
            let high = _mm512_shuffle_i32x4::<0xdd>(a[j], a[4 + j]);
            let low2 = _mm512_shuffle_i32x4::<0x88>(a[8 + j], a[12 + j]);
            let high2 = _mm512_shuffle_i32x4::<0xdd>(a[8 + j], a[12 + j]);
            b[j] = _mm512_shuffle_i32x4::<0x88>(low, low2);
            b[8 + j] = _mm512_shuffle_i32x4::<0xdd>(low, low2);
            b[4 + j] = _mm512_shuffle_i32x4::<0x88>(high, high2);
            b[12 + j] = _mm512_shuffle_i32x4::<0xdd>(high, high2);
        }
        for i in 0..16 {
            _mm512_storeu_si512(to.add(i * to_stride).cast(), b[i]);
        }
    }
}
