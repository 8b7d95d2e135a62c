//! Instruction sets: which ones this machine has, and two traits that kernels are written against.
//!
//! [`Simd`] is a vector of float32 lanes with decoders for weights. [`Core`] is what a product needs: operands, an
//! accumulator, and weights decoded to operands. [`Single`] makes a float32 core of any [`Simd`]; instruction sets with
//! bfloat16 products have cores of their own.
//!
//! A kernel is a [`Task`]; `enter` runs it inside a function that has the instruction set's target features. Everything
//! below must be inlined into that function, hence the many `#[inline(always)]`.

#[cfg(target_arch = "x86_64")]
pub mod amx;
#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
#[cfg(target_arch = "x86_64")]
pub mod avx512bf16;
#[cfg(target_arch = "aarch64")]
pub mod neon;
pub mod scalar;
mod single;
mod tables;

pub use single::Single;
pub use tables::{BF16_TABLES, F32_TABLES};

use gossamer_backend_api::BackendError;
use std::fmt;

/// Environment variable that overrides the choice, for tests and comparisons.
pub const ISA_VARIABLE: &str = "GOSSAMER_CPU_ISA";

/// An instruction set that kernels exist for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust; always there.
    Scalar,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// The same with BF16, which multiplies bfloat16 activations, and VBMI.
    Avx512Bf16,
    /// The same with AMX tiles, which multiply bfloat16 activations as they are and float32 ones in three parts.
    Amx,
    /// NEON.
    Neon,
}

impl Isa {
    /// Every instruction set; the last one that a machine has is its default.
    pub const ALL: &'static [Isa] =
        &[Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx];

    /// Name in [`ISA_VARIABLE`].
    pub fn label(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Amx => "amx",
            Isa::Neon => "neon",
        }
    }

    /// Whether this machine has it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            Isa::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => {
                Isa::Avx512.is_available()
                    && is_x86_feature_detected!("avx512bf16")
                    && is_x86_feature_detected!("avx512vbmi")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Isa::Avx512Bf16.is_available() && amx::is_available(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Those that this machine has, its default last.
    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.iter().copied().filter(|isa| isa.is_available())
    }

    /// The default one, or what [`ISA_VARIABLE`] asks for.
    pub fn choose() -> Result<Isa, BackendError> {
        let best = Isa::available().last().unwrap_or(Isa::Scalar);
        let Ok(wanted) = std::env::var(ISA_VARIABLE) else { return Ok(best) };
        let known = || Isa::available().map(Isa::label).collect::<Vec<_>>().join(", ");
        Isa::available().find(|isa| isa.label() == wanted).ok_or_else(|| {
            let message = format!("expected {ISA_VARIABLE} to be one of {}, got {wanted:?}", known());
            BackendError::failed("open", message)
        })
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// Work that runs under an instruction set's target features.
pub trait Task {
    /// Does the work. Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// The machine has the instruction set that the task was built for; the task's own pointers are valid.
    unsafe fn run(self);
}

/// Vectors of float32 lanes.
///
/// # Safety
/// All functions may only be called where the instruction set is available, and under [`Simd::enter`]; pointers must
/// be valid for the elements that the function names. They need no alignment.
pub unsafe trait Simd: Copy + Send + Sync + 'static {
    /// A vector.
    type V: Copy;
    /// Lanes of a vector.
    const LANES: usize;
    /// Most tokens of a register tile beside four rows of weights.
    const TOKENS: usize;

    /// Runs `task` with the target features on.
    ///
    /// # Safety
    /// As the trait.
    unsafe fn enter<T: Task>(task: T);
    /// Zeros.
    ///
    /// # Safety
    /// As the trait.
    unsafe fn zero() -> Self::V;
    /// `value` in every lane.
    ///
    /// # Safety
    /// As the trait.
    unsafe fn splat(value: f32) -> Self::V;
    /// `LANES` elements.
    ///
    /// # Safety
    /// As the trait.
    unsafe fn load(from: *const f32) -> Self::V;
    /// `LANES` elements.
    ///
    /// # Safety
    /// As the trait.
    unsafe fn store(to: *mut f32, value: Self::V);
    /// `a * b + c`; fused where the instruction set has it.
    ///
    /// # Safety
    /// As the trait.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Product.
    ///
    /// # Safety
    /// As the trait.
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// Sum over the lanes as a tree of halves.
    ///
    /// # Safety
    /// As the trait.
    unsafe fn sum(value: Self::V) -> f32;
    /// Transposes a square of `LANES` rows of `LANES` elements; strides in elements.
    ///
    /// # Safety
    /// As the trait; the squares do not overlap.
    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        for i in 0..Self::LANES {
            for j in 0..Self::LANES {
                // SAFETY: by the caller.
                unsafe { *to.add(j * to_stride + i) = *from.add(i * from_stride + j) };
            }
        }
    }
    /// `2 * LANES` bfloat16: the even ones, the odd ones.
    ///
    /// # Safety
    /// As the trait.
    unsafe fn bf16(from: *const u16) -> [Self::V; 2];
    /// `LANES` bytes of E2M1 codes that share one E8M0 scale: the low nibbles, the high ones, times the scale.
    ///
    /// # Safety
    /// As the trait.
    unsafe fn mxfp4(codes: *const u8, scale: u8) -> [Self::V; 2];
}

/// Asks for a cache line early, into the second cache: what is asked for is too much for the first. Never faults.
#[inline(always)]
pub fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is harmless; SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// How a group of `k` elements lies in a prepared row or panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As stored.
    Natural,
    /// The even elements of the group, then the odd ones.
    Split,
}

impl Order {
    /// Where element `i` of a row lies.
    #[inline(always)]
    pub fn position(self, i: usize, group: usize) -> usize {
        match self {
            Order::Natural => i,
            Order::Split => {
                let (base, inside) = (i / group * group, i % group);
                base + (inside & 1) * (group / 2) + inside / 2
            }
        }
    }
}

/// What a product needs of an instruction set. A group is two operands.
///
/// # Safety
/// As [`Simd`].
pub unsafe trait Core: Copy + Send + Sync + 'static {
    /// Element of a prepared row of activations, and of a panel.
    type Elem: crate::math::Activation + Default;
    /// Elements in registers.
    type Operand: Copy;
    /// Running sums.
    type Acc: Copy;
    /// The float32 vectors beside this core.
    type Vectors: Simd;
    /// Elements of an operand.
    const OPERAND: usize;
    /// Elements of a group.
    const GROUP: usize = 2 * Self::OPERAND;
    /// Most tokens of a register tile beside four rows of weights.
    const TOKENS: usize;
    /// Order of groups of bfloat16 weights.
    const DENSE_ORDER: Order;
    /// Order of groups of MXFP4 weights.
    const MXFP4_ORDER: Order;
    /// Whether products run on AMX tiles, from packed tokens, instead of on operands.
    const TILES: bool = false;
    /// Columns of a tile that a token takes.
    const PARTS: usize = 1;

    /// Runs `task` with the target features on.
    ///
    /// # Safety
    /// As the trait.
    unsafe fn enter<T: Task>(task: T);
    /// Zeros.
    ///
    /// # Safety
    /// As the trait.
    unsafe fn zero() -> Self::Acc;
    /// `OPERAND` elements.
    ///
    /// # Safety
    /// As the trait.
    unsafe fn load(from: *const Self::Elem) -> Self::Operand;
    /// `OPERAND` elements.
    ///
    /// # Safety
    /// As the trait.
    unsafe fn store(to: *mut Self::Elem, value: Self::Operand);
    /// `acc + w * x`.
    ///
    /// # Safety
    /// As the trait.
    unsafe fn mac(acc: Self::Acc, w: Self::Operand, x: Self::Operand) -> Self::Acc;
    /// Sum over the lanes.
    ///
    /// # Safety
    /// As the trait.
    unsafe fn sum(acc: Self::Acc) -> f32;
    /// One group of bfloat16 weights in `DENSE_ORDER`.
    ///
    /// # Safety
    /// As the trait.
    unsafe fn bf16(from: *const u16) -> [Self::Operand; 2];
    /// One group of MXFP4 weights in `MXFP4_ORDER`; `scales` points to the scale of its first block.
    ///
    /// # Safety
    /// As the trait.
    unsafe fn mxfp4(codes: *const u8, scales: *const u8) -> [Self::Operand; 2];
}
