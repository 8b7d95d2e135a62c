//! A backend that is forced and cannot do what the model needs stops the start, before weights load.

mod common;

use common::{fixture, options};
use gossamer_backend_api::{
    BackendError, DType, Exported, KernelBackend, Launch, Layout, OpDesc, RepackSource, Support, Tactic,
};
use gossamer_fallback::Fallback;
use gossamer_kernels::Backends;
use gossamer_worker::{Model, pool};
use std::sync::Arc;

/// The portable backend, but for attention of the kind that `single` names.
struct Lacking {
    inner: Fallback,
    single: u32,
}

impl KernelBackend for Lacking {
    fn name(&self) -> &str {
        "lacking"
    }

    fn version(&self) -> &str {
        "1"
    }

    fn supports(&self, desc: &OpDesc) -> Support {
        match desc {
            OpDesc::Attention(desc) if desc.single == self.single => {
                Support::No("attention sinks are not supported".to_owned())
            }
            desc => self.inner.supports(desc),
        }
    }

    fn tactics(&self, desc: &OpDesc, tokens: u32) -> Vec<Tactic> {
        self.inner.tactics(desc, tokens)
    }

    fn workspace(&self, desc: &OpDesc, tactic: u32, tokens: u32) -> u64 {
        self.inner.workspace(desc, tactic, tokens)
    }

    fn packed_size(&self, layout: &Layout, source: &RepackSource) -> Option<u64> {
        self.inner.packed_size(layout, source)
    }

    unsafe fn repack(
        &self,
        layout: &Layout,
        source: &RepackSource,
        out: u64,
        stream: u64,
    ) -> Result<(), BackendError> {
        // SAFETY: handed on.
        unsafe { self.inner.repack(layout, source, out, stream) }
    }

    fn prepare(&self, desc: &OpDesc, tactic: u32) -> Result<(), BackendError> {
        self.inner.prepare(desc, tactic)
    }

    unsafe fn launch(&self, desc: &OpDesc, launch: &Launch) -> Result<(), BackendError> {
        // SAFETY: handed on.
        unsafe { self.inner.launch(desc, launch) }
    }
}

#[test]
fn a_forced_attention_backend_that_lacks_one_kind_of_attention_is_refused_before_weights_load() {
    // The shape of a model, and nothing beside it: whoever came to loading weights would fail otherwise.
    let directory = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("golden-a").join("config.json"), directory.path().join("config.json")).unwrap();
    let host = pool::start(1, false).unwrap();
    for single in [0, 1] {
        let list: Vec<Arc<dyn KernelBackend>> = vec![
            Arc::new(Lacking { inner: Fallback::open(*host).unwrap(), single }),
            Arc::new(Fallback::open(*host).unwrap()),
        ];
        let open = |forced| {
            let backends = Backends::new(list.clone(), None, forced).unwrap();
            Model::open(directory.path(), &options(DType::F32, 8), backends).err().unwrap().to_string()
        };
        let refused = open(Some("lacking"));
        for part in [
            "--attention-backend lacking",
            "attention sinks are not supported",
            "backends that can: fallback",
        ] {
            assert!(refused.contains(part), "expected '{part}' in '{refused}'");
        }
        for forced in [None, Some("fallback")] {
            let error = open(forced);
            assert!(error.contains("safetensors"), "expected to get as far as the weights, got '{error}'");
        }
    }
}
