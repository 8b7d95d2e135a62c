//! AMX: products of bfloat16 tiles, summed in float32 (`TDPBF16PS`).
//!
//! Weights are the rows of the first operand (16 rows of 32 bfloat16, as the checkpoint or a panel stores them), tokens the
//! columns of the second (16 pairs of `k` by up to 16 tokens). An element of the result is a function of its own row and
//! column, whatever the shape of the tile, so one token and thirty-two add alike.
//!
//! Float32 activations take three columns each: the value rounded to bfloat16, the rest rounded, and what is left, which
//! together hold all 24 bits. Weights are exact in bfloat16, so the three sums add up to what float32 products give.

use super::avx512bf16::Dot;
use super::{Core, Order, Task};
use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, __m512, __m512i, _xgetbv};
use std::sync::OnceLock;

/// The AMX core for bfloat16 activations.
#[derive(Clone, Copy)]
pub struct Amx;

/// The AMX core for float32 activations, in three parts. Only tiles multiply: `load` and `mac` are for weights' sake.
#[derive(Clone, Copy)]
pub struct AmxSplit;

/// Whether the machine has AMX-BF16 and the system lets this process use it.
pub fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        const TILE_AND_BF16: u32 = 1 << 24 | 1 << 22;
        const XSAVE: u32 = 1 << 27;
        const TILE_STATE: u64 = 1 << 17 | 1 << 18;
        if __cpuid_count(7, 0).edx & TILE_AND_BF16 != TILE_AND_BF16 || __cpuid_count(1, 0).ecx & XSAVE == 0 {
            return false;
        }
        // SAFETY: XSAVE is enabled by the system.
        if unsafe { enabled_state() } & TILE_STATE != TILE_STATE {
            return false;
        }
        ask_for_tiles()
    })
}

#[target_feature(enable = "xsave")]
unsafe fn enabled_state() -> u64 {
    // SAFETY: by the caller; register 0 exists.
    unsafe { _xgetbv(0) }
}

/// Tile state is large, so Linux gives it only to processes that ask, once for all their threads.
#[cfg(target_os = "linux")]
fn ask_for_tiles() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn ask_for_tiles() -> bool {
    false
}

/// Rows of a tile: of weights, or of pairs of `k`.
pub const ROWS: usize = 16;
/// Bytes of a row of weights in a tile: 32 bfloat16.
pub const ROW_BYTES: usize = 64;

/// Memory form of the tile configuration (Intel SDM, palette 1).
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Shapes the tiles: results 0 and 1 are 16 rows by `first` tokens, results 2 and 3 by `second`; 4 and 5 hold weights, 6
/// and 7 tokens. All tiles become zero.
///
/// # Safety
/// AMX is available; `first` is 1 to 16, `second` 0 to 16.
#[inline(always)]
pub unsafe fn configure(first: usize, second: usize) {
    // A tile of no columns is not allowed; it is then not used.
    let (first, second) = (4 * first as u16, 4 * second.max(1) as u16);
    let mut config =
        Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    config.row_bytes[..8].copy_from_slice(&[first, first, second, second, 64, 64, first, second]);
    config.rows[..8].fill(ROWS as u8);
    // SAFETY: by the caller; the configuration is valid.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly)) };
}

/// Makes the results zero.
///
/// # Safety
/// Tiles are configured.
#[inline(always)]
pub unsafe fn clear() {
    // SAFETY: by the caller.
    unsafe {
        asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
    }
}

/// Products of two pairs of tiles, `steps` times four, for measuring the roof. An element of a product has 32 multiply-adds.
///
/// # Safety
/// AMX is available.
pub unsafe fn products(steps: usize) {
    // SAFETY: by the caller; a configuration makes tiles zero, so operands and results are.
    unsafe {
        configure(ROWS, ROWS);
        for _ in 0..steps {
            asm!(
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm5, tmm6",
                "tdpbf16ps tmm2, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                options(nostack, nomem)
            );
        }
        release();
    }
}

/// Gives the tiles back, so that the processor may sleep and switches are cheap.
///
/// # Safety
/// AMX is available.
#[inline(always)]
pub unsafe fn release() {
    // SAFETY: by the caller.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// Where the operands of a run of steps lie; a step is 32 of `k`.
#[derive(Clone, Copy)]
pub struct Operands {
    /// First row of weights.
    pub weights: *const u8,
    /// Bytes between rows of weights.
    pub row_stride: usize,
    /// Bytes from the first tile of rows to the second.
    pub tile_stride: usize,
    /// Bytes from one step to the next.
    pub step_stride: usize,
    /// Tokens of the two blocks, `[pair of k][token]`.
    pub tokens: [*const u8; 2],
    /// Bytes of a pair of `k` in each block.
    pub token_strides: [usize; 2],
}

/// Adds `steps` steps to the results; `DOUBLE`: for two blocks of tokens.
///
/// # Safety
/// Tiles are configured for the blocks; the operands are valid for these steps.
#[inline(always)]
pub unsafe fn multiply<const DOUBLE: bool>(operands: &Operands, steps: usize) {
    let Operands { mut weights, row_stride, tile_stride, step_stride, tokens, token_strides } = *operands;
    let [mut first, mut second] = tokens;
    for _ in 0..steps {
        let lower = weights.wrapping_add(tile_stride);
        // SAFETY: by the caller.
        unsafe {
            asm!(
                "tileloadd tmm4, [{weights} + {row_stride}]",
                "tileloadd tmm6, [{first} + {first_stride}]",
                "tileloadd tmm5, [{lower} + {row_stride}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm5, tmm6",
                weights = in(reg) weights,
                lower = in(reg) lower,
                row_stride = in(reg) row_stride,
                first = in(reg) first,
                first_stride = in(reg) token_strides[0],
                options(nostack, readonly)
            );
            if DOUBLE {
                asm!(
                    "tileloadd tmm7, [{second} + {second_stride}]",
                    "tdpbf16ps tmm2, tmm4, tmm7",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    second = in(reg) second,
                    second_stride = in(reg) token_strides[1],
                    options(nostack, readonly)
                );
            }
        }
        weights = weights.wrapping_add(step_stride);
        first = first.wrapping_add(ROWS * token_strides[0]);
        second = second.wrapping_add(ROWS * token_strides[1]);
    }
}

/// Stores result tiles as `[32 rows][16 tokens]` float32; `second`: those of the second block.
///
/// # Safety
/// Tiles are configured; `to` has room for 512 elements.
#[inline(always)]
pub unsafe fn store(to: *mut f32, second: bool) {
    let lower = to.wrapping_add(ROWS * 16);
    // SAFETY: by the caller.
    unsafe {
        if second {
            asm!(
                "tilestored [{to} + {stride}], tmm2",
                "tilestored [{lower} + {stride}], tmm3",
                to = in(reg) to, lower = in(reg) lower, stride = in(reg) 64usize,
                options(nostack)
            );
        } else {
            asm!(
                "tilestored [{to} + {stride}], tmm0",
                "tilestored [{lower} + {stride}], tmm1",
                to = in(reg) to, lower = in(reg) lower, stride = in(reg) 64usize,
                options(nostack)
            );
        }
    }
}

/// Cores that run products on tiles, and take everything else from [`Dot`].
macro_rules! tile_core {
    ($core:ty, $elem:ty, $parts:literal) => {
        // SAFETY: functions need AVX-512 with BF16 and AMX, which the caller vouches for.
        unsafe impl Core for $core {
            type Elem = $elem;
            type Operand = __m512i;
            type Acc = __m512;
            type Vectors = <Dot as Core>::Vectors;
            const OPERAND: usize = Dot::OPERAND;
            const TOKENS: usize = Dot::TOKENS;
            const DENSE_ORDER: Order = Dot::DENSE_ORDER;
            const MXFP4_ORDER: Order = Dot::MXFP4_ORDER;
            const TILES: bool = true;
            const PARTS: usize = $parts;

            #[inline(always)]
            unsafe fn enter<T: Task>(task: T) {
                // SAFETY: by the caller.
                unsafe { Dot::enter(task) }
            }

            #[inline(always)]
            unsafe fn zero() -> __m512 {
                // SAFETY: by the caller.
                unsafe { Dot::zero() }
            }

            #[inline(always)]
            unsafe fn load(from: *const $elem) -> __m512i {
                // SAFETY: by the caller.
                unsafe { Dot::load(from.cast()) }
            }

            #[inline(always)]
            unsafe fn store(to: *mut $elem, value: __m512i) {
                // SAFETY: by the caller.
                unsafe { Dot::store(to.cast(), value) }
            }

            #[inline(always)]
            unsafe fn mac(acc: __m512, w: __m512i, x: __m512i) -> __m512 {
                // SAFETY: by the caller.
                unsafe { Dot::mac(acc, w, x) }
            }

            #[inline(always)]
            unsafe fn sum(acc: __m512) -> f32 {
                // SAFETY: by the caller.
                unsafe { Dot::sum(acc) }
            }

            #[inline(always)]
            unsafe fn bf16(from: *const u16) -> [__m512i; 2] {
                // SAFETY: by the caller.
                unsafe { Dot::bf16(from) }
            }

            #[inline(always)]
            unsafe fn mxfp4(codes: *const u8, scales: *const u8) -> [__m512i; 2] {
                // SAFETY: by the caller.
                unsafe { Dot::mxfp4(codes, scales) }
            }
        }
    };
}

tile_core!(Amx, u16, 1);
tile_core!(AmxSplit, f32, 3);
