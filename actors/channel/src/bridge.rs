//! From a ring into an async runtime.
//!
//! A ring's waiter sleeps on a futex, which no reactor can poll, so a ring that feeds async code gets a thread of its
//! own. The thread hands each message to a callback; in a tokio process that is
//! `move |bytes| match decode(bytes) { … inbox.blocking_send(message) … }`, whose blocking is the back-pressure: while
//! the inbox is full nothing is taken from the ring, and its writer waits in turn.
//!
//! The other direction needs no thread: `try_send` never blocks, and a full ring is the moment to hold back.

use std::io;
use std::ops::ControlFlow;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::receiver::{Receiver, RecvError};

/// A thread that empties a ring. Dropping it closes the reading end and waits for the thread.
pub struct Bridge {
    thread: Option<JoinHandle<RecvError>>,
    close: Box<dyn Fn() + Send + Sync>,
}

impl Bridge {
    /// Starts a thread `name` that calls `deliver` for each message until it answers `Break` or the ring ends.
    ///
    /// `ended` is called last, with the reason ([`RecvError::Closed`] after a `Break`).
    ///
    /// # Errors
    /// The system refused a thread.
    pub fn start(
        name: &str,
        mut receiver: Receiver,
        mut deliver: impl FnMut(&[u8]) -> ControlFlow<()> + Send + 'static,
        ended: impl FnOnce(&RecvError) + Send + 'static,
    ) -> io::Result<Self> {
        let close = Box::new(receiver.closer());
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let reason = loop {
                match receiver.recv_with(Duration::MAX, &mut deliver) {
                    Ok(ControlFlow::Continue(())) | Err(RecvError::Timeout) => {}
                    Ok(ControlFlow::Break(())) => break RecvError::Closed,
                    Err(reason) => break reason,
                }
            };
            ended(&reason);
            reason
        })?;
        Ok(Self { thread: Some(thread), close })
    }

    /// Waits until the ring has ended by itself and says why.
    pub fn join(mut self) -> RecvError {
        // A panic of the callback counts as its `Break`; it was reported where it happened.
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or(RecvError::Closed)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            (self.close)();
            // The callback itself may be what drops the bridge.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
