//! Rotary embedding in place, and keys and values into the paged cache: as one operation, and each alone.

use crate::isa::{Simd, Task};
use crate::math::Activation;
use crate::memory::Ptr;
use crate::pool::Pool;
use gossamer_backend_api::DType;
use gossamer_backend_api::ops::{
    KvWriteArgs, KvWriteDesc, RopeArgs, RopeDesc, RopeKvWriteArgs, RopeKvWriteDesc,
};

/// Largest half head that is supported: room for cosines and sines on the stack.
pub const MAX_HALF: usize = 128;

/// Rotates the query and key heads of a row.
struct Rotate<A> {
    row: Ptr<A>,
    position: u32,
    frequencies: Ptr<f32>,
    desc: RopeDesc,
}

impl<A: Activation> Task for Rotate<A> {
    #[inline(always)]
    unsafe fn run(self) {
        let half = self.desc.head_dim as usize / 2;
        let (mut cosines, mut sines) = ([0f32; MAX_HALF], [0f32; MAX_HALF]);
        // SAFETY: there is a frequency per pair.
        for (i, frequency) in unsafe { self.frequencies.slice(0, half) }.iter().enumerate() {
            // The product is rounded to float32 as in the reference, whose angles the weights were trained with.
            let (sine, cosine) = (self.position as f32 * frequency).sin_cos();
            (cosines[i], sines[i]) = (cosine * self.desc.magnitude, sine * self.desc.magnitude);
        }
        let dim = self.desc.head_dim as usize;
        for head in 0..(self.desc.heads + self.desc.kv_heads) as usize {
            // SAFETY: the row has all heads.
            let (low, high) = unsafe { self.row.slice_mut(head * dim, dim) }.split_at_mut(half);
            for i in 0..half {
                let (a, b) = (low[i].to_f32(), high[i].to_f32());
                low[i] = A::from_f32(a * cosines[i] - b * sines[i]);
                high[i] = A::from_f32(b * cosines[i] + a * sines[i]);
            }
        }
    }
}

/// Writes a row's keys and values to the cache.
struct Write<A, K> {
    row: Ptr<A>,
    slot: u64,
    kv: Ptr<K>,
    /// `[2, kv_heads]`, or absent.
    scales: Ptr<f32>,
    scaled: bool,
    desc: KvWriteDesc,
}

impl<A: Activation, K: Activation> Task for Write<A, K> {
    #[inline(always)]
    unsafe fn run(self) {
        let (heads, kv_heads, dim) =
            (self.desc.heads as usize, self.desc.kv_heads as usize, self.desc.head_dim as usize);
        let size = self.desc.block_size as usize;
        let (block, offset) = (self.slot as usize / size, self.slot as usize % size);
        for part in 0..2 {
            for head in 0..kv_heads {
                // SAFETY: the plane holds `[block][2][kv_heads][block_size][D]`; each token has its own slot.
                unsafe {
                    let from = self.row.slice((heads + part * kv_heads + head) * dim, dim);
                    let inverse = match self.scaled {
                        true => 1.0 / *self.scales.at(part * kv_heads + head),
                        false => 1.0,
                    };
                    let at = ((block * 2 + part) * kv_heads + head) * size + offset;
                    for (to, from) in self.kv.slice_mut(at * dim, dim).iter_mut().zip(from) {
                        *to = K::from_f32(from.to_f32() * inverse);
                    }
                }
            }
        }
    }
}

/// A row's rotation, then its writes.
struct Both<A, K>(Rotate<A>, Write<A, K>);

impl<A: Activation, K: Activation> Task for Both<A, K> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: by the caller.
        unsafe {
            self.0.run();
            self.1.run();
        }
    }
}

unsafe fn rotate<A>(desc: &RopeDesc, args: &RopeArgs, token: usize) -> Rotate<A> {
    let columns = (desc.heads + 2 * desc.kv_heads) as usize * desc.head_dim as usize;
    Rotate {
        row: Ptr::new(args.qkv).offset(token * columns),
        // SAFETY: there is a position per token.
        position: unsafe { *Ptr::new(args.positions).at(token) },
        frequencies: Ptr::new(args.inverse_frequencies),
        desc: *desc,
    }
}

unsafe fn write<A, K>(desc: &KvWriteDesc, args: &KvWriteArgs, token: usize) -> Write<A, K> {
    let columns = (desc.heads + 2 * desc.kv_heads) as usize * desc.head_dim as usize;
    Write {
        row: Ptr::new(args.qkv).offset(token * columns),
        // SAFETY: there is a slot per token.
        slot: unsafe { *Ptr::new(args.slots).at(token) },
        kv: Ptr::new(args.kv),
        scales: Ptr::new(args.kv_scales),
        scaled: desc.kv == DType::F8E4M3 && args.kv_scales != 0,
        desc: *desc,
    }
}

/// Rotates alone.
///
/// # Safety
/// As `KernelBackend::launch`; the machine has `S`.
pub unsafe fn launch_rotation<S: Simd, A: Activation>(pool: &Pool, desc: &RopeDesc, args: &RopeArgs) {
    // SAFETY: by the caller.
    pool.run(args.tokens as usize, |_, token| unsafe { S::enter(rotate::<A>(desc, args, token)) });
}

/// Writes to the cache alone.
///
/// # Safety
/// As `KernelBackend::launch`; the machine has `S`.
pub unsafe fn launch_write<S: Simd, A: Activation, K: Activation>(
    pool: &Pool,
    desc: &KvWriteDesc,
    args: &KvWriteArgs,
) {
    // SAFETY: by the caller.
    pool.run(args.tokens as usize, |_, token| unsafe { S::enter(write::<A, K>(desc, args, token)) });
}

/// Runs the operation.
///
/// # Safety
/// As `KernelBackend::launch`; the machine has `S`.
pub unsafe fn launch<S: Simd, A: Activation, K: Activation>(
    pool: &Pool,
    desc: &RopeKvWriteDesc,
    args: &RopeKvWriteArgs,
) {
    let &RopeKvWriteDesc { heads, kv_heads, head_dim, block_size, activation, kv, magnitude } = desc;
    let rotation = RopeDesc { heads, kv_heads, head_dim, activation, magnitude };
    let writes = KvWriteDesc { heads, kv_heads, head_dim, block_size, activation, kv };
    let &RopeKvWriteArgs { qkv, positions, slots, inverse_frequencies, kv, kv_scales, tokens } = args;
    let rotation_args = RopeArgs { qkv, positions, inverse_frequencies, tokens };
    let write_args = KvWriteArgs { qkv, slots, kv, kv_scales, tokens };
    pool.run(tokens as usize, |_, token| {
        // SAFETY: by the caller.
        unsafe {
            let first = rotate::<A>(&rotation, &rotation_args, token);
            S::enter(Both(first, write::<A, K>(&writes, &write_args, token)));
        }
    });
}
