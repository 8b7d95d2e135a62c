//! Weights in host memory: mapped from a checkpoint, or made up.
//!
//! Layout `checkpoint`: addresses point at the tensors as they are stored. MXFP4 codes are never expanded.

mod checkpoint;
mod dummy;
mod header;

pub use checkpoint::CheckpointError;

use crate::memory::{MemoryError, Region};
use gossamer_config::LoadFormat;
use gossamer_kernels::graph::{Weight, WeightId};
use memmap2::Mmap;
use std::path::Path;
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
}

/// What keeps the addresses valid.
#[derive(Debug, Default)]
struct Backing {
    _maps: Vec<Mmap>,
    _copies: Vec<Vec<u16>>,
    _region: Option<Region>,
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

    /// Address of a weight.
    pub fn address(&self, id: WeightId) -> u64 {
        self.addresses[id.0 as usize]
    }
}
