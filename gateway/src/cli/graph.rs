//! `gossamer graph`: a model's operations before and after fusion.

use super::model_args::ModelArgs;
use clap::Args;
use gossamer_config::ModelConfig;
use gossamer_kernels::passes;
use gossamer_worker::{ModelOptions, backends, pool};
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
}

/// Prints the graph.
pub fn print(args: &GraphArgs) -> Result<(), Box<dyn Error>> {
    let config = args.model.config()?;
    let model = ModelConfig::load(&config.model)?;
    let open = backends::open(&config, pool::start(1, false)?)?;
    let mut options = ModelOptions::new(&config, 0);
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
    if let Some(path) = &args.svg {
        std::fs::write(path, fused.svg(&config.model.display().to_string()))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        writeln!(stdout(), "picture written to {}", path.display())?;
    }
    Ok(())
}
