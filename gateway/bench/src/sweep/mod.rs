//! `gossamer bench sweep`: a grid of settings, every result on disk, the Pareto frontier at the end.
//!
//! Invariant: a point that is stored and good is never measured again; one that failed is.
//! Invariant: a point that fails does not stop the others, and makes the exit status non-zero.
//! Invariant: a folder that holds a point of the same name under other settings is left alone: the sweep does not start.

mod args;
mod grid;
mod server;

pub use args::{Axis, Lengths, SweepArgs};
pub use grid::{Point, ServerRun, servers};

use crate::output;
use crate::pareto::{self, ParetoError};
use crate::results::{self, POINT_SCHEMA, PointFile, ResultsError};
use crate::serve::{self, BenchError, Measured};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::Map;
use server::Server;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Why a sweep did not run, or is not complete.
#[derive(Debug, Error)]
pub enum SweepError {
    /// The arguments contradict each other.
    #[error("{0}")]
    Arguments(String),
    /// The measurement's arguments contradict each other.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// Results cannot be read or written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// The page cannot be drawn.
    #[error(transparent)]
    Pareto(#[from] ParetoError),
    /// A server did not come up.
    #[error("the server did not start: {message}; its log is {log}")]
    Server {
        /// Its log.
        log: PathBuf,
        /// What happened.
        message: String,
    },
    /// The folder holds other results.
    #[error("{file} was measured with {differences}; use another --output, or remove it")]
    Differs {
        /// The file.
        file: PathBuf,
        /// The settings that differ.
        differences: String,
    },
    /// It was told to end.
    #[error(
        "told to end: a server that it had started was ended too; run the same command again to measure the rest"
    )]
    Interrupted,
    /// Some points failed.
    #[error(
        "{failed} of {total} points failed; the first error: {first}; run the same command again to repeat them"
    )]
    Points {
        /// Failed points.
        failed: usize,
        /// All points.
        total: usize,
        /// Text of the first error.
        first: String,
    },
}

/// What a sweep did.
#[derive(Debug, Default)]
pub struct Swept {
    /// Points of the grid.
    pub total: usize,
    /// Points that were there already.
    pub kept: usize,
    /// Errors of the points that failed.
    pub errors: Vec<String>,
}

/// Runs the sweep and draws its page.
pub async fn run(args: &SweepArgs) -> Result<Swept, SweepError> {
    args.check()?;
    let mut servers = grid::servers(args)?;
    std::fs::create_dir_all(&args.output)
        .map_err(|source| ResultsError::Write { path: args.output.clone(), source })?;
    let total: usize = servers.iter().map(|server| server.points.len()).sum();
    for server in &mut servers {
        let mut missing = Vec::new();
        for point in server.points.drain(..) {
            if !is_stored(&args.output, &point)? {
                missing.push(point);
            }
        }
        server.points = missing;
    }
    let todo: usize = servers.iter().map(|server| server.points.len()).sum();
    let mut sweep = Sweep {
        args,
        bars: bars(args, todo),
        swept: Swept { total, kept: total - todo, errors: Vec::new() },
    };
    sweep.say(format!(
        "{total} points, {} of them there already, in {}",
        total - todo,
        args.output.display()
    ));
    let told_to_end = told_to_end();
    tokio::pin!(told_to_end);
    for server in servers.iter().filter(|server| !server.points.is_empty()) {
        tokio::select! {
            measured = sweep.on(server) => measured?,
            // What was measured is dropped, and its server with it.
            () = &mut told_to_end => return Err(SweepError::Interrupted),
        }
    }
    sweep.bars.1.finish_and_clear();
    let swept = sweep.swept;
    if swept.errors.len() < total {
        let page = args.output.join("pareto.html");
        pareto::draw(std::slice::from_ref(&args.output), &page, args.gpus)?;
        pareto::say(&page)?;
    }
    match swept.errors.first() {
        Some(first) => Err(SweepError::Points { failed: swept.errors.len(), total, first: first.clone() }),
        None => Ok(swept),
    }
}

/// Ends when this process is told to end. Without it the default would end the process at once, and leave the server.
async fn told_to_end() {
    let signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [mut interrupt, mut terminate, mut hangup] = signals.map(|kind| signal(kind).ok());
    let wait = async |signal: &mut Option<Signal>| match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    };
    tokio::select! {
        () = wait(&mut interrupt) => {}
        () = wait(&mut terminate) => {}
        () = wait(&mut hangup) => {}
    }
}

fn bars(args: &SweepArgs, points: usize) -> (MultiProgress, ProgressBar) {
    let all = MultiProgress::new();
    if args.serve.disable_progress {
        all.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let bar = all.add(ProgressBar::new(points as u64));
    if let Ok(style) = ProgressStyle::with_template("points {wide_bar} {pos}/{len} {elapsed} (eta {eta})") {
        bar.set_style(style);
    }
    (all, bar)
}

/// Whether the point is there and good.
fn is_stored(folder: &Path, point: &Point) -> Result<bool, SweepError> {
    let file = folder.join(format!("{}.json", point.name));
    if !file.exists() {
        return Ok(false);
    }
    let text =
        std::fs::read_to_string(&file).map_err(|source| ResultsError::Read { path: file.clone(), source })?;
    let stored: PointFile = serde_json::from_str(&text)
        .map_err(|error| ResultsError::Format { path: file.clone(), got: error.to_string() })?;
    if stored.schema == POINT_SCHEMA && stored.settings == point.settings {
        return Ok(stored.error.is_none());
    }
    let mut differences = Vec::new();
    for name in results::Settings::varying(&[&stored.settings, &point.settings]) {
        let value = |settings: &results::Settings| settings.value(name).unwrap_or("none").to_owned();
        differences.push(format!("{name} {}, not {}", value(&stored.settings), value(&point.settings)));
    }
    if differences.is_empty() {
        differences.push(format!("schema {}, not {POINT_SCHEMA}", stored.schema));
    }
    Err(SweepError::Differs { file, differences: differences.join("; ") })
}

struct Sweep<'a> {
    args: &'a SweepArgs,
    bars: (MultiProgress, ProgressBar),
    swept: Swept,
}

impl Sweep<'_> {
    fn say(&self, line: String) {
        self.bars.0.suspend(|| output::note(line));
    }

    /// Measures the points of one server.
    async fn on(&mut self, run: &ServerRun) -> Result<(), SweepError> {
        let mut server = match self.args.serve.base_url {
            Some(_) => None,
            None => match self.start(run).await {
                Ok(server) => Some(server),
                Err(error) => {
                    for point in &run.points {
                        self.store(run, point, Err(error.to_string()))?;
                    }
                    return Ok(());
                }
            },
        };
        for point in &run.points {
            let mut args = point.args.clone();
            if let Some(server) = &mut server {
                args.base_url = Some(server.url().to_owned());
                if let Some(status) = server.exited() {
                    let error = format!("the server ended with {status}: {}", server.last_words());
                    self.store(run, point, Err(error))?;
                    continue;
                }
            }
            let bars = &self.bars;
            let bar = |count, what| bars.0.insert_before(&bars.1, serve::progress_bar(count, what));
            let measured = serve::measure(&args, bar).await.map_err(|error| error.to_string());
            self.store(run, point, measured)?;
        }
        if let Some(server) = server {
            server.stop().await;
        }
        Ok(())
    }

    async fn start(&self, run: &ServerRun) -> Result<Server, SweepError> {
        let log = self.args.output.join(format!("{}.log", run.name));
        let binary = match &self.args.server_binary {
            Some(path) => path.clone(),
            None => std::env::current_exe()
                .map_err(|error| SweepError::Server { log: log.clone(), message: error.to_string() })?,
        };
        self.say(format!("starting {} {}", binary.display(), run.name));
        let patience = Duration::from_secs(self.args.start_timeout_sec);
        Server::start(&binary, self.args.model_dir.as_deref(), &run.flags, log, &self.args.serve, patience)
            .await
    }

    /// Writes the point's file, and says how it went.
    fn store(
        &mut self,
        run: &ServerRun,
        point: &Point,
        measured: Result<Measured, String>,
    ) -> Result<(), SweepError> {
        let error = match &measured {
            Ok(measured) => measured.failure().map(|error| error.to_string()),
            Err(error) => Some(error.clone()),
        };
        let folder = self.args.output.canonicalize().unwrap_or_else(|_| self.args.output.clone());
        let name =
            folder.file_name().map_or_else(|| "sweep".to_owned(), |name| name.to_string_lossy().into_owned());
        let file = PointFile {
            schema: POINT_SCHEMA,
            label: self.args.serve.label.clone().unwrap_or(name),
            settings: point.settings.clone(),
            gpus: run.gpus,
            error: error.clone(),
            result: measured
                .as_ref()
                .map_or_else(|_| Map::new(), |measured| serve::result(&point.args, measured)),
        };
        let path = self.args.output.join(format!("{}.json", point.name));
        let text = serde_json::to_string(&file)
            .map_err(|error| ResultsError::Format { path: path.clone(), got: error.to_string() })?;
        results::write(&path, &text)?;
        self.say(match (&error, &measured) {
            (None, Ok(Measured { summary, .. })) => format!(
                "{}: {:.1} tok/s/GPU, {:.1} tok/s/user, TTFT {:.1} ms, TPOT {:.2} ms",
                point.name,
                summary.output_throughput / f64::from(run.gpus),
                if summary.tpot.mean > 0.0 { 1e3 / summary.tpot.mean } else { 0.0 },
                summary.ttft.mean,
                summary.tpot.mean
            ),
            (Some(error), _) => format!("{}: failed: {error}", point.name),
            (None, Err(error)) => format!("{}: failed: {error}", point.name),
        });
        self.swept.errors.extend(error);
        self.bars.1.inc(1);
        Ok(())
    }
}
