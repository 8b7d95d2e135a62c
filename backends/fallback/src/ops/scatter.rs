//! Where the sums of an expert's product go: to the rows of its pairs.

use crate::math::{Activation, from_bf16};
use crate::memory::Ptr;
use crate::product::Epilogue;

/// Scales, adds the bias and writes the sums to their pairs.
pub struct Scatter<A> {
    /// `[pairs, columns]`.
    pub out: Ptr<A>,
    /// Pair of each of the expert's sums.
    pub pairs: Ptr<u32>,
    /// Row of the input of each; read with scales alone.
    pub rows: Ptr<u32>,
    /// One per row of the input; null: 1.
    pub scales: Ptr<f32>,
    /// One per column.
    pub bias: Ptr<u16>,
    /// Columns of a row of `out`.
    pub columns: usize,
}

impl<A> Clone for Scatter<A> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<A> Copy for Scatter<A> {}

impl<A: Activation> Epilogue for Scatter<A> {
    #[inline(always)]
    unsafe fn write(self, token: usize, first_row: usize, values: &[f32]) {
        // SAFETY: every pair has a row in `out`, each chunk its own columns, and the bias an element per row.
        unsafe {
            let pair = *self.pairs.at(token) as usize;
            let scale = match self.scales.is_null() {
                true => 1.0,
                false => *self.scales.at(*self.rows.at(token) as usize),
            };
            let out = self.out.slice_mut(pair * self.columns + first_row, values.len());
            let bias = self.bias.slice(first_row, values.len());
            for ((out, value), bias) in out.iter_mut().zip(values).zip(bias) {
                *out = A::from_f32(value * scale + from_bf16(*bias));
            }
        }
    }
}
