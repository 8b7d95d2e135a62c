//! The protocol's memory for real: processor atomics, Linux futexes, the clock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use rustix::thread::futex;

use crate::protocol::{Gate, Index, Memory, Patience};

/// How long a waiter spins before it sleeps.
///
/// Spinning saves the microseconds of a futex wake-up when the answer is near, and wastes a core when it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spin(Duration);

impl Spin {
    /// Sleep at once.
    pub const NONE: Self = Self(Duration::ZERO);

    /// Spin for this long.
    pub const fn for_at_most(time: Duration) -> Self {
        Self(time)
    }

    /// 20 µs where a core can be spared (eight or more), else none: on few cores a spinning waiter takes the core
    /// from the very process it waits for.
    pub fn auto() -> Self {
        match std::thread::available_parallelism() {
            Ok(cores) if cores.get() >= 8 => Self(Duration::from_micros(20)),
            _ => Self::NONE,
        }
    }
}

impl Default for Spin {
    fn default() -> Self {
        Self::auto()
    }
}

pub(crate) struct Shared;

impl Memory for Shared {
    type Index = AtomicU64;
    type Gate = AtomicU32;
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

impl Index for AtomicU64 {
    fn publish(&self, position: u64) {
        self.store(position, Ordering::Release);
    }
}

impl Gate for AtomicU32 {
    fn arm(&self) {
        // A swap, so that all changes of the word have one order; it costs nothing beside the sleep that follows.
        self.swap(1, Ordering::AcqRel);
    }
    fn is_armed(&self) -> bool {
        self.load(Ordering::Relaxed) != 0
    }
    fn disarm(&self) -> bool {
        self.swap(0, Ordering::AcqRel) != 0
    }
    fn sleep(&self, at_most: Option<Duration>) {
        let timeout = at_most.and_then(|time| time.try_into().ok());
        // Every error means "look again": the word changed, a signal came, time is up. No private flag: the peer is
        // another process.
        let _ = futex::wait(self, futex::Flags::empty(), 1, timeout.as_ref());
    }
    fn wake(&self) {
        // The word is in mapped memory, so this cannot fail.
        let _ = futex::wake(self, futex::Flags::empty(), i32::MAX as u32);
    }
}

/// Spins for a while, then sleeps until a deadline.
pub(crate) struct Until {
    deadline: Option<Instant>,
    spin_until: Option<Instant>,
}

impl Until {
    /// A timeout too long for the clock means for ever.
    pub(crate) fn new(timeout: Duration, spin: Spin) -> Self {
        let now = Instant::now();
        let spin_until = (!spin.0.is_zero()).then(|| now + spin.0.min(timeout));
        Self { deadline: now.checked_add(timeout), spin_until }
    }
}

impl Patience for Until {
    fn spin(&mut self) -> bool {
        let Some(until) = self.spin_until else { return false };
        // Reading the clock costs about as much as this many pauses.
        for _ in 0..8 {
            std::hint::spin_loop();
        }
        Instant::now() < until
    }
    fn left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }
}
