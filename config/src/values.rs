//! The values that flags take.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr, time::Duration};

/// What executes the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Device {
    /// A CUDA device where there is one that can run the model, else the processor.
    Auto,
    /// NVIDIA GPUs.
    Cuda,
    /// The processor.
    Cpu,
    /// No arithmetic: a timed device with seeded or scripted tokens.
    Sim,
}

/// Type of the activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Dtype {
    /// float32 on CPUs, bfloat16 on GPUs.
    Auto,
    /// 32-bit floats.
    #[value(alias = "float")]
    Float32,
    /// bfloat16.
    #[value(alias = "bf16")]
    Bfloat16,
}

/// Type that experts may take activations in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum MoeActivationDtype {
    /// That of all activations.
    Auto,
    /// E4M3 with a scale per token, where a tactic of it is the fastest. It rounds activations to four bits of precision.
    #[value(alias = "fp8_e4m3")]
    Fp8,
}

/// What attention may compute in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum AttentionArithmetic {
    /// The activations' type; an E4M3 cache is widened exactly.
    Auto,
    /// E4M3, where a tactic of it is the fastest: with an E4M3 cache, queries and probabilities are rounded to four bits of precision too.
    #[value(alias = "fp8_e4m3")]
    Fp8,
}

/// Type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum KvCacheDtype {
    /// That of the activations.
    Auto,
    /// bfloat16.
    #[value(alias = "bfloat16")]
    Bf16,
    /// E4M3, half of bfloat16's memory.
    #[value(alias = "fp8_e4m3")]
    Fp8,
}

/// Where weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum LoadFormat {
    /// Whatever the directory holds.
    Auto,
    /// `*.safetensors`.
    Safetensors,
    /// Seeded random weights in the shape of `config.json`.
    Dummy,
}

/// Device groups for prefill and decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disaggregate {
    /// Ranks that run prompts.
    pub prefill: u32,
    /// Ranks that generate.
    pub decode: u32,
}

impl FromStr for Disaggregate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let shape = || format!("expected prefill=N,decode=M with N and M at least 1, got '{text}'");
        let (mut prefill, mut decode) = (None, None);
        for part in text.split(',') {
            let (name, count) = part.split_once('=').ok_or_else(shape)?;
            let count = count.trim().parse::<u32>().ok().filter(|count| *count > 0).ok_or_else(shape)?;
            let slot = match name.trim() {
                "prefill" => &mut prefill,
                "decode" => &mut decode,
                _ => return Err(shape()),
            };
            if slot.replace(count).is_some() {
                return Err(shape());
            }
        }
        Ok(Self { prefill: prefill.ok_or_else(shape)?, decode: decode.ok_or_else(shape)? })
    }
}

/// A string that is never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// The secret itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl FromStr for Secret {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

/// Parses seconds: `30`, `0.5` or `30s`.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text);
    number
        .parse::<f64>()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| format!("expected seconds such as 30 or 0.5, got '{text}'"))
}

/// Parses a fraction in `(0, 1]`.
pub(crate) fn fraction(text: &str) -> Result<f64, String> {
    text.parse::<f64>()
        .ok()
        .filter(|value| *value > 0.0 && *value <= 1.0)
        .ok_or_else(|| format!("expected a number above 0 and at most 1, got '{text}'"))
}

/// Parses a length in tokens: a number, or one with `k` (1000) or `K` (1024) behind it as vLLM reads it.
pub(crate) fn tokens(text: &str) -> Result<u32, String> {
    let (number, unit) = match text.strip_suffix(['k', 'K']) {
        Some(number) => (number, if text.ends_with('K') { 1024 } else { 1000 }),
        None => (text, 1),
    };
    number
        .parse::<u32>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .filter(|number| *number > 0)
        .ok_or_else(|| format!("expected a number of tokens of at least 1 such as 8192 or 8K, got '{text}'"))
}
