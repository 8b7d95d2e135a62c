//! The engine's link over a ring.
//!
//! Invariant: messages leave in the order in which they were sent, whether the ring was full in between or not.

use crate::engine::{LinkError, SchedulerLink};
use gossamer_channel::{SendError, Sender};
use gossamer_wire::{ToScheduler, encode_into};
use std::{
    collections::VecDeque,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// Messages that wait for room take at most this much memory.
const MOST_WAITING_BYTES: usize = 64 << 20;

/// Sends to the scheduler without ever blocking: what does not fit the ring waits here.
pub struct RingLink {
    outbox: Mutex<Outbox>,
    /// Whether anything waits; spares the lock.
    waiting: AtomicBool,
}

struct Outbox {
    sender: Sender,
    queue: VecDeque<Vec<u8>>,
    bytes: usize,
    buffer: Vec<u8>,
}

impl RingLink {
    /// A link over the writing end of a ring.
    pub fn new(sender: Sender) -> Self {
        let outbox = Outbox { sender, queue: VecDeque::new(), bytes: 0, buffer: Vec::new() };
        Self { outbox: Mutex::new(outbox), waiting: AtomicBool::new(false) }
    }

    /// Sends what waits, as far as there is room. Called from time to time.
    pub fn flush(&self) {
        if !self.waiting.load(Ordering::Relaxed) {
            return;
        }
        let mut outbox = self.outbox.lock().unwrap_or_else(PoisonError::into_inner);
        if outbox.flush() {
            self.waiting.store(false, Ordering::Relaxed);
        }
    }
}

impl Outbox {
    /// Whether nothing waits any more.
    fn flush(&mut self) -> bool {
        while let Some(message) = self.queue.front() {
            match self.sender.try_send(message) {
                Err(SendError::Full { .. }) => return false,
                // A closed ring takes nothing, ever: its successor is told everything anew.
                Ok(()) | Err(_) => {
                    self.bytes -= message.len();
                    self.queue.pop_front();
                }
            }
        }
        true
    }
}

impl SchedulerLink for RingLink {
    fn send(&self, message: &ToScheduler) -> Result<(), LinkError> {
        let mut outbox = self.outbox.lock().unwrap_or_else(PoisonError::into_inner);
        let outbox = &mut *outbox;
        encode_into(message, &mut outbox.buffer).map_err(|error| {
            tracing::error!(%error, "a message cannot be encoded");
            LinkError::TooLong { bytes: outbox.buffer.len() }
        })?;
        if outbox.buffer.len() > outbox.sender.max_len() {
            return Err(LinkError::TooLong { bytes: outbox.buffer.len() });
        }
        if outbox.flush() {
            match outbox.sender.try_send(&outbox.buffer) {
                Ok(()) => return Ok(()),
                Err(SendError::Full { .. }) => {}
                Err(SendError::TooLarge { len, .. }) => return Err(LinkError::TooLong { bytes: len }),
                Err(_) => return Err(LinkError::Closed),
            }
        }
        if outbox.bytes + outbox.buffer.len() > MOST_WAITING_BYTES {
            return Err(LinkError::Full);
        }
        outbox.bytes += outbox.buffer.len();
        outbox.queue.push_back(outbox.buffer.clone());
        self.waiting.store(true, Ordering::Relaxed);
        Ok(())
    }
}
