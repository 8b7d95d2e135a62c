//! E2M1 times E8M0, as tables: one row of sixteen values per scale.
//!
//! A row is a cache line of float32 (half of one for bfloat16, its bytes in two planes), which permute instructions index by
//! code directly: the scale costs no arithmetic. Values are exact, except that those below the smallest normal number of bfloat16 become
//! zero there. Scale 255 is NaN by the OCP Microscaling specification.

/// Magnitudes of the codes (OCP Microscaling Formats 1.0, E2M1).
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// `2^(scale - 127)`.
const fn power(scale: usize) -> f32 {
    match scale {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits((scale as u32) << 23),
    }
}

const fn value(scale: usize, code: usize) -> f32 {
    let magnitude = E2M1[code & 7] * power(scale);
    if code >= 8 { -magnitude } else { magnitude }
}

/// A table of rows, aligned so that each row is in one cache line.
#[repr(align(64))]
pub struct Tables<R>(pub [R; 256]);

/// Rows of float32.
pub static F32_TABLES: Tables<[f32; 16]> = Tables({
    let mut rows = [[0.0; 16]; 256];
    let mut scale = 0;
    while scale < 256 {
        let mut code = 0;
        while code < 16 {
            rows[scale][code] = value(scale, code);
            code += 1;
        }
        scale += 1;
    }
    rows
});

/// Rows of bfloat16: the lower bytes of the sixteen values, then the upper ones.
pub static BF16_TABLES: Tables<[u8; 32]> = Tables({
    let mut rows = [[0; 32]; 256];
    let mut scale = 0;
    while scale < 256 {
        let mut code = 0;
        while code < 16 {
            let bits = value(scale, code).to_bits();
            // Two significant bits: the lower half is zero unless the value is subnormal.
            let kept = if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits };
            rows[scale][code] = (kept >> 16) as u8;
            rows[scale][16 + code] = (kept >> 24) as u8;
            code += 1;
        }
        scale += 1;
    }
    rows
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_code_times_power_of_two() {
        for scale in 2..250usize {
            for code in 0..16usize {
                let expected = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][code & 7]
                    * if code < 8 { 1.0 } else { -1.0 }
                    * (scale as f64 - 127.0).exp2();
                assert_eq!(f64::from(F32_TABLES.0[scale][code]), expected, "scale {scale} code {code}");
                let row = &BF16_TABLES.0[scale];
                let narrow = f32::from_bits(u32::from(row[code]) << 16 | u32::from(row[16 + code]) << 24);
                assert_eq!(f64::from(narrow), expected, "bfloat16, scale {scale} code {code}");
            }
        }
        assert!(F32_TABLES.0[255][1].is_nan());
    }
}
