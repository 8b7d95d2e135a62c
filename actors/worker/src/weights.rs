//! Weights: mapped from a checkpoint or made up in host memory, or streamed to a CUDA device.
//!
//! Layout `checkpoint`: addresses point at the tensors as they are stored. MXFP4 codes are never expanded.

mod checkpoint;
mod device;
mod dummy;
mod header;

pub use checkpoint::CheckpointError;
pub use device::PACKED;

use crate::cuda::{Buffer, Cuda, CudaError};
use crate::memory::{MemoryError, Region};
use gossamer_backend_api::BackendError;
use gossamer_config::LoadFormat;
use gossamer_kernels::Backends;
use gossamer_kernels::graph::{Graph, Weight, WeightId};
use memmap2::Mmap;
use std::path::Path;
use std::sync::Arc;
use thiserror::Error;

/// Why there are no weights.
#[derive(Debug, Error)]
pub enum WeightsError {
    /// The checkpoint is not one of this model.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// There is no room for made-up weights.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The device refused.
    #[error("loading weights: {0}")]
    Cuda(#[from] CudaError),
    /// A backend could not bring the experts into their layout.
    #[error("loading weights: {0}")]
    Repack(#[from] BackendError),
    /// No backend makes the layout that the chosen kernels read.
    #[error("no loaded backend can bring '{tensor}' into layout '{layout}'")]
    Layout {
        /// The codes of the expert matrix.
        tensor: String,
        /// The layout.
        layout: String,
    },
    /// A file could not be read.
    #[error("loading weights: {0}")]
    Read(std::io::Error),
}

/// What keeps the addresses valid.
#[derive(Debug, Default)]
struct Backing {
    _maps: Vec<Mmap>,
    _copies: Vec<Vec<u16>>,
    _region: Option<Region>,
    _device: Option<Buffer>,
}

/// The weights of a graph, in its order.
#[derive(Debug)]
pub struct Weights {
    addresses: Vec<u64>,
    _backing: Backing,
}

impl Weights {
    /// Maps the checkpoint in `directory`, or makes up weights from `seed`.
    pub fn load(
        directory: &Path,
        format: LoadFormat,
        weights: &[Weight],
        seed: u64,
    ) -> Result<Self, WeightsError> {
        match format {
            LoadFormat::Dummy => Ok(dummy::make(weights, seed)?),
            LoadFormat::Auto | LoadFormat::Safetensors => Ok(checkpoint::map(directory, weights)?),
        }
    }

    /// Streams the weights to a device, the experts' in the layout of its kernels.
    pub fn load_to_device(
        cuda: &Arc<Cuda>,
        directory: &Path,
        format: LoadFormat,
        graph: &Graph,
        backends: &Backends,
        seed: u64,
    ) -> Result<Self, WeightsError> {
        device::load(cuda, directory, format, graph, backends, seed)
    }

    /// Address of a weight.
    pub fn address(&self, id: WeightId) -> u64 {
        self.addresses[id.0 as usize]
    }
}
