//! The worker's threads, and the services that backends get from the host.
//!
//! One launch forks and joins hundreds of times a step, so threads wait awake for a moment before they sleep: between
//! two operations of a step they are still awake, between two steps they are not. Work is handed out in small claims,
//! because a shared machine may take any core away at any time.
//!
//! Invariant: a claim succeeds only for the job that is running, so a thread that wakes late can never touch the job of
//! another call.

use gossamer_backend_api::HostServices;
use gossamer_backend_api::abi::RawHost;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// How long a thread waits awake for the next job.
const AWAKE: Duration = Duration::from_micros(60);

/// Why the threads could not be started.
#[derive(Debug, Error)]
pub enum PoolError {
    /// A thread could not be made.
    #[error("cannot start thread {index} of {count}: {source}; lower --cpu-threads")]
    Spawn {
        /// Index of the thread.
        index: usize,
        /// Threads wanted.
        count: usize,
        /// What the system said.
        source: std::io::Error,
    },
}

type Body = unsafe extern "C" fn(*mut c_void, u32);

#[derive(Clone, Copy)]
struct Job {
    body: Body,
    argument: *mut c_void,
    count: u32,
}

struct Shared {
    /// High half: number of the job. Low half: tasks that nobody claimed yet.
    state: AtomicU64,
    /// Tasks of the job that are finished.
    finished: AtomicU32,
    job: UnsafeCell<Option<Job>>,
    /// Taken by the caller for the length of a job.
    caller: Mutex<()>,
    threads: OnceLock<Vec<Thread>>,
}

// SAFETY: `job` is written only by the holder of `caller` while no task is unclaimed or unfinished, and read only by
// holders of a claim, which keeps the job running.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

thread_local! {
    /// Whether this thread runs a task: calls from inside tasks run in place.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl Shared {
    /// Claims a task of job `number` and returns it with its job.
    fn claim(&self, number: u32) -> Option<(Job, u32)> {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            let left = state as u32;
            if (state >> 32) as u32 != number || left == 0 {
                return None;
            }
            match self.state.compare_exchange_weak(state, state - 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    // SAFETY: this claim is unfinished, so the job is running and nobody writes it; the `Acquire` of the
                    // exchange saw the caller's write.
                    let job = unsafe { *self.job.get() }?;
                    return Some((job, job.count - left));
                }
                Err(seen) => state = seen,
            }
        }
    }

    /// Runs tasks of job `number` until none is left.
    fn work(&self, number: u32) {
        INSIDE.set(true);
        while let Some((job, index)) = self.claim(number) {
            // SAFETY: the caller of `parallel_for` vouches for body and argument until it returns, which it does only
            // when this task is finished too.
            unsafe { (job.body)(job.argument, index) };
            self.finished.fetch_add(1, Ordering::Release);
        }
        INSIDE.set(false);
    }

    fn parallel_for(&self, count: u32, body: Body, argument: *mut c_void) {
        let threads = self.threads.get().map_or(&[][..], Vec::as_slice);
        let guard =
            if INSIDE.get() || threads.is_empty() || count < 2 { None } else { self.caller.try_lock().ok() };
        if guard.is_none() {
            // Alone, inside a task, or while another thread uses the pool: in place.
            for index in 0..count {
                // SAFETY: the caller vouches for body and argument.
                unsafe { body(argument, index) };
            }
            return;
        }
        // SAFETY: this thread holds `caller`, and the last job's tasks are all finished: nobody reads.
        unsafe { *self.job.get() = Some(Job { body, argument, count }) };
        self.finished.store(0, Ordering::Relaxed);
        let number = ((self.state.load(Ordering::Relaxed) >> 32) as u32).wrapping_add(1);
        self.state.store(u64::from(number) << 32 | u64::from(count), Ordering::SeqCst);
        for thread in threads.iter().take(count as usize - 1) {
            thread.unpark();
        }
        self.work(number);
        let start = Instant::now();
        while self.finished.load(Ordering::Acquire) != count {
            // A thread that lost its core needs one more than this loop does.
            if start.elapsed() < AWAKE { pause() } else { std::thread::yield_now() }
        }
    }

    /// A pool thread's life.
    fn run(&self) {
        let mut last = 0;
        loop {
            let number = self.wait(last);
            self.work(number);
            last = number;
        }
    }

    /// Waits for a job other than `last`, awake at first.
    fn wait(&self, last: u32) -> u32 {
        let mut awake_since = Instant::now();
        loop {
            let state = self.state.load(Ordering::SeqCst);
            let number = (state >> 32) as u32;
            if number != last && state as u32 != 0 {
                return number;
            }
            if awake_since.elapsed() < AWAKE {
                pause();
            } else {
                // Returns at once when a job was posted since the last return.
                std::thread::park();
                awake_since = Instant::now();
            }
        }
    }
}

fn pause() {
    for _ in 0..16 {
        std::hint::spin_loop();
    }
}

/// CPUs that this process may run on, in order.
fn allowed_cpus() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Threads to use where none are asked for: one per CPU that this process may run on.
pub fn default_threads() -> usize {
    allowed_cpus().len().max(1)
}

fn pin(cpus: &[usize], index: usize) {
    if let Some(cpu) = cpus.get(index) {
        let mut set = CpuSet::new();
        set.set(*cpu);
        // A refusal costs speed, not correctness.
        if let Err(error) = sched_setaffinity(None, &set) {
            tracing::warn!(cpu, %error, "cannot pin a thread");
        }
    }
}

unsafe extern "C" fn parallel_for(context: *mut c_void, count: u32, body: Body, argument: *mut c_void) {
    // SAFETY: `context` is the leaked pool below.
    let shared = unsafe { &*context.cast::<Shared>() };
    shared.parallel_for(count, body, argument);
}

unsafe extern "C" fn log(_: *mut c_void, level: u32, text: *const u8, len: usize) {
    // SAFETY: the backend gives `len` readable bytes, by the interface's contract.
    let bytes = unsafe { std::slice::from_raw_parts(text, len) };
    let text = String::from_utf8_lossy(bytes);
    match level {
        0 | 1 => tracing::error!(target: "backend", "{text}"),
        2 => tracing::warn!(target: "backend", "{text}"),
        3 => tracing::info!(target: "backend", "{text}"),
        4 => tracing::debug!(target: "backend", "{text}"),
        _ => tracing::trace!(target: "backend", "{text}"),
    }
}

/// Binds the calling thread, the one that will launch kernels, to the first CPU that the process may use. Threads that it
/// starts from now on inherit that, so call it last.
pub fn pin_launcher() {
    pin(&allowed_cpus(), 0);
}

/// Starts `threads` threads (the calling one counts as the first) and returns the services that backends get. With
/// `pinned`, each new thread is bound to a CPU of its own; the first CPU is left for the caller ([`pin_launcher`]).
///
/// The threads live as long as the process: backends keep the services for ever.
pub fn start(threads: usize, pinned: bool) -> Result<&'static HostServices, PoolError> {
    start_for(threads, pinned, None)
}

/// As [`start`], for backends on a CUDA device.
pub fn start_for(
    threads: usize,
    pinned: bool,
    cuda_device: Option<u32>,
) -> Result<&'static HostServices, PoolError> {
    let threads = threads.max(1);
    let cpus = if pinned { allowed_cpus() } else { Vec::new() };
    // More threads than CPUs: let the system place them.
    let cpus = if cpus.len() < threads { Vec::new() } else { cpus };
    let shared: &'static Shared = Box::leak(Box::new(Shared {
        state: AtomicU64::new(0),
        finished: AtomicU32::new(0),
        job: UnsafeCell::new(None),
        caller: Mutex::new(()),
        threads: OnceLock::new(),
    }));
    let mut handles = Vec::with_capacity(threads - 1);
    for index in 1..threads {
        let cpus = cpus.clone();
        let handle = std::thread::Builder::new()
            .name(format!("kernel-{index}"))
            .spawn(move || {
                pin(&cpus, index);
                shared.run();
            })
            .map_err(|source| PoolError::Spawn { index, count: threads, source })?;
        handles.push(handle.thread().clone());
    }
    let _ = shared.threads.set(handles);
    let raw = RawHost {
        struct_size: size_of::<RawHost>() as u32,
        threads: threads as u32,
        context: std::ptr::from_ref(shared).cast_mut().cast(),
        parallel_for,
        log,
        cuda_device: cuda_device.map_or(-1, |ordinal| ordinal as i32),
    };
    // SAFETY: the pool was leaked, so context and functions are valid for the life of the process.
    Ok(Box::leak(Box::new(unsafe { HostServices::from_raw(raw) })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_of_every_job_runs_exactly_once() {
        for threads in [1, 2, 3, 7] {
            let host = start(threads, false).unwrap();
            assert_eq!(host.threads(), threads);
            for count in (0..200).chain([5000]) {
                let ran: Vec<AtomicU32> = (0..count).map(|_| AtomicU32::new(0)).collect();
                host.parallel_for(count, |index| {
                    ran[index as usize].fetch_add(1, Ordering::Relaxed);
                });
                assert!(ran.iter().all(|ran| ran.load(Ordering::Relaxed) == 1), "{threads} threads, {count}");
            }
        }
    }

    #[test]
    fn calls_from_inside_a_task_and_from_two_threads_run_in_place() {
        let host = start(3, false).unwrap();
        let total = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        host.parallel_for(8, |_| {
                            host.parallel_for(4, |_| {
                                total.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 4 * 50 * 8 * 4);
    }

    #[test]
    fn a_job_after_the_threads_fell_asleep_runs_to_its_end() {
        let host = start(2, false).unwrap();
        let total = AtomicU32::new(0);
        for _ in 0..20 {
            let asleep = Instant::now() + 4 * AWAKE;
            while Instant::now() < asleep {
                std::thread::yield_now();
            }
            host.parallel_for(2, |_| {
                total.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(total.into_inner(), 40);
    }
}
