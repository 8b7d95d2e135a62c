//! A reading end of a ring.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::copy;
use crate::protocol::{advance, wait};
use crate::ring::{AttachError, SKIP, View, check_positions, stamp, take};
use crate::segment::Segment;
use crate::wait::{Shared, Spin, Until};

/// Why no message was received.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecvError {
    /// Nothing came within the time given.
    #[error("no message within the time given")]
    Timeout,
    /// The writer has gone and everything it sent was received, or this end was closed.
    #[error("the ring is closed")]
    Closed,
    /// The writer detached this reader, which was thought dead. Attach again.
    #[error("the writer detached this reader")]
    Detached,
    /// The writer's index or a message's length cannot be. Final: the ring is not read any more.
    #[error("expected {expected} at position {position}, got {got}; the ring is damaged")]
    Corrupt {
        /// What a sound ring would hold.
        expected: &'static str,
        /// Where.
        position: u64,
        /// The number found.
        got: u64,
    },
}

/// A reading end. Dropping it closes it, so that the writer does not wait for it.
pub struct Receiver {
    view: View,
    reader: usize,
    generation: u32,
    head: u64,
    /// The writer's position when last read.
    tail: u64,
    spin: Spin,
    /// Messages are copied here before anyone looks at them, so that the writer cannot change what was checked.
    scratch: Vec<u8>,
    damage: Option<RecvError>,
}

impl Receiver {
    /// Attaches as reader number `reader` (0 for a queue).
    ///
    /// # Errors
    /// [`AttachError`] if the geometry or position is damaged or the end is taken.
    pub fn attach(segment: Arc<Segment>, reader: usize, spin: Spin) -> Result<Self, AttachError> {
        let view = View::new(segment)?;
        let (readers, slots) = (view.geometry.readers, view.geometry.slots);
        if reader >= readers {
            return Err(AttachError::NoSuchReader { reader, readers });
        }
        take(view.reader_owner(reader), || format!("reader {reader}"))?;
        let generation = view.generation(reader).load(Ordering::Acquire);
        let head = view.head(reader).load(Ordering::Acquire);
        let tail = view.tail().load(Ordering::Acquire);
        check_positions(head, tail, slots)?;
        Ok(Self { view, reader, generation, head, tail, spin, scratch: Vec::new(), damage: None })
    }

    /// The segment underneath, for its epoch and for [`crate::ring::close`].
    pub fn segment(&self) -> &Arc<Segment> {
        self.view.segment()
    }

    /// Receives a message, waiting for it up to `timeout`.
    pub fn recv(&mut self, timeout: Duration) -> Result<Vec<u8>, RecvError> {
        self.recv_with(timeout, <[u8]>::to_vec)
    }

    /// Receives a message if there is one now.
    pub fn try_recv(&mut self) -> Result<Vec<u8>, RecvError> {
        self.recv(Duration::ZERO)
    }

    /// Receives a message and shows it to `read`, without an allocation of its own.
    ///
    /// What `read` sees is a private copy that the writer cannot change. The slots are free again before it runs.
    pub fn recv_with<T>(&mut self, timeout: Duration, read: impl FnOnce(&[u8]) -> T) -> Result<T, RecvError> {
        if let Some(damage) = &self.damage {
            return Err(damage.clone());
        }
        self.await_data(timeout)?;
        match self.take_message() {
            Ok(len) => Ok(read(&self.scratch[..len])),
            Err(damage) => {
                // The writer must not fill a ring that nobody will read.
                self.close();
                self.damage = Some(damage.clone());
                Err(damage)
            }
        }
    }

    fn await_data(&mut self, timeout: Duration) -> Result<(), RecvError> {
        if self.tail == self.head
            || self.view.generation(self.reader).load(Ordering::Acquire) != self.generation
        {
            let mut answer = self.look();
            if answer.is_none() && !timeout.is_zero() {
                let mut patience = Until::new(timeout, self.spin);
                let view = self.view.clone();
                answer = wait::<Shared, _>(view.data_gate(self.reader), &mut patience, || self.look());
            }
            return answer.unwrap_or(Err(RecvError::Timeout));
        }
        Ok(())
    }

    /// Reads the flags and the writer's position; `None` while there is nothing to say.
    fn look(&mut self) -> Option<Result<(), RecvError>> {
        if self.view.generation(self.reader).load(Ordering::Acquire) != self.generation {
            return Some(Err(RecvError::Detached));
        }
        if self.view.reader_closed(self.reader).load(Ordering::Acquire) != 0
            && self.view.writer_closed().load(Ordering::Acquire) == 0
        {
            return Some(Err(RecvError::Closed));
        }
        // The flag first: what was sent before the closing is then seen below.
        let closed = self.view.writer_closed().load(Ordering::Acquire) != 0;
        // Acquire: the slots below the position are written.
        self.tail = self.view.tail().load(Ordering::Acquire);
        if self.tail != self.head {
            return Some(Ok(()));
        }
        closed.then_some(Err(RecvError::Closed))
    }

    /// Copies the next message into the scratch buffer and frees its slots; returns its length.
    fn take_message(&mut self) -> Result<usize, RecvError> {
        let geometry = self.view.geometry;
        let corrupt = |expected, position, got| RecvError::Corrupt { expected, position, got };
        let available = self.tail.wrapping_sub(self.head);
        if available > geometry.slots {
            return Err(corrupt("the writer at most a ring ahead", self.head, self.tail));
        }
        let mut at = self.head;
        let mut word = self.view.slots(at, 1)[0].load(Ordering::Relaxed);
        check_stamp(word, at)?;
        if word as u32 == SKIP {
            let skip = geometry.left_from(at);
            if skip >= available {
                return Err(corrupt("a message after the skip mark", at, available));
            }
            at += skip;
            word = self.view.slots(at, 1)[0].load(Ordering::Relaxed);
            check_stamp(word, at)?;
        }
        let len = word as u32 as usize;
        if len > geometry.max_len() {
            return Err(corrupt("a length of at most half a ring", at, len as u64));
        }
        let slots = geometry.slots_for(len);
        if slots > geometry.left_from(at) || at + slots > self.tail {
            return Err(corrupt("a length within the slots written", at, len as u64));
        }
        if self.scratch.len() < len {
            self.scratch.resize(len, 0);
        }
        copy::load(&self.view.slots(at, slots)[1..], &mut self.scratch[..len]);
        self.head = at + slots;
        advance::<Shared>(self.view.head(self.reader), self.head, [self.view.space_gate()]);
        Ok(len)
    }

    /// Reads no more; the writer does not wait for this end any longer.
    pub fn close(&self) {
        // A reader that was detached has a successor, whose flag this now is.
        if self.view.generation(self.reader).load(Ordering::Acquire) == self.generation {
            self.view.close_reader(self.reader);
        }
    }

    pub(crate) fn closer(&self) -> impl Fn() + Send + Sync + 'static {
        let (view, reader) = (self.view.clone(), self.reader);
        move || view.close_reader(reader)
    }
}

fn check_stamp(word: u64, position: u64) -> Result<(), RecvError> {
    if (word >> 32) as u32 == stamp(position) {
        return Ok(());
    }
    Err(RecvError::Corrupt { expected: "a message's stamp", position, got: word })
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver")
            .field("reader", &self.reader)
            .field("head", &self.head)
            .finish_non_exhaustive()
    }
}
