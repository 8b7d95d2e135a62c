//! The command line.

mod autotune;
mod backends;
mod device_host;
mod graph;
mod latency;
mod model_args;

use self::model_args::ModelArgs;
use crate::process::run_serve;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use gossamer_bench::{compare::CompareArgs, pareto::ParetoArgs, serve::ServeBenchArgs, sweep::SweepArgs};
use gossamer_config::{ServeArgs, expand_short_flags, read_negative_numbers};
use gossamer_plan::PlanArgs;
use std::{error::Error, ffi::OsString, io::Write, path::PathBuf, process::ExitCode};

/// Exit status of a command whose output was closed: what shells show of a program that the signal for it has ended.
const CLOSED_PIPE: u8 = 128 + 13;

/// Why a command failed.
type Failure = Box<dyn Error>;

/// Serves OpenAI's gpt-oss models.
#[derive(Parser)]
#[command(name = "gossamer", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a model over HTTP; without MODEL_DIR the demo model
    Serve(Box<ServeArgs>),
    /// List the backends that are found, and what each can do
    Backends(backends::BackendsArgs),
    /// Print a model's graph before and after fusion
    Graph(graph::GraphArgs),
    /// Measure the tactics of all backends and keep the choice for later starts
    Autotune(autotune::AutotuneArgs),
    /// Measure a server, or this machine
    Bench {
        /// What to measure
        #[command(subcommand)]
        what: Bench,
    },
    /// Say how many GPUs, in which layout, meet targets for TTFT and TPOT, by simulation in virtual time
    Plan(Box<PlanArgs>),
    /// Opens one backend and reports on it: a process of its own, since a plugin may crash when it is opened
    #[command(hide = true)]
    ProbeBackend(backends::ProbeArgs),
    /// Says by its exit status whether the CUDA device and the backends can run a model: what `--device auto` asks
    #[command(hide = true)]
    ProbeDevice(ModelArgs),
    /// Opens one backend and ends: who serves has this tried before it opens the same
    #[command(hide = true)]
    OpenBackend {
        /// The plugin
        file: PathBuf,
    },
}

#[derive(Subcommand)]
enum Bench {
    /// Send requests to a server and measure what its users feel
    Serve(Box<ServeBenchArgs>),
    /// Measure a grid of settings, keep every result, and draw the Pareto frontier
    Sweep(Box<SweepArgs>),
    /// Draw the Pareto frontier of stored results
    Pareto(ParetoArgs),
    /// Print the ratios of two results, or of the matching points of two result sets
    Compare(CompareArgs),
    /// Time prefill and decoding in this process, beside the machine's roofs
    Latency(Box<latency::LatencyArgs>),
}

/// Runs a command; `arguments` are those behind the program's name.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    // `serve` reads its arguments itself: it must know which were given.
    let serve_arguments = match arguments.first() {
        Some(first) if first == "serve" => Some(arguments[1..].to_vec()),
        _ => None,
    };
    let arguments = match serve_arguments {
        Some(_) => expand_short_flags(arguments),
        None if arguments.first().is_some_and(|first| first == "graph") => expand_short_flags(arguments),
        None => arguments,
    };
    let named = std::iter::once("gossamer".into()).chain(arguments);
    let matches = match read_negative_numbers(Cli::command()).try_get_matches_from(named) {
        Ok(matches) => matches,
        Err(error) => error.exit(),
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    match cli.command {
        Command::Serve(_) => run_serve(serve_arguments.unwrap_or_default()),
        Command::Backends(args) => report("backends", backends::list(&args)),
        Command::ProbeBackend(args) => report("probe-backend", backends::probe(&args)),
        Command::ProbeDevice(args) => report("probe-device", device_host::probe(&args)),
        Command::OpenBackend { file } => report("open-backend", backends::try_open(&file)),
        Command::Graph(args) => report("graph", graph::print(&args)),
        Command::Autotune(args) => report("autotune", autotune::run(&args)),
        Command::Bench { what: Bench::Latency(args) } => report("bench latency", latency::run(&args)),
        Command::Bench { what: Bench::Serve(args) } => {
            asynchronous("bench serve", gossamer_bench::serve::run(&args))
        }
        Command::Bench { what: Bench::Sweep(args) } => {
            asynchronous("bench sweep", gossamer_bench::sweep::run(&args))
        }
        Command::Bench { what: Bench::Pareto(args) } => {
            report("bench pareto", gossamer_bench::pareto::run(&args))
        }
        Command::Bench { what: Bench::Compare(args) } => {
            report("bench compare", gossamer_bench::compare::run(&args))
        }
        Command::Plan(args) => report("plan", gossamer_plan::plan(&args)),
    }
}

fn asynchronous<T, E: Into<Failure>>(command: &str, work: impl Future<Output = Result<T, E>>) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => report(command, runtime.block_on(work)),
        Err(error) => report(command, Err::<(), _>(error)),
    }
}

fn report<T, E: Into<Failure>>(command: &str, result: Result<T, E>) -> ExitCode {
    // What was printed without the end of a line is still in the buffer.
    let result = result.map_err(Into::into).and_then(|_| Ok(std::io::stdout().flush()?));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // `gossamer … | head`: enough was read, and nothing is to be said.
        Err(error) if is_closed_pipe(error.as_ref()) => ExitCode::from(CLOSED_PIPE),
        Err(error) => {
            crate::log::say(format_args!("gossamer {command}: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Whether an error, or what caused it, is that nobody reads the output any more.
fn is_closed_pipe(error: &(dyn Error + 'static)) -> bool {
    let is = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
    error.downcast_ref().is_some_and(is) || error.source().is_some_and(is_closed_pipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn help(words: &[&str]) -> String {
        let words = ["gossamer"].iter().chain(words).chain(&["--help"]);
        Cli::command().try_get_matches_from(words).expect_err("help is no command").to_string()
    }

    #[test]
    fn a_negative_number_is_a_value_out_of_range_and_no_unknown_flag() {
        let command = read_negative_numbers(Cli::command());
        command.clone().debug_assert();
        let error = |words: &[&str]| {
            let words = ["gossamer"].iter().chain(words);
            command.clone().try_get_matches_from(words).expect_err("it is out of range").to_string()
        };
        for flag in [
            "stream-interval",
            "max-restarts",
            "max-logprobs",
            "shutdown-timeout",
            "stall-timeout",
            "autotune-budget",
            "port",
        ] {
            let said = error(&["serve", &format!("--{flag}"), "-1"]);
            assert!(said.contains(&format!("invalid value '-1' for '--{flag} ")), "{said}");
        }
        let said = error(&["bench", "latency", "--batch-size", "-1"]);
        assert!(said.contains("invalid value '-1'"), "{said}");
    }

    #[test]
    fn a_help_lists_what_the_command_does_and_nothing_else() {
        for words in [&["backends"][..], &["bench", "latency"]] {
            let help = help(words);
            assert!(help.contains("--kv-cache-dtype") && !help.contains("--svg"), "{help}");
            assert!(!help.contains("--disable-pass"), "{help}");
        }
        let graph = help(&["graph"]);
        assert!(graph.contains("--svg") && graph.contains("--disable-pass"), "{graph}");
        let serve = help(&["serve"]);
        for words in ["this version serves one rank", "in_order", "by_marker"] {
            assert!(serve.contains(words), "{words}: {serve}");
        }
    }
}
