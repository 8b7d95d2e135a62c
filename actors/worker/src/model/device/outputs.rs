//! What a step gives back, laid out for one copy: its tokens first, for most steps want nothing else.

use super::ALIGN;

/// Where the parts of a step's results are.
#[derive(Clone, Copy)]
pub(super) struct OutputLayout {
    pub(super) logprobs: usize,
    pub(super) top_ids: usize,
    pub(super) top_logprobs: usize,
    pub(super) bytes: usize,
    pub(super) alternatives: usize,
}

impl OutputLayout {
    pub(super) fn new(rows: usize, alternatives: usize) -> Self {
        let tokens = (rows * 4).next_multiple_of(ALIGN);
        let top = (rows * alternatives * 4).next_multiple_of(ALIGN);
        Self {
            logprobs: tokens,
            top_ids: 2 * tokens,
            top_logprobs: 2 * tokens + top,
            bytes: 2 * (tokens + top),
            alternatives,
        }
    }
}

/// A word of a result; what is out of range is no token.
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(u32::MAX, |word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_results_do_not_overlap() {
        let layout = OutputLayout::new(3, 20);
        assert!(layout.logprobs >= 12 && layout.top_ids >= layout.logprobs + 12);
        assert!(layout.top_logprobs >= layout.top_ids + 240 && layout.bytes >= layout.top_logprobs + 240);
    }
}
