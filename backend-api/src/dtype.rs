//! Element types that cross the border.

use std::fmt;

/// An element type, as a number so that an unknown one from another version is data and not undefined behaviour.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DType(pub u32);

impl DType {
    /// IEEE single precision.
    pub const F32: Self = Self(0);
    /// bfloat16.
    pub const BF16: Self = Self(1);
    /// FP8 E4M3 (no infinities).
    pub const F8E4M3: Self = Self(2);
    /// MXFP4: E2M1 codes in blocks of 32 with an E8M0 scale each.
    pub const MXFP4: Self = Self(3);

    /// Bytes of `elements` elements. For MXFP4 codes alone, without their scales.
    pub fn bytes(self, elements: u64) -> u64 {
        match self {
            Self::F32 => elements * 4,
            Self::BF16 => elements * 2,
            Self::MXFP4 => elements.div_ceil(2),
            _ => elements,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::F32 => f.write_str("float32"),
            Self::BF16 => f.write_str("bfloat16"),
            Self::F8E4M3 => f.write_str("fp8_e4m3"),
            Self::MXFP4 => f.write_str("mxfp4"),
            Self(other) => write!(f, "dtype#{other}"),
        }
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
