//! One turn of the worker's loop: a plan in, a result out.

use super::ProcessError;
use crate::executor::{Executor, Progress};
use gossamer_channel::{RecvError, SendError};
use gossamer_supervisor::WorkerLink;
use gossamer_wire::{FromWorker, StepPlan, decode, encode_into};
use std::time::Duration;

/// Runs plans of one scheduler after the other.
pub struct PlanLoop {
    executor: Box<dyn Executor>,
    link: Option<WorkerLink>,
    /// The message that the results' ring had no room for; nothing else goes on until it is out.
    outbox: Vec<u8>,
}

impl PlanLoop {
    /// A loop without a scheduler.
    pub fn new(executor: Box<dyn Executor>) -> Self {
        Self { executor, link: None, outbox: Vec::new() }
    }

    /// Takes up the rings of a scheduler and tells it what this worker has. Steps of an earlier scheduler are finished
    /// and forgotten: the new one starts with a snapshot.
    pub fn attach(&mut self, link: WorkerLink) -> Result<(), ProcessError> {
        self.detach()?;
        self.link = Some(link);
        self.post(&FromWorker::Ready(self.executor.info().clone()))
    }

    /// Lets go of the scheduler's rings.
    pub fn detach(&mut self) -> Result<(), ProcessError> {
        self.link = None;
        self.outbox.clear();
        loop {
            match self.executor.poll()? {
                Progress::Idle => return Ok(()),
                Progress::Busy { ask_again } => std::thread::sleep(ask_again),
                Progress::Done(_) => {}
            }
        }
    }

    /// Sends the oldest result if it is there, then waits up to `tick` for a plan and starts it.
    pub fn turn(&mut self, tick: Duration) -> Result<(), ProcessError> {
        let result = self.try_turn(tick);
        if let Err(error) = &result {
            let fault = FromWorker::Fault { message: error.to_string() };
            // Nobody may be left to hear it; the supervisor is told as well.
            if let Err(unheard) = self.post(&fault) {
                tracing::debug!(%unheard, "the scheduler was not told of the fault");
            }
        }
        result
    }

    fn try_turn(&mut self, tick: Duration) -> Result<(), ProcessError> {
        if !self.outbox.is_empty() {
            return self.flush(tick);
        }
        let wait = match self.executor.poll()? {
            Progress::Done(result) => return self.post(&FromWorker::Done(result)),
            Progress::Busy { ask_again } => ask_again.min(tick),
            Progress::Idle => tick,
        };
        let Some(link) = &mut self.link else {
            std::thread::sleep(wait);
            return Ok(());
        };
        match link.plans.recv_with(wait, decode::<StepPlan>) {
            Ok(plan) => Ok(self.executor.enqueue(&plan?)?),
            Err(RecvError::Timeout) => Ok(()),
            // The scheduler died or took this worker for dead; a new link will be announced.
            Err(RecvError::Closed | RecvError::Detached) => self.detach(),
            Err(damage @ RecvError::Corrupt { .. }) => Err(ProcessError::Plans(damage)),
        }
    }

    fn post(&mut self, message: &FromWorker) -> Result<(), ProcessError> {
        encode_into(message, &mut self.outbox)?;
        self.flush(Duration::ZERO)
    }

    fn flush(&mut self, wait: Duration) -> Result<(), ProcessError> {
        let Some(link) = &mut self.link else {
            self.outbox.clear();
            return Ok(());
        };
        match link.results.send(&self.outbox, wait) {
            Ok(()) => {
                self.outbox.clear();
                Ok(())
            }
            Err(SendError::Full { .. }) => Ok(()),
            Err(SendError::Closed) => self.detach(),
            Err(error) => Err(ProcessError::Results(error)),
        }
    }
}

#[cfg(test)]
mod tests;
