//! `gossamer bench serve`.

mod args;
mod client;
mod dataset;
mod load;
mod metrics;
mod report;
mod sse;

pub use args::{Backend, DatasetName, ServeBenchArgs};
pub use client::{Outcome, Sample};
pub use dataset::{DatasetError, Prompt, PromptSet};
pub use metrics::{Distribution, Summary};

pub(crate) use client::Client;
pub(crate) use load::progress_bar;
pub(crate) use report::result;

use crate::output::{self, OutputError};
use indicatif::ProgressBar;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// Why a benchmark could not run, or counts as failed.
#[derive(Debug, Error)]
pub enum BenchError {
    /// The arguments contradict each other.
    #[error("{0}")]
    Arguments(String),
    /// The data set cannot be used.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The server did not answer at all.
    #[error("no server answers at {url}: {message}; start one or pass --base-url")]
    Unreachable {
        /// The base URL.
        url: String,
        /// What happened.
        message: String,
    },
    /// Some or all requests failed.
    #[error("{failed} of {total} requests failed; the first error: {first}")]
    Failed {
        /// Failed requests.
        failed: usize,
        /// All requests.
        total: usize,
        /// Text of the first error.
        first: String,
    },
    /// The result cannot be printed.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The result file could not be written.
    #[error("cannot write the result to {path}: {source}")]
    Save {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// What a run gave: its figures, and every request.
pub struct Measured {
    /// The figures.
    pub summary: Summary,
    /// The requests.
    pub outcome: Outcome,
}

impl Measured {
    /// The first failure, if there was one.
    pub fn failure(&self) -> Option<BenchError> {
        let first = self.outcome.samples.iter().find_map(|sample| sample.error.clone())?;
        Some(BenchError::Failed { failed: self.summary.failed, total: self.outcome.samples.len(), first })
    }
}

/// Runs the benchmark: prints the result block, saves the JSON if asked to, and returns the summary.
///
/// A run with failed requests prints its block and then returns [`BenchError::Failed`], so that the exit status is not zero.
pub async fn run(args: &ServeBenchArgs) -> Result<Summary, BenchError> {
    let bar = |count, what| {
        if args.disable_progress { ProgressBar::hidden() } else { load::progress_bar(count, what) }
    };
    let measured = measure(args, bar).await?;
    for note in &measured.summary.notes {
        output::note(format_args!("note: {note}"));
    }
    // Saved first: it is kept whatever becomes of the output.
    let saved = if args.save_result { Some(report::save(args, &measured)?) } else { None };
    output::result(report::block(args, &measured.summary))?;
    if let Some(path) = saved {
        output::result(format_args!("result saved to {}\n", path.display()))?;
    }
    measured.failure().map_or(Ok(measured.summary), Err)
}

/// Sends the requests and computes the figures; prints nothing but the bars that `bar` makes.
pub(crate) async fn measure(
    args: &ServeBenchArgs,
    bar: impl Fn(u64, &'static str) -> ProgressBar,
) -> Result<Measured, BenchError> {
    args.check()?;
    let client = Client::new(args)?;
    let server = client.discover(Duration::from_secs(args.ready_check_timeout_sec)).await?;
    let prompts = dataset::load(args, &client, &server).await?;
    let warmups = args.num_warmups;
    if warmups > 0 {
        let bar = bar(warmups as u64, "warm-up");
        let warm = load::drive(args, &client, &server, &prompts.prompts[..1], warmups, &bar).await;
        if let Some(error) = warm.samples.iter().find_map(|sample| sample.error.clone()) {
            return Err(BenchError::Failed { failed: 1, total: warmups, first: error });
        }
    }
    let count = prompts.prompts.len();
    let bar = bar(count as u64, "requests");
    let outcome = load::drive(args, &client, &server, &prompts.prompts, count, &bar).await;
    let summary = metrics::summarize(args, &server.model, &prompts, &outcome);
    Ok(Measured { summary, outcome })
}
