//! Embedding: rows of a bfloat16 table.

use crate::isa::{Simd, Task};
use crate::math::{Activation, from_bf16};
use crate::memory::Ptr;
use crate::pool::Pool;
use gossamer_backend_api::ops::{EmbedArgs, EmbedDesc};

struct Row<A> {
    from: Ptr<u16>,
    to: Ptr<A>,
    hidden: usize,
}

impl<A: Activation> Task for Row<A> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: both rows have `hidden` elements.
        let (from, to) = unsafe { (self.from.slice(0, self.hidden), self.to.slice_mut(0, self.hidden)) };
        for (to, from) in to.iter_mut().zip(from) {
            *to = A::from_f32(from_bf16(*from));
        }
    }
}

/// Runs the operation.
///
/// # Safety
/// As `KernelBackend::launch`; the machine has `S`.
pub unsafe fn launch<S: Simd, A: Activation>(pool: &Pool, desc: &EmbedDesc, args: &EmbedArgs) {
    let hidden = desc.hidden as usize;
    let (ids, drawn) = (Ptr::<u32>::new(args.token_ids), Ptr::<u32>::new(args.drawn));
    let (table, out) = (Ptr::<u16>::new(args.table), Ptr::new(args.out));
    pool.run(args.tokens as usize, |_, token| {
        // SAFETY: the token has an id, and so has every place that one names; ids outside the table read row 0; rows are valid by the
        // caller.
        unsafe {
            let mut id = *ids.at(token);
            if id >= EmbedArgs::DRAWN && args.drawn != 0 {
                id = *drawn.at((id - EmbedArgs::DRAWN) as usize);
            }
            let row = if id < desc.vocab { id as usize } else { 0 };
            let (from, to) = (table.offset(row * hidden), out.offset(token * hidden));
            S::enter(Row::<A> { from, to, hidden });
        }
    });
}
