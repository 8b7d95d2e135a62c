//! Opens a model: configuration, graph, backends, then weights and memory. What can be refused is refused before weights
//! load.

use super::device::Steps;
use super::program::{Program, ProgramError};
use super::{Drawn, Model};
use crate::cuda::{Cuda, CudaError};
use crate::device::Device;
use crate::executor::ExecutorError;
use crate::kv::{KvBudget, KvError, KvPool};
use crate::memory::MemoryError;
use crate::model::batch::Batch;
use crate::slots::{SlotLimits, SlotTable};
use crate::weights::{PACKED, Weights, WeightsError};
use gossamer_backend_api::{DType, Layout, OpDesc};
use gossamer_config::{
    AttentionArithmetic, Dtype, KvCacheDtype, LoadFormat, ModelConfig, ModelConfigError, MoeActivationDtype,
    ServeConfig,
};
use gossamer_kernels::graph::{self, Graph, GraphOptions, Shard};
use gossamer_kernels::passes::{self, Applied};
use gossamer_kernels::tuner::{self, KernelCache};
use gossamer_kernels::{Backends, SelectError};
use gossamer_wire::{KvGroup, WorkerInfo};
use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use thiserror::Error;

/// Why a model could not be opened.
#[derive(Debug, Error)]
pub enum ModelError {
    /// Its configuration was refused.
    #[error(transparent)]
    Config(#[from] ModelConfigError),
    /// No backend can run it.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// Its graph cannot be run.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// Its weights could not be loaded.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// There is no room for the KV cache.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// There is no room for activations.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A step failed while tactics were timed.
    #[error("tuning: {0}")]
    Tune(ExecutorError),
    /// No tactic of an operation could be timed.
    #[error("tuning: no tactic of {node} could be measured; see the warnings before this")]
    NothingMeasured {
        /// The operation and its layer.
        node: String,
    },
    /// The device refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A part of a model was to be opened alone.
    #[error(
        "rank {rank} of {ranks} cannot be opened: serving with several ranks is not supported yet; \
         `gossamer graph` shows the graph"
    )]
    Shard {
        /// The rank.
        rank: u32,
        /// Ranks of the group.
        ranks: u32,
    },
    /// A longer context was asked for than the model has.
    #[error("--max-model-len {wanted}: the model's context is {limit} tokens; lower it or leave it out")]
    TooLong {
        /// What was asked for.
        wanted: u32,
        /// `max_position_embeddings`.
        limit: u32,
    },
}

/// How to open a model.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// Index of the worker.
    pub rank: u32,
    /// Type of the activations.
    pub activation: DType,
    /// Type of the KV cache.
    pub kv: DType,
    /// Whether experts may round activations to E4M3.
    pub allow_fp8_experts: bool,
    /// Whether attention may round queries and probabilities to E4M3.
    pub allow_fp8_attention: bool,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Sequences in a step.
    pub max_num_seqs: u32,
    /// Tokens in a step.
    pub max_num_batched_tokens: u32,
    /// Longest sequence; `None`: the model's context.
    pub max_model_len: Option<u32>,
    /// Most alternatives with log-probabilities.
    pub max_logprobs: u32,
    /// KV blocks; `None`: by memory.
    pub num_blocks: Option<u32>,
    /// Share of the available memory to use.
    pub memory_share: f64,
    /// Where weights come from.
    pub load_format: LoadFormat,
    /// Seed of made-up weights.
    pub seed: u64,
    /// Which part of the model the graph is of.
    pub shard: Shard,
    /// Fusion passes that stay off.
    pub disabled_passes: BTreeSet<&'static str>,
    /// Tactics that were measured before.
    pub kernel_cache: Option<KernelCache>,
}

impl ModelOptions {
    /// The options of a server.
    pub fn new(config: &ServeConfig, rank: u32) -> Self {
        let activation = match config.dtype {
            Dtype::Auto | Dtype::Float32 => DType::F32,
            Dtype::Bfloat16 => DType::BF16,
        };
        Self {
            rank,
            activation,
            kv: match config.kv_cache_dtype {
                KvCacheDtype::Auto => activation,
                KvCacheDtype::Bf16 => DType::BF16,
                KvCacheDtype::Fp8 => DType::F8E4M3,
            },
            allow_fp8_experts: config.moe_activation_dtype == MoeActivationDtype::Fp8,
            allow_fp8_attention: config.attention_arithmetic == AttentionArithmetic::Fp8,
            block_size: config.block_size,
            max_num_seqs: config.max_num_seqs,
            max_num_batched_tokens: config.max_num_batched_tokens,
            max_model_len: config.max_model_len,
            max_logprobs: config.max_logprobs,
            num_blocks: config.num_gpu_blocks_override,
            memory_share: config.gpu_memory_utilization,
            load_format: config.load_format,
            seed: config.seed,
            shard: Shard::WHOLE,
            disabled_passes: BTreeSet::new(),
            kernel_cache: None,
        }
    }

    /// Takes bfloat16 where the configuration leaves the types open: that is what a CUDA device computes in.
    pub fn use_device_types(&mut self, config: &ServeConfig) {
        if config.dtype == Dtype::Auto {
            self.activation = DType::BF16;
        }
        if config.kv_cache_dtype == KvCacheDtype::Auto {
            self.kv = self.activation;
        }
    }

    /// The graph of a model before fusion. With a shard, `config` is the part's shape (see [`gossamer_kernels::graph::shard`]).
    pub fn unfused(&self, config: &ModelConfig) -> Graph {
        let options = GraphOptions {
            activation: self.activation,
            kv: self.kv,
            block_size: self.block_size,
            max_logprobs: self.max_logprobs,
            allow_fp8_experts: self.allow_fp8_experts,
            allow_fp8_attention: self.allow_fp8_attention,
            shard: self.shard,
        };
        graph::build(config, &options)
    }

    /// Builds and fuses the graph of a model, as [`Self::unfused`]; nothing is loaded.
    pub fn graph(&self, config: &ModelConfig, backends: &Backends) -> (Graph, Vec<Applied>) {
        let mut graph = self.unfused(config);
        let most = self.max_num_batched_tokens.max(self.max_num_seqs);
        let applied = passes::run(&mut graph, &self.disabled_passes, &|desc| {
            // A forced backend is asked for the whole operation even if it will refuse it: the graph's parts are nobody's way around
            // the force, and the start stops with the reason.
            tuner::covers(backends, desc, most) || is_heavy_and_forced(backends, desc)
        });
        (graph, applied)
    }
}

/// Whether a forced backend refuses the experts or attention.
fn is_heavy_and_forced(backends: &Backends, desc: &OpDesc) -> bool {
    matches!(desc, OpDesc::Experts(_) | OpDesc::Attention(_))
        && matches!(backends.able(desc), Err(SelectError::Forced { .. }))
}

/// What beside [`ModelOptions`] shapes a model on a CUDA device.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// Largest decode step that is captured in a graph; 0: none is.
    pub capture_size: u32,
}

impl Model {
    /// Opens the model in `directory` on the host.
    pub fn open(directory: &Path, options: &ModelOptions, backends: Backends) -> Result<Self, ModelError> {
        Self::with_config(&ModelConfig::load(directory)?, directory, options, backends)
    }

    /// Opens a model of a given shape on the host; `directory` holds its weights, unless they are made up.
    pub fn with_config(
        config: &ModelConfig,
        directory: &Path,
        options: &ModelOptions,
        backends: Backends,
    ) -> Result<Self, ModelError> {
        Self::open_on(&Device::Cpu, config, directory, options, backends, None)
    }

    /// Opens the model in `directory` on a CUDA device whose context is current.
    pub fn open_cuda(
        cuda: &Arc<Cuda>,
        directory: &Path,
        options: &ModelOptions,
        on_device: &CudaOptions,
        backends: Backends,
    ) -> Result<Self, ModelError> {
        let config = ModelConfig::load(directory)?;
        Self::open_on(&Device::Cuda(cuda.clone()), &config, directory, options, backends, Some(on_device))
    }

    fn open_on(
        device: &Device,
        config: &ModelConfig,
        directory: &Path,
        options: &ModelOptions,
        backends: Backends,
        on_device: Option<&CudaOptions>,
    ) -> Result<Self, ModelError> {
        if options.shard.ranks > 1 {
            let Shard { rank, ranks } = options.shard;
            return Err(ModelError::Shard { rank, ranks });
        }
        let context = config.max_position_embeddings;
        let max_model_len = options.max_model_len.unwrap_or(context);
        if max_model_len > context {
            return Err(ModelError::TooLong { wanted: max_model_len, limit: context });
        }
        let (graph, applied) = options.graph(config, &backends);
        tracing::debug!(?applied, "fused the graph");
        let (tokens, samples) =
            (options.max_num_batched_tokens, options.max_num_seqs.min(options.max_num_batched_tokens));
        let layout = match device {
            Device::Cpu => Layout::checkpoint(),
            Device::Cuda(_) => Layout(PACKED.to_owned()),
        };
        let program = Program::new(graph, &backends, options.kernel_cache.as_ref(), tokens, samples, layout)?;
        tracing::debug!(tactics = program.summary(&backends), "chose tactics");
        let graph = &program.graph;

        let blocks_per_sequence = u64::from(max_model_len.div_ceil(options.block_size));
        let groups = graph.windows.len() as u32;
        let budget = KvBudget {
            blocks: options.num_blocks,
            share: options.memory_share,
            weights: graph.weight_bytes(),
            useful: blocks_per_sequence * u64::from(options.max_num_seqs) * u64::from(groups),
            groups,
        };
        // On the host a pool that does not fit is refused before weights load; a device says how much is left afterwards.
        let host_blocks = match device {
            Device::Cpu => Some(budget.blocks(&graph.kv)?),
            Device::Cuda(_) => None,
        };
        let weights = match device {
            Device::Cpu => Weights::load(directory, options.load_format, &graph.weights, options.seed)?,
            Device::Cuda(cuda) => {
                let (format, seed) = (options.load_format, options.seed);
                Weights::load_to_device(cuda, directory, format, graph, &backends, seed)?
            }
        };
        let arena = device.allocate("activations", program.buffers.bytes)?;
        let workspace = device.allocate("the kernels' workspace", program.workspace)?;
        let frequencies: Vec<u8> =
            config.rope.inverse_frequencies(config.head_dim).iter().flat_map(|f| f.to_ne_bytes()).collect();
        let inverse_frequencies = device.copy_of("rotary frequencies", &frequencies)?;
        let limits = SlotLimits::new(options.max_num_seqs, options.max_num_batched_tokens);
        let (blocks, steps) = match device {
            Device::Cpu => (host_blocks.unwrap_or(1), None),
            Device::Cuda(cuda) => {
                let capture_size = on_device.map_or(0, |on_device| on_device.capture_size);
                let steps =
                    Steps::new(cuda.clone(), limits.slots, samples, options.max_logprobs, capture_size)?;
                let (free, total) = cuda.memory()?;
                (budget.device_blocks(&graph.kv, free, total)?, Some(Box::new(steps)))
            }
        };
        // A device's padded sequences write to a block of their own.
        let kv = KvPool::new(device, &graph.kv, blocks + u32::from(steps.is_some()))?;
        let info = WorkerInfo {
            rank: options.rank,
            num_blocks: blocks,
            block_size: options.block_size,
            groups: graph.windows.iter().map(|window| KvGroup { window: *window }).collect(),
            max_model_len,
            vocab_size: config.vocab_size,
        };
        Ok(Self {
            // One section per data-parallel rank; this version has one.
            slots: SlotTable::new(info.clone(), limits, 0),
            info,
            arena,
            workspace,
            inverse_frequencies,
            max_logprobs: options.max_logprobs,
            program,
            backends,
            weights,
            kv,
            batch: Batch::default(),
            drawn: Drawn::default(),
            done: VecDeque::new(),
            steps,
            keep_logits: false,
            kept_logits: Vec::new(),
            heartbeat: Box::new(|| {}),
        })
    }
}
