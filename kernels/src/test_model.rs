//! A small model and backends with fixed answers, for the tests of this crate.

use crate::graph::{GraphOptions, Shard};
use gossamer_backend_api::{
    BackendError, DType, KernelBackend, Launch, Layout, OpDesc, RepackSource, Support, Tactic,
};
use gossamer_config::ModelConfig;

pub fn config() -> ModelConfig {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/golden-a");
    ModelConfig::load(&directory).unwrap()
}

pub fn options() -> GraphOptions {
    GraphOptions {
        activation: DType::F32,
        kv: DType::F32,
        block_size: 64,
        max_logprobs: 20,
        allow_fp8_experts: false,
        allow_fp8_attention: false,
        shard: Shard::WHOLE,
    }
}

pub struct Fake {
    name: &'static str,
    able: bool,
}

impl Fake {
    pub fn able(name: &'static str) -> Self {
        Self { name, able: true }
    }

    pub fn unable(name: &'static str) -> Self {
        Self { name, able: false }
    }
}

impl KernelBackend for Fake {
    fn name(&self) -> &str {
        self.name
    }

    fn version(&self) -> &str {
        "1"
    }

    fn supports(&self, _: &OpDesc) -> Support {
        if self.able { Support::Yes } else { Support::No("attention sinks are not supported".into()) }
    }

    fn tactics(&self, _: &OpDesc, _: u32) -> Vec<Tactic> {
        let tactic = |id: u32| Tactic {
            id,
            name: format!("tile{}", 64 << id),
            layout: Layout::checkpoint(),
            capturable: false,
        };
        if self.able { vec![tactic(0), tactic(1)] } else { vec![] }
    }

    fn workspace(&self, _: &OpDesc, tactic: u32, tokens: u32) -> u64 {
        u64::from(tokens * (tactic + 1))
    }

    fn packed_size(&self, _: &Layout, _: &RepackSource) -> Option<u64> {
        None
    }

    unsafe fn repack(&self, _: &Layout, _: &RepackSource, _: u64, _: u64) -> Result<(), BackendError> {
        Err(BackendError::failed("repack", "nothing to repack"))
    }

    fn prepare(&self, _: &OpDesc, _: u32) -> Result<(), BackendError> {
        Ok(())
    }

    unsafe fn launch(&self, _: &OpDesc, _: &Launch) -> Result<(), BackendError> {
        Err(BackendError::failed("launch", "nothing to launch"))
    }
}
