//! Sums over ranks through shared memory: every rank publishes its rows in its region, waits until all have, and reads theirs.
//!
//! Invariant: a rank writes into half `epoch % 2` of its region. It gets to epoch e + 2 only after it has seen everybody at e + 1, so after
//! everybody has read what was published at e.

use super::norm::{normalise, widen};
use crate::isa::{Simd, Task};
use crate::math::Activation;
use crate::memory::{Arena, Ptr};
use crate::pool::Pool;
use gossamer_backend_api::BackendError;
use gossamer_backend_api::ops::{
    AllReduceArgs, AllReduceDesc, AllReduceNormArgs, AllReduceNormDesc, MOST_RANKS, REGION_HEADER,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A rank that is not there after so long will not come.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where each rank's rows are.
type Ranks<A> = [Ptr<A>; MOST_RANKS];

/// What is left to do once all ranks have published: sums of a row.
struct SumRow<A> {
    rows: Ranks<A>,
    ranks: usize,
    x: Ptr<A>,
    hidden: usize,
    norm: Option<Norm<A>>,
}

struct Norm<A> {
    residual: Ptr<A>,
    weight: Ptr<u16>,
    out: Ptr<A>,
    wide: Ptr<f32>,
    eps: f32,
}

impl<A: Activation> Task for SumRow<A> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: every row has `hidden` elements; nobody writes them until the next epoch but one.
        unsafe {
            let x = self.x.slice_mut(0, self.hidden);
            for (i, x) in x.iter_mut().enumerate() {
                let sum: f32 = self.rows[..self.ranks].iter().map(|row| (*row.at(i)).to_f32()).sum();
                *x = A::from_f32(sum);
            }
            let Some(norm) = self.norm else { return };
            let residual = norm.residual.slice_mut(0, self.hidden);
            for (residual, x) in residual.iter_mut().zip(x.iter()) {
                *residual = A::from_f32(residual.to_f32() + x.to_f32());
            }
            let wide = norm.wide.slice_mut(0, self.hidden);
            widen(residual, wide);
            normalise::<A>(wide, norm.weight.slice(0, self.hidden), norm.eps);
            for (out, value) in norm.out.slice_mut(0, self.hidden).iter_mut().zip(wide) {
                *out = A::from_f32(*value);
            }
        }
    }
}

fn refuse(message: String) -> BackendError {
    BackendError::failed("launch", message)
}

/// The counter of a rank: how many launches it has published.
unsafe fn counter<'a>(region: u64) -> &'a AtomicU32 {
    // SAFETY: the region begins with counters, is aligned, and outlives the launch.
    unsafe { AtomicU32::from_ptr(Ptr::<u32>::new(region).at(0)) }
}

/// Publishes, waits for all, and returns where each rank's rows are.
unsafe fn exchange<A: Activation>(
    pool: &Pool,
    desc: &AllReduceDesc,
    args: &AllReduceArgs,
) -> Result<Ranks<A>, BackendError> {
    let (hidden, tokens) = (desc.hidden as usize, args.tokens as usize);
    let regions = &args.regions[..desc.ranks as usize];
    if let Some(rank) = regions.iter().position(|region| *region == 0) {
        return Err(refuse(format!(
            "the region of rank {rank} is absent: this process is no rank of a group"
        )));
    }
    let half = args.region_bytes.saturating_sub(REGION_HEADER) / 2;
    let needed = (tokens * hidden * size_of::<A>()) as u64;
    if half < needed || args.rank >= desc.ranks {
        let got = args.region_bytes;
        return Err(refuse(format!(
            "expected regions with two halves of {needed} bytes and a rank below {}, got {got} and {}",
            desc.ranks, args.rank
        )));
    }
    // SAFETY: regions are valid by the caller; only this rank writes its own.
    unsafe {
        let own = counter(regions[args.rank as usize]);
        let epoch = own.load(Ordering::Relaxed).wrapping_add(1);
        let place = |region: u64| Ptr::<A>::new(region + REGION_HEADER + u64::from(epoch % 2) * half);
        let to = place(regions[args.rank as usize]);
        pool.run(tokens, |_, token| {
            let from = Ptr::<A>::new(args.x).slice(token * hidden, hidden);
            to.slice_mut(token * hidden, hidden).copy_from_slice(from);
        });
        own.store(epoch, Ordering::Release);
        let start = Instant::now();
        for (rank, region) in regions.iter().enumerate() {
            // Counters wrap: what counts is which is ahead.
            while (counter(*region).load(Ordering::Acquire).wrapping_sub(epoch) as i32) < 0 {
                if start.elapsed() > PATIENCE {
                    return Err(refuse(format!("rank {rank} did not come within {PATIENCE:?}")));
                }
                std::thread::yield_now();
            }
        }
        Ok(args.regions.map(|region| if region == 0 { Ptr::new(0) } else { place(region) }))
    }
}

/// Sums `x` over the ranks.
///
/// # Safety
/// As `KernelBackend::launch`; the machine has `S`.
pub unsafe fn launch<S: Simd, A: Activation>(
    pool: &Pool,
    desc: &AllReduceDesc,
    args: &AllReduceArgs,
) -> Result<(), BackendError> {
    let hidden = desc.hidden as usize;
    // SAFETY: by the caller.
    let from = unsafe { exchange::<A>(pool, desc, args) }?;
    pool.run(args.tokens as usize, |_, token| {
        let rows = from.map(|from| from.offset(token * hidden));
        let x = Ptr::new(args.x).offset(token * hidden);
        // SAFETY: by the caller; each token has its own row.
        unsafe { S::enter(SumRow { rows, ranks: desc.ranks as usize, x, hidden, norm: None }) };
    });
    Ok(())
}

/// A float32 row per worker.
pub fn layout(desc: &AllReduceNormDesc, slots: usize, arena: &mut Arena) -> Ptr<f32> {
    arena.take(slots * desc.reduce.hidden as usize)
}

/// Sums over the ranks, adds to the residual and norms.
///
/// # Safety
/// As [`launch`].
pub unsafe fn launch_norm<S: Simd, A: Activation>(
    pool: &Pool,
    desc: &AllReduceNormDesc,
    args: &AllReduceNormArgs,
    (workspace, workspace_bytes): (u64, u64),
) -> Result<(), BackendError> {
    let mut arena = Arena::new(workspace);
    let wide = layout(desc, pool.slots(), &mut arena);
    arena.check(workspace_bytes)?;
    let hidden = desc.reduce.hidden as usize;
    // SAFETY: by the caller.
    let from = unsafe { exchange::<A>(pool, &desc.reduce, &args.reduce) }?;
    pool.run(args.reduce.tokens as usize, |slot, token| {
        let rows = from.map(|from| from.offset(token * hidden));
        let norm = Norm {
            residual: Ptr::new(args.residual).offset(token * hidden),
            weight: Ptr::new(args.weight),
            out: Ptr::new(args.out).offset(token * hidden),
            wide: wide.offset(slot * hidden),
            eps: desc.eps,
        };
        let x = Ptr::new(args.reduce.x).offset(token * hidden);
        // SAFETY: by the caller; each token has its own row, each worker its own scratch.
        unsafe { S::enter(SumRow { rows, ranks: desc.reduce.ranks as usize, x, hidden, norm: Some(norm) }) };
    });
    Ok(())
}
