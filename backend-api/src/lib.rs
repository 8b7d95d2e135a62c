//! The backend plugin ABI, the safe trait above it, and the loader.
//!
//! A backend is a shared library with kernels. It exports a constant [`abi::Descriptor`], which the host reads from the
//! file before it opens the library, and one entry that returns a table of C functions. Plugin authors implement
//! [`KernelBackend`] and write [`export_backend!`]; hosts call [`loader::discover`] and get objects of the same trait.
//!
//! To add an operation: write its description and argument structs in `ops/`, and one line in the table of
//! `ops/mod.rs`. The C table does not change.
//!
//! Invariants:
//! - No code of a plugin runs before its descriptor was checked.
//! - No Rust type with an unstable layout crosses the border; every struct that does is `#[repr(C)]`, plain data, and
//!   valid for any bit pattern.
//! - No panic crosses the border, in either direction.
//! - The host owns all memory that `launch` sees. A launch neither allocates device memory nor synchronises.

pub mod abi;
mod backend;
#[cfg(feature = "conformance")]
pub mod conformance;
mod dtype;
mod export;
pub mod loader;
pub mod ops;

pub use backend::{BackendError, HostServices, KernelBackend, Launch, Layout, RepackSource, Support, Tactic};
pub use dtype::DType;
pub use export::{Exported, ffi};
pub use ops::{OpArgs, OpDesc, OpKind};
