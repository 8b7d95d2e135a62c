//! The KV pool: one region, in planes of blocks.
//!
//! Layer i of each KV group uses plane i. A block id belongs to one group at a time, so window and full layers share
//! the planes without sharing bytes.

use crate::device::{Block, Device};
use crate::memory::{MemoryError, available};
use gossamer_kernels::graph::KvShape;
use thiserror::Error;

/// Kept free beside weights and KV pool: activations, stacks, and what the other processes need.
const RESERVE: u64 = 1 << 30;
/// Most that a pool takes unless a number of blocks is asked for.
const MOST_BYTES: u64 = 4 << 30;

/// Why there is no KV pool.
#[derive(Debug, Error)]
pub enum KvError {
    /// Not even one sequence of one block fits.
    #[error(
        "{budget} bytes are left for the KV cache beside {weights} bytes of weights, but {least} bytes are the least; \
         free memory, or set --num-gpu-blocks-override"
    )]
    NoRoom {
        /// Bytes left.
        budget: u64,
        /// Bytes of the weights.
        weights: u64,
        /// Bytes of the smallest pool.
        least: u64,
    },
    /// The system refused.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// What decides the size of the pool.
#[derive(Clone, Copy, Debug)]
pub struct KvBudget {
    /// `--num-gpu-blocks-override`.
    pub blocks: Option<u32>,
    /// Share of the available memory that the process may use.
    pub share: f64,
    /// Bytes of weights, to be taken from that share.
    pub weights: u64,
    /// Blocks beyond which no plan could use more.
    pub useful: u64,
    /// KV groups: a sequence needs a block of each.
    pub groups: u32,
}

impl KvBudget {
    /// Blocks of the pool.
    pub fn blocks(&self, shape: &KvShape) -> Result<u32, KvError> {
        if let Some(blocks) = self.blocks {
            return Ok(blocks.max(1));
        }
        let available = available().unwrap_or(u64::MAX / 2);
        let budget =
            ((available as f64 * self.share) as u64).saturating_sub(self.weights + RESERVE).min(MOST_BYTES);
        self.blocks_in(shape, budget)
    }

    /// Blocks of a pool on a device of which `free` of `total` bytes are free, everything else being loaded.
    pub fn device_blocks(&self, shape: &KvShape, free: u64, total: u64) -> Result<u32, KvError> {
        match self.blocks {
            Some(blocks) => Ok(blocks.max(1)),
            None => {
                let used = total - free.min(total);
                self.blocks_in(shape, ((total as f64 * self.share) as u64).saturating_sub(used))
            }
        }
    }

    fn blocks_in(&self, shape: &KvShape, budget: u64) -> Result<u32, KvError> {
        let block = shape.block_bytes() * u64::from(shape.planes);
        let blocks = (budget / block.max(1)).min(self.useful).min(u64::from(u32::MAX));
        match blocks < u64::from(self.groups) {
            true => {
                Err(KvError::NoRoom { budget, weights: self.weights, least: block * u64::from(self.groups) })
            }
            false => Ok(blocks as u32),
        }
    }
}

/// The pool.
#[derive(Debug)]
pub struct KvPool {
    region: Block,
    plane_bytes: u64,
    blocks: u32,
}

impl KvPool {
    /// Maps a pool; memory becomes resident as blocks are written.
    pub fn new(device: &Device, shape: &KvShape, blocks: u32) -> Result<Self, MemoryError> {
        let plane_bytes = shape.block_bytes() * u64::from(blocks);
        let region = device.allocate("the KV cache", plane_bytes * u64::from(shape.planes))?;
        Ok(Self { region, plane_bytes, blocks })
    }

    /// Address of a plane.
    pub fn plane(&self, plane: u32) -> u64 {
        self.region.address() + u64::from(plane) * self.plane_bytes
    }

    /// Blocks in each plane.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Bytes of all planes.
    pub fn bytes(&self, shape: &KvShape) -> u64 {
        self.plane_bytes * u64::from(shape.planes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gossamer_backend_api::DType;

    const SHAPE: KvShape =
        KvShape { planes: 12, kv_heads: 8, head_dim: 64, block_size: 64, dtype: DType::BF16 };

    #[test]
    fn the_override_decides_and_else_the_smallest_of_need_and_memory() {
        let budget = KvBudget { blocks: Some(7), share: 0.5, weights: 0, useful: 100, groups: 2 };
        assert_eq!(budget.blocks(&SHAPE).unwrap(), 7);
        let budget = KvBudget { blocks: None, ..budget };
        assert!(budget.blocks(&SHAPE).unwrap() <= 100);
        let huge = KvBudget { useful: u64::MAX, ..budget };
        assert!(u64::from(huge.blocks(&SHAPE).unwrap()) * SHAPE.block_bytes() * 12 <= MOST_BYTES);
    }

    #[test]
    fn weights_that_leave_no_room_are_an_error_with_the_numbers() {
        let budget = KvBudget { blocks: None, share: 0.5, weights: 1 << 50, useful: 100, groups: 2 };
        let error = budget.blocks(&SHAPE).unwrap_err().to_string();
        assert!(error.contains("1125899906842624 bytes of weights") && error.contains("override"), "{error}");
    }

    #[test]
    fn planes_do_not_overlap() {
        let pool = KvPool::new(&Device::Cpu, &SHAPE, 3).unwrap();
        assert_eq!(pool.plane(1) - pool.plane(0), 3 * SHAPE.block_bytes());
        assert_eq!(pool.bytes(&SHAPE), 36 * SHAPE.block_bytes());
    }
}
