//! The index protocol: how one side moves an index, and how the other sleeps until it moved.
//!
//! Written over [`Memory`] instead of the processor's atomics, so that the loom model in `protocol/model.rs` checks
//! these very lines.
//!
//! A *gate* is a futex word: 1 while its one waiter sleeps or is about to, else 0. The waiter arms the gate, then looks
//! at the index again; the mover stores the index, then looks at the gate. A full fence between the two steps on each
//! side makes it impossible that both look before the other's store.
//!
//! Invariant: a waiter never sleeps on an armed gate that the mover of a later index does not disarm and wake.

use std::time::Duration;

/// A position that one side writes and the other reads.
pub(crate) trait Index {
    /// Stores with release ordering: what was written into (or read from) the slots is done before it is seen.
    fn publish(&self, position: u64);
}

/// A futex word with at most one waiter.
pub(crate) trait Gate {
    /// The waiter is going to sleep.
    fn arm(&self);
    /// Whether a waiter may be asleep.
    fn is_armed(&self) -> bool;
    /// Takes the arming away; true if there was one.
    fn disarm(&self) -> bool;
    /// Sleeps until woken, while the gate is armed; may wake early.
    fn sleep(&self, at_most: Option<Duration>);
    /// Wakes the waiter.
    fn wake(&self);
}

/// The memory that the protocol runs on.
pub(crate) trait Memory {
    type Index: Index;
    type Gate: Gate;
    /// A sequentially consistent fence.
    fn fence();
}

/// How long a waiter is willing to wait.
pub(crate) trait Patience {
    /// Spends one round of spinning; false when it is time to sleep.
    fn spin(&mut self) -> bool;
    /// What is left: `None` for ever, `Some(zero)` nothing.
    fn left(&self) -> Option<Duration>;
}

/// Moves an index and wakes whoever waits for that behind the gates.
pub(crate) fn advance<'a, M: Memory>(index: &M::Index, to: u64, gates: impl IntoIterator<Item = &'a M::Gate>)
where
    M::Gate: 'a,
{
    index.publish(to);
    M::fence();
    for gate in gates {
        if gate.is_armed() && gate.disarm() {
            gate.wake();
        }
    }
}

/// Waits until `ready` answers something; `None` when patience is at its end.
pub(crate) fn wait<M: Memory, T>(
    gate: &M::Gate,
    patience: &mut impl Patience,
    mut ready: impl FnMut() -> Option<T>,
) -> Option<T> {
    loop {
        if let Some(answer) = ready() {
            return Some(answer);
        }
        if !patience.spin() {
            break;
        }
    }
    loop {
        gate.arm();
        M::fence();
        if let Some(answer) = ready() {
            gate.disarm();
            return Some(answer);
        }
        let left = patience.left();
        if left.is_some_and(|left| left.is_zero()) {
            gate.disarm();
            return None;
        }
        gate.sleep(left);
    }
}

#[cfg(test)]
mod model;
