//! The API server's side of the scheduler: submits sequences, hands out their tokens, keeps the token log.
//!
//! The scheduler is reached through a [`SchedulerLink`] (in production a pair of shared-memory rings); what it says is
//! handed to [`Engine::deliver`]. Nothing here knows HTTP or text.
//!
//! Invariant: a sequence is in the registry from before its submission until its last token was handed out or its
//! abort was sent; so whatever a scheduler says about other sequences is late and is dropped.
//!
//! Invariant: each position of a sequence is handed out once and in order, whatever is replayed: positions already in
//! the log are dropped, a gap is an engine error.

mod registry;
mod ticket;

use gossamer_wire::{AbortReason, EngineInfo, FromScheduler, RequestId, SchedulerStats, Submit, ToScheduler};
use registry::Registry;
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use thiserror::Error;
use tokio::sync::watch;

pub use ticket::{Event, Ticket};

/// Carries messages to the scheduler.
pub trait SchedulerLink: Send + Sync {
    /// Queues one message without blocking.
    ///
    /// # Errors
    /// When the scheduler is gone or does not take messages for so long that the queue is full.
    fn send(&self, message: &ToScheduler) -> Result<(), LinkError>;
}

/// Why a message did not reach the scheduler.
#[derive(Clone, Debug, Error)]
pub enum LinkError {
    /// No scheduler is attached.
    #[error("the scheduler is not reachable")]
    Closed,
    /// It does not keep up.
    #[error("the scheduler does not take messages at the moment")]
    Full,
    /// The message exceeds what the channel carries.
    #[error("the request of {bytes} bytes exceeds what the channel to the scheduler carries")]
    TooLong {
        /// Length of the encoded message.
        bytes: usize,
    },
}

/// What the engine is doing, as far as this API server was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineState {
    /// Weights load, or the scheduler is being replaced.
    Starting,
    /// All workers are ready.
    Ready(EngineInfo),
    /// A worker is being replaced; requests wait and go on later.
    Paused(EngineInfo),
    /// It failed for good.
    Failed(String),
}

impl EngineState {
    /// What is known of the engine once it was ready.
    pub fn info(&self) -> Option<&EngineInfo> {
        match self {
            Self::Ready(info) | Self::Paused(info) => Some(info),
            Self::Starting | Self::Failed(_) => None,
        }
    }
}

/// Handle to the engine; clones share it.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    api_server: u16,
    epoch: u16,
    serial: AtomicU32,
    registry: Mutex<Registry>,
    link: Mutex<Option<Arc<dyn SchedulerLink>>>,
    state: watch::Sender<EngineState>,
    stats: Mutex<SchedulerStats>,
}

impl Engine {
    /// An engine without a scheduler yet, for the `epoch`-th incarnation of an API server.
    pub fn new(api_server: u16, epoch: u16) -> Self {
        Self {
            shared: Arc::new(Shared {
                api_server,
                epoch,
                serial: AtomicU32::new(0),
                registry: Mutex::default(),
                link: Mutex::new(None),
                state: watch::Sender::new(EngineState::Starting),
                stats: Mutex::default(),
            }),
        }
    }

    /// Attaches a (new) scheduler: greets it and submits all unfinished sequences again from the token log.
    pub fn attach(&self, link: Arc<dyn SchedulerLink>) -> Result<(), LinkError> {
        let registry = self.registry();
        let shared = &self.shared;
        link.send(&ToScheduler::Hello { api_server: shared.api_server, epoch: shared.epoch })?;
        for submit in registry.unfinished() {
            link.send(&ToScheduler::Submit(Box::new(submit)))?;
        }
        // Under the registry's lock, so that no sequence is submitted to the old link and missed by the loop above.
        *lock(&shared.link) = Some(link);
        Ok(())
    }

    /// The scheduler is gone; sequences wait for the next one.
    pub fn detach(&self) {
        *lock(&self.shared.link) = None;
        self.pause();
    }

    /// The engine failed for good: all requests end with an error and none is taken.
    pub fn fail(&self, message: &str) {
        self.shared.state.send_replace(EngineState::Failed(message.to_owned()));
        self.registry().end_all(|| Event::Failed { message: message.to_owned() });
    }

    /// The time that a shutdown gives to running requests is over: they end with an error.
    pub fn shut_down(&self) {
        self.registry().end_all(|| Event::ShutDown);
    }

    /// Takes what the scheduler said.
    pub fn deliver(&self, message: FromScheduler) {
        match message {
            FromScheduler::Tokens(deltas) => {
                let mut ended = Vec::new();
                {
                    let mut registry = self.registry();
                    for delta in deltas {
                        ended.append(&mut registry.deliver(delta));
                    }
                }
                for key in ended {
                    self.send(&ToScheduler::Abort { key, reason: AbortReason::Disconnected });
                }
            }
            FromScheduler::Refused { key, refusal } => self.registry().refuse(key, refusal),
            FromScheduler::Ready(info) => {
                self.shared.state.send_replace(EngineState::Ready(info));
            }
            FromScheduler::Paused => self.pause(),
            FromScheduler::Stats(stats) => *lock(&self.shared.stats) = stats,
        }
    }

    fn pause(&self) {
        self.shared.state.send_if_modified(|state| match state {
            EngineState::Ready(info) => {
                *state = EngineState::Paused(info.clone());
                true
            }
            _ => false,
        });
    }

    /// Submits sequences: each template `n` times, as the choices of one request each. Choice numbers, keys and seeds
    /// of the templates are set here.
    pub fn submit(&self, templates: Vec<(Submit, u32)>) -> Result<Ticket, LinkError> {
        // The link is read under the registry's lock, in one piece with the registration: a scheduler attached later
        // is told of these sequences by `attach`, one attached before is told here, and none is told twice.
        let (ticket, submits, link) = {
            let mut registry = self.registry();
            let link = lock(&self.shared.link).clone();
            // `fail` announces the state before it ends what is registered: what came too late for it must not wait for
            // ever.
            let is_open = match self.state() {
                EngineState::Failed(_) => false,
                EngineState::Paused(_) => true,
                EngineState::Starting | EngineState::Ready(_) => link.is_some(),
            };
            if !is_open {
                return Err(LinkError::Closed);
            }
            let (ticket, submits) =
                Ticket::register(self.clone(), &mut registry, templates, || self.next_id());
            (ticket, submits, link)
        };
        let Some(link) = link else { return Ok(ticket) };
        for submit in submits {
            if let Err(error) = link.send(&ToScheduler::Submit(Box::new(submit))) {
                let replaced = lock(&self.shared.link).as_ref().is_none_or(|now| !Arc::ptr_eq(now, &link));
                if replaced && matches!(error, LinkError::Closed) {
                    break;
                }
                // The ticket takes back what was submitted before.
                return Err(error);
            }
        }
        Ok(ticket)
    }

    fn next_id(&self) -> RequestId {
        let serial = self.shared.serial.fetch_add(1, Ordering::Relaxed);
        RequestId::new(self.shared.api_server, self.shared.epoch, serial)
    }

    fn send(&self, message: &ToScheduler) {
        let link = lock(&self.shared.link).clone();
        // A scheduler that is gone has forgotten the sequence; its successor is only told of those in the registry.
        if let Some(Err(error)) = link.map(|link| link.send(message)) {
            tracing::warn!(%error, "an abort did not reach the scheduler");
        }
    }

    /// Which API server this is.
    pub fn api_server(&self) -> u16 {
        self.shared.api_server
    }

    /// The state now.
    pub fn state(&self) -> EngineState {
        self.shared.state.borrow().clone()
    }

    /// Waits until the state satisfies `accept`, at most `limit`.
    pub async fn wait_for(&self, limit: Duration, accept: impl FnMut(&EngineState) -> bool) -> bool {
        let mut state = self.shared.state.subscribe();
        tokio::time::timeout(limit, state.wait_for(accept)).await.is_ok_and(|seen| seen.is_ok())
    }

    /// What the scheduler told last.
    pub fn stats(&self) -> SchedulerStats {
        lock(&self.shared.stats).clone()
    }

    /// Requests that this API server holds.
    pub fn open_requests(&self) -> usize {
        self.registry().len()
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.shared.registry)
    }
}

/// A poisoned lock means that a panic was caught elsewhere; the data are still whole, for no code panics half-way
/// through a change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
