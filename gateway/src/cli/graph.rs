//! `gossamer graph`: a model's operations before and after fusion.

use super::{device_host::DeviceHost, model_args::ModelArgs};
use crate::process::demo_model;
use clap::Args;
use gossamer_config::{ConfigError, ModelConfig, ServeConfig, resolve};
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
    /// Type that experts may take activations in: auto or fp8
    #[arg(long)]
    moe_activation_dtype: Option<String>,
}

impl GraphArgs {
    /// The configuration that a server with these flags has. Several ranks are the graph's alone: a server has one.
    fn config(&self) -> Result<ServeConfig, ConfigError> {
        let mut arguments = self.model.to_arguments();
        if let Some(dtype) = &self.moe_activation_dtype {
            arguments.splice(0..0, ["--moe-activation-dtype".into(), dtype.into()]);
        }
        Ok(resolve(arguments, [], &demo_model())?.config)
    }
}

/// Prints the graph.
pub fn print(args: &GraphArgs) -> Result<(), Box<dyn Error>> {
    let config = args.config()?;
    let place = Shard { rank: args.rank, ranks: args.tensor_parallel_size };
    let model = graph::shard(&ModelConfig::load(&config.model)?, place)?;
    let host = DeviceHost::open(&config)?;
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
