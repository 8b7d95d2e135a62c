//! AVX-512 BF16: products of bfloat16 pairs, summed in float32 (`VDPBF16PS`). Codes are decoded by permutes of bytes (VBMI):
//! one of words takes two passes through the only port that permutes.

use super::avx512::Avx512;
use super::{BF16_TABLES, Core, Order, Simd, Task};
use std::arch::x86_64::*;

/// The bfloat16 core.
#[derive(Clone, Copy)]
pub struct Dot;

#[repr(align(64))]
struct Line([u8; 64]);

/// Each of 32 bytes twice.
static DOUBLE: Line = Line({
    let mut bytes = [0; 64];
    let mut at = 0;
    while at < 64 {
        bytes[at] = at as u8 / 2;
        at += 1;
    }
    bytes
});

/// What place in the tables an index gets beside its code: bit 4 for upper bytes, bit 5 for the second block.
static PLACE: Line = Line({
    let mut bytes = [0; 64];
    let mut at = 0;
    while at < 64 {
        bytes[at] = 16 * (at as u8 % 2) + 32 * (at as u8 / 32);
        at += 1;
    }
    bytes
});

#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
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
        // Two rows of tables side by side are 64 bytes: bit 4 of an index picks the upper byte of a value, bit 5 the block.
        // Every byte of codes is doubled, so that both bytes of a value have an index.
        // SAFETY: by the caller; a table row has 32 bytes, and a group has two scales.
        unsafe {
            let row = |block: usize| BF16_TABLES.0[usize::from(*scales.add(block))].as_ptr();
            let first = _mm512_castsi256_si512(_mm256_load_si256(row(0).cast()));
            let table = _mm512_inserti64x4::<1>(first, _mm256_load_si256(row(1).cast()));
            let codes = _mm512_zextsi256_si512(_mm256_loadu_si256(codes.cast()));
            let doubled = _mm512_permutexvar_epi8(_mm512_load_si512(DOUBLE.0.as_ptr().cast()), codes);
            let place = _mm512_load_si512(PLACE.0.as_ptr().cast());
            let nibble = _mm512_set1_epi8(15);
            // (index & 15) | place
            let high = _mm512_ternarylogic_epi32::<0xea>(_mm512_srli_epi16::<4>(doubled), nibble, place);
            let low = _mm512_ternarylogic_epi32::<0xea>(doubled, nibble, place);
            [_mm512_permutexvar_epi8(low, table), _mm512_permutexvar_epi8(high, table)]
        }
    }
}
