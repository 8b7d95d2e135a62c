//! Where a text can be cut so that its parts encode to the same ids as the whole.
//!
//! The patterns of the byte-level family never match from a visible character into the blank after it, and
//! look behind nothing. So a cut between the two is always a border of the pre-tokenizer, in both parts.

/// The alternatives that byte-level patterns are made of. Each matches a blank only as its first character, or
/// among nothing but blanks. Patterns in the field are sequences of these.
const SAFE_ALTERNATIVES: [&str; 25] = [
    r"[^\r\n\p{L}\p{N}]?\p{L}+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    r"(?i:[sdmt]|ll|ve|re)",
    "'s",
    "'t",
    "'re",
    "'ve",
    "'m",
    "'ll",
    "'d",
    r" ?\p{L}+",
    r" ?\p{N}+",
    r"\p{N}",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r"\s*[\r\n]",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
    r"\s",
    r"\r?\n",
];

/// Whether texts cut by [`slice_end`] encode as a whole under a pre-tokenizer with this pattern. It must also
/// match every text from end to end, so that nothing between its matches reaches over a cut.
pub fn is_safe_pattern(pattern: &str) -> bool {
    let alternatives = top_level_alternatives(pattern);
    let has = |part: &str| alternatives.iter().any(|alternative| alternative.contains(part));
    alternatives.iter().all(|alternative| SAFE_ALTERNATIVES.contains(alternative))
        && alternatives.contains(&r"\s+")
        && has(r"[^\s\p{L}\p{N}]+")
        && (has(r"?\p{L}+") || has(r"\p{Lo}"))
        && (alternatives.iter().any(|alternative| alternative.trim_start_matches(" ?").starts_with(r"\p{N}")))
}

/// Cuts a pattern at each `|` that stands in no group.
fn top_level_alternatives(pattern: &str) -> Vec<&str> {
    let mut depth = 0usize;
    pattern
        .split(|c: char| {
            match c {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                _ => {}
            }
            c == '|' && depth == 0
        })
        .collect()
}

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
    fn the_patterns_of_the_field_are_known_and_others_are_not() {
        for pattern in [
            crate::rank_bpe::O200K_PATTERN,
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ] {
            assert!(is_safe_pattern(pattern), "{pattern}");
        }
        for pattern in ["", r"\s+", r".+", r"\w+ \w+|\s+", r" ?\p{L}+| ?\p{N}+|\s+"] {
            assert!(!is_safe_pattern(pattern), "{pattern}");
        }
    }

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
