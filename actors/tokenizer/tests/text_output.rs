//! Completions: tokens in, text out.

// The lint knows test functions, not their helpers.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, LazyLock};

use gossamer_tokenizer::{StopStrings, TextDelta, TextOutput, TokenSpan, Tokenizer};
use proptest::prelude::*;

static O200K: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| Arc::new(Tokenizer::o200k_harmony().unwrap()));

fn run(stops: &[&str], steps: &[&[u32]]) -> (Vec<TextDelta>, u32, bool) {
    let mut output = TextOutput::new(O200K.clone(), StopStrings::new(stops), true);
    let mut deltas: Vec<TextDelta> = steps.iter().filter_map(|tokens| output.push(tokens)).collect();
    deltas.extend(output.finish());
    (deltas, output.consumed(), output.stopped())
}

fn joined(deltas: &[TextDelta]) -> String {
    deltas.iter().map(|delta| delta.text.as_str()).collect()
}

fn delta(text: &str, start: u32, end: u32) -> TextDelta {
    TextDelta { text: text.into(), tokens: TokenSpan { start, end } }
}

#[test]
fn a_character_split_over_four_tokens_is_one_delta_of_four_tokens() {
    let (deltas, consumed, _) = run(&[], &[&[172], &[241], &[222], &[222]]);
    assert_eq!(deltas, [delta("𓀀", 0, 4)]);
    assert_eq!(consumed, 4);
}

#[test]
fn a_byte_that_never_completes_is_replaced_at_once() {
    let then = O200K.encode_ordinary(" then")[0];
    let letter = O200K.encode_ordinary("A")[0];
    let (deltas, ..) = run(&[], &[&[letter], &[96], &[then]]);
    assert_eq!(joined(&deltas), "A\u{FFFD} then");
    assert_eq!(deltas.last(), Some(&delta(" then", 2, 3)), "{deltas:?}");
}

#[test]
fn a_stop_string_across_tokens_ends_the_text_and_the_count() {
    let ids = O200K.encode_ordinary("one two three four");
    assert_eq!(ids.len(), 4);
    let steps: Vec<&[u32]> = ids.chunks(1).collect();
    for steps in [steps, vec![&ids[..]]] {
        let (deltas, consumed, stopped) = run(&["o th"], &steps);
        assert_eq!(joined(&deltas), "one tw");
        assert!(stopped);
        assert_eq!(consumed, 3, "the token that completed the stop string is the last one counted");
        assert_eq!(deltas.iter().map(|d| d.tokens.len()).sum::<usize>(), 2);
    }
}

#[test]
fn a_stop_string_that_never_matches_swallows_nothing() {
    let ids = O200K.encode_ordinary("one two three fo");
    let (deltas, _, stopped) = run(&["four", "threefold"], &[&ids]);
    assert_eq!((joined(&deltas).as_str(), stopped), ("one two three fo", false));
}

#[test]
fn tokens_without_text_are_accounted_for_at_the_end() {
    let hi = O200K.encode_ordinary("hi")[0];
    let mut output = TextOutput::new(O200K.clone(), StopStrings::default(), true);
    assert_eq!(output.push(&[hi, 200_050]), Some(delta("hi", 0, 1)));
    output.push_stop_token();
    assert_eq!(output.finish(), Some(delta("", 1, 3)));
    assert_eq!(output.consumed(), 3);
    assert_eq!(output.finish(), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn any_grouping_gives_the_same_text_and_tokens(
        ids in prop::collection::vec(prop_oneof![0u32..300, 199_990u32..201_088], 0..40),
        cuts in prop::collection::vec(1usize..6, 0..40),
        stops in prop::collection::vec("[a-z ]{1,2}", 0..2),
    ) {
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let mut groups: Vec<&[u32]> = Vec::new();
        let mut rest = &ids[..];
        for cut in cuts {
            let (group, tail) = rest.split_at(cut.min(rest.len()));
            groups.push(group);
            rest = tail;
        }
        groups.push(rest);
        let tokens = |deltas: &[TextDelta]| -> Vec<u32> {
            deltas.iter().flat_map(|d| d.tokens.start..d.tokens.end).collect()
        };
        let (whole, whole_count, whole_stopped) = run(&stops, &[&ids]);
        let (split, split_count, split_stopped) = run(&stops, &groups);
        prop_assert_eq!(joined(&whole), joined(&split));
        prop_assert_eq!(tokens(&whole), tokens(&split));
        prop_assert_eq!((whole_count, whole_stopped), (split_count, split_stopped));
        if stops.is_empty() {
            prop_assert_eq!(joined(&whole), O200K.decode(&ids, true));
            prop_assert_eq!(tokens(&whole), (0..ids.len() as u32).collect::<Vec<_>>());
        }
    }
}
