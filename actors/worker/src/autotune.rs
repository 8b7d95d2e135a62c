//! `gossamer autotune`, and the tuning of a server that starts.

use crate::backends;
use crate::model::{Model, ModelOptions, TuneLimits};
use crate::pool;
use crate::process::ProcessError;
use gossamer_config::{ModelConfig, ServeConfig};
use gossamer_kernels::tuner::KernelCache;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What tuning found.
#[derive(Clone, Debug)]
pub struct TuneReport {
    /// Choices measured in this run.
    pub measured: usize,
    /// The cache file.
    pub path: PathBuf,
}

/// Measures every choice that the cache in `directory` lacks, and writes the cache. `progress` hears each token count and
/// how many there are.
pub fn autotune(
    config: &ServeConfig,
    directory: &Path,
    progress: &mut dyn FnMut(u32, usize),
) -> Result<TuneReport, ProcessError> {
    let threads = config.cpu_threads.map_or_else(pool::default_threads, |threads| threads as usize);
    let open = backends::open(config, pool::start(threads, true)?)?;
    let shape = ModelConfig::load(&config.model)?;
    let key = open.cache_key(config, &shape).map_err(ProcessError::Cache)?;
    let mut cache = match KernelCache::load(directory, &key) {
        Ok(cache) => cache,
        Err(miss) => {
            tracing::info!("{miss}");
            KernelCache::new(key)
        }
    };
    let options = ModelOptions::new(config, 0);
    let mut model = Model::with_config(&shape, &config.model, &options, open.backends)?;
    pool::pin_launcher();
    let limits = TuneLimits { budget: Duration::MAX, single: true };
    let measured = model.tune(&mut cache, limits, progress)?;
    let path = cache.store(directory).map_err(ProcessError::Cache)?;
    Ok(TuneReport { measured, path })
}

/// Tunes a model that was just opened within `--autotune-budget`, and keeps what was found where there is a directory
/// for it. A cache that cannot be written costs the next start some time and nothing else.
pub(crate) fn tune_at_start(
    model: &mut Model,
    config: &ServeConfig,
    cache: &mut KernelCache,
) -> Result<(), ProcessError> {
    let limits = TuneLimits { budget: config.autotune_budget, single: false };
    let measured = model.tune(cache, limits, &mut |_, _| {})?;
    if let (true, Some(directory)) = (measured > 0, &config.kernel_cache_dir) {
        match cache.store(directory) {
            Ok(path) => tracing::info!(measured, "wrote the kernel cache {}", path.display()),
            Err(error) => tracing::warn!(%error, "cannot write the kernel cache to {}", directory.display()),
        }
    }
    Ok(())
}
