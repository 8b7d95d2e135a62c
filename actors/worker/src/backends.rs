//! Loads the backends of this process and looks up what was measured of them.

use gossamer_backend_api::loader::{self, BackendFile, Found, LoadError};
use gossamer_backend_api::{HostServices, KernelBackend};
use gossamer_config::{ModelConfig, ServeConfig};
use gossamer_kernels::tuner::{CacheKey, CacheMiss, KernelCache, PluginId, SCHEMA};
use gossamer_kernels::{Backends, SelectError};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Why there are no backends.
#[derive(Debug, Error)]
pub enum BackendsError {
    /// The directory could not be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The directory of the executable is unknown.
    #[error("cannot find the executable's directory: {0}; pass --backend-dir DIR")]
    Executable(std::io::Error),
    /// No usable plugin was found.
    #[error(
        "{directory} holds no usable backend (libgossamer_*.so){reasons}; build with `cargo build --release --workspace`, \
         or pass --backend-dir DIR"
    )]
    None {
        /// The directory.
        directory: PathBuf,
        /// Why those that were found cannot be used.
        reasons: String,
    },
    /// What the command line forces cannot be had.
    #[error(transparent)]
    Select(#[from] SelectError),
}

/// The backends of a process.
#[derive(Clone)]
pub struct OpenBackends {
    /// The choice among them.
    pub backends: Backends,
    files: Vec<BackendFile>,
    /// Name of the device and version of its driver.
    device: (String, String),
}

/// The directory that holds the backends: `--backend-dir`, or that of the executable.
pub fn directory(config: &ServeConfig) -> Result<PathBuf, BackendsError> {
    if let Some(directory) = &config.backend_dir {
        return Ok(directory.clone());
    }
    let executable = std::env::current_exe().map_err(BackendsError::Executable)?;
    Ok(executable.parent().map(PathBuf::from).unwrap_or_default())
}

/// How long a plugin may take to open.
const OPENING: Duration = Duration::from_secs(20);

/// Has a process of its own open each file, all at once: opening runs a library's constructors, and a crash in them would
/// otherwise be this process' end, at every restart again. The executable is `gossamer` in every process that opens backends.
fn tried(found: Vec<Found>) -> Vec<Found> {
    let start = |file: BackendFile| {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg("open-backend")
            .arg(&file.path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        (file, command.spawn())
    };
    let running: Vec<_> = found.into_iter().map(|file| file.map(start)).collect();
    let deadline = Instant::now() + OPENING;
    let finish = |(file, child): (BackendFile, std::io::Result<Child>)| match child
        .and_then(|child| end_of(child, deadline))
    {
        // What the library says of itself comes from opening it here.
        Ok(None) => Ok(file),
        Ok(Some(end)) => Err(LoadError::Crash { path: file.path, end }),
        Err(error) => Err(LoadError::Crash { path: file.path, end: format!("could not be run: {error}") }),
    };
    running.into_iter().map(|file| file.and_then(finish)).collect()
}

/// How a process ended, unless it returned by itself.
fn end_of(mut child: Child, deadline: Instant) -> std::io::Result<Option<String>> {
    loop {
        match child.try_wait()? {
            Some(status) => {
                return Ok(status.signal().map(|signal| format!("was killed by signal {signal}")));
            }
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            None => {
                child.kill()?;
                child.wait()?;
                return Ok(Some(format!("was not through after {} s", OPENING.as_secs())));
            }
        }
    }
}

/// Opens one plugin, for `tried`.
pub fn try_open(path: &Path, host: &'static HostServices) -> Result<(), LoadError> {
    loader::open(&loader::inspect(path)?, host).map(drop)
}

/// Opens every backend of the directory. One that cannot be used is left out with a warning.
pub fn open(config: &ServeConfig, host: &'static HostServices) -> Result<OpenBackends, BackendsError> {
    let directory = directory(config)?;
    let (mut list, mut files, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
    for found in tried(loader::discover(&directory)?) {
        match found.and_then(|file| loader::open(&file, host).map(|backend| (file, backend))) {
            Ok((file, backend)) => {
                tracing::debug!(backend = file.name, version = file.version, "opened a backend");
                list.push(Arc::new(backend) as Arc<dyn KernelBackend>);
                files.push(file);
            }
            Err(error) => {
                tracing::warn!(%error, "a backend is left out");
                reasons.push(error.to_string());
            }
        }
    }
    if list.is_empty() {
        let reasons = if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) };
        return Err(BackendsError::None { directory, reasons });
    }
    let backends = Backends::new(list, config.moe_backend.as_deref(), config.attention_backend.as_deref())?;
    Ok(OpenBackends { backends, files, device: (cpu_name(), String::new()) })
}

/// The processor's name, for cache files and reports.
pub fn cpu_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim().to_owned());
    name.unwrap_or_else(|| format!("{} CPU", std::env::consts::ARCH))
}

impl OpenBackends {
    /// The same on a device other than the processor.
    pub fn on_device(self, name: &str, driver: &str) -> Self {
        Self { device: (name.to_owned(), driver.to_owned()), ..self }
    }

    /// What a kernel cache for this device, these plugins and this model is keyed by.
    pub fn cache_key(&self, config: &ServeConfig, model: &ModelConfig) -> std::io::Result<CacheKey> {
        let id = |file: &BackendFile| PluginId::of(&file.name, &file.version, &file.path);
        let parallel = &config.parallel;
        // What is measured among the tactics of a forced backend alone is no choice for a server that forces none.
        let forced = |flag: &str, name: &Option<String>| {
            name.as_ref().map_or(String::new(), |name| format!(" {flag}={name}"))
        };
        Ok(CacheKey {
            schema: SCHEMA,
            device: self.device.0.clone(),
            driver: self.device.1.clone(),
            plugins: self.files.iter().map(id).collect::<Result<_, _>>()?,
            model: format!(
                "{model:?} {:?} {:?} {:?} {:?}{}{}",
                config.dtype,
                config.kv_cache_dtype,
                config.moe_activation_dtype,
                config.attention_arithmetic,
                forced("moe", &config.moe_backend),
                forced("attention", &config.attention_backend)
            ),
            layout: format!("tp{} pp{} dp{}", parallel.tensor, parallel.pipeline, parallel.data),
        })
    }

    /// The kernel cache of `--kernel-cache-dir`, if there is one that fits; else says once why not.
    pub fn kernel_cache(&self, config: &ServeConfig, model: &ModelConfig) -> Option<KernelCache> {
        let directory = config.kernel_cache_dir.as_ref()?;
        let key = match self.cache_key(config, model) {
            Ok(key) => key,
            Err(error) => {
                tracing::warn!(%error, "cannot identify the plugins; the kernel cache is not used");
                return None;
            }
        };
        load(directory, &key)
    }
}

/// The cache in `directory`, if there is one that fits; else says once why not.
pub(crate) fn load(directory: &Path, key: &CacheKey) -> Option<KernelCache> {
    match KernelCache::load(directory, key) {
        Ok(cache) => {
            tracing::info!(choices = cache.len(), "uses the kernel cache {}", key.path(directory).display());
            Some(cache)
        }
        Err(miss @ CacheMiss::Absent { .. }) => {
            tracing::info!("{miss}");
            None
        }
        Err(miss) => {
            tracing::warn!("{miss}");
            None
        }
    }
}
