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

use client::Client;
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
    /// The result file could not be written.
    #[error("cannot write the result to {path}: {source}")]
    Save {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Runs the benchmark: prints the result block, saves the JSON if asked to, and returns the summary.
///
/// A run with failed requests prints its block and then returns [`BenchError::Failed`], so that the exit status is not zero.
pub async fn run(args: &ServeBenchArgs) -> Result<Summary, BenchError> {
    args.check()?;
    let client = Client::new(args)?;
    let server = client.discover(Duration::from_secs(args.ready_check_timeout_sec)).await?;
    let prompts = dataset::load(args, &client, &server).await?;
    for note in &prompts.notes {
        eprintln!("note: {note}");
    }
    if args.num_warmups > 0 {
        let warm =
            load::drive(args, &client, &server, &prompts.prompts[..1], args.num_warmups, "warm-up").await;
        if let Some(error) = warm.samples.iter().find_map(|sample| sample.error.clone()) {
            return Err(BenchError::Failed { failed: 1, total: args.num_warmups, first: error });
        }
    }
    let outcome =
        load::drive(args, &client, &server, &prompts.prompts, prompts.prompts.len(), "requests").await;
    let summary = metrics::summarize(args, &server.model, &prompts, &outcome);
    print!("{}", report::block(args, &summary));
    if args.save_result {
        let path = report::save(args, &summary, &outcome)?;
        println!("result saved to {}", path.display());
    }
    match outcome.samples.iter().find_map(|sample| sample.error.clone()) {
        Some(first) => {
            Err(BenchError::Failed { failed: summary.failed, total: outcome.samples.len(), first })
        }
        None => Ok(summary),
    }
}
