//! Philox4x32-10 (Salmon et al. 2011), and the Gumbel noise that is made of it.

/// Keys and the fixed words of the counter for one draw.
#[derive(Clone, Copy)]
pub struct Stream {
    key: [u32; 2],
    position: u32,
    choice: u32,
}

/// Four words for one counter.
#[inline(always)]
fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    const MULTIPLIERS: [u64; 2] = [0xd251_1f53, 0xcd9e_8d57];
    const STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
    let (mut c, mut k) = (counter, key);
    for _ in 0..10 {
        let (a, b) = (MULTIPLIERS[0] * u64::from(c[0]), MULTIPLIERS[1] * u64::from(c[2]));
        c = [(b >> 32) as u32 ^ c[1] ^ k[0], b as u32, (a >> 32) as u32 ^ c[3] ^ k[1], a as u32];
        k = [k[0].wrapping_add(STEPS[0]), k[1].wrapping_add(STEPS[1])];
    }
    c
}

impl Stream {
    /// The stream of one draw.
    pub fn new(seed: u64, position: u32, choice: u32) -> Self {
        Self { key: [seed as u32, (seed >> 32) as u32], position, choice }
    }

    /// Words of the four tokens `4 * group..4 * group + 4`.
    #[inline(always)]
    pub fn words(self, group: u32) -> [u32; 4] {
        philox([group, self.position, self.choice, 0], self.key)
    }
}

/// Gumbel noise of a word. In float64, since `u` needs 25 bits.
#[inline(always)]
pub fn gumbel(word: u32) -> f64 {
    let u = (f64::from(word >> 8) + 0.5) * (1.0 / 16_777_216.0);
    -(-u.ln()).ln()
}

/// A word below which the noise is less than `wanted`, or slightly below that word.
#[inline(always)]
pub fn threshold(wanted: f64) -> u32 {
    let u = (-(-wanted).exp()).exp() * (1.0 - 1e-9) - 1e-9;
    ((u * 16_777_216.0 - 1.5).max(0.0) as u32).min((1 << 24) - 1) << 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_vectors() {
        // Known answers of the Random123 distribution.
        let check = |counter, key, expected: [u32; 4]| assert_eq!(philox(counter, key), expected);
        check([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        check([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        check(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        );
    }

    #[test]
    fn no_word_below_the_threshold_has_the_wanted_noise() {
        for wanted in [-5.0, -2.9, -1.0, 0.0, 0.5, 3.0, 9.0, 15.0, 17.0] {
            let word = threshold(wanted);
            if word >= 256 {
                assert!(gumbel(word - 1) < wanted, "wanted {wanted}, word {word}");
            }
        }
    }
}
