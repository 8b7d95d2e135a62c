//! AVX-512 BF16: products of bfloat16 pairs, summed in float32 (`VDPBF16PS`).

use super::avx512::Avx512;
use super::{BF16_TABLES, Core, Order, Simd, Task};
use std::arch::x86_64::*;

/// The bfloat16 core.
#[derive(Clone, Copy)]
pub struct Dot;

#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn with_features<T: Task>(task: T) {
    // SAFETY: by the caller.
    unsafe { task.run() }
}

// SAFETY: functions need AVX-512 with BF16, which the caller vouches for.
unsafe impl Core for Dot {
    type Elem = u16;
    type Operand = __m512i;
    type Acc = __m512;
    type Vectors = Avx512;
    const OPERAND: usize = 32;
    const TOKENS: usize = 6;
    const DENSE_ORDER: Order = Order::Natural;
    const MXFP4_ORDER: Order = Order::Split;

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
    unsafe fn load(from: *const u16) -> __m512i {
        // SAFETY: by the caller.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u16, value: __m512i) {
        // SAFETY: by the caller.
        unsafe { _mm512_storeu_si512(to.cast(), value) }
    }

    #[inline(always)]
    unsafe fn mac(acc: __m512, w: __m512i, x: __m512i) -> __m512 {
        // SAFETY: by the caller; the two types are the same bits.
        unsafe {
            _mm512_dpbf16_ps(
                acc,
                std::mem::transmute::<__m512i, __m512bh>(w),
                std::mem::transmute::<__m512i, __m512bh>(x),
            )
        }
    }

    #[inline(always)]
    unsafe fn sum(acc: __m512) -> f32 {
        // SAFETY: by the caller.
        unsafe { Avx512::sum(acc) }
    }

    #[inline(always)]
    unsafe fn bf16(from: *const u16) -> [__m512i; 2] {
        // SAFETY: by the caller.
        unsafe { [Self::load(from), Self::load(from.add(32))] }
    }

    #[inline(always)]
    unsafe fn mxfp4(codes: *const u8, scales: *const u8) -> [__m512i; 2] {
        // The two blocks' tables are the halves of one 32-entry table: bit 4 of an index picks the block.
        // SAFETY: by the caller; a table row has sixteen entries, and a group has two scales.
        unsafe {
            let row = |block: usize| BF16_TABLES.0[usize::from(*scales.add(block))].as_ptr();
            let first = _mm512_castsi256_si512(_mm256_load_si256(row(0).cast()));
            let table = _mm512_inserti64x4::<1>(first, _mm256_load_si256(row(1).cast()));
            let words = _mm512_cvtepu8_epi16(_mm256_loadu_si256(codes.cast()));
            let second = _mm512_inserti64x4::<1>(_mm512_setzero_si512(), _mm256_set1_epi16(16));
            let nibble = _mm512_set1_epi16(15);
            // (a & 15) | second
            let low = _mm512_ternarylogic_epi32::<0xf8>(second, words, nibble);
            let high = _mm512_or_si512(_mm512_srli_epi16::<4>(words), second);
            [_mm512_permutexvar_epi16(low, table), _mm512_permutexvar_epi16(high, table)]
        }
    }
}
