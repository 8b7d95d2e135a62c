//! AVX2 with FMA: eight lanes.

use super::{F32_TABLES, Simd, Task};
use std::arch::x86_64::*;

/// Eight lanes in a ymm register.
#[derive(Clone, Copy)]
pub struct Avx2;

#[target_feature(enable = "avx2,fma")]
unsafe fn with_features<T: Task>(task: T) {
    // SAFETY: by the caller.
    unsafe { task.run() }
}

// SAFETY: functions need AVX2 and FMA, which the caller vouches for.
unsafe impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    const TOKENS: usize = 3;

    #[inline(always)]
    unsafe fn enter<T: Task>(task: T) {
        // SAFETY: by the caller.
        unsafe { with_features(task) }
    }

    #[inline(always)]
    unsafe fn zero() -> __m256 {
        // SAFETY: by the caller.
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        // SAFETY: by the caller.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256 {
        // SAFETY: by the caller.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: __m256) {
        // SAFETY: by the caller.
        unsafe { _mm256_storeu_ps(to, value) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: by the caller.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: by the caller.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sum(v: __m256) -> f32 {
        // SAFETY: by the caller.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    unsafe fn bf16(from: *const u16) -> [__m256; 2] {
        // SAFETY: by the caller.
        unsafe {
            let pairs = _mm256_loadu_si256(from.cast());
            let odd = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000u32 as i32));
            [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)), _mm256_castsi256_ps(odd)]
        }
    }

    #[inline(always)]
    unsafe fn mxfp4(codes: *const u8, scale: u8) -> [__m256; 2] {
        // A permute indexes eight entries by three bits: the magnitudes. The code's fourth bit becomes the sign.
        // SAFETY: by the caller; a table row has sixteen entries.
        unsafe {
            let magnitudes = _mm256_load_ps(F32_TABLES.0[usize::from(scale)].as_ptr());
            let low = _mm256_cvtepu8_epi32(_mm_loadl_epi64(codes.cast()));
            let high = _mm256_srli_epi32::<4>(low);
            let sign = _mm256_set1_epi32(i32::MIN);
            let expand = |index: __m256i| {
                let signs = _mm256_and_si256(_mm256_slli_epi32::<28>(index), sign);
                _mm256_xor_ps(_mm256_permutevar8x32_ps(magnitudes, index), _mm256_castsi256_ps(signs))
            };
            [expand(low), expand(high)]
        }
    }
}
