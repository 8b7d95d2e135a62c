//! Top-k, top-p and min-p without sorting the vocabulary.
//!
//! In the order "larger score first, then lower id", what survives is a prefix. Its last element is found through a
//! histogram over the distance from the largest score: only the bucket in which the prefix ends is sorted.

use super::logprobs::maximum;
use crate::math::exp;

/// Buckets of the histogram; the last one is for forbidden tokens and never looked at.
pub const BUCKETS: usize = 4097;
/// Bucket of forbidden tokens.
const FORBIDDEN: usize = BUCKETS - 1;
/// Scores that are sorted into buckets at a time.
const RUN: usize = 64;
/// Buckets per unit of distance from the largest score; what is farther than 32 shares one.
const PER_UNIT: f32 = 128.0;

/// The last element of the surviving prefix.
#[derive(Clone, Copy, Debug)]
pub struct Last {
    score: f32,
    column: u32,
}

impl Last {
    /// Everything that is not forbidden survives.
    pub const ALL: Self = Self { score: f32::NEG_INFINITY, column: 0 };

    /// Whether a token survives.
    #[inline(always)]
    pub fn keeps(self, score: f32, column: u32) -> bool {
        score > self.score || (score == self.score && column <= self.column && score > f32::NEG_INFINITY)
    }
}

/// Counts and masses of the buckets, and room to sort one.
pub struct Histogram<'a> {
    /// `[BUCKETS]`.
    pub counts: &'a mut [u32],
    /// `[BUCKETS]`.
    pub masses: &'a mut [f64],
    /// As many as columns.
    pub columns: &'a mut [u32],
}

/// Bucket of a score: monotone in it. Written so that it runs over lanes.
#[inline(always)]
fn bucket(score: f32, largest: f32) -> usize {
    const TO_INTEGER: f32 = 8_388_608.0; // 2^23: the sum's lowest bits are the nearest integer
    let distance = (largest - score) * PER_UNIT;
    let most = (FORBIDDEN - 1) as f32;
    let distance = if distance < most { distance } else { most };
    let at = (distance + TO_INTEGER).to_bits() - TO_INTEGER.to_bits();
    if score > f32::NEG_INFINITY { at as usize } else { FORBIDDEN }
}

/// Columns of a bucket, in the order of the prefix.
#[inline(always)]
fn sorted<'a>(scores: &[f32], largest: f32, wanted: usize, columns: &'a mut [u32]) -> &'a [u32] {
    let mut count = 0;
    for (at, run) in scores.chunks(RUN).enumerate() {
        let mut hits = 0u64;
        for (i, score) in run.iter().enumerate() {
            hits |= u64::from(bucket(*score, largest) == wanted) << i;
        }
        while hits != 0 {
            columns[count] = (at * RUN) as u32 + hits.trailing_zeros();
            count += 1;
            hits &= hits - 1;
        }
    }
    columns[..count].sort_unstable_by(|a, b| {
        let (score_a, score_b) = (scores[*a as usize], scores[*b as usize]);
        score_b.total_cmp(&score_a).then(a.cmp(b))
    });
    &columns[..count]
}

/// What survives top-k (0: all), then top-p of what is left, then min-p.
#[inline(always)]
pub fn last(scores: &[f32], top_k: u32, top_p: f32, min_p: f32, histogram: &mut Histogram) -> Last {
    let largest = maximum(scores);
    let mut last = Last::ALL;
    let keep_k = if top_k == 0 { usize::MAX } else { top_k as usize };
    if keep_k < scores.len() || top_p < 1.0 {
        histogram.counts.fill(0);
        histogram.masses.fill(0.0);
        for run in scores.chunks(RUN) {
            let (mut buckets, mut masses) = ([0u32; RUN], [0f32; RUN]);
            for ((at, mass), score) in buckets.iter_mut().zip(&mut masses).zip(run) {
                *at = bucket(*score, largest) as u32;
                *mass = exp(*score - largest);
            }
            for (at, mass) in buckets.iter().zip(&masses).take(run.len()) {
                histogram.counts[*at as usize] += 1;
                histogram.masses[*at as usize] += f64::from(*mass);
            }
        }
        last = prefix(scores, largest, keep_k, top_p, histogram);
    }
    if min_p > 0.0 {
        let least = largest + min_p.min(1.0).ln();
        if least > last.score {
            last = Last { score: least, column: u32::MAX };
        }
    }
    last
}

#[inline(always)]
fn prefix(scores: &[f32], largest: f32, keep_k: usize, top_p: f32, histogram: &mut Histogram) -> Last {
    let mass_of = |column: u32| f64::from(exp(scores[column as usize] - largest));
    // Top-k: where it ends, and how much mass it has.
    let (mut end, mut last) = (FORBIDDEN, Last::ALL);
    let (mut count, mut mass) = (0usize, 0f64);
    for at in 0..FORBIDDEN {
        let here = histogram.counts[at] as usize;
        if count + here >= keep_k {
            let columns = sorted(scores, largest, at, histogram.columns);
            let kept = &columns[..keep_k - count];
            let column = kept[kept.len() - 1];
            last = Last { score: scores[column as usize], column };
            mass += kept.iter().map(|column| mass_of(*column)).sum::<f64>();
            end = at;
            break;
        }
        count += here;
        mass += histogram.masses[at];
    }
    if top_p >= 1.0 {
        return last;
    }
    // Top-p: the shortest prefix with that share of the mass; one token at least.
    let wanted = mass * f64::from(top_p.max(0.0));
    let mut mass = 0f64;
    for at in 0..FORBIDDEN {
        let here = histogram.counts[at] as usize;
        if here > 0 && (mass + histogram.masses[at] >= wanted || at == end) {
            for column in sorted(scores, largest, at, histogram.columns) {
                let candidate = Last { score: scores[*column as usize], column: *column };
                if !last.keeps(candidate.score, candidate.column) {
                    break;
                }
                mass += mass_of(*column);
                if mass >= wanted {
                    return candidate;
                }
            }
            if at == end {
                break;
            }
            continue;
        }
        mass += histogram.masses[at];
    }
    last
}
