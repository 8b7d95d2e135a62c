//! One line of shared memory per child: its heartbeat, its state, its connections.
//!
//! The supervisor compares each beat counter with what it saw before, by its own clock; a child that is stopped or
//! deadlocked cannot help being noticed, and one that is busy beats once per turn of its loop and needs no timer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gossamer_channel::segment::layout_hash;
use gossamer_channel::{CreateError, OpenError, Segment, SegmentSpec};

use crate::message::SegmentRef;
use crate::role::{ChildRole, Topology};

const LAYOUT: u64 = layout_hash("status 1: per child a line of 128: beat u64, state u64, connections u64");
const LINE_WORDS: usize = 16;
const BEAT: usize = 0;
const STATE: usize = 1;
const CONNECTIONS: usize = 2;

/// What a child says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildState {
    /// It loads; it need not beat.
    Starting,
    /// It works, and beats at least once per stall timeout.
    Ready,
    /// It finishes what runs, and beats.
    Draining,
    /// It has given up.
    Failed,
}

impl ChildState {
    fn from_word(word: u64) -> Self {
        match word {
            1 => Self::Ready,
            2 => Self::Draining,
            3 => Self::Failed,
            // Also what no child ever writes: a line of a child that has not started is zero.
            _ => Self::Starting,
        }
    }

    fn word(self) -> u64 {
        match self {
            Self::Starting => 0,
            Self::Ready => 1,
            Self::Draining => 2,
            Self::Failed => 3,
        }
    }
}

/// The lines of all children.
#[derive(Clone, Debug)]
pub(crate) struct StatusTable {
    segment: Arc<Segment>,
    topology: Topology,
}

impl StatusTable {
    pub(crate) fn create(topology: Topology, epoch: u64) -> Result<Self, CreateError> {
        let bytes = topology.places() * LINE_WORDS * 8;
        let segment =
            Segment::create_unnamed(&SegmentSpec { label: "status", bytes, layout: LAYOUT, epoch })?;
        Ok(Self { segment: Arc::new(segment), topology })
    }

    pub(crate) fn open(reference: &SegmentRef, topology: Topology) -> Result<Self, OpenError> {
        let segment = Arc::new(Segment::open(&reference.handle, LAYOUT)?);
        let (expected, got) = ((topology.places() * LINE_WORDS) as u64, segment.words().len() as u64);
        if got < expected {
            return Err(OpenError::Truncated { name: reference.handle.clone(), expected, got });
        }
        Ok(Self { segment, topology })
    }

    pub(crate) fn reference(&self) -> SegmentRef {
        SegmentRef { handle: self.segment.handle(), epoch: self.segment.epoch() }
    }

    /// `None` for a role outside the topology.
    pub(crate) fn line(&self, role: ChildRole) -> Option<StatusHandle> {
        let place = self.topology.place(role)?;
        Some(StatusHandle { segment: Arc::clone(&self.segment), first: place * LINE_WORDS })
    }
}

/// One child's line. The child writes it, the supervisor reads it.
#[derive(Clone, Debug)]
pub struct StatusHandle {
    segment: Arc<Segment>,
    first: usize,
}

impl StatusHandle {
    fn word(&self, word: usize) -> &AtomicU64 {
        // `StatusTable::line` gives out places of the topology only, and both constructors sized the segment for it.
        &self.segment.words()[self.first + word]
    }

    /// "I still turn." Cheap: one write to a line of this child's own. Call it from the loop that does the work.
    pub fn beat(&self) {
        self.word(BEAT).fetch_add(1, Ordering::Relaxed);
    }

    /// Announces a state, with a beat.
    pub fn set_state(&self, state: ChildState) {
        self.word(STATE).store(state.word(), Ordering::Release);
        self.beat();
    }

    /// Publishes the number of open connections.
    pub fn set_connections(&self, count: u64) {
        self.word(CONNECTIONS).store(count, Ordering::Relaxed);
    }

    /// The state last announced.
    pub fn state(&self) -> ChildState {
        ChildState::from_word(self.word(STATE).load(Ordering::Acquire))
    }

    /// Beats so far.
    pub fn beats(&self) -> u64 {
        self.word(BEAT).load(Ordering::Relaxed)
    }

    /// Connections last published.
    pub fn connections(&self) -> u64 {
        self.word(CONNECTIONS).load(Ordering::Relaxed)
    }

    /// Wipes the line for a successor.
    pub(crate) fn reset(&self) {
        self.word(STATE).store(0, Ordering::Release);
        self.word(CONNECTIONS).store(0, Ordering::Relaxed);
    }
}
