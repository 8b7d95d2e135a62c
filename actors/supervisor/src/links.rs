//! The rings between neighbours: their sizes, their making by the supervisor, their opening by the children.
//!
//! ```text
//!  api-server i  ⇄  scheduler        a queue each way; long prompts go in, tokens come out
//!  scheduler     →  all workers      one broadcast of step plans
//!  worker j      →  scheduler        a queue of results
//! ```
//!
//! The supervisor makes every ring without a name and hands out handles, so that no kind of death leaves anything in
//! /dev/shm. When one end dies, all rings of the link are closed and replaced: a successor never meets the half
//! message of a predecessor. The workers are one link: step plans are one sequence for all of them, and what follows a
//! replacement is a snapshot for all.

use std::sync::Arc;

use gossamer_channel::ring::{self, AttachError};
use gossamer_channel::{CreateError, Receiver, RingSpec, Segment, Sender, Spin};

use crate::message::SegmentRef;
use crate::role::ChildRole;

const SLOT: usize = 512;
/// A prompt of 131072 tokens of five bytes must fit half a ring.
const REQUESTS_BYTES: usize = 2 << 20;
const TOKENS_BYTES: usize = 1 << 20;
/// A plan carries the tokens of every sequence that joins in its step.
const PLANS_BYTES: usize = 8 << 20;
const RESULTS_BYTES: usize = 2 << 20;

/// Both directions between an API server and the scheduler.
#[derive(Debug)]
pub struct DuplexLink {
    /// To the neighbour.
    pub sender: Sender,
    /// From the neighbour.
    pub receiver: Receiver,
}

/// The scheduler's ends towards its workers.
#[derive(Debug)]
pub struct WorkersLink {
    /// Step plans to all of them.
    pub plans: Sender,
    /// Results of each, by rank.
    pub results: Vec<Receiver>,
}

/// A worker's ends towards the scheduler.
#[derive(Debug)]
pub struct WorkerLink {
    /// Step plans.
    pub plans: Receiver,
    /// Results.
    pub results: Sender,
}

/// Why a child could not take up a link.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error("expected the ring of epoch {expected}, got {got}: the link was replaced meanwhile")]
    Replaced { expected: u64, got: u64 },
    #[error("expected a link of {expected} rings, got {got}")]
    Count { expected: usize, got: usize },
}

/// A link as the supervisor keeps it: to hand out, and to close when an end dies.
#[derive(Debug)]
pub(crate) struct Link {
    segments: Vec<Arc<Segment>>,
}

impl Link {
    /// Requests, then tokens.
    pub(crate) fn duplex(index: u16, epochs: &mut Epochs) -> Result<Self, CreateError> {
        let there = make(&format!("requests-{index}"), REQUESTS_BYTES, 1, epochs)?;
        let back = make(&format!("tokens-{index}"), TOKENS_BYTES, 1, epochs)?;
        Ok(Self { segments: vec![there, back] })
    }

    /// Plans, then each worker's results.
    pub(crate) fn workers(count: u32, epochs: &mut Epochs) -> Result<Self, CreateError> {
        let mut segments = vec![make("plans", PLANS_BYTES, count as usize, epochs)?];
        for rank in 0..count {
            segments.push(make(&format!("results-{rank}"), RESULTS_BYTES, 1, epochs)?);
        }
        Ok(Self { segments })
    }

    /// What the end named is told: its outgoing ring before its incoming one, except that the scheduler gets all.
    pub(crate) fn references(&self, end: ChildRole) -> Vec<SegmentRef> {
        let refer = |at: usize| {
            let segment = &self.segments[at];
            SegmentRef { handle: segment.handle(), epoch: segment.epoch() }
        };
        match end {
            ChildRole::ApiServer(_) => vec![refer(0), refer(1)],
            ChildRole::Worker(rank) => vec![refer(0), refer(1 + rank as usize)],
            ChildRole::Scheduler => (0..self.segments.len()).map(refer).collect(),
        }
    }
}

impl Drop for Link {
    /// A link goes when an end died: whoever waits at the other end is woken and told that it is closed.
    fn drop(&mut self) {
        for segment in &self.segments {
            ring::close(segment);
        }
    }
}

/// Gives every segment of the server's life its own number.
#[derive(Debug, Default)]
pub(crate) struct Epochs(u64);

impl Epochs {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

fn make(label: &str, bytes: usize, readers: usize, epochs: &mut Epochs) -> Result<Arc<Segment>, CreateError> {
    let spec = RingSpec { label, slot_size: SLOT, slots: bytes / SLOT, readers, epoch: epochs.next() };
    Ok(Arc::new(ring::create_unnamed(&spec)?))
}

fn open(reference: &SegmentRef) -> Result<Arc<Segment>, LinkError> {
    let segment = ring::open(&reference.handle).map_err(AttachError::from)?;
    if segment.epoch() != reference.epoch {
        return Err(LinkError::Replaced { expected: reference.epoch, got: segment.epoch() });
    }
    Ok(Arc::new(segment))
}

fn sender(reference: &SegmentRef) -> Result<Sender, LinkError> {
    Ok(Sender::attach(open(reference)?, Spin::auto())?)
}

fn receiver(reference: &SegmentRef, reader: usize) -> Result<Receiver, LinkError> {
    Ok(Receiver::attach(open(reference)?, reader, Spin::auto())?)
}

/// The API server's ends.
pub(crate) fn open_api_server(segments: &[SegmentRef]) -> Result<DuplexLink, LinkError> {
    let [requests, tokens] = exactly(segments)?;
    Ok(DuplexLink { sender: sender(requests)?, receiver: receiver(tokens, 0)? })
}

/// The scheduler's ends towards an API server.
pub(crate) fn open_scheduler(segments: &[SegmentRef]) -> Result<DuplexLink, LinkError> {
    let [requests, tokens] = exactly(segments)?;
    Ok(DuplexLink { sender: sender(tokens)?, receiver: receiver(requests, 0)? })
}

/// The scheduler's ends towards its workers.
pub(crate) fn open_workers(segments: &[SegmentRef]) -> Result<WorkersLink, LinkError> {
    let Some((plans, results)) = segments.split_first() else {
        return Err(LinkError::Count { expected: 2, got: 0 });
    };
    let results = results.iter().map(|reference| receiver(reference, 0)).collect::<Result<_, _>>()?;
    Ok(WorkersLink { plans: sender(plans)?, results })
}

/// A worker's ends.
pub(crate) fn open_worker(segments: &[SegmentRef], rank: u32) -> Result<WorkerLink, LinkError> {
    let [plans, results] = exactly(segments)?;
    Ok(WorkerLink { plans: receiver(plans, rank as usize)?, results: sender(results)? })
}

fn exactly<const N: usize>(segments: &[SegmentRef]) -> Result<&[SegmentRef; N], LinkError> {
    segments.try_into().map_err(|_| LinkError::Count { expected: N, got: segments.len() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn both_ends_of_every_link_meet_and_a_dropped_link_is_closed() {
        let mut epochs = Epochs::default();
        let link = Link::duplex(0, &mut epochs).unwrap();
        let mut server = open_api_server(&link.references(ChildRole::ApiServer(0))).unwrap();
        let mut scheduler = open_scheduler(&link.references(ChildRole::Scheduler)).unwrap();
        server.sender.send(b"prompt", LONG).unwrap();
        assert_eq!(scheduler.receiver.recv(LONG).unwrap(), b"prompt");
        scheduler.sender.send(b"token", LONG).unwrap();
        assert_eq!(server.receiver.recv(LONG).unwrap(), b"token");
        assert!(server.sender.max_len() > 131_072 * 5, "the longest prompt does not fit");
        drop(link);
        assert!(server.sender.send(b"late", LONG).is_err());

        let link = Link::workers(2, &mut epochs).unwrap();
        let mut scheduler = open_workers(&link.references(ChildRole::Scheduler)).unwrap();
        for rank in 0..2 {
            let mut worker = open_worker(&link.references(ChildRole::Worker(rank)), rank).unwrap();
            worker.results.send(&rank.to_le_bytes(), LONG).unwrap();
            let result = scheduler.results[rank as usize].recv(LONG).unwrap();
            assert_eq!(result, rank.to_le_bytes());
            // The first worker is gone when the second plan is sent, and holds nothing back.
            scheduler.plans.send(b"plan", LONG).unwrap();
            assert_eq!(worker.plans.recv(LONG).unwrap(), b"plan");
        }
    }

    #[test]
    fn a_reference_to_a_replaced_segment_is_refused() {
        let link = Link::duplex(0, &mut Epochs::default()).unwrap();
        let mut references = link.references(ChildRole::ApiServer(0));
        references[0].epoch += 7;
        let error = open_api_server(&references).unwrap_err();
        assert!(matches!(error, LinkError::Replaced { expected: 8, got: 1 }), "{error}");
    }
}
