//! The plugin's side of the border: turns a [`KernelBackend`] into the C table, with panics contained.

use crate::KernelBackend;
use crate::{BackendError, HostServices};

/// What a plugin's type must add to [`KernelBackend`] to be exported.
pub trait Exported: KernelBackend + Sized + 'static {
    /// Opens the backend. An error stops the start with its text.
    fn open(host: HostServices) -> Result<Self, BackendError>;
}

/// Exports a backend: its descriptor and its entry.
///
/// ```ignore
/// gossamer_backend_api::export_backend!(MyBackend, "my-backend", env!("CARGO_PKG_VERSION"));
/// ```
#[macro_export]
macro_rules! export_backend {
    ($type:ty, $name:expr, $version:expr) => {
        /// Read from the file before the library is opened.
        #[used]
        #[unsafe(link_section = ".gossamer.backend")]
        #[unsafe(no_mangle)]
        pub static GOSSAMER_BACKEND_DESCRIPTOR: $crate::abi::Descriptor =
            $crate::abi::Descriptor::new($name, $version);

        static GOSSAMER_BACKEND_TABLE: $crate::abi::BackendTable = $crate::ffi::table::<$type>();

        /// The entry that the loader calls.
        #[unsafe(no_mangle)]
        pub extern "C" fn gossamer_backend_entry() -> *const $crate::abi::BackendTable {
            &GOSSAMER_BACKEND_TABLE
        }
    };
}

/// The functions behind the table. Public for the macro only.
pub mod ffi {
    use super::Exported;
    use crate::abi::{
        ABI_VERSION, BackendTable, Instance, RawHost, RawOp, RawRepack, RawTactic, Status, TextBuffer,
    };
    use crate::{BackendError, DType, HostServices, Launch, Layout, OpArgs, OpDesc, RepackSource, Support};
    use std::any::Any;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// The table of one backend type.
    pub const fn table<B: Exported>() -> BackendTable {
        BackendTable {
            struct_size: size_of::<BackendTable>() as u32,
            abi_version: ABI_VERSION,
            open: open::<B>,
            supports: supports::<B>,
            tactics: tactics::<B>,
            workspace: workspace::<B>,
            packed_size: packed_size::<B>,
            repack: repack::<B>,
            prepare: prepare::<B>,
            launch: launch::<B>,
            notes: notes::<B>,
        }
    }

    /// Writes as much of `text` as fits.
    ///
    /// # Safety
    /// `buffer` is null or points to a valid [`TextBuffer`].
    unsafe fn write(buffer: *mut TextBuffer, text: &str) {
        // SAFETY: the caller vouches for the pointer.
        let Some(buffer) = (unsafe { buffer.as_mut() }) else { return };
        let mut len = text.len().min(buffer.capacity);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        // SAFETY: the buffer has at least `len` bytes.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.data, len) };
        buffer.len = len;
    }

    fn panic_text(panic: &(dyn Any + Send)) -> String {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        format!("panicked: {text}")
    }

    /// Runs `body` with panics and errors turned into a status and a text.
    ///
    /// # Safety
    /// `error` is null or points to a valid [`TextBuffer`].
    unsafe fn contain(error: *mut TextBuffer, body: impl FnOnce() -> Result<(), BackendError>) -> Status {
        let text = match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => return 0,
            Ok(Err(BackendError::Failed { message, .. })) => message,
            Ok(Err(other)) => other.to_string(),
            Err(panic) => panic_text(&*panic),
        };
        // SAFETY: handed on.
        unsafe { write(error, &text) };
        1
    }

    fn unknown(what: &'static str) -> BackendError {
        BackendError::failed(what, "the operation or its struct size is unknown to this backend; rebuild it")
    }

    unsafe extern "C" fn open<B: Exported>(host: *const RawHost, error: *mut TextBuffer) -> *mut Instance {
        let mut instance = std::ptr::null_mut();
        // SAFETY: `error` is valid by the table's contract.
        unsafe {
            contain(error, || {
                // SAFETY: the host's table is valid for the life of the process by contract.
                let host = HostServices::from_raw(*host);
                instance = Box::into_raw(Box::new(B::open(host)?)).cast();
                Ok(())
            });
        }
        instance
    }

    /// # Safety
    /// `instance` came from `open::<B>` and is never closed.
    unsafe fn this<'a, B: Exported>(instance: *mut Instance) -> &'a B {
        // SAFETY: by the caller.
        unsafe { &*instance.cast::<B>() }
    }

    unsafe extern "C" fn supports<B: Exported>(
        instance: *mut Instance,
        desc: *const RawOp,
        reason: *mut TextBuffer,
    ) -> u32 {
        // SAFETY: pointers are valid by the table's contract.
        let status = unsafe {
            contain(reason, || {
                let desc = OpDesc::from_raw(&*desc).ok_or_else(|| unknown("supports"))?;
                match this::<B>(instance).supports(&desc) {
                    Support::Yes => Ok(()),
                    Support::No(reason) => Err(BackendError::failed("supports", reason)),
                }
            })
        };
        u32::from(status == 0)
    }

    fn inline<const N: usize>(text: &str) -> [u8; N] {
        let mut out = [0; N];
        let len = text.len().min(N);
        out[..len].copy_from_slice(&text.as_bytes()[..len]);
        out
    }

    unsafe extern "C" fn tactics<B: Exported>(
        instance: *mut Instance,
        desc: *const RawOp,
        tokens: u32,
        out: *mut RawTactic,
        capacity: u32,
    ) -> u32 {
        let mut count = 0;
        // SAFETY: pointers are valid by the table's contract; at most `capacity` entries are written.
        unsafe {
            contain(std::ptr::null_mut(), || {
                let desc = OpDesc::from_raw(&*desc).ok_or_else(|| unknown("tactics"))?;
                let tactics = this::<B>(instance).tactics(&desc, tokens);
                for (index, tactic) in tactics.iter().take(capacity as usize).enumerate() {
                    out.add(index).write(RawTactic {
                        id: tactic.id,
                        capturable: u32::from(tactic.capturable),
                        name: inline(&tactic.name),
                        layout: inline(&tactic.layout.0),
                    });
                }
                count = tactics.len() as u32;
                Ok(())
            });
        }
        count
    }

    unsafe extern "C" fn workspace<B: Exported>(
        instance: *mut Instance,
        desc: *const RawOp,
        tactic: u32,
        tokens: u32,
    ) -> u64 {
        let mut bytes = u64::MAX;
        // SAFETY: pointers are valid by the table's contract.
        unsafe {
            contain(std::ptr::null_mut(), || {
                let desc = OpDesc::from_raw(&*desc).ok_or_else(|| unknown("workspace"))?;
                bytes = this::<B>(instance).workspace(&desc, tactic, tokens);
                Ok(())
            });
        }
        bytes
    }

    /// # Safety
    /// `layout` has `len` readable bytes.
    unsafe fn layout_of(layout: *const u8, len: usize) -> Layout {
        // SAFETY: by the caller.
        let bytes = unsafe { std::slice::from_raw_parts(layout, len) };
        Layout(String::from_utf8_lossy(bytes).into_owned())
    }

    fn source_of(raw: &RawRepack) -> RepackSource {
        RepackSource {
            data: raw.data,
            scales: raw.scales,
            dtype: DType(raw.dtype),
            interleaved: raw.interleaved != 0,
            experts: raw.experts,
            rows: raw.rows,
            columns: raw.columns,
            row_range: (raw.first_row, raw.row_count),
            column_range: (raw.first_column, raw.column_count),
        }
    }

    unsafe extern "C" fn packed_size<B: Exported>(
        instance: *mut Instance,
        layout: *const u8,
        len: usize,
        source: *const RawRepack,
    ) -> u64 {
        let mut bytes = u64::MAX;
        // SAFETY: pointers are valid by the table's contract.
        unsafe {
            contain(std::ptr::null_mut(), || {
                let layout = layout_of(layout, len);
                bytes = this::<B>(instance).packed_size(&layout, &source_of(&*source)).unwrap_or(u64::MAX);
                Ok(())
            });
        }
        bytes
    }

    unsafe extern "C" fn repack<B: Exported>(
        instance: *mut Instance,
        layout: *const u8,
        len: usize,
        source: *const RawRepack,
        out: u64,
        stream: u64,
        error: *mut TextBuffer,
    ) -> Status {
        // SAFETY: pointers are valid by the table's contract, addresses by that of `KernelBackend::repack`.
        unsafe {
            contain(error, || {
                this::<B>(instance).repack(&layout_of(layout, len), &source_of(&*source), out, stream)
            })
        }
    }

    unsafe extern "C" fn prepare<B: Exported>(
        instance: *mut Instance,
        desc: *const RawOp,
        tactic: u32,
        error: *mut TextBuffer,
    ) -> Status {
        // SAFETY: pointers are valid by the table's contract.
        unsafe {
            contain(error, || {
                let desc = OpDesc::from_raw(&*desc).ok_or_else(|| unknown("prepare"))?;
                this::<B>(instance).prepare(&desc, tactic)
            })
        }
    }

    unsafe extern "C" fn launch<B: Exported>(
        instance: *mut Instance,
        desc: *const RawOp,
        args: *const RawOp,
        tactic: u32,
        workspace: u64,
        workspace_bytes: u64,
        stream: u64,
        error: *mut TextBuffer,
    ) -> Status {
        // SAFETY: pointers are valid by the table's contract, addresses by that of `KernelBackend::launch`.
        unsafe {
            contain(error, || {
                let desc = OpDesc::from_raw(&*desc).ok_or_else(|| unknown("launch"))?;
                let args = OpArgs::from_raw(&*args).ok_or_else(|| unknown("launch"))?;
                if desc.kind() != args.kind() {
                    return Err(BackendError::failed(
                        "launch",
                        "description and arguments are of two operations",
                    ));
                }
                let launch = Launch { args, tactic, workspace, workspace_bytes, stream };
                this::<B>(instance).launch(&desc, &launch)
            })
        }
    }

    unsafe extern "C" fn notes<B: Exported>(instance: *mut Instance, text: *mut TextBuffer) {
        let mut notes = String::new();
        // SAFETY: pointers are valid by the table's contract.
        unsafe {
            contain(std::ptr::null_mut(), || {
                notes = this::<B>(instance).notes();
                Ok(())
            });
            write(text, &notes);
        }
    }
}
