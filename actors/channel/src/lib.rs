//! Bytes between the processes of one server: shared-memory rings and the control channel.
//!
//! Three things live here:
//!
//! * [`Segment`]: a stamped, pre-allocated piece of shared memory ([`segment`] is the one user of the
//!   `shared_memory` crate);
//! * [`ring`]: a ring of bytes in a segment with one writer and one or several readers. One reader makes it a queue,
//!   several make it a broadcast;
//! * [`control`]: each child's control channel over `ipc-channel`, whose first message is the protocol version.
//!
//! What this crate refuses to do: it knows no message types (those are the wire crate's), it drops no message to make
//! room, and it does not watch its peers. A peer's death is the supervisor's to notice; it then closes the ring for it
//! ([`ring::close`]), which ends every wait on it.
//!
//! Invariant: whatever the other side writes into a segment, this side answers with a value or an error and never
//! with undefined behaviour. Shared bytes are touched only through relaxed atomics of one fixed width per place, and
//! every length and index is checked against numbers held in private memory.
//!
//! A peer that shrinks the file under a mapping can still end this process with SIGBUS. Segments are readable and
//! writable by their owner's user alone, and the peers are children of one executable, so that is not defended.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod bridge;
pub mod control;
mod copy;
mod names;
mod protocol;
mod receiver;
pub mod ring;
pub mod segment;
mod sender;
mod wait;

pub use bridge::Bridge;
pub use names::{SweepError, sweep_stale};
pub use receiver::{Receiver, RecvError};
pub use ring::{AttachError, RingSpec};
pub use segment::{CreateError, OpenError, Segment, SegmentSpec};
pub use sender::{SendError, Sender, SlotWriter};
pub use wait::Spin;

#[cfg(test)]
mod ring_tests;
