//! The one pool of KV block ids, and which blocks hold a cached prefix.
//!
//! ```text
//!                    allocate (from the front)
//!        ┌───────────────────────────────────────────────┐
//!        │                                               ▼
//!  ┌──── free list ──────────────────────┐      ┌─ owned, private ─┐   register    ┌─ owned, cached ─┐
//!  │ front                          back │      │ 1 owner, being   │ ────────────▶ │ full, never     │
//!  │ blank ... blank │ cached ... cached │      │ written          │               │ written again;  │
//!  │                 │ oldest     newest │      └──────────────────┘               │ 1..n owners     │
//!  └─────────────────────────────────────┘               │                         └─────────────────┘
//!     ▲         │           ▲         │                  │ release                    │         ▲
//!     │         │           │         └── share: found by its hash ───────────────────┼─────────┘
//!     │      evict: a cached block        by another sequence                         │
//!     │      that reaches the front is └──────────────────────────────────────────────┘ release by the last owner
//!     └───── blank blocks come back to the front
//! ```
//!
//! Invariant: a block is in the free list exactly when nobody owns it.
//! Invariant: a block that has a hash is full and is never written until it is allocated anew, which takes its hash.
//! Invariant: `cached[group][hash]` and `blocks[id].hash` name each other.
//! Sequences release their blocks deepest first, so that a chain is evicted from its end.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

const NIL: u32 = u32::MAX;

/// Hash of a block's tokens and of everything before them; see [`crate::prefix`].
pub(crate) type BlockHash = u128;

/// Block hashes are uniform already.
#[derive(Default)]
pub(crate) struct Uniform(u64);

impl Hasher for Uniform {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
    fn write_u128(&mut self, value: u128) {
        self.0 = value as u64;
    }
}

pub(crate) type HashTable<V> = HashMap<BlockHash, V, BuildHasherDefault<Uniform>>;

#[derive(Clone)]
struct Block {
    owners: u32,
    group: u32,
    hash: Option<BlockHash>,
    previous: u32,
    next: u32,
}

/// See the module.
pub(crate) struct BlockPool {
    blocks: Vec<Block>,
    /// Per group: full blocks by hash, owned or free.
    cached: Vec<HashTable<u32>>,
    front: u32,
    back: u32,
    free: u32,
}

impl BlockPool {
    pub fn new(num_blocks: u32, groups: u32) -> Self {
        let blank = Block { owners: 0, group: 0, hash: None, previous: NIL, next: NIL };
        // Twice the room: a table at half load cleans up after removals in place, without allocating.
        let table = || HashTable::with_capacity_and_hasher(2 * num_blocks as usize, Default::default());
        let mut pool = Self {
            blocks: vec![blank; num_blocks as usize],
            cached: (0..groups).map(|_| table()).collect(),
            front: NIL,
            back: NIL,
            free: 0,
        };
        for id in 0..num_blocks {
            pool.push_back(id);
        }
        pool
    }

    /// Blocks that nobody owns, cached or blank.
    pub fn free_blocks(&self) -> u32 {
        self.free
    }

    pub fn used_blocks(&self) -> u32 {
        self.blocks.len() as u32 - self.free
    }

    /// Takes the block that is worth least. Its cached prefix, if any, is forgotten.
    pub fn allocate(&mut self, group: usize) -> Option<u32> {
        let id = self.front;
        if id == NIL {
            return None;
        }
        self.unlink(id);
        let block = &mut self.blocks[id as usize];
        let (old_group, old_hash) = (block.group as usize, block.hash.take());
        block.owners = 1;
        block.group = group as u32;
        if let Some(hash) = old_hash {
            self.cached[old_group].remove(&hash);
        }
        Some(id)
    }

    /// Gives up one ownership.
    pub fn release(&mut self, id: u32) {
        let block = &mut self.blocks[id as usize];
        debug_assert!(block.owners > 0, "block {id} is released by nobody");
        block.owners -= 1;
        if block.owners == 0 {
            if block.hash.is_some() { self.push_back(id) } else { self.push_front(id) }
        }
    }

    /// Makes a full block findable. Where an equal block is known already, that one stays the only one.
    pub fn register(&mut self, id: u32, hash: BlockHash) {
        let group = self.blocks[id as usize].group as usize;
        if let std::collections::hash_map::Entry::Vacant(entry) = self.cached[group].entry(hash) {
            entry.insert(id);
            self.blocks[id as usize].hash = Some(hash);
        }
    }

    /// The block that holds this prefix.
    pub fn find(&self, group: usize, hash: BlockHash) -> Option<u32> {
        self.cached[group].get(&hash).copied()
    }

    pub fn owners(&self, id: u32) -> u32 {
        self.blocks[id as usize].owners
    }

    /// Becomes one more owner of a cached block.
    pub fn share(&mut self, id: u32) {
        if self.blocks[id as usize].owners == 0 {
            self.unlink(id);
        }
        self.blocks[id as usize].owners += 1;
    }

    fn push_back(&mut self, id: u32) {
        let last = std::mem::replace(&mut self.back, id);
        let block = &mut self.blocks[id as usize];
        (block.previous, block.next) = (last, NIL);
        if last == NIL {
            self.front = id
        } else {
            self.blocks[last as usize].next = id
        }
        self.free += 1;
    }

    fn push_front(&mut self, id: u32) {
        let first = std::mem::replace(&mut self.front, id);
        let block = &mut self.blocks[id as usize];
        (block.previous, block.next) = (NIL, first);
        if first == NIL {
            self.back = id
        } else {
            self.blocks[first as usize].previous = id
        }
        self.free += 1;
    }

    fn unlink(&mut self, id: u32) {
        let (previous, next) = (self.blocks[id as usize].previous, self.blocks[id as usize].next);
        if previous == NIL {
            self.front = next
        } else {
            self.blocks[previous as usize].next = next
        }
        if next == NIL {
            self.back = previous
        } else {
            self.blocks[next as usize].previous = previous
        }
        self.free -= 1;
    }

    /// Compares the pool with the owners that the sequences' tables imply, `[block] -> (group, owners)`.
    pub fn check(&self, owners: &HashMap<u32, (u32, u32)>) -> Result<(), String> {
        let (mut id, mut previous, mut listed) = (self.front, NIL, 0);
        while id != NIL {
            let block = &self.blocks[id as usize];
            if block.owners != 0 || block.previous != previous || listed > self.free {
                return Err(format!("the free list is broken at block {id}"));
            }
            listed += 1;
            (previous, id) = (id, block.next);
        }
        if listed != self.free || previous != self.back {
            return Err(format!("expected {} free blocks in the list, got {listed}", self.free));
        }
        for (id, block) in self.blocks.iter().enumerate() {
            let (group, count) = owners.get(&(id as u32)).copied().unwrap_or((block.group, 0));
            if (group, count) != (block.group, block.owners) {
                return Err(format!(
                    "block {id}: expected group {group} with {count} owners by the tables, got group {} with {}",
                    block.group, block.owners
                ));
            }
            if let Some(hash) = block.hash
                && self.find(block.group as usize, hash) != Some(id as u32)
            {
                return Err(format!("block {id} has a hash that does not lead to it"));
            }
        }
        let hashed = self.blocks.iter().filter(|block| block.hash.is_some()).count();
        let known: usize = self.cached.iter().map(HashTable::len).sum();
        if hashed != known {
            return Err(format!("expected {hashed} cached blocks, got {known}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_blocks_go_before_cached_ones_and_the_oldest_of_these_first() {
        let mut pool = BlockPool::new(3, 1);
        let ids: Vec<u32> = (0..3).map(|_| pool.allocate(0).unwrap()).collect();
        assert_eq!(pool.allocate(0), None);
        pool.register(ids[0], 10);
        pool.register(ids[1], 11);
        for id in &ids {
            pool.release(*id);
        }
        assert_eq!(pool.free_blocks(), 3);
        assert_eq!(pool.allocate(0), Some(ids[2]));
        assert_eq!(pool.find(0, 10), Some(ids[0]));
        assert_eq!(pool.allocate(0), Some(ids[0]));
        assert_eq!(pool.find(0, 10), None);
        assert_eq!(pool.find(0, 11), Some(ids[1]));
    }

    #[test]
    fn a_shared_block_is_freed_by_its_last_owner() {
        let mut pool = BlockPool::new(2, 1);
        let id = pool.allocate(0).unwrap();
        pool.register(id, 5);
        pool.share(id);
        pool.release(id);
        assert_eq!((pool.owners(id), pool.free_blocks()), (1, 1));
        pool.release(id);
        assert_eq!((pool.owners(id), pool.free_blocks()), (0, 2));
        pool.share(id);
        assert_eq!((pool.owners(id), pool.free_blocks()), (1, 1));
        pool.check(&HashMap::from([(id, (0, 1))])).unwrap();
    }

    #[test]
    fn groups_do_not_find_each_others_blocks() {
        let mut pool = BlockPool::new(4, 2);
        let id = pool.allocate(1).unwrap();
        pool.register(id, 5);
        assert_eq!((pool.find(0, 5), pool.find(1, 5)), (None, Some(id)));
    }
}
