//! Arguments of `gossamer plan`.

use crate::cost::Links;
use crate::fleet::{Routing, Settings, Targets};
use crate::search::PlanError;
use crate::workload::{Synthetic, WorkloadError};
use clap::{Args, ValueEnum};
use gossamer_bench::layout::Layout;
use std::path::PathBuf;

/// Type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvType {
    /// Two bytes a value.
    Bf16,
    /// One byte a value.
    Fp8,
}

/// How many GPUs, in which layout, meet targets for TTFT and TPOT.
#[derive(Clone, Debug, Args)]
pub struct PlanArgs {
    /// Model: gpt-oss-20b, gpt-oss-120b, or a directory with config.json
    #[arg(value_name = "MODEL", default_value = "gpt-oss-120b")]
    pub model: String,
    /// Cost model, as `gossamer bench latency --calibrate` writes it
    #[arg(long, value_name = "FILE")]
    pub calibration: PathBuf,

    /// Trace: one {"arrival": seconds, "input": tokens, "output": tokens} a line
    #[arg(long, value_name = "FILE.jsonl", conflicts_with = "request_rate", help_heading = "Workload")]
    pub trace: Option<PathBuf>,
    /// Requests per second, where there is no trace
    #[arg(long, help_heading = "Workload")]
    pub request_rate: Option<f64>,
    /// Requests to draw
    #[arg(long, default_value_t = 10_000, help_heading = "Workload")]
    pub num_requests: usize,
    /// Mean prompt tokens
    #[arg(long, default_value_t = 1024, help_heading = "Workload")]
    pub input_len: u32,
    /// Mean output tokens
    #[arg(long, default_value_t = 256, help_heading = "Workload")]
    pub output_len: u32,
    /// Lengths are drawn from [len * (1 - r), len * (1 + r)]
    #[arg(long, default_value_t = 0.5, help_heading = "Workload")]
    pub range_ratio: f64,
    /// Shape of the gamma-distributed gaps: 1 is Poisson, below 1 is burstier
    #[arg(long, default_value_t = 1.0, help_heading = "Workload")]
    pub burstiness: f64,
    /// Seed of arrivals and lengths
    #[arg(long, default_value_t = 0, help_heading = "Workload")]
    pub seed: u64,

    /// Milliseconds to the first token
    #[arg(long, value_name = "MS", help_heading = "Targets")]
    pub ttft_ms: f64,
    /// Milliseconds per output token after the first
    #[arg(long, value_name = "MS", help_heading = "Targets")]
    pub tpot_ms: f64,
    /// Percent of the requests that must meet each of them
    #[arg(long, default_value_t = 99.0, help_heading = "Targets")]
    pub percentile: f64,

    /// Layout of a replica, such as tp=4, pp=2, dp=8,ep or prefill=1,decode=3,tp=2 (repeat) [default: tp=1, tp=2, tp=4,
    /// tp=8, pp=2, dp=8,ep and prefill=1,decode=1]
    #[arg(long, value_name = "LAYOUT", help_heading = "Fleet")]
    pub layout: Vec<Layout>,
    /// Try just this number of GPUs, instead of looking for the least
    #[arg(long, value_name = "N", help_heading = "Fleet")]
    pub gpus: Option<u32>,
    /// Most GPUs to try
    #[arg(long, value_name = "N", default_value_t = 256, help_heading = "Fleet")]
    pub max_gpus: u32,
    /// How requests find a replica
    #[arg(long, value_enum, default_value = "least-loaded", help_heading = "Fleet")]
    pub routing: Routing,
    /// Milliseconds between two reports of the replicas to the router
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=3_600_000), help_heading = "Fleet")]
    pub report_interval_ms: u64,

    /// Sequences that run at once in a scheduler
    #[arg(long, value_name = "N", default_value_t = 256, help_heading = "Server")]
    pub max_num_seqs: u32,
    /// Token budget of a step
    #[arg(long, value_name = "TOKENS", default_value_t = 8192, help_heading = "Server")]
    pub max_num_batched_tokens: u32,
    /// Type of the KV cache
    #[arg(long, value_enum, default_value = "bf16", help_heading = "Server")]
    pub kv_cache_dtype: KvType,
    /// GiB of memory of a GPU
    #[arg(long, value_name = "GIB", default_value_t = 141.0, help_heading = "Server")]
    pub gpu_memory_gib: f64,
    /// Share of it to use
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, help_heading = "Server")]
    pub gpu_memory_utilization: f64,
    /// Number of KV blocks of a GPU, instead of what fits
    #[arg(long, value_name = "N", help_heading = "Server")]
    pub num_gpu_blocks_override: Option<u32>,
    /// GB/s of a GPU's links, one way: an assumption about the machine
    #[arg(long, value_name = "GB/S", default_value_t = 450.0, help_heading = "Server")]
    pub link_gb_per_s: f64,
    /// Microseconds of a collective or message of no size: an assumption about the machine
    #[arg(long, value_name = "US", default_value_t = 8.0, help_heading = "Server")]
    pub link_latency_us: f64,

    /// Threads of the simulation [default: one per core]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Print the answers as JSON
    #[arg(long)]
    pub json: bool,
    /// No progress bar
    #[arg(long)]
    pub disable_progress: bool,
}

impl PlanArgs {
    /// Checks what the parser cannot.
    pub(crate) fn check(&self) -> Result<(), PlanError> {
        let fail = |message: String| Err(PlanError::Arguments(message));
        for (name, value) in [
            ("--ttft-ms", self.ttft_ms),
            ("--tpot-ms", self.tpot_ms),
            ("--gpu-memory-gib", self.gpu_memory_gib),
            ("--link-gb-per-s", self.link_gb_per_s),
        ] {
            if !(value > 0.0 && value < 1e9) {
                return fail(format!("expected {name} above 0 and below 1e9, got {value}"));
            }
        }
        if !(0.0..1e9).contains(&self.link_latency_us) {
            return fail(format!("expected --link-latency-us of at least 0, got {}", self.link_latency_us));
        }
        if !(self.percentile > 0.0 && self.percentile <= 100.0) {
            return fail(format!("expected --percentile above 0 and up to 100, got {}", self.percentile));
        }
        if !(self.gpu_memory_utilization > 0.0 && self.gpu_memory_utilization <= 1.0) {
            let got = self.gpu_memory_utilization;
            return fail(format!("expected --gpu-memory-utilization above 0 and up to 1, got {got}"));
        }
        if self.trace.is_none() && self.request_rate.is_none() {
            return fail(
                "expected a workload: pass --trace FILE.jsonl, or --request-rate with lengths".to_owned(),
            );
        }
        if self.max_num_seqs == 0 || self.max_num_seqs > 1 << 20 {
            return fail(format!("expected --max-num-seqs from 1 to {}, got {}", 1 << 20, self.max_num_seqs));
        }
        if self.gpus.unwrap_or(1) == 0 || self.gpus.unwrap_or(1) > 1 << 20 || self.max_gpus > 1 << 20 {
            return fail(format!("expected GPUs from 1 to {}", 1 << 20));
        }
        Ok(())
    }

    pub(crate) fn layouts(&self) -> Vec<Layout> {
        if !self.layout.is_empty() {
            return self.layout.clone();
        }
        let single = Layout::SINGLE;
        let tensor = [1, 2, 4, 8].map(|tensor| Layout { tensor, ..single });
        let others = [
            Layout { pipeline: 2, ..single },
            Layout { data: 8, expert: true, ..single },
            Layout { split: Some((1, 1)), ..single },
        ];
        tensor.into_iter().chain(others).collect()
    }

    pub(crate) fn synthetic(&self) -> Result<Synthetic, WorkloadError> {
        let rate = self.request_rate.unwrap_or(f64::NAN);
        Ok(Synthetic {
            rate,
            burstiness: self.burstiness,
            count: self.num_requests,
            input: self.input_len,
            output: self.output_len,
            range_ratio: self.range_ratio,
            seed: self.seed,
        })
    }

    pub(crate) fn targets(&self) -> Targets {
        Targets { ttft_ms: self.ttft_ms, tpot_ms: self.tpot_ms, percentile: self.percentile }
    }

    pub(crate) fn settings(&self) -> Settings {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Settings {
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            usable_bytes: self.gpu_memory_gib * f64::from(1 << 30) * self.gpu_memory_utilization,
            blocks_override: self.num_gpu_blocks_override,
            kv_value_bytes: match self.kv_cache_dtype {
                KvType::Bf16 => 2.0,
                KvType::Fp8 => 1.0,
            },
            links: Links { bytes_per_second: self.link_gb_per_s * 1e9, latency: self.link_latency_us * 1e-6 },
            routing: self.routing,
            report_interval: self.report_interval_ms * 1_000_000,
            threads: self.threads.unwrap_or(cores).max(1),
        }
    }
}
