//! `gossamer autotune`: measures the tactics of all backends and keeps the choice for later starts.

use super::model_args::ModelArgs;
use crate::process::{best_device, demo_model};
use clap::Args;
use gossamer_config::{Device, resolve_on};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    error::Error,
    ffi::OsString,
    io::{Write, stdout},
    path::PathBuf,
};

/// Arguments of `gossamer autotune`.
#[derive(Args)]
pub struct AutotuneArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Where the kernel cache is kept; give `serve` the same
    #[arg(long, value_name = "DIR")]
    kernel_cache_dir: PathBuf,
    /// Where to measure: cpu, cuda, or auto (a CUDA device where there is one that can run the model)
    #[arg(long, default_value = "auto")]
    device: String,
    /// Backend of the fused MoE; a server that forces one has choices of its own
    #[arg(long, value_name = "NAME")]
    moe_backend: Option<String>,
    /// Backend of attention, likewise
    #[arg(long, value_name = "NAME")]
    attention_backend: Option<String>,
    /// Type that experts may take activations in: auto or fp8
    #[arg(long)]
    moe_activation_dtype: Option<String>,
    /// What attention may compute in: auto or fp8
    #[arg(long)]
    attention_arithmetic: Option<String>,
    /// Where weights come from: auto, safetensors or dummy
    #[arg(long)]
    load_format: Option<String>,
    /// Tokens of the largest step to tune for
    #[arg(long)]
    max_num_batched_tokens: Option<u32>,
}

impl AutotuneArgs {
    /// The server's flags that say the same.
    fn to_arguments(&self) -> Vec<OsString> {
        let mut arguments = self.model.to_arguments();
        let mut flag = |name: &str, value: Option<OsString>| {
            if let Some(value) = value {
                arguments.extend([name.into(), value]);
            }
        };
        flag("--device", Some(self.device.clone().into()));
        flag("--moe-backend", self.moe_backend.clone().map(Into::into));
        flag("--attention-backend", self.attention_backend.clone().map(Into::into));
        flag("--moe-activation-dtype", self.moe_activation_dtype.clone().map(Into::into));
        flag("--attention-arithmetic", self.attention_arithmetic.clone().map(Into::into));
        flag("--load-format", self.load_format.clone().map(Into::into));
        flag("--max-num-batched-tokens", self.max_num_batched_tokens.map(|tokens| tokens.to_string().into()));
        // A step of a few tokens has few sequences; the draw is tuned for as many as there can be.
        flag("--max-num-seqs", self.max_num_batched_tokens.map(|tokens| tokens.min(256).to_string().into()));
        arguments
    }
}

/// Measures, and writes the cache.
pub fn run(args: &AutotuneArgs) -> Result<(), Box<dyn Error>> {
    let config = resolve_on(args.to_arguments(), [], &demo_model(), best_device)?.config;
    if config.device == Device::Sim {
        return Err("expected --device cpu, cuda or auto, got sim, which has no tactics".into());
    }
    // Why a cache is not used, or a tactic not measured.
    crate::log::start(&config.log, None);
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{msg:<20} {wide_bar} {pos}/{len} {elapsed}") {
        bar.set_style(style);
    }
    let report = gossamer_worker::autotune(&config, &args.kernel_cache_dir, &mut |tokens, counts| {
        bar.set_length(counts as u64);
        bar.inc(1);
        bar.set_message(format!("{tokens} tokens"));
    })?;
    bar.finish_and_clear();
    writeln!(
        stdout(),
        "measured {} choices; the kernel cache is {}",
        report.measured,
        report.path.display()
    )?;
    Ok(())
}
