//! The worker: weights, KV pool, and the executors that run step plans.
//!
//! A worker is one process per device. It applies numbered step plans to its request slots and answers with drawn
//! tokens; what to run is the scheduler's decision alone.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod autotune;
pub mod backends;
pub mod cuda;
mod device;
mod executor;
mod kv;
pub mod latency;
mod memory;
mod model;
pub mod pool;
pub mod process;
mod sim;
mod slots;
mod weights;

pub use autotune::{TuneReport, autotune};
pub use device::{Block, Device};
pub use executor::{Executor, ExecutorError, Progress};
pub use kv::{KvBudget, KvError, KvPool};
pub use memory::MemoryError;
pub use model::{Choice, CudaOptions, Model, ModelError, ModelOptions, Program, ProgramError, TuneLimits};
pub use sim::{Script, ScriptError, Sim, SimError};
pub use slots::{BlockTable, Occurrences, PlanError, Slot, SlotLimits, SlotTable};
pub use weights::{CheckpointError, Weights, WeightsError};
