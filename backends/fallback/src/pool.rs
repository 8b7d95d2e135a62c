//! Work distribution over the host's threads.

use gossamer_backend_api::HostServices;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The host's threads. Each running worker has a slot number, which names its scratch memory.
#[derive(Clone, Copy)]
pub struct Pool {
    host: HostServices,
}

impl Pool {
    /// A pool over the host's services.
    pub fn new(host: HostServices) -> Self {
        Self { host }
    }

    /// Workers that run at once, hence scratch slots.
    pub fn slots(&self) -> usize {
        self.host.threads()
    }

    /// Runs `body(slot, index)` for each index. Workers take indices in order as they become free; two bodies that run at
    /// once have different slots. Which worker runs an index must not change what it computes.
    pub fn run<F: Fn(usize, usize) + Sync>(&self, count: usize, body: F) {
        let workers = self.slots().min(count);
        if workers <= 1 {
            for index in 0..count {
                body(0, index);
            }
            return;
        }
        let next = AtomicUsize::new(0);
        self.host.parallel_for(workers as u32, |slot| {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    break;
                }
                body(slot as usize, index);
            }
        });
    }
}
