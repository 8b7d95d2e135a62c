//! Rotary embedding with YaRN (Su et al. 2021; Peng et al. 2023, "YaRN: efficient context window extension").

use super::reader::{ModelConfigError, Reader};
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// Rotary embedding of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Extension of the context; `None` for plain rotary embedding.
    pub yarn: Option<Yarn>,
}

/// YaRN: frequencies below `beta_slow` turns over the original context are interpolated, those above `beta_fast` kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Yarn {
    /// By how much the context grows.
    pub factor: f64,
    /// Context of the first training.
    pub original_context: u32,
    /// Turns above which a frequency is kept.
    pub beta_fast: f64,
    /// Turns below which it is interpolated.
    pub beta_slow: f64,
    /// Whether the two borders are rounded outwards to whole dimensions.
    pub truncate: bool,
    /// Multiplies cosine and sine.
    pub attention_factor: f64,
}

impl Rope {
    /// Reads `rope_theta` and `rope_scaling`, or `rope_parameters`, which newer files carry in their place.
    pub(super) fn read(config: &Reader) -> Result<Self, ModelConfigError> {
        let newer = config.object("rope_parameters")?;
        let scaling = match &newer {
            Some(_) => newer,
            None => config.object("rope_scaling")?,
        };
        let holds_theta = scaling.as_ref().filter(|scaling| scaling.has("rope_theta"));
        let theta = holds_theta.unwrap_or(config).float("rope_theta", 1.0, 1e12)?;
        let yarn = scaling.map(|scaling| Yarn::read(&scaling, config)).transpose()?.flatten();
        Ok(Self { theta, yarn })
    }

    /// Multiplies cosine and sine.
    pub fn magnitude(&self) -> f32 {
        self.yarn.as_ref().map_or(1.0, |yarn| yarn.attention_factor as f32)
    }

    /// Radians per position, `[head_dim / 2]`. Rounded to float32 where the reference implementation rounds: at
    /// position 10^5 a difference in the last bit is a hundredth of a radian.
    pub fn inverse_frequencies(&self, head_dim: u32) -> Vec<f32> {
        let dim = f64::from(head_dim);
        let frequency = |pair: u32| self.theta.powf(f64::from(2 * pair) / dim) as f32;
        let Some(yarn) = &self.yarn else {
            return (0..head_dim / 2).map(|pair| 1.0 / frequency(pair)).collect();
        };
        let (low, high) = yarn.borders(self.theta, dim);
        let ramp = |pair: u32| ((pair as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
        (0..head_dim / 2)
            .map(|pair| {
                let kept = 1.0 - ramp(pair);
                let frequency = frequency(pair);
                1.0 / (yarn.factor as f32 * frequency) * (1.0 - kept) + 1.0 / frequency * kept
            })
            .collect()
    }
}

impl Yarn {
    fn read(scaling: &Reader, config: &Reader) -> Result<Option<Self>, ModelConfigError> {
        let kind = match scaling.text("rope_type")? {
            Some(kind) => kind,
            None => scaling.text("type")?.ok_or_else(|| scaling.missing("rope_type"))?,
        };
        match kind.as_str() {
            "default" => return Ok(None),
            "yarn" => {}
            other => return Err(scaling.invalid("rope_type", "yarn or default", other)),
        }
        let factor = scaling.float("factor", 0.0, 1e6)?;
        let original = match scaling.has("original_max_position_embeddings") {
            true => scaling.number("original_max_position_embeddings", 1, 1 << 24)?,
            false => config.number("initial_context_length", 1, 1 << 24)?,
        };
        let yarn = Self {
            factor,
            original_context: original,
            beta_fast: scaling.float_or("beta_fast", 32.0, 0.0, 1e6)?,
            beta_slow: scaling.float_or("beta_slow", 1.0, 0.0, 1e6)?,
            truncate: scaling.flag_or("truncate", true)?,
            attention_factor: scaling.float_or(
                "attention_factor",
                if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 },
                0.0,
                1e3,
            )?,
        };
        if yarn.beta_fast <= yarn.beta_slow {
            let expected = format!("more than beta_slow {}", yarn.beta_slow);
            return Err(scaling.invalid("beta_fast", expected, yarn.beta_fast));
        }
        Ok(Some(yarn))
    }

    /// The pairs of dimensions between which the ramp runs.
    fn borders(&self, theta: f64, dim: f64) -> (f64, f64) {
        let pair = |turns: f64| {
            dim * (f64::from(self.original_context) / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (pair(self.beta_fast), pair(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(dim - 1.0));
        // The ramp must not divide by zero.
        (low, if high > low { high } else { low + 0.001 })
    }
}
