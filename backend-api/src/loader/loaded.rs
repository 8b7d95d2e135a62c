//! A plugin that was opened: the safe trait over its C table.

use super::{BackendFile, LoadError};
use crate::abi::{
    ABI_VERSION, BackendTable, ENTRY_SYMBOL, Entry, Instance, RawRepack, RawTactic, TextBuffer,
};
use crate::{
    BackendError, HostServices, KernelBackend, Launch, Layout, OpDesc, RepackSource, Support, Tactic,
};

/// Longest text a plugin can hand back.
const TEXT_BYTES: usize = 1024;
/// Most tactics asked for per operation and token count.
const MAX_TACTICS: usize = 64;

/// A plugin in this process. It is never closed: kernels may be running, and its statics stay alive.
pub struct LoadedBackend {
    name: String,
    version: String,
    table: BackendTable,
    instance: *mut Instance,
}

// SAFETY: the table's contract lets every function be called from any thread.
unsafe impl Send for LoadedBackend {}
// SAFETY: as above.
unsafe impl Sync for LoadedBackend {}

/// Calls `call` with a buffer for a text and returns both.
fn with_text<R>(call: impl FnOnce(*mut TextBuffer) -> R) -> (R, String) {
    let mut bytes = [0u8; TEXT_BYTES];
    let mut buffer = TextBuffer { data: bytes.as_mut_ptr(), capacity: bytes.len(), len: 0 };
    let result = call(&mut buffer);
    let len = buffer.len.min(TEXT_BYTES);
    (result, String::from_utf8_lossy(&bytes[..len]).into_owned())
}

fn text(bytes: &[u8]) -> String {
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

fn raw_source(source: &RepackSource) -> RawRepack {
    RawRepack {
        data: source.data,
        scales: source.scales,
        experts: source.experts,
        rows: source.rows,
        columns: source.columns,
        first_row: source.row_range.0,
        row_count: source.row_range.1,
        first_column: source.column_range.0,
        column_count: source.column_range.1,
        dtype: source.dtype.0,
        interleaved: u32::from(source.interleaved),
    }
}

impl LoadedBackend {
    pub(super) fn open(file: &BackendFile, host: &'static HostServices) -> Result<Self, LoadError> {
        let path = || file.path.clone();
        let opening = |source| LoadError::Open { path: path(), source };
        // SAFETY: the library's constructors run here; the descriptor was checked, and a backend directory is as trusted
        // as the executable beside it.
        let library = unsafe { libloading::Library::new(&file.path) }.map_err(opening)?;
        // SAFETY: the entry has this type in every library whose descriptor carries this ABI version.
        let entry = unsafe { library.get::<Entry>(ENTRY_SYMBOL.as_bytes()) }.map_err(opening)?;
        // SAFETY: as above; the entry takes nothing and returns a table that lives as long as the library.
        let table = unsafe { entry() };
        // SAFETY: a table of any version begins with these two words, and lives as long as the library.
        let (size, version) =
            unsafe { table.as_ref() }.map_or((0, 0), |table| (table.struct_size, table.abi_version));
        if version != ABI_VERSION || size as usize != size_of::<BackendTable>() {
            return Err(LoadError::Table { path: path(), version, size });
        }
        // SAFETY: size and version were checked.
        let table = unsafe { *table };
        // Never closed: see the type's comment.
        std::mem::forget(library);
        // SAFETY: the host's table is 'static.
        let (instance, message) = with_text(|error| unsafe { (table.open)(host.raw(), error) });
        if instance.is_null() {
            let source = BackendError::Failed { backend: file.name.clone(), call: "open", message };
            return Err(LoadError::Start { path: path(), source });
        }
        Ok(Self { name: file.name.clone(), version: file.version.clone(), table, instance })
    }

    fn status(&self, call: &'static str, (status, message): (i32, String)) -> Result<(), BackendError> {
        match status {
            0 => Ok(()),
            _ => Err(BackendError::Failed { backend: self.name.clone(), call, message }),
        }
    }
}

impl KernelBackend for LoadedBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn notes(&self) -> String {
        // SAFETY: the instance is open.
        with_text(|text| unsafe { (self.table.notes)(self.instance, text) }).1
    }

    fn supports(&self, desc: &OpDesc) -> Support {
        // SAFETY: the instance is open; the description lives for the call.
        let (yes, reason) =
            with_text(|reason| unsafe { (self.table.supports)(self.instance, &desc.raw(), reason) });
        if yes == 1 { Support::Yes } else { Support::No(reason) }
    }

    fn tactics(&self, desc: &OpDesc, tokens: u32) -> Vec<Tactic> {
        let mut raw = Vec::<RawTactic>::with_capacity(MAX_TACTICS);
        // SAFETY: the buffer has room for `MAX_TACTICS` entries.
        let count = unsafe {
            (self.table.tactics)(self.instance, &desc.raw(), tokens, raw.as_mut_ptr(), MAX_TACTICS as u32)
        };
        // SAFETY: the plugin wrote the first `min(count, capacity)` entries; they are plain data.
        unsafe { raw.set_len((count as usize).min(MAX_TACTICS)) };
        raw.iter()
            .map(|raw| Tactic {
                id: raw.id,
                name: text(&raw.name),
                layout: Layout(text(&raw.layout)),
                capturable: raw.capturable != 0,
            })
            .collect()
    }

    fn workspace(&self, desc: &OpDesc, tactic: u32, tokens: u32) -> u64 {
        // SAFETY: the instance is open; the description lives for the call.
        unsafe { (self.table.workspace)(self.instance, &desc.raw(), tactic, tokens) }
    }

    fn packed_size(&self, layout: &Layout, source: &RepackSource) -> Option<u64> {
        let source = raw_source(source);
        // SAFETY: the instance is open; text and source live for the call.
        let bytes =
            unsafe { (self.table.packed_size)(self.instance, layout.0.as_ptr(), layout.0.len(), &source) };
        (bytes != u64::MAX).then_some(bytes)
    }

    unsafe fn repack(
        &self,
        layout: &Layout,
        source: &RepackSource,
        out: u64,
        stream: u64,
    ) -> Result<(), BackendError> {
        let source = raw_source(source);
        // SAFETY: handed on from this function's contract.
        let result = with_text(|error| unsafe {
            (self.table.repack)(self.instance, layout.0.as_ptr(), layout.0.len(), &source, out, stream, error)
        });
        self.status("repack", result)
    }

    fn prepare(&self, desc: &OpDesc, tactic: u32) -> Result<(), BackendError> {
        // SAFETY: the instance is open; the description lives for the call.
        let result =
            with_text(|error| unsafe { (self.table.prepare)(self.instance, &desc.raw(), tactic, error) });
        self.status("prepare", result)
    }

    unsafe fn launch(&self, desc: &OpDesc, launch: &Launch) -> Result<(), BackendError> {
        // SAFETY: handed on from this function's contract; the structs live for the call.
        let result = with_text(|error| unsafe {
            (self.table.launch)(
                self.instance,
                &desc.raw(),
                &launch.args.raw(),
                launch.tactic,
                launch.workspace,
                launch.workspace_bytes,
                launch.stream,
                error,
            )
        });
        self.status("launch", result)
    }
}
