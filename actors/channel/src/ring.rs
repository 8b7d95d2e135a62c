//! The ring: one writer, one or several readers, messages of bytes.
//!
//! A ring is `slots` slots of `slot_size` bytes. A message takes as many neighbouring slots as it needs (that is the
//! spill: a long message lies in one piece over several slots). One that would run over the end of the ring starts at
//! its beginning instead, and a skip mark fills the rest; hence a message is at most half a ring, and every message
//! that is allowed fits sooner or later.
//!
//! ```text
//!  word 0 of the payload; each line is 128 bytes, since processors fetch cache lines in pairs
//!  geometry | tail | space gate | writer | reader 0: head, data gate, state | reader 1: … | slots
//!
//!  first word of a message: length (low half), stamp of its position (high half); then the bytes
//! ```
//!
//! Positions count slots for ever (64 bits) and are taken modulo the ring. The writer owns `tail`, reader *i* owns
//! `head[i]`; each keeps its own position in private memory and only ever publishes it.
//!
//! Invariant: the writer writes slots only in `[tail, slowest attached head + slots)`, and a reader reads only in
//! `[head, tail)`; `tail - head <= slots` always. Nothing is dropped: a writer without room waits or says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::protocol::{Gate, Memory};
use crate::segment::{CreateError, OpenError, Segment, SegmentSpec, layout_hash};
use crate::wait::Shared;

/// Changes with the meaning of any word of a ring.
const LAYOUT: u64 = layout_hash(
    "ring 1: lines of 128: slot_size u64, slots u64, readers u64; tail u64; space u32; closed u32, owner u32; \
     per reader head u64; data u32; generation u32, closed u32, owner u32; message: len u32, stamp u32",
);
const LINE_BYTES: usize = 128;
const LINE_WORDS: usize = LINE_BYTES / 8;
const LINE_HALVES: usize = LINE_BYTES / 4;

const LINE_TAIL: usize = 1;
const LINE_SPACE: usize = 2;
const LINE_WRITER: usize = 3;
const FIRST_READER_LINE: usize = 4;
const LINES_PER_READER: usize = 3;

/// Readers a ring can have; more is a damaged geometry.
pub const MAX_READERS: usize = 1024;
/// Positions stay below this: a ring would take centuries to get there, and sums of positions cannot overflow.
const POSITIONS: u64 = 1 << 62;
/// The length field of a skip mark.
pub(crate) const SKIP: u32 = u32::MAX;
/// Mixed into stamps, so that zeroed or repeated memory is not taken for a message.
const STAMP: u32 = u32::from_le_bytes(*b"goss");

/// What a ring is to be.
#[derive(Debug, Clone, Copy)]
pub struct RingSpec<'a> {
    /// Shown in the segment's name.
    pub label: &'a str,
    /// Bytes of a slot: a multiple of 64. Messages up to eight bytes less take one slot.
    pub slot_size: usize,
    /// Number of slots: a power of two, at least two.
    pub slots: usize,
    /// Number of readers: one for a queue, several for a broadcast.
    pub readers: usize,
    /// Incarnation; a restarted peer gets a new ring with a higher one.
    pub epoch: u64,
}

/// Why a ring could not be attached to.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The segment could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The geometry in the segment cannot be.
    #[error(
        "expected a ring geometry that fits its segment of {bytes} bytes, \
         got {slots} slots of {slot_size} bytes for {readers} readers"
    )]
    Geometry {
        /// Slots found.
        slots: u64,
        /// Bytes of a slot found.
        slot_size: u64,
        /// Readers found.
        readers: u64,
        /// Bytes of the payload.
        bytes: usize,
    },
    /// This end is taken.
    #[error("expected the {end} end of the ring to be free, but process {owner} holds it")]
    Taken {
        /// `writer` or `reader N`.
        end: String,
        /// Who attached first.
        owner: u32,
    },
    /// There is no such reader.
    #[error("expected a reader below {readers}, got {reader}")]
    NoSuchReader {
        /// Reader asked for.
        reader: usize,
        /// Readers of the ring.
        readers: usize,
    },
    /// The position found cannot be.
    #[error(
        "expected a reader's position within {slots} slots below {tail}, got {head}; the ring is damaged"
    )]
    Position {
        /// The reader's position.
        head: u64,
        /// The writer's position.
        tail: u64,
        /// Slots of the ring.
        slots: u64,
    },
}

/// Creates the segment of a ring; both ends then attach to it.
///
/// # Errors
/// [`CreateError`], also for a geometry that [`RingSpec`] forbids.
pub fn create(spec: &RingSpec<'_>) -> Result<Segment, CreateError> {
    create_by(spec, Segment::create)
}

/// As [`create`], without a name: see [`Segment::create_unnamed`].
///
/// # Errors
/// As [`create`].
pub fn create_unnamed(spec: &RingSpec<'_>) -> Result<Segment, CreateError> {
    create_by(spec, Segment::create_unnamed)
}

fn create_by(
    spec: &RingSpec<'_>,
    make: impl FnOnce(&SegmentSpec<'_>) -> Result<Segment, CreateError>,
) -> Result<Segment, CreateError> {
    let system =
        |reason: &str| CreateError::System { label: spec.label.to_owned(), reason: reason.to_owned() };
    let geometry = Geometry::checked(spec.slot_size as u64, spec.slots as u64, spec.readers as u64)
        .ok_or_else(|| {
            system(&format!(
                "expected slots a power of two >= 2, slot_size a multiple of 64, 1..={MAX_READERS} readers and \
                 messages below 4 GiB; got {} slots of {} bytes for {} readers",
                spec.slots, spec.slot_size, spec.readers
            ))
        })?;
    let segment = make(&SegmentSpec {
        label: spec.label,
        bytes: geometry.bytes().ok_or_else(|| system("the ring is larger than the address space"))?,
        layout: LAYOUT,
        epoch: spec.epoch,
    })?;
    // Relaxed: whoever attaches learns the segment's name through a later, synchronising channel.
    for (word, value) in segment.words().iter().zip([spec.slot_size, spec.slots, spec.readers]) {
        word.store(value as u64, Ordering::Relaxed);
    }
    Ok(segment)
}

/// Opens the segment of a ring by name or handle.
///
/// # Errors
/// [`OpenError`] if it is no ring of this build.
pub fn open(name: &str) -> Result<Segment, OpenError> {
    Segment::open(name, LAYOUT)
}

/// Closes both ends on behalf of a peer that died, and wakes whoever waits.
///
/// Messages already in the ring can still be received; a segment that is no intact ring is left alone.
pub fn close(segment: &Arc<Segment>) {
    if let Ok(view) = View::new(Arc::clone(segment)) {
        view.close_writer();
        for reader in 0..view.geometry.readers {
            view.close_reader(reader);
        }
    }
}

/// The numbers of a ring, checked once and then kept in private memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Geometry {
    pub(crate) slot_words: usize,
    pub(crate) slots: u64,
    pub(crate) readers: usize,
}

impl Geometry {
    fn checked(slot_size: u64, slots: u64, readers: u64) -> Option<Self> {
        let fits = slot_size >= 64
            && slot_size.is_multiple_of(64)
            && slots >= 2
            && slots.is_power_of_two()
            && (1..=MAX_READERS as u64).contains(&readers)
            && slot_size.checked_mul(slots / 2)? < u64::from(SKIP);
        fits.then_some(Self { slot_words: slot_size as usize / 8, slots, readers: readers as usize })
    }

    fn slots_word(&self) -> usize {
        (FIRST_READER_LINE + LINES_PER_READER * self.readers) * LINE_WORDS
    }

    fn bytes(&self) -> Option<usize> {
        let slots = (self.slots as usize).checked_mul(self.slot_words)?;
        slots.checked_add(self.slots_word())?.checked_mul(8)
    }

    /// Longest message in bytes.
    pub(crate) fn max_len(&self) -> usize {
        self.slots as usize / 2 * self.slot_words * 8 - 8
    }

    /// Slots that a message of `len` bytes takes.
    pub(crate) fn slots_for(&self, len: usize) -> u64 {
        (len / 8 + usize::from(!len.is_multiple_of(8)) + 1).div_ceil(self.slot_words) as u64
    }

    /// Slots from a position to the end of the ring.
    pub(crate) fn left_from(&self, position: u64) -> u64 {
        self.slots - position % self.slots
    }
}

/// The stamp of the message at a position.
pub(crate) fn stamp(position: u64) -> u32 {
    (position as u32) ^ ((position >> 32) as u32) ^ STAMP
}

/// A mapped ring whose geometry was checked: where each word is.
#[derive(Clone)]
pub(crate) struct View {
    segment: Arc<Segment>,
    pub(crate) geometry: Geometry,
}

impl View {
    pub(crate) fn new(segment: Arc<Segment>) -> Result<Self, AttachError> {
        let words = segment.words();
        let bytes = words.len() * 8;
        let word = |i: usize| words.get(i).map_or(0, |word| word.load(Ordering::Acquire));
        let (slot_size, slots, readers) = (word(0), word(1), word(2));
        match Geometry::checked(slot_size, slots, readers).filter(|geometry| geometry.bytes() == Some(bytes))
        {
            Some(geometry) => Ok(Self { segment, geometry }),
            None => Err(AttachError::Geometry { slots, slot_size, readers, bytes }),
        }
    }

    // `View::new` checked that every line below lies in the segment, so the indexing cannot fail.

    fn word(&self, line: usize) -> &AtomicU64 {
        &self.segment.words()[line * LINE_WORDS]
    }

    fn half(&self, line: usize, at: usize) -> &AtomicU32 {
        &self.segment.half_words()[line * LINE_HALVES + at]
    }

    fn reader_line(&self, reader: usize, line: usize) -> usize {
        FIRST_READER_LINE + LINES_PER_READER * reader + line
    }

    pub(crate) fn tail(&self) -> &AtomicU64 {
        self.word(LINE_TAIL)
    }

    pub(crate) fn space_gate(&self) -> &AtomicU32 {
        self.half(LINE_SPACE, 0)
    }

    pub(crate) fn writer_closed(&self) -> &AtomicU32 {
        self.half(LINE_WRITER, 0)
    }

    pub(crate) fn writer_owner(&self) -> &AtomicU32 {
        self.half(LINE_WRITER, 1)
    }

    pub(crate) fn head(&self, reader: usize) -> &AtomicU64 {
        self.word(self.reader_line(reader, 0))
    }

    pub(crate) fn data_gate(&self, reader: usize) -> &AtomicU32 {
        self.half(self.reader_line(reader, 1), 0)
    }

    /// Counts detachments; a reader that was detached sees that it is not the one meant any more.
    pub(crate) fn generation(&self, reader: usize) -> &AtomicU32 {
        self.half(self.reader_line(reader, 2), 0)
    }

    pub(crate) fn reader_closed(&self, reader: usize) -> &AtomicU32 {
        self.half(self.reader_line(reader, 2), 1)
    }

    pub(crate) fn reader_owner(&self, reader: usize) -> &AtomicU32 {
        self.half(self.reader_line(reader, 2), 2)
    }

    /// The words of `count` slots from a position on; they do not run over the end.
    pub(crate) fn slots(&self, position: u64, count: u64) -> &[AtomicU64] {
        let from =
            self.geometry.slots_word() + (position % self.geometry.slots) as usize * self.geometry.slot_words;
        &self.segment.words()[from..from + count as usize * self.geometry.slot_words]
    }

    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    pub(crate) fn close_writer(&self) {
        self.writer_closed().store(1, Ordering::Release);
        self.wake_all();
    }

    pub(crate) fn close_reader(&self, reader: usize) {
        self.reader_closed(reader).store(1, Ordering::Release);
        self.wake_all();
    }

    /// Wakes every waiter, so that it looks at the flags again.
    pub(crate) fn wake_all(&self) {
        Shared::fence();
        let readers = (0..self.geometry.readers).map(|reader| self.data_gate(reader));
        for gate in readers.chain([self.space_gate()]) {
            gate.disarm();
            gate.wake();
        }
    }
}

/// Checks the positions that an attaching end finds.
pub(crate) fn check_positions(head: u64, tail: u64, slots: u64) -> Result<(), AttachError> {
    if tail >= POSITIONS || tail.checked_sub(head).is_none_or(|behind| behind > slots) {
        return Err(AttachError::Position { head, tail, slots });
    }
    Ok(())
}

/// Takes an end for this process.
pub(crate) fn take(owner: &AtomicU32, end: impl FnOnce() -> String) -> Result<(), AttachError> {
    owner
        .compare_exchange(0, std::process::id(), Ordering::AcqRel, Ordering::Acquire)
        .map(|_| ())
        .map_err(|owner| AttachError::Taken { end: end(), owner })
}
