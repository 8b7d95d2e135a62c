//! What the allocator sees: nothing while planning in the steady state, and nothing left of finished requests.

#[path = "common/steady.rs"]
mod steady;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use steady::Steady;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);

// SAFETY: every call is handed to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        LIVE_BYTES.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// One test: two would count each other's allocations.
#[test]
fn planning_allocates_nothing_and_requests_leave_nothing() {
    for steps_in_flight in [1, 2] {
        let mut steady = Steady::new(1024, steps_in_flight);
        (0..300).for_each(|_| steady.step(|_| ()));
        let mut planning = 0;
        for _ in 0..300 {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            steady.step(|_| planning += ALLOCATIONS.load(Ordering::Relaxed) - before);
        }
        assert_eq!(planning, 0, "allocations in 300 plans with {steps_in_flight} steps in flight");
        assert!(ALLOCATIONS.load(Ordering::Relaxed) > 0, "the counter counts");
    }

    let mut steady = Steady::new(0, 2);
    steady.serve(0..5000);
    let before = LIVE_BYTES.load(Ordering::Relaxed);
    steady.serve(5000..30_000);
    let grown = LIVE_BYTES.load(Ordering::Relaxed) - before;
    assert!(grown < 100_000, "25000 requests left {grown} bytes");
}
