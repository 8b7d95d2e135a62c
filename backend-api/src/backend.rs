//! The safe trait that both sides program against.

use crate::abi::RawHost;
use crate::{DType, OpArgs, OpDesc};
use std::ffi::c_void;
use thiserror::Error;

/// Answer to "can you do this".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// Yes.
    Yes,
    /// No, with a reason that a person understands, such as "attention sinks are not supported".
    No(String),
}

/// Name of a weight layout, specified in `kernels/LAYOUTS.md`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout(pub String);

impl Layout {
    /// Weights as the checkpoint stores them.
    pub const CHECKPOINT: &'static str = "checkpoint";

    /// The layout named `checkpoint`.
    pub fn checkpoint() -> Self {
        Self(Self::CHECKPOINT.to_owned())
    }
}

/// One way to compute an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tactic {
    /// Number that [`Launch::tactic`] takes; stable within one version of a backend.
    pub id: u32,
    /// Name for people and cache files; names what distinguishes it, such as `tile128x64-stages4`.
    pub name: String,
    /// Weight layout that it reads.
    pub layout: Layout,
    /// Whether a launch may be captured in a CUDA graph.
    pub capturable: bool,
}

/// One weight tensor in checkpoint layout, and the slice of it to take. Tensor-parallel shards are slices.
#[derive(Clone, Copy, Debug)]
pub struct RepackSource {
    /// Address of the elements or codes.
    pub data: u64,
    /// Address of the scales; 0 where the type has none.
    pub scales: u64,
    /// Type of the elements.
    pub dtype: DType,
    /// Whether rows alternate between gate and up (`gate_up_proj`); a layout may bring the two together.
    pub interleaved: bool,
    /// Experts (1 for dense weights).
    pub experts: u32,
    /// Rows per expert in the source.
    pub rows: u32,
    /// Columns in the source.
    pub columns: u32,
    /// Rows taken: first and count.
    pub row_range: (u32, u32),
    /// Columns taken: first and count; multiples of 32 for MXFP4.
    pub column_range: (u32, u32),
}

/// Everything of one launch beside the description.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// The arguments; of the same operation as the description.
    pub args: OpArgs,
    /// A tactic that the backend offered for this description and token count.
    pub tactic: u32,
    /// Address of the workspace, 256-byte aligned; 0 when none is needed. The host keeps it for this backend and description
    /// alone. Its first [`Launch::ZEROED`] bytes are zero before the first launch, so that kernels which leave them zero
    /// again may count on it; the rest holds anything.
    pub workspace: u64,
    /// Its size.
    pub workspace_bytes: u64,
    /// `CUstream`; 0 on CPUs.
    pub stream: u64,
}

impl Launch {
    /// Bytes at the beginning of a workspace that are zero before the first launch.
    pub const ZEROED: u64 = 4096;
}

/// Why a backend could not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BackendError {
    /// The operation is not one that this backend does.
    #[error("backend {backend} does not support {operation}: {reason}")]
    Unsupported {
        /// The backend.
        backend: String,
        /// The operation.
        operation: String,
        /// Why.
        reason: String,
    },
    /// The backend failed.
    #[error("backend {backend} failed in {call}: {message}")]
    Failed {
        /// The backend.
        backend: String,
        /// What was called.
        call: &'static str,
        /// What it said.
        message: String,
    },
}

impl BackendError {
    /// A failure with a text, for use inside backends; the loader fills in the names.
    pub fn failed(call: &'static str, message: impl Into<String>) -> Self {
        Self::Failed { backend: String::new(), call, message: message.into() }
    }
}

/// A set of kernels. Implemented by plugins, and by the loader for plugins that it opened.
///
/// All methods may be called from any thread; launches of one worker come from one thread at a time.
pub trait KernelBackend: Send + Sync {
    /// Name, such as `fallback`.
    fn name(&self) -> &str;

    /// Version.
    fn version(&self) -> &str;

    /// What a person should know beside what [`Self::supports`] says, such as kernels that are built and not offered; may be empty.
    fn notes(&self) -> String {
        String::new()
    }

    /// Whether the backend can do this operation.
    fn supports(&self, desc: &OpDesc) -> Support;

    /// Tactics for a token count, best guess first. Empty exactly when `supports` says no.
    fn tactics(&self, desc: &OpDesc, tokens: u32) -> Vec<Tactic>;

    /// Bytes of workspace for a launch of up to `tokens` tokens.
    fn workspace(&self, desc: &OpDesc, tactic: u32, tokens: u32) -> u64;

    /// Bytes of one repacked tensor; `None` for a layout this backend does not know.
    fn packed_size(&self, layout: &Layout, source: &RepackSource) -> Option<u64>;

    /// Repacks one tensor.
    ///
    /// # Safety
    /// The addresses of `source` are readable for the whole tensor, `out` is writable for `packed_size` bytes.
    unsafe fn repack(
        &self,
        layout: &Layout,
        source: &RepackSource,
        out: u64,
        stream: u64,
    ) -> Result<(), BackendError>;

    /// Loads what the tactic needs, so that no launch has to. Called before any graph capture.
    fn prepare(&self, desc: &OpDesc, tactic: u32) -> Result<(), BackendError>;

    /// Enqueues the operation; on CPUs, does it.
    ///
    /// # Safety
    /// Every address in `launch` is valid for the extents that the operation documents, until the work is done.
    unsafe fn launch(&self, desc: &OpDesc, launch: &Launch) -> Result<(), BackendError>;
}

/// The host's services, as a plugin sees them.
#[derive(Clone, Copy)]
pub struct HostServices {
    raw: RawHost,
}

// SAFETY: the host promises that its services may be called from any thread for the life of the process.
unsafe impl Send for HostServices {}
// SAFETY: as above.
unsafe impl Sync for HostServices {}

impl HostServices {
    /// Wraps the host's table.
    ///
    /// # Safety
    /// The table's pointers are valid for the life of the process.
    pub unsafe fn from_raw(raw: RawHost) -> Self {
        Self { raw }
    }

    /// The table, for handing on to a plugin.
    pub fn raw(&self) -> &RawHost {
        &self.raw
    }

    /// Threads that [`Self::parallel_for`] uses.
    pub fn threads(&self) -> usize {
        self.raw.threads.max(1) as usize
    }

    /// Ordinal of the CUDA device whose context is current.
    pub fn cuda_device(&self) -> Option<u32> {
        u32::try_from(self.raw.cuda_device).ok()
    }

    /// Runs `body(i)` for every `i` in `0..count` on the worker's threads; returns when all are done. A panic in `body`
    /// is carried to the caller after the others are done.
    pub fn parallel_for<F: Fn(u32) + Sync>(&self, count: u32, body: F) {
        struct Call<F> {
            body: F,
            panicked: std::sync::atomic::AtomicBool,
        }
        unsafe extern "C" fn run<F: Fn(u32) + Sync>(argument: *mut c_void, index: u32) {
            // SAFETY: `argument` is the `Call` below, which outlives the call of the host's `parallel_for`.
            let call = unsafe { &*argument.cast::<Call<F>>() };
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (call.body)(index)));
            if done.is_err() {
                call.panicked.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let call = Call { body, panicked: std::sync::atomic::AtomicBool::new(false) };
        let argument = std::ptr::from_ref(&call).cast_mut().cast::<c_void>();
        // SAFETY: the host's pointer is valid by `from_raw`; `argument` lives until the call returns; `run` never unwinds.
        unsafe { (self.raw.parallel_for)(self.raw.context, count, run::<F>, argument) };
        if call.panicked.into_inner() {
            panic!("a task of parallel_for panicked");
        }
    }

    /// Logs a line; level 1 error, 2 warn, 3 info, 4 debug, 5 trace.
    pub fn log(&self, level: u32, text: &str) {
        // SAFETY: the pointer is valid by `from_raw`; the text lives for the call.
        unsafe { (self.raw.log)(self.raw.context, level, text.as_ptr(), text.len()) };
    }

    /// Services without a host: one thread, no log. For unit tests and benches of kernels.
    pub fn inline() -> Self {
        unsafe extern "C" fn parallel_for(
            _: *mut c_void,
            count: u32,
            body: unsafe extern "C" fn(*mut c_void, u32),
            argument: *mut c_void,
        ) {
            for index in 0..count {
                // SAFETY: the caller of `parallel_for` vouches for `body` and `argument`.
                unsafe { body(argument, index) };
            }
        }
        unsafe extern "C" fn log(_: *mut c_void, _: u32, _: *const u8, _: usize) {}
        Self {
            raw: RawHost {
                struct_size: size_of::<RawHost>() as u32,
                threads: 1,
                context: std::ptr::null_mut(),
                parallel_for,
                log,
                cuda_device: -1,
            },
        }
    }
}
