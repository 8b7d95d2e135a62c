//! The model's dimensions, and what a layout's GPUs must hold of it.

use gossamer_bench::layout::Layout;
use gossamer_config::{LayerKind, ModelConfig};
use gossamer_wire::KvGroup;
use thiserror::Error;

/// Tokens of a KV block.
pub(crate) const BLOCK_SIZE: u32 = 64;
/// Bytes of an MXFP4 weight: half a byte, and a scale for 32 of them.
const MXFP4_BYTES: f64 = 0.5 + 1.0 / 32.0;

/// What planning must know of a model.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // config.json's names
pub struct ModelShape {
    pub name: String,
    pub layers: u32,
    pub hidden: u32,
    pub intermediate: u32,
    pub experts: u32,
    pub experts_per_token: u32,
    pub query_heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub vocab: u32,
    pub max_model_len: u32,
    /// Windows of the KV groups, `None` for full attention.
    pub windows: Vec<Option<u32>>,
    /// Layers of the group that has most.
    pub planes: u32,
}

/// A layout whose GPUs cannot hold the model.
#[derive(Clone, Debug, PartialEq, Error)]
#[error(
    "{weights:.1} GiB of weights and one sequence's KV cache do not fit {usable:.1} GiB of a GPU; use more GPUs a replica"
)]
pub struct MemoryError {
    /// GiB of weights on one GPU.
    pub weights: f64,
    /// GiB that may be used.
    pub usable: f64,
}

impl ModelShape {
    /// One of OpenAI's models by name.
    pub fn named(name: &str) -> Option<Self> {
        let (layers, experts) = match name {
            "gpt-oss-20b" => (24, 32),
            "gpt-oss-120b" => (36, 128),
            _ => return None,
        };
        Some(Self {
            name: name.to_owned(),
            layers,
            hidden: 2880,
            intermediate: 2880,
            experts,
            experts_per_token: 4,
            query_heads: 64,
            kv_heads: 8,
            head_dim: 64,
            vocab: 201_088,
            max_model_len: 131_072,
            windows: vec![Some(128), None],
            planes: layers / 2,
        })
    }

    /// The shape of a model directory.
    pub fn of(name: &str, config: &ModelConfig) -> Self {
        let window = |kind: &LayerKind| match kind {
            LayerKind::Full => None,
            LayerKind::Sliding => Some(config.sliding_window),
        };
        let mut windows: Vec<Option<u32>> = Vec::new();
        for layer in &config.layers {
            if !windows.contains(&window(layer)) {
                windows.push(window(layer));
            }
        }
        let of_kind =
            |kind: &Option<u32>| config.layers.iter().filter(|layer| window(layer) == *kind).count();
        Self {
            name: name.to_owned(),
            layers: config.layers.len() as u32,
            hidden: config.hidden_size,
            intermediate: config.intermediate_size,
            experts: config.num_experts,
            experts_per_token: config.experts_per_token,
            query_heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            vocab: config.vocab_size,
            max_model_len: config.max_position_embeddings,
            planes: windows.iter().map(of_kind).max().unwrap_or(1) as u32,
            windows,
        }
    }

    pub(crate) fn groups(&self) -> Vec<KvGroup> {
        self.windows.iter().map(|window| KvGroup { window: *window }).collect()
    }

    /// Share of the experts' weights on one GPU: the largest slice of the intermediate size's 32-wide blocks under tensor
    /// parallelism, the most experts of a rank under expert parallelism.
    pub(crate) fn expert_share(&self, layout: &Layout) -> f64 {
        let ranks = if layout.expert { layout.data } else { 1 };
        largest(self.intermediate.div_ceil(32), layout.tensor) * largest(self.experts, ranks)
    }

    /// Share of the KV heads on one GPU; beyond one head a GPU they are repeated.
    pub(crate) fn kv_share(&self, layout: &Layout) -> f64 {
        largest(self.kv_heads, layout.tensor)
    }

    /// Share of the layers on one GPU.
    pub(crate) fn layer_share(&self, layout: &Layout) -> f64 {
        largest(self.layers, layout.pipeline)
    }

    /// Bytes of weights on one GPU. The embedding and the head are counted for every stage.
    pub fn weight_bytes(&self, layout: &Layout) -> f64 {
        let wide = f64::from;
        let (hidden, inner) = (wide(self.hidden), wide(self.intermediate));
        let heads = wide(self.head_dim) * (2.0 * wide(self.query_heads) + 2.0 * wide(self.kv_heads));
        let attention = 2.0 * hidden * heads / wide(layout.tensor);
        let router = 2.0 * hidden * wide(self.experts);
        let expert = 3.0 * hidden * inner * MXFP4_BYTES + 2.0 * (2.0 * inner + hidden);
        let experts = wide(self.experts) * expert * self.expert_share(layout);
        let layers = wide(self.layers) * self.layer_share(layout) * (attention + router + experts);
        layers + 2.0 * 2.0 * wide(self.vocab) * hidden / wide(layout.tensor)
    }

    /// Bytes of one KV block of one group on one GPU.
    pub fn block_bytes(&self, layout: &Layout, value_bytes: f64) -> f64 {
        let planes = (f64::from(self.planes) * self.layer_share(layout)).ceil();
        let heads = (f64::from(self.kv_heads) * self.kv_share(layout)).ceil();
        planes * 2.0 * heads * f64::from(BLOCK_SIZE) * f64::from(self.head_dim) * value_bytes
    }

    /// KV blocks that fit beside the weights in `usable` bytes of each GPU.
    pub fn kv_blocks(&self, layout: &Layout, usable: f64, value_bytes: f64) -> Result<u32, MemoryError> {
        let weights = self.weight_bytes(layout);
        let blocks = (usable - weights) / self.block_bytes(layout, value_bytes);
        if blocks < self.windows.len() as f64 {
            const GIB: f64 = (1u64 << 30) as f64;
            return Err(MemoryError { weights: weights / GIB, usable: usable / GIB });
        }
        Ok(blocks.min(f64::from(u32::MAX / 4)) as u32)
    }

    /// Bytes of keys and values that a prompt leaves behind, of all layers: windows keep only their window.
    pub(crate) fn prompt_kv_bytes(&self, tokens: u32, value_bytes: f64) -> f64 {
        let row = f64::from(self.planes * 2 * self.kv_heads * self.head_dim) * value_bytes;
        let kept = |window: &Option<u32>| f64::from(window.map_or(tokens, |window| window.min(tokens)));
        self.windows.iter().map(kept).sum::<f64>() * row
    }
}

/// Share of the rank that gets most when `count` things are dealt to `ranks`.
fn largest(count: u32, ranks: u32) -> f64 {
    f64::from(count.div_ceil(ranks.max(1))) / f64::from(count.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_as_large_as_the_published_checkpoints() {
        for (name, gib) in [("gpt-oss-20b", 12.8), ("gpt-oss-120b", 60.8)] {
            let bytes = ModelShape::named(name).unwrap().weight_bytes(&Layout::SINGLE);
            let got = bytes / f64::from(1 << 30);
            assert!((got / gib - 1.0).abs() < 0.01, "{name}: {got} GiB");
        }
    }

    #[test]
    fn shards_follow_the_blocks_of_32() {
        let shape = ModelShape::named("gpt-oss-120b").unwrap();
        let share = |text: &str| shape.expert_share(&text.parse().unwrap());
        assert_eq!(share("tp=4"), 23.0 / 90.0);
        assert_eq!(share("tp=8"), 12.0 / 90.0);
        assert_eq!(share("dp=8,ep"), 1.0 / 8.0);
        assert_eq!(shape.kv_share(&"tp=16".parse().unwrap()), 1.0 / 8.0);
    }

    #[test]
    fn a_model_that_does_not_fit_is_said() {
        let shape = ModelShape::named("gpt-oss-120b").unwrap();
        let usable = 40.0 * f64::from(1 << 30);
        let error = shape.kv_blocks(&Layout::SINGLE, usable, 2.0).unwrap_err();
        assert!(error.to_string().contains("more GPUs"), "{error}");
        assert!(shape.kv_blocks(&"tp=2".parse().unwrap(), usable, 2.0).unwrap() > 100);
    }
}
