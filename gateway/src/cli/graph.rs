//! `gossamer graph`: a model's operations before and after fusion.

use super::{device_host::DeviceHost, model_args::ModelArgs};
use clap::Args;
use gossamer_config::{ConfigError, ModelConfig, MoeActivationDtype, ServeConfig};
use gossamer_kernels::graph::{self, Shard};
use gossamer_kernels::passes;
use gossamer_worker::backends;
use std::{
    error::Error,
    io::{Write, stdout},
    path::PathBuf,
};

/// Arguments of `gossamer graph`.
#[derive(Args)]
pub struct GraphArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Fusion passes to leave out (repeat, or separate by commas)
    #[arg(long, value_name = "PASS", value_delimiter = ',')]
    disable_pass: Vec<String>,
    /// Also write the fused graph as a picture
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
    /// Also write the graph before fusion as a picture
    #[arg(long, value_name = "FILE.svg")]
    svg_before: Option<PathBuf>,
    /// Show a rank's part of the model in a tensor-parallel group of so many ranks
    #[arg(long, value_name = "RANKS", default_value_t = 1)]
    tensor_parallel_size: u32,
    /// Which rank's part
    #[arg(long, default_value_t = 0)]
    rank: u32,
    /// Type that experts may take activations in
    #[arg(long, value_parser = ["auto", "fp8"], default_value = "auto")]
    moe_activation_dtype: String,
}

impl GraphArgs {
    /// The configuration that a server with these flags has. Several ranks are the graph's alone, and so is E4M3 on CPUs.
    fn config(&self) -> Result<ServeConfig, ConfigError> {
        let mut config = self.model.config()?;
        if self.moe_activation_dtype == "fp8" {
            config.moe_activation_dtype = MoeActivationDtype::Fp8;
        }
        Ok(config)
    }
}

/// Prints the graph.
pub fn print(args: &GraphArgs) -> Result<(), Box<dyn Error>> {
    let config = args.config()?;
    let place = Shard { rank: args.rank, ranks: args.tensor_parallel_size };
    let model = graph::shard(&ModelConfig::load(&config.model)?, place)?;
    // A backend that is left out.
    crate::log::start("warn", None);
    let host = DeviceHost::open()?;
    let open = backends::open(&config, host.services)?;
    let mut options = host.model_options(&config);
    options.shard = place;
    options.disabled_passes = passes::PASSES.iter().map(|pass| pass.name).collect();
    let (plain, _) = options.graph(&model, &open.backends);
    options.disabled_passes = passes::parse_disabled(args.disable_pass.iter().map(String::as_str))?;
    let (fused, applied) = options.graph(&model, &open.backends);
    writeln!(stdout(), "before fusion, {} operations:\n{}", plain.nodes.len(), plain.text())?;
    for pass in passes::PASSES {
        let outcome = match applied.iter().find(|applied| applied.name == pass.name) {
            Some(applied) => format!("fired {} times", applied.times),
            None => "is switched off".into(),
        };
        writeln!(stdout(), "pass {} ({}) {outcome}", pass.name, pass.about)?;
    }
    writeln!(stdout(), "\nafter fusion, {} operations:\n{}", fused.nodes.len(), fused.text())?;
    for (path, graph) in [(&args.svg_before, &plain), (&args.svg, &fused)] {
        let Some(path) = path else { continue };
        std::fs::write(path, graph.svg(&config.model.display().to_string()))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        writeln!(stdout(), "picture written to {}", path.display())?;
    }
    Ok(())
}
