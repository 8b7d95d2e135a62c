//! The worker as a process: plans come in from the broadcast ring, results go out on the worker's own ring.
//!
//! One thread does it all, the one that also launches kernels: a plan's bytes are decoded, checked and run without a
//! hand-over. It is a loop, because every wait in it is a wait on a ring or a device; an actor owns its thread and answers
//! for its end ([`gossamer_supervisor::run_tree`]).
//!
//! Invariant: bytes from the ring are decoded and applied, or they end the process with a fault that says what was wrong
//! with them. After a fault nothing more is run.

mod turns;

pub use turns::PlanLoop;

use crate::autotune::tune_at_start;
use crate::backends::{self, BackendsError, OpenBackends};
use crate::cuda::{Cuda, CudaError};
use crate::executor::{Executor, ExecutorError};
use crate::latency::{self, LatencyError};
use crate::model::{CudaOptions, Model, ModelError, ModelOptions};
use crate::pool::{self, PoolError};
use crate::sim::{Sim, SimError};
use gossamer_channel::{RecvError, SendError};
use gossamer_config::{Device, ModelConfig, ModelConfigError, ServeConfig};
use gossamer_kernels::tuner::KernelCache;
use gossamer_supervisor::{
    ChildContext, ChildEvent, ChildRole, ChildState, StatusHandle, TreeError, Work, run_tree,
};
use gossamer_wire::WireError;
use std::sync::mpsc::{self, TryRecvError};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Longest wait before the loop looks at its events and beats.
const TICK: Duration = Duration::from_millis(20);
/// What a start may spend on tuning a device's kernels unless told otherwise.
const DEVICE_TUNING: Duration = Duration::from_secs(10);

/// Why a worker gives up.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// The threads could not be started.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// There are no backends.
    #[error(transparent)]
    Backends(#[from] BackendsError),
    /// The model's configuration was refused.
    #[error(transparent)]
    Config(#[from] ModelConfigError),
    /// The model could not be opened.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The simulated device could not be opened.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// The kernel cache could not be written, or the plugins not read.
    #[error("kernel cache: {0}")]
    Cache(std::io::Error),
    /// The CUDA device cannot be used.
    #[error("--device cuda: {0}")]
    Cuda(#[from] CudaError),
    /// The first steps failed.
    #[error("the steps before the first request: {0}")]
    WarmUp(#[from] LatencyError),
    /// A plan could not be run.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    /// The ring held something that is no plan.
    #[error("expected a step plan: {0}")]
    Wire(#[from] WireError),
    /// The ring of plans is damaged.
    #[error("the ring of step plans: {0}")]
    Plans(RecvError),
    /// A result could not be sent.
    #[error("the ring of results: {0}")]
    Results(SendError),
}

/// Opens the executor that the configuration asks for.
pub fn open_executor(config: &ServeConfig, rank: u32) -> Result<Box<dyn Executor>, ProcessError> {
    match config.device {
        // Whoever starts a server has settled what auto is.
        Device::Cpu | Device::Auto => Ok(Box::new(open_model(config, rank)?)),
        Device::Cuda => Ok(Box::new(open_cuda(config, rank)?)),
        Device::Sim => Ok(Box::new(Sim::open(config, rank)?)),
    }
}

/// Opens the model on this machine's CPUs.
pub fn open_model(config: &ServeConfig, rank: u32) -> Result<Model, ProcessError> {
    let start = Instant::now();
    let threads = config.cpu_threads.map_or_else(pool::default_threads, |threads| threads as usize);
    let host = pool::start(threads, true)?;
    let open = backends::open(config, host)?;
    let mut options = ModelOptions::new(config, rank);
    let shape = ModelConfig::load(&config.model)?;
    options.kernel_cache = open.kernel_cache(config, &shape);
    let mut model = Model::with_config(&shape, &config.model, &options, open.backends.clone())?;
    let budget = config.autotune_budget.unwrap_or(Duration::ZERO);
    if !budget.is_zero() {
        let fresh = || open.cache_key(config, &shape).map(KernelCache::new).map_err(ProcessError::Cache);
        let mut cache = options.kernel_cache.map_or_else(fresh, Ok)?;
        tune_at_start(&mut model, config, budget, &mut cache)?;
    }
    tracing::info!(
        threads,
        blocks = model.info().num_blocks,
        kv_bytes = model.kv_bytes(),
        seconds = start.elapsed().as_secs_f64(),
        "opened {}",
        config.model.display()
    );
    Ok(model)
}

/// Opens the model on the CUDA device of a rank.
pub fn open_cuda(config: &ServeConfig, rank: u32) -> Result<Model, ProcessError> {
    let start = Instant::now();
    let Placed { mut model, open, shape, cache } = open_cuda_untuned(config, rank)?;
    let budget = config.autotune_budget.unwrap_or(DEVICE_TUNING);
    if !budget.is_zero() {
        let fresh = || open.cache_key(config, &shape).map(KernelCache::new).map_err(ProcessError::Cache);
        let mut cache = cache.map_or_else(fresh, Ok)?;
        tune_at_start(&mut model, config, budget, &mut cache)?;
    }
    latency::warm_up(&mut model)?;
    tracing::info!(
        blocks = model.info().num_blocks,
        kv_bytes = model.kv_bytes(),
        seconds = start.elapsed().as_secs_f64(),
        "opened {}",
        config.model.display()
    );
    Ok(model)
}

/// A model on a device, and what tuning it needs.
pub(crate) struct Placed {
    pub(crate) model: Model,
    pub(crate) open: OpenBackends,
    pub(crate) shape: ModelConfig,
    pub(crate) cache: Option<KernelCache>,
}

/// Opens the model on the CUDA device of a rank, with what the kernel cache holds.
pub(crate) fn open_cuda_untuned(config: &ServeConfig, rank: u32) -> Result<Placed, ProcessError> {
    let cuda = Cuda::open(rank)?;
    tracing::info!(device = cuda.name(), driver = cuda.driver(), "computing on a CUDA device");
    let host = pool::start_for(1, false, Some(cuda.ordinal()))?;
    let open = backends::open(config, host)?.on_device(cuda.name(), cuda.driver());
    let mut options = ModelOptions::new(config, rank);
    options.use_device_types(config);
    let shape = ModelConfig::load(&config.model)?;
    options.kernel_cache = open.kernel_cache(config, &shape);
    let on_device = CudaOptions { capture_size: config.cuda_graph_capture_size };
    let model = Model::open_cuda(&cuda, &config.model, &options, &on_device, open.backends.clone())?;
    Ok(Placed { model, open, shape, cache: options.kernel_cache })
}

/// A worker's life: opens its executor, then runs plans until it is told to stop, all on a thread that the process' own
/// small tree supervises.
pub fn run(context: ChildContext) -> Result<(), TreeError> {
    let ChildContext { role, config, status, events, .. } = context;
    let (inbox, heard) = mpsc::channel();
    let work = Work {
        name: "steps",
        // Fails when the loop has ended.
        deliver: Box::new(move |event| drop(inbox.send(event.unwrap_or(ChildEvent::Stop)))),
        run: Box::new(move || Ok(turns(role, &config, &status, &heard)?)),
    };
    run_tree(events, work)
}

fn turns(
    role: ChildRole,
    config: &ServeConfig,
    status: &StatusHandle,
    events: &mpsc::Receiver<ChildEvent>,
) -> Result<(), ProcessError> {
    let rank = match role {
        ChildRole::Worker(rank) => rank,
        ChildRole::ApiServer(_) | ChildRole::Scheduler => 0,
    };
    let mut executor = open_executor(config, rank)?;
    let beating = status.clone();
    executor.set_heartbeat(Box::new(move || beating.beat()));
    let mut plans = PlanLoop::new(executor);
    if matches!(config.device, Device::Cpu | Device::Auto) {
        pool::pin_launcher();
    }
    status.set_state(ChildState::Ready);
    loop {
        status.beat();
        match events.try_recv() {
            Ok(ChildEvent::Plans { epoch, link }) => {
                tracing::debug!(epoch, "the scheduler is there");
                plans.attach(link)?;
            }
            Ok(ChildEvent::Drain { .. }) => status.set_state(ChildState::Draining),
            Ok(ChildEvent::Lost { .. }) => plans.detach()?,
            Ok(ChildEvent::Stop) | Err(TryRecvError::Disconnected) => return Ok(()),
            // The engine's failure is for those who answer clients, a failed control channel its actor's to report; the
            // order to stop follows.
            Ok(
                ChildEvent::Failed { .. } | ChildEvent::ControlFailed { .. } | ChildEvent::Scheduler { .. },
            ) => {}
            Ok(ChildEvent::ApiServer { .. } | ChildEvent::Workers { .. }) | Err(TryRecvError::Empty) => {}
        }
        plans.turn(TICK)?;
    }
}
