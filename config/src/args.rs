//! The flags of `gossamer serve`. Names are vLLM's where it has one.
//!
//! No field has a default here: an absent flag must stay distinguishable from a given one until all sources are merged.

use crate::values::{
    AttentionArithmetic, Device, Disaggregate, Dtype, KvCacheDtype, LoadFormat, MoeActivationDtype, Secret,
    fraction, seconds, tokens,
};
use clap::Args;
use std::{net::IpAddr, path::PathBuf, time::Duration};

/// Flags of `gossamer serve`. Each can also be set as `GOSSAMER_<FLAG>` in the environment or by its name in the TOML
/// file given with `--config`.
#[derive(Clone, Debug, Default, Args)]
#[command(args_override_self = true)]
pub struct ServeArgs {
    /// Directory of the model (Hugging Face layout). Without it the demo model is served.
    #[arg(value_name = "MODEL_DIR")]
    pub model: Option<PathBuf>,

    /// Address to listen on [default: 127.0.0.1]
    #[arg(long, help_heading = "Service")]
    pub host: Option<IpAddr>,
    /// Port to listen on; 0 takes a free one [default: 8000]
    #[arg(long, help_heading = "Service")]
    pub port: Option<u16>,
    /// Processes that speak HTTP [default: 1]
    #[arg(long, value_name = "N", help_heading = "Service")]
    pub api_server_count: Option<u16>,
    /// Accept only requests that carry one of these keys (repeat, or separate by commas)
    #[arg(long, value_name = "KEY", value_delimiter = ',', help_heading = "Service")]
    pub api_key: Vec<Secret>,
    /// File with one API key a line
    #[arg(long, value_name = "FILE", help_heading = "Service")]
    pub api_key_file: Option<PathBuf>,
    /// Names under which the model is offered [default: the directory's name]
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Service")]
    pub served_model_name: Vec<String>,
    /// Requests that may wait before new ones are answered 429 [default: 4096]
    #[arg(long, value_name = "N", help_heading = "Service")]
    pub max_queued_requests: Option<u32>,
    /// Most alternatives per token that a request may ask for [default: 20]
    #[arg(long, value_name = "N", help_heading = "Service")]
    pub max_logprobs: Option<u32>,
    /// Tokens between two events of a stream, after the first token [default: 1]
    #[arg(long, value_name = "K", help_heading = "Service")]
    pub stream_interval: Option<u32>,
    /// Serve token ids alone: no tokenizer, no chat
    #[arg(long, overrides_with = "no_skip_tokenizer_init", help_heading = "Service")]
    pub skip_tokenizer_init: bool,
    #[arg(long, overrides_with = "skip_tokenizer_init", hide = true)]
    pub(crate) no_skip_tokenizer_init: bool,

    /// Longest sequence, prompt and output together [default: what the model allows]
    #[arg(long, value_name = "TOKENS", value_parser = tokens, help_heading = "Model")]
    pub max_model_len: Option<u32>,
    /// Type of the activations [default: auto]
    #[arg(long, value_enum, help_heading = "Model")]
    pub dtype: Option<Dtype>,
    /// Where the weights come from [default: auto]
    #[arg(long, value_enum, help_heading = "Model")]
    pub load_format: Option<LoadFormat>,
    /// Seed of dummy weights and of simulated tokens [default: 0]
    #[arg(long, help_heading = "Model")]
    pub seed: Option<u64>,

    /// Sequences that run at once [default: 256]
    #[arg(long, value_name = "N", help_heading = "Scheduler")]
    pub max_num_seqs: Option<u32>,
    /// Token budget of a step [default: 512 on CPUs, else 8192]
    #[arg(long, value_name = "TOKENS", value_parser = tokens, help_heading = "Scheduler")]
    pub max_num_batched_tokens: Option<u32>,
    /// Reuse the KV cache of equal prefixes [default: on]
    #[arg(long, overrides_with = "no_enable_prefix_caching", help_heading = "Scheduler")]
    pub enable_prefix_caching: bool,
    /// Do not reuse the KV cache of equal prefixes
    #[arg(long, overrides_with = "enable_prefix_caching", help_heading = "Scheduler")]
    pub no_enable_prefix_caching: bool,
    /// Split long prompts over steps [default: on]
    #[arg(long, overrides_with = "no_enable_chunked_prefill", help_heading = "Scheduler")]
    pub enable_chunked_prefill: bool,
    /// Run every prompt in one step
    #[arg(long, overrides_with = "enable_chunked_prefill", help_heading = "Scheduler")]
    pub no_enable_chunked_prefill: bool,
    /// Plan the next step while one runs [default: on]
    #[arg(long, overrides_with = "no_async_scheduling", help_heading = "Scheduler")]
    pub async_scheduling: bool,
    /// Plan a step only when the last one is done
    #[arg(long, overrides_with = "async_scheduling", help_heading = "Scheduler")]
    pub no_async_scheduling: bool,

    /// Tokens per KV block [default: 64]
    #[arg(long, value_name = "TOKENS", help_heading = "Memory")]
    pub block_size: Option<u32>,
    /// Type of the KV cache [default: auto]
    #[arg(long, value_enum, help_heading = "Memory")]
    pub kv_cache_dtype: Option<KvCacheDtype>,
    /// Share of the device's memory to use [default: 0.9]
    #[arg(long, value_name = "SHARE", value_parser = fraction, help_heading = "Memory")]
    pub gpu_memory_utilization: Option<f64>,
    /// Number of KV blocks, instead of what fits
    #[arg(long, value_name = "N", help_heading = "Memory")]
    pub num_gpu_blocks_override: Option<u32>,

    /// What executes the model [default: auto]
    #[arg(long, value_enum, help_heading = "Device")]
    pub device: Option<Device>,
    /// Threads of a CPU worker [default: one per core]
    #[arg(long, value_name = "N", help_heading = "Device")]
    pub cpu_threads: Option<u32>,
    /// Type that experts may take activations in: fp8 allows faster tactics on GPUs that round them [default: auto]
    #[arg(long, value_enum, help_heading = "Device")]
    pub moe_activation_dtype: Option<MoeActivationDtype>,
    /// What attention may compute in: fp8 (needs --kv-cache-dtype fp8) allows tactics on GPUs that round queries and
    /// probabilities as well [default: auto]
    #[arg(long, value_enum, help_heading = "Device")]
    pub attention_arithmetic: Option<AttentionArithmetic>,
    /// Backend of the fused MoE [default: auto]
    #[arg(long, value_name = "NAME", help_heading = "Device")]
    pub moe_backend: Option<String>,
    /// Backend of attention [default: auto]
    #[arg(long, value_name = "NAME", help_heading = "Device")]
    pub attention_backend: Option<String>,
    /// Directory with backend plugins [default: beside the executable]
    #[arg(long, value_name = "DIR", help_heading = "Device")]
    pub backend_dir: Option<PathBuf>,
    /// Directory of the kernel cache [default: none]
    #[arg(long, value_name = "DIR", help_heading = "Device")]
    pub kernel_cache_dir: Option<PathBuf>,
    /// Seconds a start may spend on tuning kernels that the cache lacks [default: 10 on GPUs, 0 on CPUs]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = "Device")]
    pub autotune_budget: Option<Duration>,
    /// Largest decode step to capture as a CUDA graph [default: 512]
    #[arg(long, value_name = "TOKENS", help_heading = "Device")]
    pub cuda_graph_capture_size: Option<u32>,
    /// Script of token ids that the simulated device replays
    ///
    /// JSON: {"in_order": [[1, 2], [3]], "by_marker": {"9000": [4, 5]}}. A prompt whose last token that is a key of by_marker is
    /// 9000 gets the tokens 4, 5; prompts without such a token take the lists of in_order, each once, in the order of their
    /// arrival. Whoever has no list draws seeded tokens; at the end of a list comes the request's stop token.
    #[arg(long, value_name = "FILE", help_heading = "Device")]
    pub sim_script: Option<PathBuf>,
    /// Cost model of the simulated device
    #[arg(long, value_name = "FILE", help_heading = "Device")]
    pub sim_calibration: Option<PathBuf>,

    /// Ranks that split every layer (short: -tp); this version serves one rank, and refuses more [default: 1]
    #[arg(long, value_name = "N", help_heading = "Parallel layout")]
    pub tensor_parallel_size: Option<u32>,
    /// Stages that split the layers (short: -pp); this version serves one [default: 1]
    #[arg(long, value_name = "N", help_heading = "Parallel layout")]
    pub pipeline_parallel_size: Option<u32>,
    /// Replicas that share the requests (short: -dp); this version serves one [default: 1]
    #[arg(long, value_name = "N", help_heading = "Parallel layout")]
    pub data_parallel_size: Option<u32>,
    /// Spread whole experts over the ranks; refused while one rank is served [default: off]
    #[arg(long, overrides_with = "no_enable_expert_parallel", help_heading = "Parallel layout")]
    pub enable_expert_parallel: bool,
    #[arg(long, overrides_with = "enable_expert_parallel", hide = true)]
    pub(crate) no_enable_expert_parallel: bool,
    /// Ranks for prompts and for generation, such as prefill=2,decode=6; refused while one rank is served
    #[arg(long, value_name = "GROUPS", help_heading = "Parallel layout")]
    pub disaggregate: Option<Disaggregate>,

    /// Times that dead child processes are replaced before the server gives up [default: 10]
    #[arg(long, value_name = "N", help_heading = "Operation")]
    pub max_restarts: Option<u32>,
    /// Seconds that running requests have to finish after SIGTERM [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = "Operation")]
    pub shutdown_timeout: Option<Duration>,
    /// Seconds without a heartbeat after which a process counts as dead [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = "Operation")]
    pub stall_timeout: Option<Duration>,
    /// What to log: a level, or directives such as info,gossamer_scheduler=debug [default: info]
    #[arg(long, value_name = "FILTER", help_heading = "Operation")]
    pub log: Option<String>,
    /// TOML file with settings, named like the flags
    #[arg(long, value_name = "FILE", help_heading = "Operation")]
    pub config: Option<PathBuf>,
    /// Named set of settings
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(
        crate::RECIPES.iter().map(|recipe| clap::builder::PossibleValue::new(recipe.name).help(recipe.purpose))
    ), help_heading = "Operation")]
    pub recipe: Option<String>,
}
