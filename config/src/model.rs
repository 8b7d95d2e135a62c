//! The model's `config.json`: parsed and validated once, for every process that asks.
//!
//! Only gpt-oss is served. A value that the kernels would have to ignore is an error here, with the file and the key, so
//! that a wrong model stops the start before weights load. Nothing here opens weights.

mod reader;
mod rope;

pub use reader::ModelConfigError;
pub use rope::{Rope, Yarn};

use reader::Reader;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The one architecture that is served.
pub const ARCHITECTURE: &str = "GptOssForCausalLM";
/// Slope inside the sigmoid of SwiGLU; fixed in the architecture, not in the file.
pub const SWIGLU_ALPHA: f32 = 1.702;

/// What a layer's attention sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayerKind {
    /// Every token before.
    Full,
    /// The last [`ModelConfig::sliding_window`] tokens, the own one included.
    Sliding,
}

/// Shape and constants of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// Width inside an expert.
    pub intermediate_size: u32,
    /// Query heads.
    pub num_attention_heads: u32,
    /// Key and value heads.
    pub num_key_value_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Experts per layer.
    pub num_experts: u32,
    /// Experts per token.
    pub experts_per_token: u32,
    /// Width of the logits.
    pub vocab_size: u32,
    /// Longest sequence.
    pub max_position_embeddings: u32,
    /// Added to the mean square in norms.
    pub rms_norm_eps: f32,
    /// Clamp of SwiGLU.
    pub swiglu_limit: f32,
    /// Rotary embedding.
    pub rope: Rope,
    /// Window of the sliding layers.
    pub sliding_window: u32,
    /// One entry per layer.
    pub layers: Vec<LayerKind>,
    /// Whether the head is the embedding table.
    pub tie_word_embeddings: bool,
    /// Tokens that end an answer; `generation_config.json` has the last word.
    pub eos_token_ids: Vec<u32>,
}

impl ModelConfig {
    /// The window of each KV group, in the order of the layers: layers that attend alike share one. `None`: everything.
    pub fn kv_windows(&self) -> Vec<Option<u32>> {
        let mut windows = Vec::new();
        for layer in &self.layers {
            let window = match layer {
                LayerKind::Full => None,
                LayerKind::Sliding => Some(self.sliding_window),
            };
            if !windows.contains(&window) {
                windows.push(window);
            }
        }
        windows
    }

    /// Reads `config.json`, and `generation_config.json` where there is one, of a model directory.
    pub fn load(directory: &Path) -> Result<Self, ModelConfigError> {
        let config = Reader::open(&directory.join("config.json"))?;
        let generation = directory.join("generation_config.json");
        let generation = generation.exists().then(|| Reader::open(&generation)).transpose()?;
        Self::from_readers(&config, generation.as_ref())
    }

    fn from_readers(config: &Reader, generation: Option<&Reader>) -> Result<Self, ModelConfigError> {
        check_architecture(config)?;
        let count = |key: &str| config.number(key, 1, 1 << 24);
        let num_layers = config.number("num_hidden_layers", 1, 1024)?;
        let sliding_window = count("sliding_window")?;
        let mut model = Self {
            hidden_size: count("hidden_size")?,
            intermediate_size: count("intermediate_size")?,
            num_attention_heads: count("num_attention_heads")?,
            num_key_value_heads: count("num_key_value_heads")?,
            head_dim: count("head_dim")?,
            num_experts: count("num_local_experts")?,
            experts_per_token: experts_per_token(config)?,
            vocab_size: count("vocab_size")?,
            max_position_embeddings: count("max_position_embeddings")?,
            rms_norm_eps: config.float("rms_norm_eps", 0.0, 1.0)? as f32,
            swiglu_limit: config.float_or("swiglu_limit", 7.0, 0.0, 1e6)? as f32,
            rope: Rope::read(config)?,
            sliding_window,
            layers: layers(config, num_layers)?,
            tie_word_embeddings: config.flag_or("tie_word_embeddings", false)?,
            eos_token_ids: Vec::new(),
        };
        model.check_shape(config)?;
        model.eos_token_ids = match generation.map(|reader| reader.token_ids("eos_token_id")).transpose()? {
            Some(ids) if !ids.is_empty() => ids,
            _ => config.token_ids("eos_token_id")?,
        };
        if let Some(id) = model.eos_token_ids.iter().find(|id| **id >= model.vocab_size) {
            let expected = format!("ids below vocab_size {}", model.vocab_size);
            return Err(generation.unwrap_or(config).invalid("eos_token_id", expected, id));
        }
        Ok(model)
    }

    fn check_shape(&self, config: &Reader) -> Result<(), ModelConfigError> {
        for (key, value) in [("hidden_size", self.hidden_size), ("intermediate_size", self.intermediate_size)]
        {
            if !value.is_multiple_of(32) {
                return Err(config.invalid(key, "a multiple of 32, the MXFP4 block", value));
            }
        }
        if !self.head_dim.is_multiple_of(2) || self.head_dim > 256 {
            return Err(config.invalid("head_dim", "an even number up to 256", self.head_dim));
        }
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            let expected = format!("a divisor of num_attention_heads {}", self.num_attention_heads);
            return Err(config.invalid("num_key_value_heads", expected, self.num_key_value_heads));
        }
        if self.experts_per_token > self.num_experts {
            let expected = format!("at most num_local_experts {}", self.num_experts);
            return Err(config.invalid("num_experts_per_tok", expected, self.experts_per_token));
        }
        Ok(())
    }

    /// Columns of the fused query, key and value product.
    pub fn qkv_columns(&self) -> u32 {
        (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim
    }

    /// Layers of one kind.
    pub fn count(&self, kind: LayerKind) -> usize {
        self.layers.iter().filter(|layer| **layer == kind).count()
    }
}

fn check_architecture(config: &Reader) -> Result<(), ModelConfigError> {
    let names = config.strings("architectures")?;
    if !names.iter().any(|name| name == ARCHITECTURE) {
        return Err(ModelConfigError::Architecture { path: config.path().to_owned(), got: names.join(", ") });
    }
    if let Some(act) = config.text("hidden_act")?.filter(|act| act != "silu") {
        return Err(config.invalid("hidden_act", "silu", act));
    }
    if !config.flag_or("attention_bias", true)? {
        return Err(config.invalid("attention_bias", "true", false));
    }
    if let Some(quantization) = config.object("quantization_config")?
        && let Some(method) = quantization.text("quant_method")?.filter(|method| method != "mxfp4")
    {
        return Err(quantization.invalid("quant_method", "mxfp4", method));
    }
    Ok(())
}

/// Two names are in use; files often carry both.
fn experts_per_token(config: &Reader) -> Result<u32, ModelConfigError> {
    let read = |key| match config.has(key) {
        true => config.number(key, 1, 64).map(Some),
        false => Ok(None),
    };
    match (read("num_experts_per_tok")?, read("experts_per_token")?) {
        (Some(a), Some(b)) if a != b => {
            Err(config.invalid("experts_per_token", format!("num_experts_per_tok's value {a}"), b))
        }
        (Some(count), _) | (None, Some(count)) => Ok(count),
        (None, None) => Err(config.missing("num_experts_per_tok")),
    }
}

fn layers(config: &Reader, count: u32) -> Result<Vec<LayerKind>, ModelConfigError> {
    if !config.has("layer_types") {
        // The architecture's default: even layers slide.
        let kind = |layer: u32| if layer.is_multiple_of(2) { LayerKind::Sliding } else { LayerKind::Full };
        return Ok((0..count).map(kind).collect());
    }
    let names = config.strings("layer_types")?;
    if names.len() != count as usize {
        let expected = format!("num_hidden_layers = {count} entries");
        return Err(config.invalid("layer_types", expected, names.len()));
    }
    let kind = |name: &String| match name.as_str() {
        "sliding_attention" => Ok(LayerKind::Sliding),
        "full_attention" => Ok(LayerKind::Full),
        other => Err(config.invalid("layer_types", "sliding_attention or full_attention", other)),
    };
    names.iter().map(kind).collect()
}

#[cfg(test)]
mod tests;
