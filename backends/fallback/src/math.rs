//! Scalar functions written so that the compiler can run them over lanes. None uses a fused multiply-add, so that their
//! results are the same on every instruction set and do not depend on how a loop was split into vectors.

/// bfloat16 bits to float32.
#[inline(always)]
pub fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// float32 to bfloat16 bits, to nearest, ties to even; a NaN stays a NaN.
#[inline(always)]
pub fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
    if value.is_nan() { ((bits >> 16) as u16) | 0x40 } else { rounded }
}

/// `e^x` to about 1e-7 relative. Below -87.3 it is zero, above 88 it stays at `e^88`.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    let clamped = if x < -87.3 { -87.3 } else { x };
    let clamped = if clamped > 88.0 { 88.0 } else { clamped };
    let shifted = clamped * std::f32::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    // ln 2 in two parts, so that n * high is exact.
    let r = clamped - n * 0.693_359_4;
    let r = r - n * -2.121_944_4e-4;
    let mut p = 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(SHIFT.to_bits()).wrapping_add(127) << 23;
    let value = p * f32::from_bits(exponent);
    if x < -87.3 { 0.0 } else { value }
}

/// gpt-oss's gated unit: gate clamped above, up clamped to both sides, `(up + 1) * gate * sigmoid(alpha * gate)`.
#[inline(always)]
pub fn swiglu(gate: f32, up: f32, limit: f32, alpha: f32) -> f32 {
    let gate = if gate > limit { limit } else { gate };
    let up = if up > limit { limit } else { up };
    let up = if up < -limit { -limit } else { up };
    (up + 1.0) * gate / (1.0 + exp(-alpha * gate))
}

/// Sum of squares: sixteen running sums, then a tree.
#[inline(always)]
pub fn sum_of_squares(row: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let (chunks, rest) = row.as_chunks::<16>();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += value * value;
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += value * value;
    }
    tree16(lanes)
}

/// Sums sixteen values as a tree: i with i + 8, then i + 4, i + 2, i + 1.
#[inline(always)]
pub fn tree16(mut lanes: [f32; 16]) -> f32 {
    let mut width = 8;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// A code of FP8 E4M3: 1 sign, 4 exponent, 3 mantissa bits, bias 7, no infinities. Only caches hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct E4m3(pub u8);

impl Activation for E4m3 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        let code = u32::from(self.0);
        // Exponent and mantissa in float32's places, then the difference of the biases; exact, subnormal codes too.
        let magnitude = f32::from_bits((code & 0x7f) << 20) * f32::from_bits((127 + 120) << 23);
        let magnitude = if code & 0x7f == 0x7f { f32::NAN } else { magnitude };
        f32::from_bits(magnitude.to_bits() | (code & 0x80) << 24)
    }

    /// To nearest, ties to even; beyond 448 the largest code, a NaN stays one.
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let magnitude = f32::from_bits(bits & 0x7fff_ffff);
        let capped = if magnitude > 448.0 { 448.0 } else { magnitude };
        // Below the smallest normal code, 2^-6, codes are steps of 2^-9: adding 2^14 leaves just those in the mantissa.
        let small = (capped + 16384.0).to_bits() & 0xf;
        let bits_of = capped.to_bits();
        let normal =
            (bits_of.wrapping_add(0x7_ffff + (bits_of >> 20 & 1)) >> 20).wrapping_sub((127 - 7) << 3);
        let code = if capped < 0.015_625 { small } else { normal };
        let code = if value.is_nan() { 0x7f } else { code };
        Self((code | bits >> 24 & 0x80) as u8)
    }
}

/// An activation type: float32 or bfloat16 bits.
pub trait Activation: Copy + Send + Sync + 'static {
    /// To float32.
    fn to_f32(self) -> f32;
    /// From float32, rounded.
    fn from_f32(value: f32) -> Self;
}

impl Activation for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
}

impl Activation for u16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        from_bf16(self)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        to_bf16(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_to_the_true_function_and_zero_far_below() {
        let mut x = -87.0f32;
        while x < 88.0 {
            let expected = f64::from(x).exp();
            let error = (f64::from(exp(x)) - expected).abs() / expected;
            assert!(error < 3e-7, "exp({x}) is {} and should be {expected}", exp(x));
            x += 0.0137;
        }
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn e4m3_codes_survive_and_what_lies_between_goes_to_the_nearest() {
        let magnitudes: Vec<f32> = (0..0x7f).map(|code| E4m3(code).to_f32()).collect();
        assert_eq!(
            [magnitudes[0], magnitudes[1], magnitudes[8], magnitudes[0x38]],
            [0.0, 1.0 / 512.0, 1.0 / 64.0, 1.0]
        );
        assert_eq!(magnitudes[0x7e], 448.0);
        for (code, pair) in magnitudes.windows(2).enumerate() {
            let code = code as u8;
            let middle = (pair[0] + pair[1]) / 2.0;
            let even = code + code % 2;
            for (value, expected) in [
                (pair[0], code),
                (middle.next_down(), code),
                (middle, even),
                (middle.next_up(), code + 1),
                (pair[1], code + 1),
            ] {
                assert_eq!(E4m3::from_f32(value).0, expected, "{value}");
                assert_eq!(E4m3::from_f32(-value).0, expected | 0x80, "{value}");
            }
        }
        assert_eq!(E4m3::from_f32(f32::INFINITY).0, 0x7e);
        assert_eq!(E4m3::from_f32(-1e30).0, 0xfe);
        assert!(E4m3::from_f32(f32::NAN).to_f32().is_nan() && E4m3(0xff).to_f32().is_nan());
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        for (value, bits) in
            [(1.0, 0x3f80), (1.0 + 1.0 / 256.0, 0x3f80), (1.0 + 3.0 / 256.0, 0x3f82), (-0.0, 0x8000)]
        {
            assert_eq!(to_bf16(value), bits, "{value}");
        }
        assert!(from_bf16(to_bf16(f32::NAN)).is_nan());
        assert_eq!(from_bf16(to_bf16(f32::INFINITY)), f32::INFINITY);
    }
}
