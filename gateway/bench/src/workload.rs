//! Random arrival times and lengths: what `bench serve` sends, and what `plan` simulates.

use rand::{Rng, SeedableRng, rngs::StdRng};

/// Seconds after the start at which each of `count` requests is sent: `rate` a second with gamma-distributed gaps of shape
/// `burstiness` (1 is Poisson, below 1 is burstier). An infinite rate sends all at once.
pub fn arrivals(rate: f64, burstiness: f64, seed: u64, count: usize) -> Vec<f64> {
    if rate.is_infinite() {
        return vec![0.0; count];
    }
    let mut rng = StdRng::seed_from_u64(seed ^ 0x5eed_a221);
    let mut at = 0.0;
    (0..count)
        .map(|_| {
            at += gamma(&mut rng, burstiness) / (rate * burstiness);
            at
        })
        .collect()
}

/// A length drawn from `[len * (1 - ratio), len * (1 + ratio)]`, at least 1.
pub fn length(rng: &mut StdRng, len: usize, ratio: f64) -> usize {
    let low = (len as f64 * (1.0 - ratio)).floor().max(1.0) as usize;
    let high = ((len as f64 * (1.0 + ratio)).ceil() as usize).max(low);
    rng.random_range(low..=high)
}

/// A gamma variate of shape `k` and scale 1 (Marsaglia and Tsang 2000).
fn gamma(rng: &mut StdRng, k: f64) -> f64 {
    if k < 1.0 {
        let u: f64 = rng.random_range(f64::MIN_POSITIVE..1.0);
        return gamma(rng, k + 1.0) * u.powf(1.0 / k);
    }
    let d = k - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let (u, v): (f64, f64) = (rng.random_range(f64::MIN_POSITIVE..1.0), rng.random());
        let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        let cube = (1.0 + c * normal).powi(3);
        let accept: f64 = rng.random_range(f64::MIN_POSITIVE..1.0);
        if cube > 0.0 && accept.ln() < 0.5 * normal * normal + d - d * cube + d * cube.ln() {
            return d * cube;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_have_the_mean_and_the_spread_that_were_asked_for() {
        for burstiness in [0.25, 1.0, 4.0] {
            let times = arrivals(50.0, burstiness, 7, 20_000);
            let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!((mean * 50.0 - 1.0).abs() < 0.06, "mean {mean} of shape {burstiness}");
            let squared = variance / (mean * mean) * burstiness;
            assert!((squared - 1.0).abs() < 0.15, "squared variation {squared} of shape {burstiness}");
            assert_eq!(times, arrivals(50.0, burstiness, 7, 20_000), "a seed repeats");
        }
    }
}
