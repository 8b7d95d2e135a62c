//! Dense products: up to three segments side by side, with an optional norm before and a residual after.

use super::norm::{normalise, widen};
use crate::isa::{Core, Order, Task};
use crate::math::{Activation, from_bf16};
use crate::memory::{Arena, Ptr};
use crate::pool::Pool;
use crate::product::{self, Bf16Rows, Epilogue, Product, Tokens, padded, prepare_row};
use gossamer_backend_api::BackendError;
use gossamer_backend_api::ops::{GemmArgs, GemmDesc};

/// Turns rows of activations into prepared rows.
pub struct Prepare<C: Core, A> {
    /// The row.
    pub x: Ptr<A>,
    /// Norm weight; null: no norm.
    pub norm_weight: Ptr<u16>,
    /// Epsilon of the norm.
    pub eps: f32,
    /// The worker's float32 row.
    pub wide: Ptr<f32>,
    /// The prepared row.
    pub to: Ptr<C::Elem>,
    /// Columns.
    pub k: usize,
    /// Order of the weights that it will meet.
    pub order: Order,
}

impl<C: Core, A: Activation> Task for Prepare<C, A> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: by the caller: the rows have `k` or `padded(k)` elements.
        unsafe {
            let wide = self.wide.slice_mut(0, self.k);
            widen(self.x.slice(0, self.k), wide);
            if !self.norm_weight.is_null() {
                normalise::<A>(wide, self.norm_weight.slice(0, self.k), self.eps);
            }
            prepare_row::<C>(wide, self.order, self.to.slice_mut(0, padded::<C>(self.k)));
        }
    }
}

/// Prepares `tokens` rows of `x` (picked by `rows` unless that is null).
///
/// # Safety
/// The addresses are valid for these extents; `wide` has a row per worker.
#[allow(clippy::too_many_arguments)]
pub unsafe fn prepare_rows<C: Core, A: Activation>(
    pool: &Pool,
    (x, rows): (Ptr<A>, Ptr<u32>),
    (norm_weight, eps): (Ptr<u16>, f32),
    order: Order,
    k: usize,
    tokens: usize,
    wide: Ptr<f32>,
    to: Ptr<C::Elem>,
) {
    pool.run(tokens, |slot, token| {
        // SAFETY: by the caller.
        unsafe {
            let row = if rows.is_null() { token } else { *rows.at(token) as usize };
            C::enter(Prepare::<C, A> {
                x: x.offset(row * k),
                norm_weight,
                eps,
                wide: wide.offset(slot * k),
                to: to.offset(token * padded::<C>(k)),
                k,
                order,
            });
        }
    });
}

/// Adds bias and residual, rounds and writes.
struct Write<O> {
    out: Ptr<O>,
    residual: Ptr<O>,
    bias: Ptr<u16>,
    columns: usize,
    first_column: usize,
}

impl<O> Clone for Write<O> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<O> Copy for Write<O> {}

impl<O: Activation> Epilogue for Write<O> {
    #[inline(always)]
    unsafe fn write(self, token: usize, first_row: usize, values: &[f32]) {
        let at = token * self.columns + self.first_column + first_row;
        for (i, value) in values.iter().enumerate() {
            // SAFETY: by the caller; `residual` may equal `out`, so both are touched element by element.
            unsafe {
                let mut value = *value;
                if !self.bias.is_null() {
                    value += from_bf16(*self.bias.at(first_row + i));
                }
                if !self.residual.is_null() {
                    value += (*self.residual.at(at + i)).to_f32();
                }
                *self.out.at(at + i) = O::from_f32(value);
            }
        }
    }
}

struct Buffers<C: Core> {
    x: Ptr<C::Elem>,
    packed: Ptr<C::Elem>,
    wide: Ptr<f32>,
    scratch: product::Scratch<C>,
}

fn place<C: Core>(desc: &GemmDesc, tokens: usize, slots: usize, arena: &mut Arena) -> Buffers<C> {
    let k = desc.in_features as usize;
    Buffers {
        x: arena.take(tokens * padded::<C>(k)),
        packed: arena.take(product::packed::<C>(k, tokens)),
        wide: arena.take(slots * k),
        scratch: product::Scratch::place(k, slots, arena),
    }
}

/// Bytes of workspace.
pub fn workspace<C: Core>(desc: &GemmDesc, tokens: usize, slots: usize) -> u64 {
    let mut arena = Arena::new(0);
    place::<C>(desc, tokens, slots, &mut arena);
    arena.used()
}

/// Runs the operation for activations `A` and output `O`.
///
/// # Safety
/// As `KernelBackend::launch`; the machine has `C`.
pub unsafe fn launch<C: Core, A: Activation, O: Activation>(
    pool: &Pool,
    desc: &GemmDesc,
    args: &GemmArgs,
    (workspace, workspace_bytes): (u64, u64),
) -> Result<(), BackendError> {
    let (k, tokens) = (desc.in_features as usize, args.tokens as usize);
    let mut arena = Arena::new(workspace);
    let buffers = place::<C>(desc, tokens, pool.slots(), &mut arena);
    arena.check(workspace_bytes)?;
    // SAFETY: the addresses are valid by the caller, the buffers by `check`.
    unsafe {
        let norm = (Ptr::new(if desc.norm == 1 { args.norm_weight } else { 0 }), desc.eps);
        let rows = Ptr::new(if desc.gather == 1 { args.rows } else { 0 });
        prepare_rows::<C, A>(
            pool,
            (Ptr::new(args.x), rows),
            norm,
            C::DENSE_ORDER,
            k,
            tokens,
            buffers.wide,
            buffers.x,
        );
    }
    let x = Tokens { data: buffers.x, stride: padded::<C>(k), index: Ptr::new(0), count: tokens };
    // SAFETY: the rows were prepared above; the buffer has room.
    let x = unsafe { product::pack::<C>(pool, x, k, buffers.packed) };
    let chunk = desc.out_features.map(|rows| product::chunk_rows::<C>(rows as usize, tokens, pool.slots()));
    let chunks: [usize; 3] = std::array::from_fn(|s| (desc.out_features[s] as usize).div_ceil(chunk[s]));
    pool.run(chunks.iter().sum(), |slot, mut index| {
        let mut segment = 0;
        let mut first_column = 0;
        while index >= chunks[segment] {
            index -= chunks[segment];
            first_column += desc.out_features[segment] as usize;
            segment += 1;
        }
        let first = index * chunk[segment];
        let last = (first + chunk[segment]).min(desc.out_features[segment] as usize);
        let task = Product::<C, _, _> {
            weights: Bf16Rows { data: Ptr::new(args.segments[segment].weight), k },
            rows: first..last,
            tokens: x,
            scratch: buffers.scratch.of(slot),
            epilogue: Write::<O> {
                out: Ptr::new(args.out),
                residual: Ptr::new(if desc.residual == 1 { args.residual } else { 0 }),
                bias: Ptr::new(args.segments[segment].bias),
                columns: desc.columns() as usize,
                first_column,
            },
        };
        // SAFETY: the addresses are valid by the caller; each chunk writes its own columns.
        unsafe { task.run() };
    });
    Ok(())
}
