//! Made-up weights: seeded, fast to make, and of a scale at which a model behaves like a trained one (activations near
//! 1, routing that depends on the token).
//!
//! Every eight bytes are a function of seed, tensor and place, so the result does not depend on the number of threads.

use super::{Backing, Weights};
use crate::memory::{MemoryError, Region};
use crate::pool::default_threads;
use gossamer_kernels::graph::{Fill, Weight};
use half::bf16;
use std::sync::{Mutex, OnceLock};

const ALIGN: usize = 256;
/// Bytes filled by one thread at a time; a multiple of eight.
const PIECE: usize = 4 << 20;
/// Values of a normal distribution to choose from: small enough to stay in the nearest cache.
const QUANTILES: usize = 4096;

struct Piece<'a> {
    bytes: &'a mut [u8],
    fill: Fill,
    seed: u64,
    /// Number of the first eight bytes in the tensor.
    first_word: u64,
}

/// Makes all weights.
pub fn make(weights: &[Weight], seed: u64) -> Result<Weights, MemoryError> {
    let size = |weight: &Weight| (weight.bytes() as usize).next_multiple_of(ALIGN);
    let total: usize = weights.iter().map(size).sum();
    let mut region = Region::new("dummy weights", total as u64)?;
    let base = region.address();
    let mut addresses = Vec::with_capacity(weights.len());
    let mut pieces = Vec::new();
    let (mut rest, mut offset) = (region.bytes_mut(), 0);
    for weight in weights {
        let (tensor, after) = rest.split_at_mut(size(weight));
        addresses.push(base + offset as u64);
        offset += size(weight);
        rest = after;
        let seed = seed_of(seed, &weight.name);
        for (index, bytes) in tensor.chunks_mut(PIECE).enumerate() {
            pieces.push(Piece { bytes, fill: weight.fill, seed, first_word: (index * PIECE / 8) as u64 });
        }
    }
    pieces.reverse();
    let queue = Mutex::new(pieces);
    let next = || queue.lock().ok().and_then(|mut queue| queue.pop());
    std::thread::scope(|scope| {
        for _ in 0..default_threads() {
            scope.spawn(|| {
                let mut table = Table::default();
                while let Some(piece) = next() {
                    piece.fill(&mut table);
                }
            });
        }
    });
    Ok(Weights { addresses, _backing: Backing { _region: Some(region), ..Backing::default() } })
}

/// Makes part of one weight: the bytes from `offset` on, as [`make`] would.
pub fn fill_part(weight: &Weight, seed: u64, offset: u64, out: &mut [u8], table: &mut Table<'_>) {
    let seed = seed_of(seed, &weight.name);
    let piece = |bytes, first_word| Piece { bytes, fill: weight.fill, seed, first_word };
    let skip = (offset % 8) as usize;
    if skip == 0 && out.len().is_multiple_of(8) {
        piece(out, offset / 8).fill(table);
        return;
    }
    let mut whole = vec![0; (skip + out.len()).next_multiple_of(8)];
    piece(&mut whole, offset / 8).fill(table);
    out.copy_from_slice(&whole[skip..skip + out.len()]);
}

/// FNV-1a over the name, so that equal shapes get different weights.
fn seed_of(seed: u64, name: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    mix(name.bytes().fold(0xcbf2_9ce4_8422_2325 ^ mix(seed), step))
}

/// The finalizer of splitmix64 (Steele, Lea and Flood 2014).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Piece<'_> {
    fn fill(self, table: &mut Table<'_>) {
        let Self { bytes, fill, seed, first_word } = self;
        let word = |index: usize| {
            mix(seed.wrapping_add((first_word + index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
        };
        // Tensors are padded to whole words.
        let words = bytes.chunks_exact_mut(8).enumerate();
        match fill {
            Fill::Codes => {
                for (index, out) in words {
                    out.copy_from_slice(&word(index).to_le_bytes());
                }
            }
            Fill::Scales { middle } => {
                let base = u64::from_le_bytes([middle - 2; 8]);
                for (index, out) in words {
                    let exponents = (word(index) & 0x0303_0303_0303_0303) + base;
                    out.copy_from_slice(&exponents.to_le_bytes());
                }
            }
            Fill::Normal { mean, std } => {
                let table = table.of(mean, std);
                for (index, out) in words {
                    let word = word(index);
                    let lane = |lane: u32| {
                        u64::from(table[(word >> (16 * lane)) as usize % QUANTILES]) << (16 * lane)
                    };
                    out.copy_from_slice(&(lane(0) | lane(1) | lane(2) | lane(3)).to_le_bytes());
                }
            }
        }
    }
}

/// Quantiles of the normal distribution that was asked for last.
pub struct Table<'a> {
    standard: &'a [f64],
    of: Option<(f32, f32)>,
    values: Vec<u16>,
}

impl Default for Table<'_> {
    fn default() -> Self {
        static STANDARD: OnceLock<Vec<f64>> = OnceLock::new();
        Self { standard: STANDARD.get_or_init(standard_quantiles), of: None, values: Vec::new() }
    }
}

impl Table<'_> {
    fn of(&mut self, mean: f32, std: f32) -> &[u16] {
        if self.of != Some((mean, std)) {
            let value =
                |quantile: &f64| bf16::from_f64(f64::from(mean) + f64::from(std) * quantile).to_bits();
            self.values = self.standard.iter().map(value).collect();
            self.of = Some((mean, std));
        }
        &self.values
    }
}

/// Quantiles of the standard normal distribution, in the middle of [`QUANTILES`] equal parts: Newton's method, each one
/// from its neighbour, outwards from the median.
fn standard_quantiles() -> Vec<f64> {
    let half = QUANTILES / 2;
    let mut quantiles = vec![0.0; QUANTILES];
    let mut x = 0.0_f64;
    for index in 0..half {
        let p = 0.5 + (index as f64 + 0.5) / QUANTILES as f64;
        for _ in 0..4 {
            let density = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
            x -= (normal_cdf(x, density) - p) / density;
        }
        quantiles[half + index] = x;
        quantiles[half - 1 - index] = -x;
    }
    quantiles
}

/// `1/2 + phi(x) (x + x³/3 + x⁵/(3·5) + …)` (Marsaglia 2004).
fn normal_cdf(x: f64, density: f64) -> f64 {
    let (mut term, mut sum, mut odd) = (x, x, 1.0);
    while term > 1e-17 {
        odd += 2.0;
        term *= x * x / odd;
        sum += term;
    }
    0.5 + sum * density
}

#[cfg(test)]
mod tests {
    use super::*;
    use gossamer_backend_api::DType;
    use gossamer_kernels::graph::{GraphOptions, Shard, WeightType};

    fn bytes(weights: &Weights, index: usize, count: usize) -> Vec<u8> {
        // SAFETY: the weights are alive and the tensor has that many bytes.
        unsafe { std::slice::from_raw_parts(weights.addresses[index] as *const u8, count) }.to_vec()
    }

    fn model() -> Vec<Weight> {
        let weight = |name: &str, shape: &[u64], element, fill| Weight {
            name: name.into(),
            shape: shape.to_vec(),
            element,
            fill,
        };
        let normal = Fill::Normal { mean: 1.0, std: 0.5 };
        vec![
            weight("norm", &[3, 1_000_001], WeightType::Bf16, normal),
            weight("same", &[3, 1_000_001], WeightType::Bf16, normal),
            weight("codes", &[100_001], WeightType::U8, Fill::Codes),
            weight("scales", &[100_001], WeightType::U8, Fill::Scales { middle: 120 }),
        ]
    }

    #[test]
    fn the_same_seed_makes_the_same_weights_and_names_and_seeds_differ() {
        let (one, again, other) =
            (make(&model(), 1).unwrap(), make(&model(), 1).unwrap(), make(&model(), 2).unwrap());
        assert_eq!(bytes(&one, 0, 6_000_006), bytes(&again, 0, 6_000_006));
        assert_ne!(bytes(&one, 0, 1000), bytes(&other, 0, 1000));
        assert_ne!(bytes(&one, 0, 1000), bytes(&one, 1, 1000));
    }

    /// With a router of equal weights, all tokens would take the same experts.
    #[test]
    fn routing_depends_on_the_token_and_uses_every_expert() {
        const TOKENS: usize = 400;
        let (hidden, experts, top_k) = (2880, 32, 4);
        let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/golden-a");
        let config = gossamer_config::ModelConfig {
            hidden_size: hidden as u32,
            num_experts: experts as u32,
            experts_per_token: top_k as u32,
            ..gossamer_config::ModelConfig::load(&fixture).unwrap()
        };
        let graph = gossamer_kernels::graph::build(
            &config,
            &GraphOptions {
                activation: DType::F32,
                kv: DType::F32,
                block_size: 64,
                max_logprobs: 0,
                allow_fp8_experts: false,
                allow_fp8_attention: false,
                shard: Shard::WHOLE,
            },
        );
        let values = |name: &str, count: usize| -> Vec<f32> {
            let weight = graph.weights.iter().find(|weight| weight.name == name);
            let weight = weight.unwrap_or_else(|| panic!("no weight {name}"));
            let mut bytes = vec![0; 2 * count];
            fill_part(weight, 5, 0, &mut bytes, &mut Table::default());
            bytes.chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).to_f32()).collect()
        };
        let embedding = values("model.embed_tokens.weight", TOKENS * hidden);
        let norm = values("model.layers.0.post_attention_layernorm.weight", hidden);
        let router = values("model.layers.0.mlp.router.weight", experts * hidden);
        let bias = values("model.layers.0.mlp.router.bias", experts);
        let (mut chosen, mut choices) = (vec![0; experts], std::collections::BTreeMap::new());
        for x in embedding.chunks_exact(hidden) {
            let scale = (x.iter().map(|x| x * x).sum::<f32>() / hidden as f32).sqrt().recip();
            let logit = |expert: usize| -> f32 {
                let row = &router[expert * hidden..][..hidden];
                bias[expert] + row.iter().zip(x).zip(&norm).map(|((w, x), n)| w * x * n * scale).sum::<f32>()
            };
            let mut order: Vec<(f32, usize)> = (0..experts).map(|expert| (logit(expert), expert)).collect();
            order.sort_by(|a, b| b.0.total_cmp(&a.0));
            let mut top: Vec<usize> = order[..top_k].iter().map(|(_, expert)| *expert).collect();
            top.sort_unstable();
            top.iter().for_each(|expert| chosen[*expert] += 1);
            *choices.entry(top).or_insert(0) += 1;
        }
        assert!(chosen.iter().all(|count| *count > 0), "tokens of each expert: {chosen:?}");
        // Evenly spread, an expert would have 50; none may have most of the tokens, and no four experts either.
        assert!(chosen.iter().all(|count| *count < TOKENS / 2), "tokens of each expert: {chosen:?}");
        assert!(choices.len() > TOKENS / 2, "{} tokens take {} sets of experts", TOKENS, choices.len());
    }

    #[test]
    fn quantiles_are_those_of_the_normal_distribution() {
        let quantiles = standard_quantiles();
        assert!(quantiles.is_sorted());
        // The part around a probability of 0.975 and the outermost one.
        let at = |p: f64| quantiles[(p * QUANTILES as f64) as usize];
        assert!((at(0.975) - 1.96).abs() < 0.005, "{}", at(0.975));
        assert!((quantiles[QUANTILES - 1] - 3.667_9).abs() < 0.001, "{}", quantiles[QUANTILES - 1]);
    }

    #[test]
    fn values_have_the_distribution_that_was_asked_for() {
        let weights = make(&model(), 3).unwrap();
        let raw = bytes(&weights, 0, 6_000_006);
        let values: Vec<f64> =
            raw.chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).to_f64()).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
        assert!((mean - 1.0).abs() < 0.01 && (variance.sqrt() - 0.5).abs() < 0.01, "{mean} {variance}");
        let scales = bytes(&weights, 3, 100_001);
        for exponent in 118..122 {
            let share = scales.iter().filter(|scale| **scale == exponent).count() as f64 / 100_001.0;
            assert!((share - 0.25).abs() < 0.01, "{exponent}: {share}");
        }
        let codes = bytes(&weights, 2, 100_001);
        let low: u64 = codes.iter().map(|code| u64::from(code & 15)).sum();
        assert!((low as f64 / 100_001.0 - 7.5).abs() < 0.1, "{low}");
    }
}
