//! What supervisor and child say to each other over the control channel, after the version.

use std::time::Duration;

use gossamer_config::ServeConfig;
use serde::{Deserialize, Serialize};

use crate::role::{ChildRole, Topology};

/// A shared-memory segment to open, and the epoch it must carry (handles can come to mean another segment).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentRef {
    pub(crate) handle: String,
    pub(crate) epoch: u64,
}

/// First of all: what the child is and has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) config: ServeConfig,
    pub(crate) topology: Topology,
    pub(crate) status: SegmentRef,
    /// Memory that all API servers share, and the hash of its layout.
    pub(crate) board: Option<(SegmentRef, u64)>,
}

/// Supervisor to child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Down {
    Setup(Box<Setup>),
    /// A neighbour is there, for the first time or again. For a scheduler's workers `peer` is the first of them and
    /// `segments` are the plans' and each worker's results; else they are this child's outgoing and incoming ring.
    PeerReplaced {
        peer: ChildRole,
        epoch: u64,
        segments: Vec<SegmentRef>,
    },
    /// A neighbour died; its rings are closed.
    PeerLost {
        peer: ChildRole,
    },
    /// The engine will not come back.
    Failed {
        reason: String,
    },
    /// Finish what runs, take nothing new, then exit.
    Drain {
        grace: Duration,
    },
    /// Exit now.
    Stop,
}

/// Child to supervisor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Up {
    /// The child cannot go on and says why before it exits.
    Failed { reason: String },
}
