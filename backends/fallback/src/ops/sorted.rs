//! (token, choice) pairs sorted by expert, so that each expert's weights are read once.

use crate::memory::{Arena, Ptr};

/// An expert that has pairs, and which of the sorted pairs are its own.
#[derive(Clone, Copy)]
pub struct Active {
    /// Expert, counted from the first that is held here.
    pub expert: u32,
    /// Its first pair.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// Which experts are held here.
#[derive(Clone, Copy)]
pub struct Held {
    /// The first.
    pub first: u32,
    /// How many.
    pub count: usize,
    /// Choices per token.
    pub top_k: usize,
}

/// The sorted pairs.
pub struct Sorted {
    /// Pair ids sorted by expert.
    pub pairs: Ptr<u32>,
    /// Token of each sorted pair.
    pub tokens: Ptr<u32>,
    counts: Ptr<u32>,
    /// Experts that have pairs.
    pub active: Ptr<Active>,
}

impl Sorted {
    /// Room for the pairs of `tokens` tokens.
    pub fn place(held: Held, tokens: usize, arena: &mut Arena) -> Self {
        let pairs = tokens * held.top_k;
        Self {
            pairs: arena.take(pairs),
            tokens: arena.take(pairs),
            counts: arena.take(held.count + 1),
            active: arena.take(held.count),
        }
    }

    /// Sorts, keeping the order of an expert's pairs. `elsewhere` gets the pairs of experts that are not held here. Returns the number
    /// of experts that have pairs.
    ///
    /// # Safety
    /// `ids` has `tokens * top_k` entries, the buffers are placed, and only this thread runs.
    pub unsafe fn sort(
        &self,
        held: Held,
        ids: Ptr<u32>,
        tokens: usize,
        mut elsewhere: impl FnMut(usize),
    ) -> usize {
        let count = tokens * held.top_k;
        // SAFETY: by the caller.
        unsafe {
            let ids = ids.slice(0, count);
            let next = self.counts.slice_mut(0, held.count + 1);
            next.fill(0);
            let place_of = |id: u32| {
                let at = id.wrapping_sub(held.first) as usize;
                (at < held.count).then_some(at)
            };
            for (pair, id) in ids.iter().enumerate() {
                match place_of(*id) {
                    Some(at) => next[at + 1] += 1,
                    None => elsewhere(pair),
                }
            }
            let mut active = 0;
            let mut first = 0;
            for expert in 0..held.count {
                let count = next[expert + 1];
                if count > 0 {
                    *self.active.at(active) = Active { expert: expert as u32, first, count };
                    active += 1;
                }
                next[expert] = first;
                first += count;
            }
            for (pair, id) in ids.iter().enumerate() {
                if let Some(at) = place_of(*id) {
                    let to = next[at] as usize;
                    next[at] += 1;
                    *self.pairs.at(to) = pair as u32;
                    *self.tokens.at(to) = (pair / held.top_k) as u32;
                }
            }
            active
        }
    }
}
