//! What runs step plans: the border between the worker's process loop and a device.
//!
//! Two implementations exist: `Model` (graph and plugins) and `Sim` (a timed device without arithmetic). The loop keeps
//! several steps in flight where the device can: it enqueues plans as they come and polls for the oldest result.
//!
//! Invariant: results come in the order of the plans, one per plan. After an error the executor is not used again: the
//! worker reports a fault and exits, and its successor starts from a snapshot.

use crate::PlanError;
use gossamer_backend_api::BackendError;
use gossamer_wire::{StepPlan, StepResult, WorkerInfo};
use std::time::Duration;
use thiserror::Error;

/// Why a plan could not be run.
#[derive(Debug, Error)]
pub enum ExecutorError {
    /// The plan is malformed, or does not fit what the worker holds.
    #[error("step {step}: {source}")]
    Plan {
        /// Number of the plan.
        step: u64,
        /// What is wrong with it.
        source: PlanError,
    },
    /// A kernel failed.
    #[error("step {step}, {operation}: {source}")]
    Backend {
        /// Number of the plan.
        step: u64,
        /// The operation and its layer.
        operation: String,
        /// What the backend said.
        source: BackendError,
    },
    /// A result was asked for while no step is in flight.
    #[error("expected a step in flight, got none; enqueue a plan first")]
    Idle,
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(String),
}

/// State of the oldest step in flight.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// No step is in flight.
    Idle,
    /// The oldest step still runs.
    Busy {
        /// When it is worth asking again; zero: at once.
        ask_again: Duration,
    },
    /// The oldest step is done and no longer in flight.
    Done(StepResult),
}

/// A device that runs step plans.
pub trait Executor: Send {
    /// What the device offers; fixed once the executor exists.
    fn info(&self) -> &WorkerInfo;

    /// Applies a plan to the slots and starts its work. Returns as soon as the device has the work (a CPU returns when
    /// it is done); the plan may use tokens that steps in flight have yet to draw.
    fn enqueue(&mut self, plan: &StepPlan) -> Result<(), ExecutorError>;

    /// Looks after the oldest step in flight, without waiting.
    fn poll(&mut self) -> Result<Progress, ExecutorError>;

    /// `beat` is called now and then while a long step runs, from the thread that enqueues. Executors whose calls return
    /// quickly need not.
    fn set_heartbeat(&mut self, beat: Box<dyn Fn() + Send>) {
        drop(beat);
    }

    /// Waits for the oldest step in flight.
    fn collect(&mut self) -> Result<StepResult, ExecutorError> {
        loop {
            match self.poll()? {
                Progress::Done(result) => return Ok(result),
                Progress::Busy { ask_again } if ask_again.is_zero() => std::hint::spin_loop(),
                Progress::Busy { ask_again } => std::thread::sleep(ask_again),
                Progress::Idle => return Err(ExecutorError::Idle),
            }
        }
    }

    /// Runs one plan to its end; nothing else may be in flight.
    fn step(&mut self, plan: &StepPlan) -> Result<StepResult, ExecutorError> {
        self.enqueue(plan)?;
        self.collect()
    }
}
