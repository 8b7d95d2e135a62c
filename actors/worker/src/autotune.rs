//! `gossamer autotune`, and the tuning of a server that starts.

use crate::backends::{self, OpenBackends};
use crate::model::{Model, ModelOptions, TuneLimits};
use crate::pool;
use crate::process::{Placed, ProcessError, open_cuda_untuned};
use gossamer_config::{Device, ModelConfig, ServeConfig};
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
    if config.device == Device::Cuda {
        let Placed { mut model, open, shape, .. } = open_cuda_untuned(config, 0)?;
        let mut cache = load_or_new(&open, config, &shape, directory)?;
        return measure(&mut model, &mut cache, directory, progress);
    }
    let threads = config.cpu_threads.map_or_else(pool::default_threads, |threads| threads as usize);
    let open = backends::open(config, pool::start(threads, true)?)?;
    let shape = ModelConfig::load(&config.model)?;
    let mut cache = load_or_new(&open, config, &shape, directory)?;
    let options = ModelOptions::new(config, 0);
    let mut model = Model::with_config(&shape, &config.model, &options, open.backends)?;
    pool::pin_launcher();
    measure(&mut model, &mut cache, directory, progress)
}

/// The cache of a directory, or an empty one; the reason is in the log.
fn load_or_new(
    open: &OpenBackends,
    config: &ServeConfig,
    shape: &ModelConfig,
    directory: &Path,
) -> Result<KernelCache, ProcessError> {
    let key = open.cache_key(config, shape).map_err(ProcessError::Cache)?;
    Ok(backends::load(directory, &key).unwrap_or_else(|| KernelCache::new(key)))
}

fn measure(
    model: &mut Model,
    cache: &mut KernelCache,
    directory: &Path,
    progress: &mut dyn FnMut(u32, usize),
) -> Result<TuneReport, ProcessError> {
    // What cannot be kept is not measured for minutes first.
    cache.store(directory).map_err(ProcessError::Cache)?;
    let limits = TuneLimits { budget: Duration::MAX, single: true };
    let measured = model.tune(cache, limits, progress)?;
    let path = cache.store(directory).map_err(ProcessError::Cache)?;
    Ok(TuneReport { measured, path })
}

/// Tunes a model that was just opened within `budget`, and keeps what was found where there is a directory
/// for it. A cache that cannot be written costs the next start some time and nothing else.
pub(crate) fn tune_at_start(
    model: &mut Model,
    config: &ServeConfig,
    budget: Duration,
    cache: &mut KernelCache,
) -> Result<(), ProcessError> {
    let limits = TuneLimits { budget, single: false };
    let measured = model.tune(cache, limits, &mut |_, _| {})?;
    if let (true, Some(directory)) = (measured > 0, &config.kernel_cache_dir) {
        match cache.store(directory) {
            Ok(path) => tracing::info!(measured, "wrote the kernel cache {}", path.display()),
            Err(error) => tracing::warn!("kernel cache: {error}; the next start measures again"),
        }
    }
    Ok(())
}
