//! Prefix caching: names for blocks, and the search for the longest prefix that is still there.
//!
//! A block's hash chains the hash of the block before it and its own tokens; the chain starts from the salt. Equal
//! hashes mean equal tokens at equal positions under an equal salt (128 bits of BLAKE3: an attacker cannot forge one).
//!
//! Invariant: a prefix of `n` blocks is used only if a full group still has all `n`, and a window group those that the
//! token at position `n * block_size` sees.

use crate::layout::KvLayout;
use crate::pool::{BlockHash, BlockPool};

/// Extends `hashes` to one per full block of `tokens`, at most `blocks` of them.
pub(crate) fn extend_hashes(
    hashes: &mut Vec<BlockHash>,
    tokens: &[u32],
    salt: u64,
    block_size: u32,
    blocks: u32,
) {
    let size = block_size as usize;
    let full = (tokens.len() / size).min(blocks as usize);
    for index in hashes.len()..full {
        let mut hasher = blake3::Hasher::new();
        match hashes.last() {
            Some(previous) => hasher.update(&previous.to_le_bytes()),
            None => hasher.update(&salt.to_le_bytes()),
        };
        for part in tokens[index * size..(index + 1) * size].chunks(64) {
            let mut bytes = [0; 256];
            for (to, token) in bytes.chunks_exact_mut(4).zip(part) {
                to.copy_from_slice(&token.to_le_bytes());
            }
            hasher.update(&bytes[..part.len() * 4]);
        }
        let mut short = [0; 16];
        short.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        hashes.push(BlockHash::from_le_bytes(short));
    }
}

/// Columns of the longest prefix of `hashes` that every group can continue from.
pub(crate) fn longest_hit(pool: &BlockPool, layout: &KvLayout, hashes: &[BlockHash]) -> u32 {
    let has = |group: usize, column: u32| pool.find(group, hashes[column as usize]).is_some();
    let mut columns = hashes.len() as u32;
    for (group, window) in layout.windows.iter().enumerate() {
        if window.is_none() {
            columns = (0..columns).find(|column| !has(group, *column)).unwrap_or(columns);
        }
    }
    // A column missing from a window's view rules out every longer prefix that sees it: go on just before it.
    'shorter: loop {
        for (group, window) in layout.windows.iter().enumerate() {
            if window.is_some() {
                let first = layout.first_live(group, columns * layout.block_size).min(columns);
                if let Some(missing) = (first..columns).rev().find(|column| !has(group, *column)) {
                    columns = missing;
                    continue 'shorter;
                }
            }
        }
        return columns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(tokens: &[u32], salt: u64) -> Vec<BlockHash> {
        let mut hashes = Vec::new();
        extend_hashes(&mut hashes, tokens, salt, 4, u32::MAX);
        hashes
    }

    #[test]
    fn hashes_depend_on_salt_and_on_all_that_came_before() {
        let tokens: Vec<u32> = (0..14).collect();
        let plain = hashes(&tokens, 0);
        assert_eq!(plain.len(), 3);
        assert!(plain.iter().zip(hashes(&tokens, 1)).all(|(a, b)| *a != b));
        let mut changed = tokens.clone();
        changed[5] = 99;
        let other = hashes(&changed, 0);
        assert_eq!(plain[0], other[0]);
        assert!(plain[1] != other[1] && plain[2] != other[2]);
        let mut grown = hashes(&tokens[..9], 0);
        extend_hashes(&mut grown, &tokens, 0, 4, u32::MAX);
        assert_eq!(grown, plain);
    }

    #[test]
    fn a_window_group_needs_only_its_last_window() {
        let layout = KvLayout {
            block_size: 4,
            num_blocks: 32,
            vocab_size: 10,
            max_model_len: 1000,
            windows: vec![Some(6), None],
            whole_prompts: false,
        };
        let chain = hashes(&(0..40).collect::<Vec<_>>(), 0);
        let hit = |window: &[usize], full: &[usize]| {
            let mut pool = BlockPool::new(32, 2);
            for (group, columns) in [window, full].into_iter().enumerate() {
                for column in columns {
                    let id = pool.allocate(group).unwrap();
                    pool.register(id, chain[*column]);
                }
            }
            longest_hit(&pool, &layout, &chain)
        };
        // The token at 32 sees 27..=32: columns 6 and 7.
        assert_eq!(hit(&[6, 7], &[0, 1, 2, 3, 4, 5, 6, 7]), 8);
        assert_eq!(hit(&[7], &[0, 1, 2, 3, 4, 5, 6, 7]), 0);
        assert_eq!(hit(&[2, 3, 7], &[0, 1, 2, 3, 4, 5, 6, 7]), 4);
        assert_eq!(hit(&[0, 6, 7], &[0, 1, 2, 4, 5, 6, 7]), 1);
        assert_eq!(hit(&[], &[0, 1, 2]), 0);
        assert_eq!(hit(&[6, 7], &[1, 2, 3, 4, 5, 6, 7]), 0);
    }
}
