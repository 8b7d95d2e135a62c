//! The resolved configuration, and the rules that span several flags.

use crate::{
    AttentionArithmetic, ConfigError, Device, Disaggregate, Dtype, KvCacheDtype, LoadFormat,
    MoeActivationDtype, Secret, ServeArgs,
};
use serde::{Deserialize, Serialize};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

/// More threads than any machine has cores are a slip of the hand.
const MOST_CPU_THREADS: u32 = 1024;

/// Everything a process of the server must know, validated. See [`ServeArgs`] for what each field does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ServeConfig {
    pub model: PathBuf,
    /// At least one; the first is the one that answers carry.
    pub served_model_names: Vec<String>,
    pub host: IpAddr,
    pub port: u16,
    pub api_server_count: u16,
    /// Empty: no key is asked for.
    pub api_keys: Vec<Secret>,
    pub max_queued_requests: u32,
    pub max_logprobs: u32,
    pub stream_interval: u32,
    pub skip_tokenizer_init: bool,
    /// `None`: what the model's `config.json` says.
    pub max_model_len: Option<u32>,
    pub dtype: Dtype,
    pub load_format: LoadFormat,
    pub seed: u64,
    pub max_num_seqs: u32,
    pub max_num_batched_tokens: u32,
    pub enable_prefix_caching: bool,
    pub enable_chunked_prefill: bool,
    pub async_scheduling: bool,
    pub block_size: u32,
    pub kv_cache_dtype: KvCacheDtype,
    pub gpu_memory_utilization: f64,
    pub num_gpu_blocks_override: Option<u32>,
    /// Never [`Device::Auto`].
    pub device: Device,
    /// `None`: one per core.
    pub cpu_threads: Option<u32>,
    pub moe_activation_dtype: MoeActivationDtype,
    pub attention_arithmetic: AttentionArithmetic,
    /// `None`: chosen by what the backends can do.
    pub moe_backend: Option<String>,
    /// `None`: chosen by what the backends can do.
    pub attention_backend: Option<String>,
    /// `None`: beside the executable.
    pub backend_dir: Option<PathBuf>,
    pub kernel_cache_dir: Option<PathBuf>,
    /// `None`: ten seconds on a GPU, nothing on a CPU.
    pub autotune_budget: Option<Duration>,
    pub cuda_graph_capture_size: u32,
    pub sim_script: Option<PathBuf>,
    pub sim_calibration: Option<PathBuf>,
    pub parallel: Parallel,
    pub max_restarts: u32,
    pub shutdown_timeout: Duration,
    pub stall_timeout: Duration,
    /// Filter directives of the log.
    pub log: String,
}

/// How ranks share the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Parallel {
    pub tensor: u32,
    pub pipeline: u32,
    pub data: u32,
    pub expert: bool,
    pub disaggregate: Option<Disaggregate>,
}

impl Parallel {
    /// Number of workers.
    pub fn world_size(&self) -> u32 {
        self.tensor * self.pipeline * self.data
    }
}

impl ServeConfig {
    /// The address to bind.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.host, self.port)
    }

    /// The name that answers carry.
    pub fn model_name(&self) -> &str {
        self.served_model_names.first().map_or("model", String::as_str)
    }

    /// Applies defaults to merged flags and checks them. `demo_model` is served where no directory is named; `best` says what
    /// `--device auto` is here.
    pub fn from_args(
        args: ServeArgs,
        demo_model: &Path,
        best: impl FnOnce(&ServeArgs) -> Device,
    ) -> Result<Self, ConfigError> {
        let device = match args.device.unwrap_or(Device::Auto) {
            Device::Auto => best(&args),
            device => device,
        };
        let model = args.model.clone().unwrap_or_else(|| demo_model.to_owned());
        let served_model_names = match (&args.model, args.served_model_name.is_empty()) {
            (_, false) => args.served_model_name.clone(),
            (Some(_), true) => vec![directory_name(&model)],
            (None, true) => vec!["demo".to_owned()],
        };
        let mut api_keys = args.api_key.clone();
        if let Some(path) = &args.api_key_file {
            api_keys.extend(read_keys(path)?);
        }
        let max_num_seqs = at_least_one("max-num-seqs", args.max_num_seqs.unwrap_or(256))?;
        let config = Self {
            model,
            served_model_names,
            host: args.host.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            port: args.port.unwrap_or(8000),
            api_server_count: args.api_server_count.unwrap_or(1),
            api_keys,
            max_queued_requests: at_least_one(
                "max-queued-requests",
                args.max_queued_requests.unwrap_or(4096),
            )?,
            max_logprobs: args.max_logprobs.unwrap_or(20),
            stream_interval: at_least_one("stream-interval", args.stream_interval.unwrap_or(1))?,
            skip_tokenizer_init: args.skip_tokenizer_init,
            max_model_len: args.max_model_len,
            dtype: args.dtype.unwrap_or(Dtype::Auto),
            load_format: args.load_format.unwrap_or(LoadFormat::Auto),
            seed: args.seed.unwrap_or(0),
            max_num_seqs,
            max_num_batched_tokens: args
                .max_num_batched_tokens
                .unwrap_or(if device == Device::Cpu { 512 } else { 8192 }.max(max_num_seqs)),
            enable_prefix_caching: !args.no_enable_prefix_caching,
            enable_chunked_prefill: !args.no_enable_chunked_prefill,
            async_scheduling: !args.no_async_scheduling,
            block_size: args.block_size.unwrap_or(64),
            kv_cache_dtype: args.kv_cache_dtype.unwrap_or(KvCacheDtype::Auto),
            gpu_memory_utilization: args.gpu_memory_utilization.unwrap_or(0.9),
            num_gpu_blocks_override: args.num_gpu_blocks_override,
            device,
            cpu_threads: args.cpu_threads.map(|count| at_least_one("cpu-threads", count)).transpose()?,
            moe_activation_dtype: args.moe_activation_dtype.unwrap_or(MoeActivationDtype::Auto),
            attention_arithmetic: args.attention_arithmetic.unwrap_or(AttentionArithmetic::Auto),
            moe_backend: args.moe_backend.filter(|name| name != "auto"),
            attention_backend: args.attention_backend.filter(|name| name != "auto"),
            backend_dir: args.backend_dir,
            kernel_cache_dir: args.kernel_cache_dir,
            autotune_budget: args.autotune_budget,
            cuda_graph_capture_size: args.cuda_graph_capture_size.unwrap_or(512),
            sim_script: args.sim_script,
            sim_calibration: args.sim_calibration,
            parallel: Parallel {
                tensor: at_least_one("tensor-parallel-size", args.tensor_parallel_size.unwrap_or(1))?,
                pipeline: at_least_one("pipeline-parallel-size", args.pipeline_parallel_size.unwrap_or(1))?,
                data: at_least_one("data-parallel-size", args.data_parallel_size.unwrap_or(1))?,
                expert: args.enable_expert_parallel,
                disaggregate: args.disaggregate,
            },
            max_restarts: args.max_restarts.unwrap_or(10),
            shutdown_timeout: args.shutdown_timeout.unwrap_or(Duration::from_secs(30)),
            stall_timeout: args.stall_timeout.unwrap_or(Duration::from_secs(60)),
            log: args.log.unwrap_or_else(|| "info".into()),
        };
        config.check_ranges()?;
        config.check_supported()?;
        Ok(config)
    }

    fn check_ranges(&self) -> Result<(), ConfigError> {
        let invalid = |message: String| Err(ConfigError::Invalid(message));
        if self.api_server_count == 0 || self.api_server_count > 256 {
            return invalid(format!("--api-server-count: expected 1 to 256, got {}", self.api_server_count));
        }
        if self.block_size != 64 {
            return invalid(format!(
                "--block-size: expected 64 (the KV layout has blocks of 64 tokens), got {}",
                self.block_size
            ));
        }
        if self.max_num_batched_tokens < self.max_num_seqs {
            return invalid(format!(
                "--max-num-batched-tokens ({}) is below --max-num-seqs ({}): a step must fit one token of every \
                 running sequence",
                self.max_num_batched_tokens, self.max_num_seqs
            ));
        }
        if let (false, Some(len)) = (self.enable_chunked_prefill, self.max_model_len)
            && self.max_num_batched_tokens < len
        {
            return invalid(format!(
                "--max-num-batched-tokens ({}) is below --max-model-len ({len}) although prompts are not split; raise \
                 it or leave --enable-chunked-prefill on",
                self.max_num_batched_tokens
            ));
        }
        if self.device != Device::Sim && (self.sim_script.is_some() || self.sim_calibration.is_some()) {
            return invalid("--sim-script and --sim-calibration need --device sim".into());
        }
        for (flag, path) in [("--sim-script", &self.sim_script), ("--sim-calibration", &self.sim_calibration)]
        {
            if let Some(path) = path.as_ref().filter(|path| !path.is_file()) {
                return invalid(format!("{flag}: {} is not a file", path.display()));
            }
        }
        if let Some(path) = self.backend_dir.as_ref().filter(|path| !path.is_dir()) {
            return invalid(format!("--backend-dir: {} is not a directory", path.display()));
        }
        if let Some(threads) = self.cpu_threads.filter(|threads| *threads > MOST_CPU_THREADS) {
            return invalid(format!("--cpu-threads: expected at most {MOST_CPU_THREADS}, got {threads}"));
        }
        if self.attention_arithmetic == AttentionArithmetic::Fp8 && self.kv_cache_dtype != KvCacheDtype::Fp8 {
            return invalid(
                "--attention-arithmetic fp8 needs keys and values in E4M3; add --kv-cache-dtype fp8, or leave it at auto"
                    .into(),
            );
        }
        if self.stall_timeout < Duration::from_millis(100) {
            return invalid(format!(
                "--stall-timeout: expected at least 0.1 s, got {:?}",
                self.stall_timeout
            ));
        }
        if self.served_model_names.iter().any(String::is_empty) {
            return invalid("--served-model-name: a name must not be empty".into());
        }
        if !self.model.is_dir() {
            return invalid(format!(
                "the model directory {} does not exist; name one that holds a config.json",
                self.model.display()
            ));
        }
        Ok(())
    }

    fn check_supported(&self) -> Result<(), ConfigError> {
        let refuse = |what: String, instead: &str| {
            Err(ConfigError::NotSupportedYet { what, instead: instead.to_owned() })
        };
        for (flag, size) in [
            ("--tensor-parallel-size", self.parallel.tensor),
            ("--pipeline-parallel-size", self.parallel.pipeline),
            ("--data-parallel-size", self.parallel.data),
        ] {
            if size > 1 {
                return refuse(format!("{flag} {size} (several ranks)"), "leave it at 1");
            }
        }
        if self.parallel.expert {
            return refuse(
                "--enable-expert-parallel (several ranks)".into(),
                "leave it out: one rank holds all experts",
            );
        }
        if self.parallel.disaggregate.is_some() {
            return refuse("--disaggregate (separate prefill and decode ranks)".into(), "leave it out");
        }
        if self.device == Device::Cpu && self.moe_activation_dtype == MoeActivationDtype::Fp8 {
            return refuse("--moe-activation-dtype fp8 on CPUs".into(), "leave it at auto");
        }
        if self.device == Device::Cpu && self.attention_arithmetic == AttentionArithmetic::Fp8 {
            return refuse("--attention-arithmetic fp8 on CPUs".into(), "leave it at auto");
        }
        Ok(())
    }
}

fn at_least_one(flag: &str, value: u32) -> Result<u32, ConfigError> {
    match value {
        0 => Err(ConfigError::Invalid(format!("--{flag}: expected at least 1, got 0"))),
        value => Ok(value),
    }
}

/// The last component of a directory's path, which may be given as `.` or with a slash at the end.
fn directory_name(path: &Path) -> String {
    let absolute = path.canonicalize();
    let path = absolute.as_deref().unwrap_or(path);
    path.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}

fn read_keys(path: &Path) -> Result<Vec<Secret>, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        what: "the API key file",
        path: path.to_owned(),
        source,
    })?;
    let keys: Vec<_> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(Secret::new)
        .collect();
    // An empty file must not open the server to everybody.
    if keys.is_empty() {
        return Err(ConfigError::Invalid(format!(
            "--api-key-file: {} holds no key; write one a line",
            path.display()
        )));
    }
    Ok(keys)
}
