//! Log-probabilities under the unedited logits.

use crate::math::{exp, tree16};

/// `ln(sum(exp(logits)))`: the maximum, then sixteen sums in index order per run of 4096, the runs added in float64.
#[inline(always)]
pub fn log_sum(logits: &[f32]) -> f64 {
    let maximum = maximum(logits);
    if maximum == f32::NEG_INFINITY {
        return f64::NEG_INFINITY;
    }
    f64::from(maximum) + exp_sum(logits, maximum).ln()
}

/// The largest logit.
#[inline(always)]
pub fn maximum(logits: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (chunks, rest) = logits.as_chunks::<16>();
    for chunk in chunks {
        for (lane, logit) in lanes.iter_mut().zip(chunk) {
            *lane = if *logit > *lane { *logit } else { *lane };
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |best, logit| if *logit > best { *logit } else { best })
}

#[inline(always)]
fn exp_sum(logits: &[f32], maximum: f32) -> f64 {
    let mut total = 0f64;
    for run in logits.chunks(4096) {
        let mut lanes = [0f32; 16];
        let (chunks, rest) = run.as_chunks::<16>();
        for chunk in chunks {
            for (lane, logit) in lanes.iter_mut().zip(chunk) {
                *lane += exp(*logit - maximum);
            }
        }
        for (lane, logit) in lanes.iter_mut().zip(rest) {
            *lane += exp(*logit - maximum);
        }
        total += f64::from(tree16(lanes));
    }
    total
}

/// The `ids.len()` largest logits, likeliest first, ties to the lower id; writes ids and log-probabilities. Where there
/// are fewer, the rest is id 0 with log-probability -inf.
#[inline(always)]
pub fn top(logits: &[f32], offset: u32, log_sum: f64, ids: &mut [u32], logprobs: &mut [f32]) {
    ids.fill(0);
    logprobs.fill(f32::NEG_INFINITY);
    let most = ids.len();
    let mut held = 0;
    for (column, logit) in logits.iter().enumerate() {
        let full = held == most;
        if full && (most == 0 || *logit <= logprobs[most - 1])
            || logit.is_nan()
            || *logit == f32::NEG_INFINITY
        {
            continue;
        }
        // Insert behind the equal ones, which have lower ids.
        let mut at = if full { most - 1 } else { held };
        while at > 0 && logprobs[at - 1] < *logit {
            (logprobs[at], ids[at]) = (logprobs[at - 1], ids[at - 1]);
            at -= 1;
        }
        (logprobs[at], ids[at]) = (*logit, offset + column as u32);
        held = (held + 1).min(most);
    }
    for logprob in logprobs.iter_mut() {
        *logprob = (f64::from(*logprob) - log_sum) as f32;
    }
}
