//! Encoding in slices: the form in which prompts reach the tokenizer, and the cursor that walks them.

use crate::slices::slice_end;
use crate::tokenizer::Tokenizer;

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Text; its ids are ordinary ones, whatever it says.
    Text(String),
    /// A token by its id, control tokens included.
    Token(u32),
}

/// Encodes segments a slice at a time, so that long prompts can take turns with short ones.
///
/// Invariant: the ids do not depend on the budget of the steps.
pub struct EncodeCursor {
    segments: Vec<Segment>,
    segment: usize,
    offset: usize,
    ids: Vec<u32>,
}

impl EncodeCursor {
    /// A cursor at the beginning of `segments`.
    pub fn new(segments: Vec<Segment>) -> Self {
        Self { segments, segment: 0, offset: 0, ids: Vec::new() }
    }

    /// Encodes about `budget` bytes more; `true` once everything is encoded.
    pub fn step(&mut self, tokenizer: &Tokenizer, budget: usize) -> bool {
        let mut left = budget.max(1);
        while let Some(segment) = self.segments.get(self.segment) {
            if left == 0 {
                return false;
            }
            match segment {
                Segment::Token(id) => self.ids.push(*id),
                Segment::Text(text) => {
                    let end =
                        if tokenizer.sliceable() { slice_end(text, self.offset, left) } else { text.len() };
                    tokenizer.encode_ordinary_into(&text[self.offset..end], &mut self.ids);
                    left = left.saturating_sub(end - self.offset);
                    if end < text.len() {
                        self.offset = end;
                        continue;
                    }
                }
            }
            self.segment += 1;
            self.offset = 0;
        }
        true
    }

    /// The ids encoded so far; all of them after [`step`](Self::step) said `true`.
    pub fn into_ids(self) -> Vec<u32> {
        self.ids
    }
}
