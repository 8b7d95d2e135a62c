//! Where rows of weights come from: bfloat16 or MXFP4 as the checkpoint stores them.

use crate::isa::{Core, prefetch};
use crate::memory::Ptr;

/// Rows that decode to groups of operands.
pub trait Weights<C: Core>: Copy {
    /// `k`.
    fn columns(self) -> usize;
    /// A full group of a row.
    ///
    /// # Safety
    /// Under `C::enter`; row and group exist.
    unsafe fn group(self, row: usize, group: usize) -> [C::Operand; 2];
    /// The last, partial group of a row, padded with zeros.
    ///
    /// # Safety
    /// As [`Weights::group`].
    unsafe fn tail(self, row: usize, group: usize) -> [C::Operand; 2];
    /// Asks early for the bytes of a group; the row need not exist.
    fn prefetch(self, row: usize, group: usize);
}

/// `[rows, k]` bfloat16.
#[derive(Clone, Copy)]
pub struct Bf16Rows {
    /// The first row.
    pub data: Ptr<u16>,
    /// Columns.
    pub k: usize,
}

/// Most elements of a group, over all cores.
const MAX_GROUP: usize = 64;

impl<C: Core> Weights<C> for Bf16Rows {
    #[inline(always)]
    fn columns(self) -> usize {
        self.k
    }

    #[inline(always)]
    unsafe fn group(self, row: usize, group: usize) -> [C::Operand; 2] {
        // SAFETY: by the caller.
        unsafe { C::bf16(self.data.at(row * self.k + group * C::GROUP)) }
    }

    #[inline(always)]
    unsafe fn tail(self, row: usize, group: usize) -> [C::Operand; 2] {
        let mut padded = [0u16; MAX_GROUP];
        let first = group * C::GROUP;
        // SAFETY: by the caller; the rest of the row is shorter than a group.
        unsafe {
            let rest = self.data.slice(row * self.k + first, self.k - first);
            padded[..rest.len()].copy_from_slice(rest);
            C::bf16(padded.as_ptr())
        }
    }

    #[inline(always)]
    fn prefetch(self, row: usize, group: usize) {
        prefetch(self.data.at(row * self.k + group * C::GROUP).cast());
    }
}

/// `[rows, k / 32, 16]` codes and `[rows, k / 32]` scales.
#[derive(Clone, Copy)]
pub struct Mxfp4Rows {
    /// Codes of the first row.
    pub codes: Ptr<u8>,
    /// Scales of the first row.
    pub scales: Ptr<u8>,
    /// Columns, a multiple of 32.
    pub k: usize,
}

impl<C: Core> Weights<C> for Mxfp4Rows {
    #[inline(always)]
    fn columns(self) -> usize {
        self.k
    }

    #[inline(always)]
    unsafe fn group(self, row: usize, group: usize) -> [C::Operand; 2] {
        let first = row * self.k + group * C::GROUP;
        // SAFETY: by the caller.
        unsafe { C::mxfp4(self.codes.at(first / 2), self.scales.at(first / 32)) }
    }

    #[inline(always)]
    unsafe fn tail(self, row: usize, group: usize) -> [C::Operand; 2] {
        // Code 0 is zero at any finite scale.
        let (mut codes, mut scales) = ([0u8; MAX_GROUP / 2], [127u8; MAX_GROUP / 32]);
        let first = row * self.k + group * C::GROUP;
        let rest = self.k - group * C::GROUP;
        // SAFETY: by the caller; the rest of the row is shorter than a group and a multiple of 32.
        unsafe {
            codes[..rest / 2].copy_from_slice(self.codes.slice(first / 2, rest / 2));
            scales[..rest / 32].copy_from_slice(self.scales.slice(first / 32, rest / 32));
            C::mxfp4(codes.as_ptr(), scales.as_ptr())
        }
    }

    #[inline(always)]
    fn prefetch(self, row: usize, group: usize) {
        prefetch(self.codes.at((row * self.k + group * C::GROUP) / 2));
    }
}
