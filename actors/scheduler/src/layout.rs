//! Arithmetic of KV blocks: which blocks a position needs, and how long a sequence may become.
//!
//! Blocks of a sequence form columns: column `c` holds positions `c * block_size ..` and has one block per group. All
//! groups of a sequence reach the same column; a window group has dropped its first ones.

use gossamer_wire::WorkerInfo;

/// The pool's shape, as the worker reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KvLayout {
    pub block_size: u32,
    pub num_blocks: u32,
    pub vocab_size: u32,
    /// Longest sequence, by the worker and by the settings.
    pub max_model_len: u32,
    /// Per group: its window.
    pub windows: Vec<Option<u32>>,
    /// Prompts are not split, so that window groups hold whole prompts for a step.
    pub whole_prompts: bool,
}

impl KvLayout {
    pub fn new(info: &WorkerInfo, max_model_len: u32, whole_prompts: bool) -> Self {
        Self {
            block_size: info.block_size,
            num_blocks: info.num_blocks,
            vocab_size: info.vocab_size,
            max_model_len: max_model_len.min(info.max_model_len),
            windows: info.groups.iter().map(|group| group.window).collect(),
            whole_prompts,
        }
    }

    pub fn groups(&self) -> u32 {
        self.windows.len() as u32
    }

    /// First column that `group` still needs when the token at `position` runs.
    pub fn first_live(&self, group: usize, position: u32) -> u32 {
        match self.windows[group] {
            None => 0,
            Some(window) => (position + 1).saturating_sub(window) / self.block_size,
        }
    }

    /// First position that no longer needs `column` of `group`.
    pub fn leaves_at(&self, group: usize, column: u32) -> u32 {
        match self.windows[group] {
            None => u32::MAX,
            Some(window) => (column + 1).saturating_mul(self.block_size).saturating_add(window - 1),
        }
    }

    /// Most blocks that a sequence of `tokens` positions holds between steps.
    pub fn resting_blocks(&self, tokens: u32) -> u64 {
        self.column_blocks(tokens.div_ceil(self.block_size))
    }

    fn column_blocks(&self, columns: u32) -> u64 {
        let held = |window: &Option<u32>| match window {
            Some(window) if !self.whole_prompts => columns.min((window - 1).div_ceil(self.block_size) + 1),
            _ => columns,
        };
        self.windows.iter().map(|window| u64::from(held(window))).sum()
    }

    /// Tokens that the pool can hold for one sequence.
    pub fn capacity_tokens(&self) -> u64 {
        let ceiling = self.max_model_len.div_ceil(self.block_size).max(self.num_blocks);
        let (mut fits, mut exceeds) = (0, ceiling + 1);
        while fits + 1 < exceeds {
            let middle = fits + (exceeds - fits) / 2;
            if self.column_blocks(middle) <= u64::from(self.num_blocks) {
                fits = middle
            } else {
                exceeds = middle
            }
        }
        u64::from(fits) * u64::from(self.block_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(num_blocks: u32, whole_prompts: bool) -> KvLayout {
        KvLayout {
            block_size: 64,
            num_blocks,
            vocab_size: 10,
            max_model_len: 131_072,
            windows: vec![Some(128), None],
            whole_prompts,
        }
    }

    #[test]
    fn a_window_of_128_needs_two_or_three_blocks_of_64() {
        let layout = layout(100, false);
        let live = |position: u32| position / 64 + 1 - layout.first_live(0, position);
        assert_eq!([live(0), live(63), live(64), live(127)], [1, 1, 2, 2]);
        assert_eq!([live(190), live(191), live(192), live(1000)], [3, 2, 3, 3]);
        assert_eq!(layout.first_live(1, 1000), 0);
        for column in 0..5 {
            let leaves = layout.leaves_at(0, column);
            assert_eq!(
                [leaves - 1, leaves].map(|position| layout.first_live(0, position)),
                [column, column + 1]
            );
        }
    }

    #[test]
    fn a_sequence_of_100_000_tokens_costs_about_half() {
        let layout = layout(4096, false);
        assert_eq!(layout.resting_blocks(100_000), 1563 + 3);
        assert_eq!(KvLayout { whole_prompts: true, ..layout }.resting_blocks(100_000), 2 * 1563);
    }

    #[test]
    fn capacity_is_the_longest_sequence_that_fits() {
        for num_blocks in [0, 1, 2, 5, 6, 7, 100] {
            let layout = layout(num_blocks, false);
            let capacity = layout.capacity_tokens() as u32;
            assert!(layout.resting_blocks(capacity) <= u64::from(num_blocks));
            assert!(layout.resting_blocks(capacity + 1) > u64::from(num_blocks));
        }
        assert_eq!(layout(100, false).capacity_tokens(), 97 * 64);
        assert_eq!(layout(100, true).capacity_tokens(), 50 * 64);
    }
}
