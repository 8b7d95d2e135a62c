//! Where a model's memory is: the host's, or a CUDA device's.

use crate::cuda::{Buffer, Cuda};
use crate::memory::{MemoryError, Region};
use std::sync::Arc;

/// A place to compute.
#[derive(Clone, Debug)]
pub enum Device {
    /// The processor and its memory.
    Cpu,
    /// A CUDA device; its context is current on the thread that opens the model.
    Cuda(Arc<Cuda>),
}

/// Memory of a device.
#[derive(Debug)]
pub enum Block {
    /// On the host.
    Host(Region),
    /// On a CUDA device.
    Device(Buffer),
}

impl Device {
    /// Allocates memory full of zeros.
    pub fn allocate(&self, what: &'static str, bytes: u64) -> Result<Block, MemoryError> {
        match self {
            Self::Cpu => Region::new(what, bytes).map(Block::Host),
            Self::Cuda(_) => match Buffer::zeroed(bytes) {
                Ok(buffer) => Ok(Block::Device(buffer)),
                Err(error) => Err(MemoryError { what, bytes, source: error.into() }),
            },
        }
    }

    /// Allocates memory that holds a copy of `bytes`.
    pub fn copy_of(&self, what: &'static str, bytes: &[u8]) -> Result<Block, MemoryError> {
        let mut block = self.allocate(what, bytes.len() as u64)?;
        match &mut block {
            Block::Host(region) => region.bytes_mut()[..bytes.len()].copy_from_slice(bytes),
            Block::Device(buffer) => buffer.upload(0, bytes).map_err(|error| MemoryError {
                what,
                bytes: bytes.len() as u64,
                source: error.into(),
            })?,
        }
        Ok(block)
    }
}

impl Block {
    /// Address of the first byte, on its device; aligned to 256.
    pub fn address(&self) -> u64 {
        match self {
            Self::Host(region) => region.address(),
            Self::Device(buffer) => buffer.address(),
        }
    }
}
