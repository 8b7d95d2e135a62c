//! A rank's part of a model in a tensor-parallel group.
//!
//! Heads are split evenly, and the blocks of 32 of the experts' intermediate size as evenly as they go (90 over four ranks: 23, 23, 22, 22).
//! Embedding, norms, router and output head are whole on every rank. Outputs of attention's last product and of the experts are partial sums,
//! which the ranks add up; the biases of those two belong to rank 0 alone.

use gossamer_backend_api::ops::MOST_RANKS;
use gossamer_config::ModelConfig;
use thiserror::Error;

/// Elements of an MXFP4 block.
const BLOCK: u32 = 32;

/// Which rank of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The rank.
    pub rank: u32,
    /// Ranks of the group.
    pub ranks: u32,
}

impl Shard {
    /// The whole model on one rank.
    pub const WHOLE: Self = Self { rank: 0, ranks: 1 };
}

/// Why a model cannot be split.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ShardError {
    /// There are too many ranks, or none.
    #[error("expected a group of 1 to {MOST_RANKS} ranks and a rank below it, got rank {rank} of {ranks}")]
    Ranks {
        /// The rank.
        rank: u32,
        /// Ranks of the group.
        ranks: u32,
    },
    /// Something cannot be split evenly.
    #[error(
        "expected a number of {what} that {ranks} ranks can share, got {count}; choose another size of the group"
    )]
    Uneven {
        /// What is split.
        what: &'static str,
        /// How many there are.
        count: u32,
        /// Ranks of the group.
        ranks: u32,
    },
}

/// The shape of a rank's part: heads and intermediate size are its own.
pub fn shard(config: &ModelConfig, Shard { rank, ranks }: Shard) -> Result<ModelConfig, ShardError> {
    if ranks == 0 || ranks > MOST_RANKS as u32 || rank >= ranks {
        return Err(ShardError::Ranks { rank, ranks });
    }
    for (what, count) in
        [("query heads", config.num_attention_heads), ("KV heads", config.num_key_value_heads)]
    {
        if !count.is_multiple_of(ranks) {
            return Err(ShardError::Uneven { what, count, ranks });
        }
    }
    let blocks = config.intermediate_size / BLOCK;
    if ranks > 1 && (!config.intermediate_size.is_multiple_of(BLOCK) || blocks < ranks) {
        return Err(ShardError::Uneven { what: "intermediate blocks", count: blocks, ranks });
    }
    let mut part = config.clone();
    part.num_attention_heads /= ranks;
    part.num_key_value_heads /= ranks;
    if ranks > 1 {
        part.intermediate_size = (blocks / ranks + u32::from(rank < blocks % ranks)) * BLOCK;
    }
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_model;

    #[test]
    fn heads_are_split_evenly_and_blocks_as_evenly_as_they_go() {
        let whole = ModelConfig {
            num_attention_heads: 64,
            num_key_value_heads: 8,
            intermediate_size: 2880,
            ..test_model::config()
        };
        for (ranks, expected) in [
            (1, vec![90]),
            (2, vec![45, 45]),
            (4, vec![23, 23, 22, 22]),
            (8, vec![12, 12, 11, 11, 11, 11, 11, 11]),
        ] {
            let parts: Vec<_> =
                (0..ranks).map(|rank| shard(&whole, Shard { rank, ranks }).unwrap()).collect();
            let blocks: Vec<_> = parts.iter().map(|part| part.intermediate_size / 32).collect();
            assert_eq!(blocks, expected);
            assert!(parts.iter().all(|part| part.num_attention_heads == 64 / ranks));
            assert!(parts.iter().all(|part| part.num_key_value_heads == 8 / ranks));
        }
        let error = shard(&whole, Shard { rank: 0, ranks: 3 }).unwrap_err().to_string();
        assert!(error.contains("query heads") && error.contains("got 64"), "{error}");
        let error = shard(&whole, Shard { rank: 2, ranks: 2 }).unwrap_err().to_string();
        assert!(error.contains("rank 2 of 2"), "{error}");
    }
}
