//! The writing end of a ring.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::copy::WordWriter;
use crate::protocol::{Gate, advance, wait};
use crate::ring::{AttachError, SKIP, View, check_positions, stamp, take};
use crate::segment::Segment;
use crate::wait::{Shared, Spin, Until};

/// Why a message was not sent. Nothing of it is in the ring then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No room within the time given: the slowest reader is behind. Try again, or hold back what feeds the ring.
    #[error("the ring is full: a reader is {behind} slots behind")]
    Full {
        /// How far the slowest attached reader is behind.
        behind: u64,
    },
    /// The reader (of a broadcast: every reader) has gone, or this end was closed.
    #[error("the ring is closed")]
    Closed,
    /// The message can never fit.
    #[error("expected a message of at most {max} bytes, got {len}")]
    TooLarge {
        /// Its length.
        len: usize,
        /// The longest that fits.
        max: usize,
    },
    /// The message's producer wrote another number of bytes than it announced.
    #[error("expected the message's {expected} bytes to be written, got {written}")]
    WrongLength {
        /// Bytes announced.
        expected: usize,
        /// Bytes written, or tried.
        written: usize,
    },
    /// A reader moved its position to where it cannot be. It counts as detached from now on.
    #[error("expected reader {reader} between {from} and {tail}, got {got}; it is detached")]
    BadReader {
        /// Which reader.
        reader: usize,
        /// Its last good position.
        from: u64,
        /// The writer's position.
        tail: u64,
        /// The position found.
        got: u64,
    },
}

/// The writing end. One per ring; dropping it closes the ring.
pub struct Sender {
    view: View,
    tail: u64,
    /// Last good position of each reader that this end waits for.
    heads: Vec<Option<u64>>,
    spin: Spin,
}

impl Sender {
    /// Attaches as the writer.
    ///
    /// # Errors
    /// [`AttachError`] if the geometry is damaged or there is a writer already.
    pub fn attach(segment: Arc<Segment>, spin: Spin) -> Result<Self, AttachError> {
        let view = View::new(segment)?;
        take(view.writer_owner(), || "writer".to_owned())?;
        let tail = view.tail().load(Ordering::Acquire);
        check_positions(tail, tail, view.geometry.slots)?;
        let heads = vec![Some(tail); view.geometry.readers];
        Ok(Self { view, tail, heads, spin })
    }

    /// The longest message that fits.
    pub fn max_len(&self) -> usize {
        self.view.geometry.max_len()
    }

    /// The segment underneath, for its epoch and for [`crate::ring::close`].
    pub fn segment(&self) -> &Arc<Segment> {
        self.view.segment()
    }

    /// Sends, waiting for room up to `timeout`.
    pub fn send(&mut self, message: &[u8], timeout: Duration) -> Result<(), SendError> {
        self.send_with(message.len(), timeout, |writer| writer.put(message))
    }

    /// Sends if there is room now.
    pub fn try_send(&mut self, message: &[u8]) -> Result<(), SendError> {
        self.send(message, Duration::ZERO)
    }

    /// Sends a message of `len` bytes that `write` puts straight into the ring: no copy in between.
    ///
    /// # Errors
    /// As [`Self::send`]; [`SendError::WrongLength`] if `write` does not write exactly `len` bytes.
    pub fn send_with(
        &mut self,
        len: usize,
        timeout: Duration,
        write: impl FnOnce(&mut SlotWriter<'_>),
    ) -> Result<(), SendError> {
        let max = self.max_len();
        if len > max {
            return Err(SendError::TooLarge { len, max });
        }
        let geometry = self.view.geometry;
        let slots = geometry.slots_for(len);
        let to_end = geometry.left_from(self.tail);
        let skip = if slots > to_end { to_end } else { 0 };
        self.reserve(skip + slots, timeout)?;

        let at = self.tail + skip;
        let words = self.view.slots(at, slots);
        let mut writer = SlotWriter { words: WordWriter::new(&words[1..]), len, written: 0 };
        write(&mut writer);
        if writer.written != len {
            return Err(SendError::WrongLength { expected: len, written: writer.written });
        }
        writer.words.flush();
        // Relaxed: the release store of the tail below publishes these.
        words[0].store(head_word(len as u32, at), Ordering::Relaxed);
        if skip > 0 {
            self.view.slots(self.tail, 1)[0].store(head_word(SKIP, self.tail), Ordering::Relaxed);
        }
        self.tail = at + slots;
        let gates = (0..geometry.readers).map(|reader| self.view.data_gate(reader));
        advance::<Shared>(self.view.tail(), self.tail, gates);
        Ok(())
    }

    /// Waits until `slots` slots are free for every reader that counts.
    fn reserve(&mut self, slots: u64, timeout: Duration) -> Result<(), SendError> {
        // The positions read last time may already do, and cost no contended cache line.
        let slowest = self.slowest_known().ok_or(SendError::Closed)?;
        if self.view.writer_closed().load(Ordering::Acquire) == 0 && self.fits(slots, slowest) {
            return Ok(());
        }
        if let Some(answer) = self.room(slots) {
            return answer;
        }
        if !timeout.is_zero() {
            let mut patience = Until::new(timeout, self.spin);
            let view = self.view.clone();
            if let Some(answer) = wait::<Shared, _>(view.space_gate(), &mut patience, || self.room(slots)) {
                return answer;
            }
        }
        let slowest = self.slowest_known().ok_or(SendError::Closed)?;
        Err(SendError::Full { behind: self.tail - slowest })
    }

    fn fits(&self, slots: u64, slowest: u64) -> bool {
        self.tail + slots <= slowest + self.view.geometry.slots
    }

    fn is_open(&self, reader: usize) -> bool {
        self.view.reader_closed(reader).load(Ordering::Acquire) == 0
    }

    /// The smallest known position of a reader that counts: attached, and not closed by itself.
    fn slowest_known(&self) -> Option<u64> {
        let heads = self.heads.iter().enumerate();
        heads.filter_map(|(reader, head)| head.filter(|_| self.is_open(reader))).min()
    }

    /// Reads all positions; `None` while there is no room.
    fn room(&mut self, slots: u64) -> Option<Result<(), SendError>> {
        if self.view.writer_closed().load(Ordering::Acquire) != 0 {
            return Some(Err(SendError::Closed));
        }
        for (reader, known) in self.heads.iter_mut().enumerate() {
            let Some(from) = *known else { continue };
            // Acquire: the reader has finished with the slots below its position.
            let got = self.view.head(reader).load(Ordering::Acquire);
            if got < from || got > self.tail {
                *known = None;
                return Some(Err(SendError::BadReader { reader, from, tail: self.tail, got }));
            }
            *known = Some(got);
        }
        let Some(slowest) = self.slowest_known() else { return Some(Err(SendError::Closed)) };
        self.fits(slots, slowest).then_some(Ok(()))
    }

    /// Stops waiting for a reader that is known to be dead. What it had not read is lost to it.
    pub fn detach_reader(&mut self, reader: usize) {
        if let Some(head) = self.heads.get_mut(reader) {
            *head = None;
            self.view.generation(reader).fetch_add(1, Ordering::AcqRel);
            self.view.data_gate(reader).disarm();
            self.view.data_gate(reader).wake();
        }
    }

    /// Lets a new process attach as this reader; it sees what is sent from now on, so a snapshot should come first.
    ///
    /// # Errors
    /// [`AttachError::NoSuchReader`].
    pub fn readmit_reader(&mut self, reader: usize) -> Result<(), AttachError> {
        let readers = self.view.geometry.readers;
        if reader >= readers {
            return Err(AttachError::NoSuchReader { reader, readers });
        }
        self.detach_reader(reader);
        self.view.head(reader).store(self.tail, Ordering::Release);
        self.view.reader_closed(reader).store(0, Ordering::Release);
        self.view.reader_owner(reader).store(0, Ordering::Release);
        self.heads[reader] = Some(self.tail);
        Ok(())
    }

    /// Whether the writer waits for this reader.
    pub fn is_attached(&self, reader: usize) -> bool {
        self.heads.get(reader).is_some_and(Option::is_some)
    }

    /// No more messages; readers get what is in the ring, then `Closed`.
    pub fn close(&self) {
        self.view.close_writer();
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").field("tail", &self.tail).field("heads", &self.heads).finish_non_exhaustive()
    }
}

/// Puts a message's bytes into its slots.
pub struct SlotWriter<'a> {
    words: WordWriter<'a>,
    len: usize,
    written: usize,
}

impl SlotWriter<'_> {
    /// Appends bytes. More than were announced fail the send as a whole.
    pub fn put(&mut self, bytes: &[u8]) {
        if self.written + bytes.len() <= self.len {
            self.words.write(bytes);
        }
        self.written += bytes.len();
    }
}

impl io::Write for SlotWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(bytes);
        if self.written > self.len {
            return Err(io::Error::new(io::ErrorKind::WriteZero, "more bytes than the message announced"));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn head_word(len: u32, position: u64) -> u64 {
    u64::from(len) | u64::from(stamp(position)) << 32
}
