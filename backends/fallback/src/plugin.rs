//! What the library exports: the CPU backend, or on a device its plain CUDA kernels where they were built in.

use crate::Fallback;
use gossamer_backend_api::{
    BackendError, Exported, HostServices, KernelBackend, Launch, Layout, OpDesc, RepackSource, Support,
    Tactic,
};

/// The backend of the host's device.
pub struct Plugin(Box<dyn KernelBackend>);

impl Exported for Plugin {
    fn open(host: HostServices) -> Result<Self, BackendError> {
        if host.cuda_device().is_none() {
            return Ok(Self(Box::new(<Fallback as Exported>::open(host)?)));
        }
        #[cfg(gossamer_cuda)]
        return Ok(Self(Box::new(crate::cuda::CudaFallback::open(host)?)));
        #[cfg(not(gossamer_cuda))]
        Err(BackendError::failed(
            "open",
            "built without CUDA kernels; rebuild where nvcc or GOSSAMER_KERNELS_DIR is, or use --device cpu",
        ))
    }
}

impl KernelBackend for Plugin {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn version(&self) -> &str {
        self.0.version()
    }

    fn notes(&self) -> String {
        self.0.notes()
    }

    fn supports(&self, desc: &OpDesc) -> Support {
        self.0.supports(desc)
    }

    fn tactics(&self, desc: &OpDesc, tokens: u32) -> Vec<Tactic> {
        self.0.tactics(desc, tokens)
    }

    fn workspace(&self, desc: &OpDesc, tactic: u32, tokens: u32) -> u64 {
        self.0.workspace(desc, tactic, tokens)
    }

    fn packed_size(&self, layout: &Layout, source: &RepackSource) -> Option<u64> {
        self.0.packed_size(layout, source)
    }

    unsafe fn repack(
        &self,
        layout: &Layout,
        source: &RepackSource,
        out: u64,
        stream: u64,
    ) -> Result<(), BackendError> {
        // SAFETY: handed on.
        unsafe { self.0.repack(layout, source, out, stream) }
    }

    fn prepare(&self, desc: &OpDesc, tactic: u32) -> Result<(), BackendError> {
        self.0.prepare(desc, tactic)
    }

    unsafe fn launch(&self, desc: &OpDesc, launch: &Launch) -> Result<(), BackendError> {
        // SAFETY: handed on.
        unsafe { self.0.launch(desc, launch) }
    }
}
