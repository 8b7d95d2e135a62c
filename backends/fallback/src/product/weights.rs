//! Where rows of weights come from: bfloat16 or MXFP4 as the checkpoint stores them.

use crate::isa::{Core, prefetch};
use crate::memory::Ptr;

/// Rows that decode to groups of operands.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "some of it is for AMX tiles alone"))]
pub trait Weights<C: Core>: Copy {
    /// Where a row lies.
    type Row: Copy;
    /// Groups that share a cache line.
    const PER_LINE: usize;
    /// Whether rows are bfloat16 in natural order as they lie.
    const PLAIN: bool;
    /// `k`.
    fn columns(self) -> usize;
    /// A row; it need not exist.
    fn row(self, row: usize) -> Self::Row;
    /// The row so many rows below another.
    fn below(self, row: Self::Row, rows: usize) -> Self::Row;
    /// Address of a row.
    fn address(row: Self::Row) -> *const u8;
    /// A full group of a row.
    ///
    /// # Safety
    /// Under `C::enter`; row and group exist.
    unsafe fn group(row: Self::Row, group: usize) -> [C::Operand; 2];
    /// The last, partial group of a row, padded with zeros.
    ///
    /// # Safety
    /// As [`Weights::group`].
    unsafe fn tail(self, row: Self::Row, group: usize) -> [C::Operand; 2];
    /// Asks early for the bytes of a group; the row need not exist.
    fn prefetch(row: Self::Row, group: usize);
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
/// Bytes of a cache line.
const LINE: usize = 64;

/// At least one.
const fn per_line(group_bytes: usize) -> usize {
    if group_bytes >= LINE { 1 } else { LINE / group_bytes }
}

impl<C: Core> Weights<C> for Bf16Rows {
    type Row = *const u16;
    const PER_LINE: usize = per_line(2 * C::GROUP);
    const PLAIN: bool = true;

    #[inline(always)]
    fn columns(self) -> usize {
        self.k
    }

    #[inline(always)]
    fn row(self, row: usize) -> *const u16 {
        self.data.at(row * self.k)
    }

    #[inline(always)]
    fn below(self, row: *const u16, rows: usize) -> *const u16 {
        row.wrapping_add(rows * self.k)
    }

    #[inline(always)]
    fn address(row: *const u16) -> *const u8 {
        row.cast()
    }

    #[inline(always)]
    unsafe fn group(row: *const u16, group: usize) -> [C::Operand; 2] {
        // SAFETY: by the caller.
        unsafe { C::bf16(row.add(group * C::GROUP)) }
    }

    #[inline(always)]
    unsafe fn tail(self, row: *const u16, group: usize) -> [C::Operand; 2] {
        let mut padded = [0u16; MAX_GROUP];
        let first = group * C::GROUP;
        // SAFETY: by the caller; the rest of the row is shorter than a group.
        unsafe {
            std::ptr::copy_nonoverlapping(row.add(first), padded.as_mut_ptr(), self.k - first);
            C::bf16(padded.as_ptr())
        }
    }

    #[inline(always)]
    fn prefetch(row: *const u16, group: usize) {
        let at = row.wrapping_add(group * C::GROUP).cast::<u8>();
        prefetch(at);
        if 2 * C::GROUP > LINE {
            prefetch(at.wrapping_add(LINE));
        }
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
    /// Codes and scales.
    type Row = (*const u8, *const u8);
    const PER_LINE: usize = per_line(C::GROUP / 2);
    const PLAIN: bool = false;

    #[inline(always)]
    fn columns(self) -> usize {
        self.k
    }

    #[inline(always)]
    fn row(self, row: usize) -> Self::Row {
        (self.codes.at(row * self.k / 2), self.scales.at(row * self.k / 32))
    }

    #[inline(always)]
    fn below(self, (codes, scales): Self::Row, rows: usize) -> Self::Row {
        (codes.wrapping_add(rows * (self.k / 2)), scales.wrapping_add(rows * (self.k / 32)))
    }

    #[inline(always)]
    fn address((codes, _): Self::Row) -> *const u8 {
        codes
    }

    #[inline(always)]
    unsafe fn group((codes, scales): Self::Row, group: usize) -> [C::Operand; 2] {
        // SAFETY: by the caller.
        unsafe { C::mxfp4(codes.add(group * (C::GROUP / 2)), scales.add(group * C::GROUP / 32)) }
    }

    #[inline(always)]
    unsafe fn tail(self, (from_codes, from_scales): Self::Row, group: usize) -> [C::Operand; 2] {
        // Code 0 is zero at any finite scale.
        let (mut codes, mut scales) = ([0u8; MAX_GROUP / 2], [127u8; MAX_GROUP / 32]);
        let first = group * C::GROUP;
        let rest = self.k - first;
        // SAFETY: by the caller; the rest of the row is shorter than a group and a multiple of 32.
        unsafe {
            std::ptr::copy_nonoverlapping(from_codes.add(first / 2), codes.as_mut_ptr(), rest / 2);
            std::ptr::copy_nonoverlapping(from_scales.add(first / 32), scales.as_mut_ptr(), rest / 32);
            C::mxfp4(codes.as_ptr(), scales.as_ptr())
        }
    }

    #[inline(always)]
    fn prefetch((codes, scales): Self::Row, group: usize) {
        prefetch(codes.wrapping_add(group * (C::GROUP / 2)));
        // A line of scales is asked for by whichever group asks for the first line of its codes.
        if group % (32 * LINE / C::GROUP) < <Self as Weights<C>>::PER_LINE {
            prefetch(scales.wrapping_add(group * C::GROUP / 32));
        }
    }
}
