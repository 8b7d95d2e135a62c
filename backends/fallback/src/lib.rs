//! The portable backend: always correct, the oracle of the others.
//!
//! One library for every CPU: the instruction set is chosen when the backend opens (see [`Isa`]). Weights stay as the
//! checkpoint stores them, in the mapped file; codes are expanded in registers, or tile by tile into a panel that fits the
//! cache. It refuses what it cannot do exactly (see `supports`), and it never starts a thread: work goes through the
//! host's `parallel_for`.
//!
//! Map: [`isa`] has one file per instruction set behind two traits; `product` multiplies rows of weights with tokens;
//! `ops` has one file per operation; `memory` cuts buffers from the host's workspace; [`roofs`] measures the machine.
//!
//! Invariants:
//! - Results are bitwise independent of the batch, of chunking and of the number of threads, for a given instruction set
//!   and activation type. Each output element has one order of additions, fixed by its own row and weights:
//!   - products: one accumulator vector per element walks `k` from start to end, group by group, and is summed over its
//!     lanes by a fixed tree at the end. How many rows and tokens a tile holds, and whether weights come from the
//!     checkpoint or from a panel, changes which accumulators live side by side and nothing else: decoding is exact.
//!   - attention: keys are visited in KV blocks aligned to absolute positions, one online-softmax step per block, lanes
//!     fixed by the position in the block. Masked keys add zeros.
//!   - norms, softmax, sampling: one thread per row, in index order.
//! - A launch allocates nothing: what it needs is in the workspace that `workspace()` announced.

mod backend;
#[cfg(gossamer_cuda)]
mod cuda;
pub mod isa;
mod math;
mod memory;
mod ops;
mod plugin;
mod pool;
mod product;
mod repack;
pub mod roofs;

pub use backend::Fallback;
pub use isa::{ISA_VARIABLE, Isa};
pub use plugin::Plugin;

gossamer_backend_api::export_backend!(Plugin, "fallback", env!("CARGO_PKG_VERSION"));
