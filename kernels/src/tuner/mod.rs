//! Which tactic does an operation at a token count: description -> candidates -> measured cost -> best.
//!
//! The choice is a pure function of its inputs; measuring is the caller's. Costs that differ by less than the noise of
//! a measurement count as equal and the earlier candidate wins, so that two runs, and two ranks, choose alike.

mod cache;

pub use cache::{CacheEntry, CacheKey, CacheMiss, KernelCache, PluginId, SCHEMA};

use crate::{Backends, SelectError};
use gossamer_backend_api::{Layout, OpDesc, Tactic};

/// Costs closer than this are equal.
const NOISE: f64 = 0.03;

/// The backend whose kernels are made for few tokens, and how many those are.
const FEW_TOKENS_BACKEND: &str = "trtllm-gen";
const FEW_TOKENS: u32 = 64;
/// The same for dense products: above, the tiled kernel's 64 tokens cost less than the streaming kernel's (`LOG-dense.md`).
const FEW_TOKENS_OF_PRODUCTS: u32 = 16;

/// One way to do an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Index into [`Backends::list`].
    pub backend: usize,
    /// The tactic.
    pub tactic: Tactic,
}

/// The token count whose choice serves `tokens`: exact up to 16, then the next power of two.
pub fn bucket(tokens: u32) -> u32 {
    if tokens <= 16 { tokens.max(1) } else { tokens.checked_next_power_of_two().unwrap_or(u32::MAX) }
}

/// All buckets that serve steps of up to `tokens` tokens.
pub fn buckets(tokens: u32) -> Vec<u32> {
    let mut all: Vec<u32> = (1..=tokens.clamp(1, 16)).collect();
    while *all.last().unwrap_or(&1) < tokens {
        all.push(bucket(all.last().unwrap_or(&1) + 1));
    }
    all
}

/// Every tactic of every backend that may do an operation, best guess first, among those that read `layout`.
pub fn candidates(
    backends: &Backends,
    desc: &OpDesc,
    tokens: u32,
    layout: &Layout,
) -> Result<Vec<Candidate>, SelectError> {
    let mut all = Vec::new();
    for backend in backends.able(desc)? {
        let tactics = backends.list()[backend].tactics(desc, tokens);
        all.extend(
            tactics
                .into_iter()
                .filter(|tactic| tactic.layout == *layout)
                .map(|tactic| Candidate { backend, tactic }),
        );
    }
    let product = matches!(desc, OpDesc::Gemm(_) | OpDesc::QkvRope(_));
    let few = if product { FEW_TOKENS_OF_PRODUCTS } else { FEW_TOKENS };
    if tokens <= few || matches!(desc, OpDesc::Attention(desc) if desc.single == 1) {
        // Until something is measured: kernels made for few tokens come first where there are few, or few of each sequence.
        all.sort_by_key(|candidate| backends.list()[candidate.backend].name() != FEW_TOKENS_BACKEND);
    }
    match all.is_empty() {
        false => Ok(all),
        true => Err(SelectError::Unsupported {
            operation: desc.kind().label(),
            reasons: format!("no tactic reads weights in layout '{}'", layout.0),
        }),
    }
}

/// Whether steps of every size up to `tokens` can do an operation with the backends that may be chosen for it.
pub fn covers(backends: &Backends, desc: &OpDesc, tokens: u32) -> bool {
    let Ok(able) = backends.able(desc) else { return false };
    let can = |tokens| able.iter().any(|index| !backends.list()[*index].tactics(desc, tokens).is_empty());
    buckets(tokens).into_iter().all(can)
}

/// Candidates in order of cost, cheapest first. `None`: could not be measured, comes last.
pub fn rank(costs: &[Option<f64>]) -> Vec<usize> {
    let mut rest: Vec<usize> = (0..costs.len()).collect();
    let cost = |index: usize| costs[index].filter(|cost| cost.is_finite()).unwrap_or(f64::INFINITY);
    let mut order = Vec::with_capacity(costs.len());
    while !rest.is_empty() {
        let least = rest.iter().map(|index| cost(*index)).fold(f64::INFINITY, f64::min);
        // The earliest of those that are as cheap as the cheapest, within noise.
        let at = rest.iter().position(|index| cost(*index) <= least * (1.0 + NOISE)).unwrap_or(0);
        order.push(rest.remove(at));
    }
    order
}

/// The candidate that a cached entry names, if it is still offered.
pub fn cached(entry: &CacheEntry, candidates: &[Candidate], backends: &Backends) -> Option<usize> {
    candidates.iter().position(|candidate| {
        backends.list()[candidate.backend].name() == entry.backend && candidate.tactic.name == entry.tactic
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::build;
    use crate::test_model::{Fake, config, options};
    use std::sync::Arc;

    #[test]
    fn every_token_count_has_a_bucket_that_is_listed() {
        assert_eq!(buckets(1), [1]);
        assert_eq!(buckets(100), (1..=16).chain([32, 64, 128]).collect::<Vec<_>>());
        let listed = buckets(3000);
        assert!((1..=3000).all(|tokens| listed.contains(&bucket(tokens))));
    }

    #[test]
    fn the_cheapest_wins_and_within_noise_the_earlier() {
        assert_eq!(rank(&[Some(10.0), Some(5.0), Some(7.0)]), [1, 2, 0]);
        assert_eq!(rank(&[Some(5.1), Some(5.0), Some(7.0)]), [0, 1, 2]);
        assert_eq!(rank(&[None, Some(f64::NAN), Some(7.0)]), [2, 0, 1]);
    }

    #[test]
    fn candidates_are_all_tactics_of_all_able_backends_in_the_layout() {
        let backends = Backends::new(
            vec![Arc::new(Fake::able("fallback")), Arc::new(Fake::unable("x")), Arc::new(Fake::able("y"))],
            None,
            None,
        )
        .unwrap();
        let desc = build(&config(), &options()).nodes[0].op.desc();
        let all = candidates(&backends, &desc, 4, &Layout::checkpoint()).unwrap();
        let found: Vec<_> = all.iter().map(|candidate| (candidate.backend, candidate.tactic.id)).collect();
        assert_eq!(found, [(2, 0), (2, 1), (0, 0), (0, 1)]);
        let error = candidates(&backends, &desc, 4, &Layout("other".into())).unwrap_err().to_string();
        assert!(error.contains("layout 'other'"), "{error}");
    }
}
