//! Stop strings over a stream of text.

use std::sync::Arc;

/// The stop strings of a request, prepared once and shared by its choices.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    patterns: Arc<[Pattern]>,
    /// Matches that are complete within this many tokens of a choice do not count.
    min_tokens: u32,
}

#[derive(Debug)]
struct Pattern {
    bytes: Box<[u8]>,
    /// `fallback[n]`: length of the longest proper prefix that is also a suffix of the first `n` bytes
    /// (Knuth, Morris and Pratt).
    fallback: Box<[u32]>,
}

impl StopStrings {
    /// Prepares the strings; empty ones, which would match everywhere, are left out.
    pub fn new<S: AsRef<str>>(strings: impl IntoIterator<Item = S>) -> Self {
        let patterns = strings.into_iter().filter(|s| !s.as_ref().is_empty());
        Self { patterns: patterns.map(|s| Pattern::new(s.as_ref().as_bytes())).collect(), min_tokens: 0 }
    }

    /// The same strings, which end no choice within its first `min_tokens` tokens. A string that such a token begins
    /// and a later one completes does.
    pub fn after(self, min_tokens: u32) -> Self {
        Self { min_tokens, ..self }
    }

    /// Whether a match that the token at `position` completes counts.
    pub(crate) fn count_at(&self, position: u32) -> bool {
        position >= self.min_tokens
    }

    /// Whether there is nothing to match.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }
}

impl Pattern {
    fn new(bytes: &[u8]) -> Self {
        let mut fallback = vec![0u32; bytes.len() + 1];
        let mut length = 0;
        for n in 1..bytes.len() {
            while length > 0 && bytes[n] != bytes[length] {
                length = fallback[length] as usize;
            }
            if bytes[n] == bytes[length] {
                length += 1;
            }
            fallback[n + 1] = length as u32;
        }
        Self { bytes: bytes.into(), fallback: fallback.into() }
    }

    /// The length of the longest prefix that ends the text, after `byte` was added to it.
    fn advance(&self, mut length: usize, byte: u8) -> usize {
        loop {
            if self.bytes[length] == byte {
                return length + 1;
            }
            if length == 0 {
                return 0;
            }
            length = self.fallback[length] as usize;
        }
    }
}

/// Finds the first stop string in a text that arrives in parts.
///
/// The first match is the one that is complete first; of those that end together, the longest.
///
/// Invariants: what is held back is always a real prefix of a stop string, and the longest such suffix of the
/// text; what is released in all does not depend on how the text was split.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: StopStrings,
    /// For each string, how much of it ends the text so far.
    progress: Vec<usize>,
    held: String,
    /// The pattern that ended the text.
    matched: Option<usize>,
}

impl StopMatcher {
    /// A matcher at the beginning of a text.
    pub fn new(stops: StopStrings) -> Self {
        Self { progress: vec![0; stops.patterns.len()], stops, held: String::new(), matched: None }
    }

    /// The strings that are looked for.
    pub fn stops(&self) -> &StopStrings {
        &self.stops
    }

    /// The string that was found.
    pub fn matched(&self) -> Option<&str> {
        let pattern = self.stops.patterns.get(self.matched?)?;
        std::str::from_utf8(&pattern.bytes).ok()
    }

    /// Takes the next part of the text and appends what is certain to `out`. `true` when a stop string is
    /// complete: all text before it was released, the rest is gone. Unless matches `count`, a complete string is text
    /// like any other.
    pub fn push(&mut self, text: &str, count: bool, out: &mut String) -> bool {
        if self.stops.is_empty() {
            out.push_str(text);
            return false;
        }
        let before = self.held.len();
        self.held.push_str(text);
        for at in before..self.held.len() {
            let byte = self.held.as_bytes()[at];
            let mut matched = 0;
            for (index, (pattern, progress)) in self.stops.patterns.iter().zip(&mut self.progress).enumerate()
            {
                *progress = pattern.advance(*progress, byte);
                if *progress < pattern.bytes.len() {
                    continue;
                }
                if count && *progress > matched {
                    (matched, self.matched) = (*progress, Some(index));
                }
                // Where the next match may begin.
                *progress = pattern.fallback[*progress] as usize;
            }
            if matched > 0 {
                // Stop strings begin with a whole character, so this is a character border.
                out.push_str(&self.held[..at + 1 - matched]);
                self.reset();
                return true;
            }
        }
        let hold = self.progress.iter().copied().max().unwrap_or(0);
        let release = self.held.len() - hold;
        out.push_str(&self.held[..release]);
        self.held.drain(..release);
        false
    }

    /// Ends the text: what was held back is released, and the matcher stands at the beginning of a new one.
    pub fn flush(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.reset();
    }

    fn reset(&mut self) {
        self.held.clear();
        self.progress.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], parts: &[&str]) -> (Vec<String>, bool) {
        let mut matcher = StopMatcher::new(StopStrings::new(stops));
        let mut released = Vec::new();
        for part in parts {
            let mut out = String::new();
            let matched = matcher.push(part, true, &mut out);
            released.push(out);
            if matched {
                return (released, true);
            }
        }
        let mut rest = String::new();
        matcher.flush(&mut rest);
        released.push(rest);
        (released, false)
    }

    #[test]
    fn a_match_across_parts_cuts_the_text_before_it() {
        assert_eq!(run(&["STOP"], &["one ST", "OP two"]), (vec!["one ".into(), "".into()], true));
        assert_eq!(run(&["ab"], &["aab"]), (vec!["a".into()], true));
    }

    #[test]
    fn only_a_real_prefix_is_held_back() {
        let (parts, matched) = run(&["STOP"], &["a S", "T", "x", "y ST"]);
        assert_eq!(parts, ["a ", "", "STx", "y ", "ST"]);
        assert!(!matched);
    }

    #[test]
    fn the_match_that_is_complete_first_wins() {
        assert_eq!(run(&["abcd", "bc"], &["abcd"]), (vec!["a".into()], true));
        assert_eq!(run(&["c", "abc"], &["abc"]), (vec!["".into()], true));
        assert_eq!(run(&["", "x"], &["ax"]), (vec!["a".into()], true));
    }

    #[test]
    fn an_overlapping_start_is_not_lost() {
        assert_eq!(run(&["aab"], &["aa", "a", "b"]), (vec!["".into(), "a".into(), "".into()], true));
    }

    #[test]
    fn the_string_that_was_found_is_named() {
        let mut matcher = StopMatcher::new(StopStrings::new(["", "c", "abc", "x"]));
        assert_eq!(matcher.matched(), None);
        assert!(matcher.push("abc", true, &mut String::new()));
        assert_eq!(matcher.matched(), Some("abc"));
    }

    #[test]
    fn matches_that_do_not_count_are_text_and_may_begin_one_that_does() {
        let mut matcher = StopMatcher::new(StopStrings::new(["aba"]));
        let mut out = String::new();
        assert!(!matcher.push("xaba", false, &mut out));
        assert_eq!(out, "xab", "the last letter may begin another match");
        assert!(matcher.push("ba", true, &mut out));
        assert_eq!(out, "xab");
    }

    /// The definition, written without cleverness. Matches that end within the first `min` bytes do not count.
    fn model(text: &str, stops: &[String], min: usize) -> (String, bool) {
        for end in min + 1..=text.len() {
            let start = stops
                .iter()
                .filter(|s| !s.is_empty() && text.as_bytes()[..end].ends_with(s.as_bytes()))
                .map(|s| end - s.len())
                .min();
            if let Some(start) = start {
                return (text[..start].to_owned(), true);
            }
        }
        (text.to_owned(), false)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn any_split_gives_what_the_definition_gives(
            parts in prop::collection::vec("[abc뷁]{0,5}", 0..8),
            stops in prop::collection::vec("[abc뷁]{0,4}", 0..4),
        ) {
            let stop_refs: Vec<&str> = stops.iter().map(String::as_str).collect();
            let part_refs: Vec<&str> = parts.iter().map(String::as_str).collect();
            let (released, matched) = run(&stop_refs, &part_refs);
            prop_assert_eq!((released.concat(), matched), model(&parts.concat(), &stops, 0));
        }

        #[test]
        fn early_matches_change_nothing(
            early in prop::collection::vec("[abc뷁]{0,5}", 0..5),
            late in prop::collection::vec("[abc뷁]{0,5}", 0..5),
            stops in prop::collection::vec("[abc뷁]{0,4}", 0..4),
        ) {
            let mut matcher = StopMatcher::new(StopStrings::new(&stops));
            let mut out = String::new();
            for part in &early {
                prop_assert!(!matcher.push(part, false, &mut out));
            }
            let matched = late.iter().any(|part| matcher.push(part, true, &mut out));
            if !matched {
                matcher.flush(&mut out);
            }
            let text = early.concat() + &late.concat();
            prop_assert_eq!((out, matched), model(&text, &stops, early.concat().len()));
        }

        #[test]
        fn what_is_held_back_begins_a_stop_string(
            parts in prop::collection::vec("[abc]{0,5}", 0..8),
            stops in prop::collection::vec("[abc]{1,4}", 1..4),
        ) {
            let mut matcher = StopMatcher::new(StopStrings::new(&stops));
            for part in &parts {
                if matcher.push(part, true, &mut String::new()) {
                    break;
                }
                prop_assert!(matcher.held.is_empty() || stops.iter().any(|s| s.starts_with(&matcher.held)));
            }
        }
    }
}
