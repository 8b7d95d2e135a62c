//! `gossamer backends`: what was found, from where, and what each can and cannot do.
//!
//! Files are inspected here without running their code; each is then opened in a process of its own.

use super::{Failure, device_host::DeviceHost, model_args::ModelArgs};
use clap::Args;
use gossamer_backend_api::{KernelBackend, OpDesc, Support, loader};
use gossamer_config::ModelConfig;
use gossamer_kernels::graph::{self, Graph, Node, Op, Shard};
use gossamer_kernels::passes;
use gossamer_worker::{backends, pool};
use std::{
    io::{Write, stdout},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

/// Arguments of `gossamer backends`.
#[derive(Args)]
pub struct BackendsArgs {
    /// What is asked for: the operations of a model
    #[command(flatten)]
    model: ModelArgs,
}

/// Arguments of the probing process.
#[derive(Args)]
pub struct ProbeArgs {
    /// The plugin.
    file: PathBuf,
    #[command(flatten)]
    model: ModelArgs,
}

/// Lists all backends.
pub fn list(args: &BackendsArgs) -> Result<(), Failure> {
    let config = args.model.config()?;
    let directory = backends::directory(&config)?;
    writeln!(stdout(), "backends in {}:", directory.display())?;
    let found = loader::discover(&directory)?;
    if found.is_empty() {
        writeln!(stdout(), "  none (libgossamer_*.so); build them with `cargo build --release --workspace`")?;
    }
    for file in found {
        match file {
            Ok(file) => {
                writeln!(stdout(), "\n{} {}  {}", file.name, file.version, file.path.display())?;
                let mut probe = Command::new("/proc/self/exe");
                probe.arg("probe-backend").arg(&file.path).args(args.model.to_arguments());
                let status = probe.stdin(Stdio::null()).status()?;
                if !status.success() {
                    writeln!(stdout(), "  cannot be used: the process that opened it ended with {status}")?;
                }
            }
            Err(error) => writeln!(stdout(), "\nrefused: {error}")?,
        }
    }
    Ok(())
}

/// The operations of a graph before fusion, with all passes but those that only device backends have the whole of, and after every pass,
/// whoever can do them.
fn forms(plain: Graph) -> Vec<Node> {
    let mut asked = plain.nodes.clone();
    for disabled in [&["fused-moe", "qkv-rope"][..], &[]] {
        let mut fused = plain.clone();
        passes::run(&mut fused, &disabled.iter().copied().collect(), &|_| true);
        asked.extend(fused.nodes);
    }
    asked
}

/// Opens one backend and prints what it says about every operation of the model.
pub fn probe(args: &ProbeArgs) -> Result<(), Failure> {
    let config = args.model.config()?;
    let host = DeviceHost::open()?;
    let file = loader::inspect(&args.file)?;
    let backend: Arc<dyn KernelBackend> = Arc::new(loader::open(&file, host.services)?);
    let model = ModelConfig::load(&config.model)?;
    let mut options = host.model_options(&config);
    writeln!(stdout(), "  on {}", host.name())?;
    let notes = backend.notes();
    if !notes.is_empty() {
        writeln!(stdout(), "  {notes}")?;
    }
    // Everything that a graph may ask for: before fusion, after it, and where the mixture of experts and the qkv product stay in parts.
    let mut asked = forms(options.unfused(&model));
    // What only a rank of several does: the sums over them.
    options.shard = Shard { rank: 0, ranks: 2 };
    if let Ok(part) = graph::shard(&model, options.shard) {
        asked.extend(
            forms(options.unfused(&part))
                .into_iter()
                .filter(|node| matches!(node.op, Op::AllReduce { .. } | Op::AllReduceNorm { .. })),
        );
    }
    let mut told: Vec<OpDesc> = Vec::new();
    for node in asked {
        let desc = node.op.desc();
        if told.contains(&desc) {
            continue;
        }
        let answer = match backend.supports(&desc) {
            Support::Yes => {
                let names = backend.tactics(&desc, 1).into_iter().map(|tactic| tactic.name);
                format!("yes: {}", names.collect::<Vec<_>>().join(", "))
            }
            Support::No(reason) => format!("no: {reason}"),
        };
        writeln!(stdout(), "  {:<28} {answer}", node.label())?;
        told.push(desc);
    }
    Ok(())
}

/// Opens one backend, for the process that would use it.
pub fn try_open(file: &Path) -> Result<(), Failure> {
    Ok(backends::try_open(file, pool::start(1, false)?)?)
}
