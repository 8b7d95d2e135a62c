//! The C border: what a plugin exports and what the two sides call.
//!
//! Version rules: a change that an old side would misread raises [`ABI_VERSION`]. New fields go at the end and are
//! guarded by `struct_size`; new operations need neither.

use std::ffi::c_void;

/// First bytes of every descriptor.
pub const MAGIC: [u8; 8] = *b"GSMRBKND";
/// Version of this border.
pub const ABI_VERSION: u32 = 3;
/// ELF section that holds the descriptor.
pub const DESCRIPTOR_SECTION: &str = ".gossamer.backend";
/// Name of the entry symbol.
pub const ENTRY_SYMBOL: &str = "gossamer_backend_entry";

/// What a plugin is, read from the file before the library is opened. Strings are inline and padded with zeros:
/// a pointer would read as zero in the file.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Descriptor {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`ABI_VERSION`] that the plugin was built against.
    pub abi_version: u32,
    /// `size_of::<Descriptor>()` that the plugin was built against.
    pub struct_size: u32,
    /// `size_of::<BackendTable>()` likewise.
    pub table_size: u32,
    /// Zero.
    pub reserved: u32,
    /// UTF-8 name, such as `fallback`.
    pub name: [u8; 32],
    /// UTF-8 version.
    pub version: [u8; 32],
}

impl Descriptor {
    /// A descriptor of this build. Fails to compile when a string does not fit.
    pub const fn new(name: &str, version: &str) -> Self {
        Self {
            magic: MAGIC,
            abi_version: ABI_VERSION,
            struct_size: size_of::<Descriptor>() as u32,
            table_size: size_of::<BackendTable>() as u32,
            reserved: 0,
            name: inline(name),
            version: inline(version),
        }
    }
}

const fn inline(text: &str) -> [u8; 32] {
    let bytes = text.as_bytes();
    assert!(bytes.len() <= 32, "a descriptor string has at most 32 bytes");
    let mut out = [0; 32];
    let mut i = 0;
    while i < bytes.len() {
        out[i] = bytes[i];
        i += 1;
    }
    out
}

/// An operation's description or arguments: its number, the size of its struct, and the struct.
#[repr(C)]
pub struct RawOp {
    /// Number of the operation.
    pub kind: u32,
    /// `size_of` the struct on the caller's side.
    pub size: u32,
    /// Borrowed for the call; never null.
    pub data: *const u8,
}

/// Text that the callee writes: up to `capacity` bytes of UTF-8 at `data`, the length in `len`. Owned by the caller.
#[repr(C)]
pub struct TextBuffer {
    /// Where to write.
    pub data: *mut u8,
    /// Bytes available.
    pub capacity: usize,
    /// Bytes written.
    pub len: usize,
}

/// A tactic as it crosses the border.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawTactic {
    /// Number that `launch` takes.
    pub id: u32,
    /// 1: may be captured in a CUDA graph.
    pub capturable: u32,
    /// Name for people and cache files, padded with zeros.
    pub name: [u8; 48],
    /// Weight layout that it reads, padded with zeros.
    pub layout: [u8; 32],
}

/// Source of a repacking: one weight tensor in checkpoint layout.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawRepack {
    /// Codes or elements.
    pub data: u64,
    /// Scales; 0 where the type has none.
    pub scales: u64,
    /// Experts (1 for dense weights).
    pub experts: u32,
    /// Rows per expert in the source.
    pub rows: u32,
    /// Columns in the source.
    pub columns: u32,
    /// First row taken.
    pub first_row: u32,
    /// Rows taken.
    pub row_count: u32,
    /// First column taken.
    pub first_column: u32,
    /// Columns taken.
    pub column_count: u32,
    /// Type of the elements.
    pub dtype: u32,
    /// 1: rows alternate between gate and up.
    pub interleaved: u32,
}

/// Services of the host. Lives as long as the process; every pointer may be called from any thread.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawHost {
    /// `size_of::<RawHost>()` on the host's side.
    pub struct_size: u32,
    /// Threads that `parallel_for` uses, the caller's included.
    pub threads: u32,
    /// Handed back as the first argument of the calls below.
    pub context: *mut c_void,
    /// Runs `body(argument, i)` for each `i` in `0..count` on the worker's pinned threads and returns when all are done.
    /// `body` must not panic. Not null.
    pub parallel_for: unsafe extern "C" fn(
        context: *mut c_void,
        count: u32,
        body: unsafe extern "C" fn(argument: *mut c_void, index: u32),
        argument: *mut c_void,
    ),
    /// Logs `len` bytes of UTF-8 at `text`; level 1 error to 5 trace. Not null.
    pub log: unsafe extern "C" fn(context: *mut c_void, level: u32, text: *const u8, len: usize),
    /// Ordinal of the CUDA device whose primary context is current; -1 on CPUs.
    pub cuda_device: i32,
}

/// An open backend; owned by the plugin.
pub type Instance = c_void;

/// Status of a call: 0 is success, anything else comes with a text.
pub type Status = i32;

/// What the entry returns; lives as long as the process. No pointer is null. `error` and `reason` are always given and
/// written only on failure (`reason`: when the answer is no). Only `repack` and `launch` take a stream: work is
/// enqueued on it (a `CUstream`; 0 on CPUs, where the call returns when the work is done).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BackendTable {
    /// `size_of::<BackendTable>()` on the plugin's side.
    pub struct_size: u32,
    /// [`ABI_VERSION`] on the plugin's side.
    pub abi_version: u32,
    /// Opens the backend; null on failure. `host` outlives the instance.
    pub open: unsafe extern "C" fn(host: *const RawHost, error: *mut TextBuffer) -> *mut Instance,
    /// 1: supported; 0: not, with a reason that a person understands.
    pub supports: unsafe extern "C" fn(*mut Instance, *const RawOp, reason: *mut TextBuffer) -> u32,
    /// Writes up to `capacity` tactics for a token count, best guess first, and returns how many there are.
    pub tactics: unsafe extern "C" fn(
        *mut Instance,
        *const RawOp,
        tokens: u32,
        out: *mut RawTactic,
        capacity: u32,
    ) -> u32,
    /// Bytes of workspace that a launch needs.
    pub workspace: unsafe extern "C" fn(*mut Instance, *const RawOp, tactic: u32, tokens: u32) -> u64,
    /// Bytes of one repacked tensor in `layout` (`len` bytes of UTF-8); `u64::MAX` for an unknown layout.
    pub packed_size:
        unsafe extern "C" fn(*mut Instance, layout: *const u8, len: usize, source: *const RawRepack) -> u64,
    /// Repacks one tensor to `out`, which holds `packed_size` bytes.
    pub repack: unsafe extern "C" fn(
        *mut Instance,
        layout: *const u8,
        len: usize,
        source: *const RawRepack,
        out: u64,
        stream: u64,
        error: *mut TextBuffer,
    ) -> Status,
    /// Loads modules, so that no later launch does. Called before any capture.
    pub prepare:
        unsafe extern "C" fn(*mut Instance, *const RawOp, tactic: u32, error: *mut TextBuffer) -> Status,
    /// Enqueues the operation. Neither allocates device memory nor synchronises.
    pub launch: unsafe extern "C" fn(
        *mut Instance,
        desc: *const RawOp,
        args: *const RawOp,
        tactic: u32,
        workspace: u64,
        workspace_bytes: u64,
        stream: u64,
        error: *mut TextBuffer,
    ) -> Status,
    /// Writes what a person should know beside what `supports` says, such as kernels that are built and not offered.
    pub notes: unsafe extern "C" fn(*mut Instance, text: *mut TextBuffer),
}

/// Type of the entry symbol.
pub type Entry = unsafe extern "C" fn() -> *const BackendTable;

const _: () = {
    assert!(size_of::<Descriptor>() == 88);
    assert!(size_of::<RawOp>() == 16);
    assert!(size_of::<RawTactic>() == 88);
    assert!(size_of::<BackendTable>() == 80);
};
