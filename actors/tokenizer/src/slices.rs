//! Where a text can be cut so that its parts encode to the same ids as the whole.
//!
//! The patterns of the byte-level family never match from a visible character into the blank after it, and
//! look behind nothing. So a cut between the two is always a border of the pre-tokenizer, in both parts.

/// The end of the slice of `text` that begins at `from` and is at least `target` bytes long: the first safe
/// cut at or after that, or the end of the text.
pub fn slice_end(text: &str, from: usize, target: usize) -> usize {
    let bytes = text.as_bytes();
    let mut at = from.saturating_add(target).max(from + 1);
    while at < bytes.len() {
        // A blank byte is a character of its own, so both sides are character borders.
        if bytes[at] == b' ' {
            let before = text[..at].chars().next_back();
            if before.is_some_and(|c| !c.is_whitespace()) {
                return at;
            }
        }
        at += 1;
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_stand_before_a_blank_after_something_visible() {
        assert_eq!(slice_end("one two  three", 0, 1), 3);
        assert_eq!(slice_end("one two  three", 3, 1), 7);
        assert_eq!(slice_end("one two  three", 7, 1), 14);
        assert_eq!(slice_end("뷁 x", 0, 1), 3);
        assert_eq!(slice_end("solid", 0, 2), 5);
        assert_eq!(slice_end("", 0, 2), 0);
    }
}
