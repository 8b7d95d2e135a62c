//! FP8 E4M3 by its definition (Micikevicius et al. 2022): 1 sign, 4 exponent, 3 mantissa bits, bias 7, no infinities, one NaN.

use std::sync::LazyLock;

/// Magnitudes of the codes, ascending.
static MAGNITUDES: LazyLock<[f64; 0x7f]> = LazyLock::new(|| std::array::from_fn(|code| value(code as u8)));

/// The value of a code.
pub fn value(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f64::NAN,
        (0, _) => mantissa * 2f64.powi(-9),
        _ => (8.0 + mantissa) * 2f64.powi(exponent - 10),
    };
    if code & 0x80 != 0 { -magnitude } else { magnitude }
}

/// The code nearest to a value, ties to the even one; what is too large becomes the largest.
pub fn code(wanted: f64) -> u8 {
    if wanted.is_nan() {
        return 0x7f;
    }
    let magnitude = wanted.abs().min(448.0);
    let above = MAGNITUDES.partition_point(|other| *other < magnitude);
    let nearest = match above {
        0 => 0,
        _ => {
            let (low, high) = (magnitude - MAGNITUDES[above - 1], MAGNITUDES[above] - magnitude);
            if low < high || (low == high && above % 2 == 1) { above - 1 } else { above }
        }
    } as u8;
    if wanted.is_sign_negative() { nearest | 0x80 } else { nearest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_the_nearest_to_its_own_value_and_ties_go_to_the_even_one() {
        for code_of in (0..=255u8).filter(|code| code & 0x7f != 0x7f) {
            assert_eq!(code(value(code_of)), code_of, "{code_of:#x} is {}", value(code_of));
        }
        assert_eq!([value(0x38), value(0x7e), value(0x01)], [1.0, 448.0, 2f64.powi(-9)]);
        assert_eq!([code(17.0), code(19.0), code(1e9), code(-1e9)], [0x58, 0x5a, 0x7e, 0xfe]);
        assert!(value(0x7f).is_nan() && value(code(f64::NAN)).is_nan());
    }
}
