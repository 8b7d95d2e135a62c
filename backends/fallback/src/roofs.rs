//! Roofs of the machine, measured: what kernels are compared with.
//!
//! A shared machine's roofs change by the minute, so measure them in the run that they are compared with. Each figure is
//! the best of several rounds over all threads together.

use crate::isa::{Isa, Task};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Rounds of a measurement; the best one counts.
const ROUNDS: usize = 5;

/// Bytes a second that `threads` threads read from memory, over a buffer of `bytes` that no cache should hold.
pub fn read_bandwidth(threads: usize, bytes: usize) -> f64 {
    let words = (bytes / 8 / threads).next_multiple_of(8 * LINE_WORDS);
    let buffers: Vec<Vec<u64>> = (0..threads).map(|_| vec![1u64; words]).collect();
    let seconds = best(threads, |thread| {
        std::hint::black_box(read(&buffers[thread]));
    });
    (words * 8 * threads) as f64 / seconds
}

/// Words of a cache line.
const LINE_WORDS: usize = 8;

/// Reads every line of the buffer: eight streams, as kernels that walk several rows do.
fn read(buffer: &[u64]) -> u64 {
    struct Read<'a>(&'a [u64], &'a mut u64);
    impl Task for Read<'_> {
        #[inline(always)]
        unsafe fn run(self) {
            let stream = self.0.len() / 4;
            let (a, rest) = self.0.split_at(stream);
            let (b, rest) = rest.split_at(stream);
            let (c, d) = rest.split_at(stream);
            let mut sums = [0u64; 4 * LINE_WORDS];
            let lines = a.as_chunks::<LINE_WORDS>().0.iter().zip(b.as_chunks::<LINE_WORDS>().0);
            let lines = lines.zip(c.as_chunks::<LINE_WORDS>().0).zip(d.as_chunks::<LINE_WORDS>().0);
            for (((a, b), c), d) in lines {
                for i in 0..LINE_WORDS {
                    sums[i] = sums[i].wrapping_add(a[i]);
                    sums[LINE_WORDS + i] = sums[LINE_WORDS + i].wrapping_add(b[i]);
                    sums[2 * LINE_WORDS + i] = sums[2 * LINE_WORDS + i].wrapping_add(c[i]);
                    sums[3 * LINE_WORDS + i] = sums[3 * LINE_WORDS + i].wrapping_add(d[i]);
                }
            }
            *self.1 = sums.iter().fold(0, |total, sum| total.wrapping_add(*sum));
        }
    }
    let mut total = 0;
    enter(Read(buffer, &mut total));
    total
}

/// Runs a task under the widest float32 vectors of this machine.
fn enter<T: Task>(task: T) {
    use crate::isa::Simd;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the sets were asked for; the tasks of this module have no pointers.
    unsafe {
        if Isa::Avx512.is_available() {
            return crate::isa::avx512::Avx512::enter(task);
        }
        if Isa::Avx2.is_available() {
            return crate::isa::avx2::Avx2::enter(task);
        }
    }
    // SAFETY: plain Rust is always there; the tasks of this module have no pointers.
    unsafe { crate::isa::scalar::Scalar::enter(task) }
}

/// Multiply-adds in a row of one measurement, per accumulator.
const STEPS: usize = 2_000_000;
/// Steps of one measurement of tiles.
#[cfg(target_arch = "x86_64")]
const TILE_STEPS: usize = 500_000;
/// Independent accumulators: enough to hide the latency of any multiply-add unit.
const CHAINS: usize = 12;

/// The instruction set that kernels use.
fn isa() -> Isa {
    Isa::choose().unwrap_or(Isa::Scalar)
}

/// Operations a second in float32 (a multiply-add is two) of `threads` threads, with the instructions that kernels use.
pub fn float32_flops(threads: usize) -> f64 {
    match isa() {
        // Three columns of sixteen a token.
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => tiles(threads) * 5.0 / 16.0,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => {
            chains::<crate::isa::Single<crate::isa::avx512::Avx512>>(threads, 2 * 16)
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => chains::<crate::isa::Single<crate::isa::avx2::Avx2>>(threads, 2 * 8),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => chains::<crate::isa::Single<crate::isa::neon::Neon>>(threads, 2 * 4),
        _ => chains::<crate::isa::Single<crate::isa::scalar::Scalar>>(threads, 2 * 8),
    }
}

/// Operations a second in bfloat16 products, with the instructions that kernels use; `None` where they have none.
pub fn bfloat16_flops(threads: usize) -> Option<f64> {
    match isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => Some(tiles(threads)),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 => Some(chains::<crate::isa::avx512bf16::Dot>(threads, 2 * 32)),
        _ => {
            let _ = threads;
            None
        }
    }
}

/// Operations a second of AMX tiles.
#[cfg(target_arch = "x86_64")]
fn tiles(threads: usize) -> f64 {
    // SAFETY: the caller asked for the set.
    let seconds = best(threads, |_| unsafe { crate::isa::amx::products(TILE_STEPS) });
    (threads * TILE_STEPS * 4 * 2 * 16 * 16 * 32) as f64 / seconds
}

/// Chains of multiply-adds on a core; `operations` per step of a chain.
fn chains<C: crate::isa::Core>(threads: usize, operations: usize) -> f64 {
    struct Chains<C>(std::marker::PhantomData<C>);
    impl<C: crate::isa::Core> Task for Chains<C> {
        #[inline(always)]
        unsafe fn run(self) {
            let ones = [C::Elem::default(); 64];
            // SAFETY: an operand has at most 64 elements; the caller is under `C::enter`.
            unsafe {
                let x = C::load(std::hint::black_box(&ones).as_ptr());
                let mut acc = [C::zero(); CHAINS];
                for _ in 0..STEPS {
                    for acc in &mut acc {
                        *acc = C::mac(*acc, x, x);
                    }
                }
                for acc in acc {
                    std::hint::black_box(C::sum(acc));
                }
            }
        }
    }
    let seconds = best(threads, |_| {
        // SAFETY: the caller checked that the machine has the core.
        unsafe { C::enter(Chains::<C>(std::marker::PhantomData)) }
    });
    (threads * STEPS * CHAINS * operations) as f64 / seconds
}

/// Seconds of the fastest round in which all threads run `body` at once.
fn best(threads: usize, body: impl Fn(usize) + Sync) -> f64 {
    if threads == 1 {
        // On the caller's thread, so that a caller who counts its own processor time may.
        return (0..ROUNDS).map(|_| time(|| body(0))).fold(f64::INFINITY, f64::min);
    }
    // Each thread notes its own start and end: the caller may be late from the barrier, and would time the end alone.
    let barrier = Barrier::new(threads);
    let rounds = std::thread::scope(|scope| {
        let one = |thread: usize| {
            let (barrier, body) = (&barrier, &body);
            scope.spawn(move || {
                let round = |_| {
                    barrier.wait();
                    let start = Instant::now();
                    body(thread);
                    (start, Instant::now())
                };
                (0..ROUNDS).map(round).collect::<Vec<_>>()
            })
        };
        let threads: Vec<_> = (0..threads).map(one).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
    });
    let seconds = |round: usize| {
        let start = rounds.iter().map(|thread| thread[round].0).min();
        let end = rounds.iter().map(|thread| thread[round].1).max();
        start.zip(end).map_or(f64::INFINITY, |(start, end)| (end - start).as_secs_f64())
    };
    (0..ROUNDS).map(seconds).fold(f64::INFINITY, f64::min)
}

/// Seconds that `body` takes; on one thread of a busy machine, see [`count_processor_time`].
pub fn time(body: impl FnOnce()) -> f64 {
    let (wall, processor) = (Instant::now(), processor_seconds());
    body();
    if PROCESSOR_TIME.load(Ordering::Relaxed) {
        processor_seconds() - processor
    } else {
        wall.elapsed().as_secs_f64()
    }
}

static PROCESSOR_TIME: AtomicBool = AtomicBool::new(false);

/// Makes [`time`] count the calling thread's processor time instead of the wall's. For comparing kernels on a machine
/// that others keep busy; only work on the calling thread counts.
pub fn count_processor_time() {
    PROCESSOR_TIME.store(true, Ordering::Relaxed);
}

fn processor_seconds() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on every Unix that this crate builds for, and `now` is ours to write.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}
