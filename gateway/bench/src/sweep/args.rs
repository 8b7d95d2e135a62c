//! Arguments of `gossamer bench sweep`.

use super::SweepError;
use crate::layout::Layout;
use crate::serve::ServeBenchArgs;
use clap::Args;
use std::path::PathBuf;
use std::str::FromStr;

/// A flag of the server with the values to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The flag without its dashes.
    pub name: String,
    /// Its values; `true` and `false` for switches.
    pub values: Vec<String>,
}

impl FromStr for Axis {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, values) = text.split_once('=').unwrap_or((text, "true"));
        let name = name.trim().trim_start_matches("--").replace('_', "-");
        let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
        if name.is_empty() || values.iter().any(String::is_empty) {
            return Err(format!("expected NAME=VALUE[,VALUE...], got '{text}'"));
        }
        Ok(Self { name, values })
    }
}

/// Prompt and output tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Prompt tokens.
    pub input: usize,
    /// Output tokens.
    pub output: usize,
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected INPUT:OUTPUT in tokens, such as 1024:128, got '{text}'");
        let (input, output) = text.split_once(':').ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<usize>().ok().filter(|count| *count > 0).ok_or_else(wrong);
        Ok(Self { input: number(input)?, output: number(output)? })
    }
}

/// Measure a grid of settings, keep every result, and draw the Pareto frontier.
#[derive(Clone, Debug, Args)]
pub struct SweepArgs {
    /// Model that the servers are started with; without it, the demo model
    #[arg(value_name = "MODEL_DIR")]
    pub model_dir: Option<PathBuf>,
    /// Streams at once, one point each
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64,256", help_heading = "Grid")]
    pub concurrency: Vec<usize>,
    /// Prompt and output tokens of the random data set, one point each (repeat, or separate by commas)
    #[arg(long, value_delimiter = ',', value_name = "IN:OUT", help_heading = "Grid")]
    pub lengths: Vec<Lengths>,
    /// A flag of `gossamer serve` and the values to try, such as stream-interval=1,20 (repeat)
    #[arg(long, value_name = "NAME=VALUES", help_heading = "Grid")]
    pub server_flag: Vec<Axis>,
    /// A parallel layout to try, such as tp=2,pp=2 or dp=8,ep or prefill=1,decode=3 (repeat)
    #[arg(long, value_name = "LAYOUT", help_heading = "Grid")]
    pub layout: Vec<Layout>,
    /// Requests per stream and point, instead of --num-prompts for each point
    #[arg(long, value_name = "N", help_heading = "Grid")]
    pub prompts_per_stream: Option<usize>,
    /// Folder for the results, the servers' logs and the page
    #[arg(long, value_name = "DIR", default_value = "sweep")]
    pub output: PathBuf,
    /// GPUs behind --base-url
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub gpus: u32,
    /// Program that serves; by default this one
    #[arg(long, value_name = "FILE")]
    pub server_binary: Option<PathBuf>,
    /// Seconds that a server may take to become ready
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub start_timeout_sec: u64,
    /// How each point is measured
    #[command(flatten)]
    pub serve: ServeBenchArgs,
}

impl SweepArgs {
    /// Checks what the parser cannot.
    pub(crate) fn check(&self) -> Result<(), SweepError> {
        let fail = |message: String| Err(SweepError::Arguments(message));
        for (given, flag, instead) in [
            (self.serve.max_concurrency.is_some(), "--max-concurrency", "--concurrency 1,8,64"),
            (self.serve.save_result, "--save-result", "nothing: every result is saved"),
            (self.serve.result_filename.is_some(), "--result-filename", "--output DIR"),
        ] {
            if given {
                return fail(format!("a sweep sets {flag} itself: use {instead}"));
            }
        }
        if self.concurrency.is_empty() || self.concurrency.contains(&0) {
            return fail("expected --concurrency of numbers from 1".to_owned());
        }
        if self.prompts_per_stream == Some(0) || self.gpus == 0 {
            return fail("expected --prompts-per-stream and --gpus of at least 1".to_owned());
        }
        let there = self.serve.base_url.is_some();
        if there && (!self.server_flag.is_empty() || !self.layout.is_empty() || self.model_dir.is_some()) {
            return fail(
                "a server at --base-url runs already: leave out --server-flag, --layout and MODEL_DIR, or --base-url"
                    .to_owned(),
            );
        }
        for axis in &self.server_flag {
            if ["port", "host", "log"].contains(&axis.name.as_str()) {
                return fail(format!("a sweep sets --{} of its servers itself: leave it out", axis.name));
            }
            if self.server_flag.iter().filter(|other| other.name == axis.name).count() > 1 {
                return fail(format!("expected --server-flag {}=... once: list its values", axis.name));
            }
        }
        self.serve.check().map_err(SweepError::Bench)
    }
}
