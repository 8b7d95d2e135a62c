//! Arguments of `gossamer bench serve`; names follow `vllm bench serve`.

use super::BenchError;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// What `--percentile-metrics` may name.
const METRICS: [&str; 4] = ["ttft", "tpot", "itl", "e2el"];

/// Which endpoint is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// `/v1/completions`.
    #[value(name = "openai")]
    Completions,
    /// `/v1/chat/completions`.
    #[value(name = "openai-chat")]
    Chat,
}

/// Where prompts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DatasetName {
    /// Random tokens of given lengths.
    Random,
    /// A ShareGPT file.
    Sharegpt,
    /// JSONL with `prompt` and optionally `output_len`.
    Custom,
    /// Random prompts that share prefixes.
    #[value(name = "prefix_repetition", alias = "prefix-repetition")]
    PrefixRepetition,
}

/// Drive an OpenAI-compatible server and report latency and throughput.
#[derive(Clone, Debug, Args)]
pub struct ServeBenchArgs {
    /// Endpoint to drive.
    #[arg(long, value_enum, default_value = "openai")]
    pub backend: Backend,
    /// Base URL; overrides --host and --port.
    #[arg(long)]
    pub base_url: Option<String>,
    /// Host of the server.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port of the server.
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Path of the endpoint; by default the backend's.
    #[arg(long)]
    pub endpoint: Option<String>,
    /// Model name; by default the first that the server lists.
    #[arg(long)]
    pub model: Option<String>,
    /// Bearer token.
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Data set.
    #[arg(long, value_enum, default_value = "random")]
    pub dataset_name: DatasetName,
    /// File of the data set.
    #[arg(long)]
    pub dataset_path: Option<PathBuf>,
    /// Requests to send.
    #[arg(long, default_value_t = 1000)]
    pub num_prompts: usize,
    /// Random: prompt tokens.
    #[arg(long, default_value_t = 1024)]
    pub random_input_len: usize,
    /// Random: output tokens.
    #[arg(long, default_value_t = 128)]
    pub random_output_len: usize,
    /// Random: lengths are drawn from [len * (1 - r), len * (1 + r)].
    #[arg(long, default_value_t = 0.0)]
    pub random_range_ratio: f64,
    /// Random: tokens of a prefix that all prompts share, in addition to the prompt.
    #[arg(long, default_value_t = 0)]
    pub random_prefix_len: usize,
    /// Random token ids are drawn below this; by default the server's vocabulary without its control tokens, else 10000.
    #[arg(long)]
    pub random_vocab_size: Option<u32>,
    /// ShareGPT and custom: output tokens for every request, instead of the file's.
    #[arg(long, alias = "custom-output-len")]
    pub sharegpt_output_len: Option<usize>,
    /// ShareGPT: `tokenizer.json`, or a folder that has one, by which turns are measured; by default the vocabulary of gpt-oss.
    #[arg(long)]
    pub tokenizer: Option<PathBuf>,
    /// Prefix repetition: tokens of a shared prefix.
    #[arg(long, default_value_t = 256)]
    pub prefix_repetition_prefix_len: usize,
    /// Prefix repetition: tokens after it.
    #[arg(long, default_value_t = 256)]
    pub prefix_repetition_suffix_len: usize,
    /// Prefix repetition: number of different prefixes.
    #[arg(long, default_value_t = 10)]
    pub prefix_repetition_num_prefixes: usize,
    /// Prefix repetition: output tokens.
    #[arg(long, default_value_t = 128)]
    pub prefix_repetition_output_len: usize,
    /// Requests per second; `inf` sends all at once.
    #[arg(long, default_value_t = f64::INFINITY)]
    pub request_rate: f64,
    /// Shape of the gamma-distributed gaps: 1 is Poisson, below 1 is burstier.
    #[arg(long, default_value_t = 1.0)]
    pub burstiness: f64,
    /// Most requests in flight.
    #[arg(long)]
    pub max_concurrency: Option<usize>,
    /// Requests sent and forgotten before the clock starts.
    #[arg(long, default_value_t = 0)]
    pub num_warmups: usize,
    /// Targets such as `ttft:200 tpot:20 e2el:5000` in milliseconds; reports requests per second that meet them all.
    #[arg(long, num_args = 1.., value_name = "METRIC:MS")]
    pub goodput: Vec<String>,
    /// Generate the whole output length whatever the model says.
    #[arg(long)]
    pub ignore_eos: bool,
    /// Sampling temperature.
    #[arg(long)]
    pub temperature: Option<f32>,
    /// Seed of the data set and of the arrival times.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Write a JSON file with the figures and every request.
    #[arg(long)]
    pub save_result: bool,
    /// Directory of that file.
    #[arg(long, default_value = ".")]
    pub result_dir: PathBuf,
    /// Its name.
    #[arg(long)]
    pub result_filename: Option<String>,
    /// Leave the per-request lists out of the file.
    #[arg(long)]
    pub result_summary_only: bool,
    /// Metrics to print percentiles of.
    #[arg(long, default_value = "ttft,tpot,itl,e2el", value_delimiter = ',')]
    pub percentile_metrics: Vec<String>,
    /// Percentiles to print.
    #[arg(long, default_value = "99", value_delimiter = ',')]
    pub metric_percentiles: Vec<f64>,
    /// Label for the result file.
    #[arg(long)]
    pub label: Option<String>,
    /// No progress bar.
    #[arg(long, alias = "disable-tqdm")]
    pub disable_progress: bool,
    /// Seconds to wait for the server to become ready.
    #[arg(long, default_value_t = 60)]
    pub ready_check_timeout_sec: u64,
}

impl ServeBenchArgs {
    /// Checks what the parser cannot.
    pub fn check(&self) -> Result<(), BenchError> {
        let fail = |message: String| Err(BenchError::Arguments(message));
        if self.num_prompts == 0 {
            return fail("expected --num-prompts of at least 1, got 0".to_owned());
        }
        if !(0.0..=1.0).contains(&self.random_range_ratio) {
            return fail(format!("expected --random-range-ratio in [0, 1], got {}", self.random_range_ratio));
        }
        if self.request_rate.is_nan()
            || self.request_rate <= 0.0
            || self.burstiness.is_nan()
            || self.burstiness <= 0.0
        {
            return fail("expected --request-rate and --burstiness above 0".to_owned());
        }
        if self.max_concurrency == Some(0) {
            return fail("expected --max-concurrency of at least 1, got 0".to_owned());
        }
        let needs_file = matches!(self.dataset_name, DatasetName::Sharegpt | DatasetName::Custom);
        if needs_file && self.dataset_path.is_none() {
            return fail("this data set is a file: pass --dataset-path FILE".to_owned());
        }
        if self.prefix_repetition_num_prefixes == 0 {
            return fail("expected --prefix-repetition-num-prefixes of at least 1, got 0".to_owned());
        }
        if let Some(wrong) = self.metric_percentiles.iter().find(|p| !(0.0..=100.0).contains(*p)) {
            return fail(format!("expected --metric-percentiles from 0 to 100, got {wrong}"));
        }
        if let Some(wrong) = self.percentile_metrics.iter().find(|name| !METRICS.contains(&name.as_str())) {
            return fail(format!(
                "expected --percentile-metrics out of {}, got '{wrong}'",
                METRICS.join(",")
            ));
        }
        self.goodput_targets().map(|_| ())
    }

    /// The `--goodput` targets: metric and milliseconds.
    pub(crate) fn goodput_targets(&self) -> Result<Vec<(&str, f64)>, BenchError> {
        let wrong = |text: &str| {
            BenchError::Arguments(format!(
                "expected --goodput METRIC:MS with ttft, tpot or e2el, got '{text}'"
            ))
        };
        self.goodput
            .iter()
            .map(|text| {
                let (metric, value) = text.split_once(':').ok_or_else(|| wrong(text))?;
                let value = value.parse::<f64>().map_err(|_| wrong(text))?;
                if !["ttft", "tpot", "e2el"].contains(&metric) {
                    return Err(wrong(text));
                }
                Ok((metric, value))
            })
            .collect()
    }

    /// The base URL, without a slash at its end.
    pub fn url(&self) -> String {
        match &self.base_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => format!("http://{}:{}", self.host, self.port),
        }
    }

    /// Path of the endpoint.
    pub(crate) fn path(&self) -> &str {
        match (&self.endpoint, self.backend) {
            (Some(path), _) => path,
            (None, Backend::Completions) => "/v1/completions",
            (None, Backend::Chat) => "/v1/chat/completions",
        }
    }
}
