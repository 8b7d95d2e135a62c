//! `gossamer serve`: resolves the configuration, says what will be served, and supervises.

use super::device::best_device;
use crate::http::{BOARD_LAYOUT, BOARD_WORDS, REPLACED_WORD};
use gossamer_channel::segment::layout_hash;
use gossamer_config::{ConfigError, Device, ModelConfig, Resolved, ServeConfig, resolve_on};
use gossamer_scheduler::{ConfigError as ConfigRefusal, WorkerError, check_settings, process::settings};
use gossamer_supervisor::{BoardSpec, ServeOptions, serve};
use gossamer_wire::{KvGroup, WorkerInfo};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, OnceLock},
    time::Instant,
};

/// Where the demo model lies in the repository.
pub const DEMO_MODEL: &str = "demo/model";

/// Runs the server; `arguments` are those behind `serve`.
pub fn run_serve(arguments: Vec<OsString>) -> ExitCode {
    let start = Instant::now();
    let resolved = match resolve_on(arguments, std::env::vars_os(), &demo_model(), best_device) {
        Ok(resolved) => resolved,
        // Prints help or usage, and ends with the right status.
        Err(ConfigError::Usage(error)) => error.exit(),
        Err(error) => {
            crate::log::say(format_args!("gossamer serve: {error}"));
            return ExitCode::FAILURE;
        }
    };
    crate::log::start(&resolved.config.log, None);
    if let Err(message) = check_model(&resolved.config) {
        crate::log::say(format_args!("gossamer serve: {message}"));
        return ExitCode::FAILURE;
    }
    let Resolved { config, recipe } = resolved;
    summarize(&config, recipe.as_ref());
    let mut options = ServeOptions::new(config);
    options.board =
        Some(BoardSpec { words: BOARD_WORDS, layout: layout_hash(BOARD_LAYOUT), replaced: REPLACED_WORD });
    let bound = Arc::new(OnceLock::new());
    let listening = bound.clone();
    options.on_listening = Box::new(move |address| {
        // Called once.
        let _ = listening.set(address);
        tracing::info!("listening on http://{address}; requests are answered 503 until the model is loaded");
    });
    options.on_ready = Box::new(move || {
        let seconds = start.elapsed().as_secs_f64();
        if let Some(address) = bound.get() {
            tracing::info!(
                "ready after {seconds:.2} s: API at http://{address}/v1, chat at http://{address}/"
            );
        }
    });
    match serve(options) {
        Ok(()) => {
            tracing::info!("stopped");
            ExitCode::SUCCESS
        }
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// What can be known of the model before any process starts: whether the settings can ever work with it.
fn check_model(config: &ServeConfig) -> Result<(), String> {
    let model = ModelConfig::load(&config.model).map_err(|error| error.to_string())?;
    let limit = model.max_position_embeddings;
    if let Some(len) = config.max_model_len.filter(|len| *len > limit) {
        return Err(format!("--max-model-len {len}: the model's longest sequence is {limit} tokens"));
    }
    // As the worker will report itself; the scheduler is asked what it will say to that.
    let worker = WorkerInfo {
        rank: 0,
        num_blocks: config.num_gpu_blocks_override.unwrap_or(u32::MAX),
        block_size: config.block_size,
        groups: model.kv_windows().into_iter().map(|window| KvGroup { window }).collect(),
        max_model_len: config.max_model_len.unwrap_or(limit),
        vocab_size: model.vocab_size,
    };
    check_settings(&settings(config), &worker).map_err(|error| match error {
        WorkerError::NoRoom { needed, got } => format!(
            "--num-gpu-blocks-override {got}: a sequence needs a block in each of the model's {needed} KV groups, so \
             expected at least {needed}"
        ),
        WorkerError::Config(ConfigRefusal::PromptExceedsStep { max_num_batched_tokens, max_model_len }) => format!(
            "--max-num-batched-tokens ({max_num_batched_tokens}) is below the longest sequence ({max_model_len}) although \
             prompts are not split; raise it, lower --max-model-len, or leave --enable-chunked-prefill on"
        ),
        other => other.to_string(),
    })
}

fn summarize(config: &ServeConfig, recipe: Option<&(String, Vec<(String, String)>)>) {
    let device = match config.device {
        Device::Sim => "a simulated device",
        Device::Cuda => "GPUs",
        Device::Cpu | Device::Auto => "the CPU",
    };
    tracing::info!(
        "gossamer {} serves {} as '{}' on {device}, with {} API server(s)",
        env!("CARGO_PKG_VERSION"),
        config.model.display(),
        config.served_model_names.join("', '"),
        config.api_server_count
    );
    tracing::info!(
        "up to {} sequences and {} tokens a step, prefix caching {}, asynchronous scheduling {}, stream interval {}",
        config.max_num_seqs,
        config.max_num_batched_tokens,
        on(config.enable_prefix_caching),
        on(config.async_scheduling),
        config.stream_interval
    );
    if let Some((name, settings)) = recipe {
        // As they would be typed.
        let settings: Vec<_> = settings
            .iter()
            .map(|(key, value)| match value.as_str() {
                "true" => format!("--{key}"),
                "false" => format!("--no-{key}"),
                value => format!("--{key} {value}"),
            })
            .collect();
        tracing::info!("recipe {name} set {}", settings.join(" "));
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    if let Some(threads) = config.cpu_threads.filter(|threads| *threads as usize > cores) {
        tracing::warn!(
            "--cpu-threads {threads}: there are {cores} cores, so that threads wait for each other"
        );
    }
    let forced = [("--moe-backend", &config.moe_backend), ("--attention-backend", &config.attention_backend)];
    for (flag, backend) in forced {
        if let (Device::Sim, Some(backend)) = (config.device, backend) {
            tracing::warn!("{flag} {backend} has no effect: a simulated device runs no kernels");
        }
    }
    if config.api_keys.is_empty() && !config.host.is_loopback() {
        tracing::warn!("anybody who reaches {} can use this server; --api-key asks for a key", config.host);
    }
}

fn on(flag: bool) -> &'static str {
    if flag { "on" } else { "off" }
}

/// The demo model: in the repository that the executable lies in, or the one it was built from, or below the working
/// directory.
pub fn demo_model() -> PathBuf {
    let executable = std::env::current_exe().unwrap_or_default();
    let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    executable
        .ancestors()
        .skip(1)
        .chain(built_from)
        .map(|directory| directory.join(DEMO_MODEL))
        .find(|directory| directory.join("config.json").is_file())
        .unwrap_or_else(|| DEMO_MODEL.into())
}
