//! Properties that hold for every sequence of tokens.

#![allow(clippy::unwrap_used)]

mod common;

use common::{O200K, options, reply_in, script};
use gossamer_harmony::{ChatOutput, ChatOutputOptions, Ending};
use proptest::prelude::*;

/// Tokens of which headers, calls, split characters and stop strings are made, and any others.
fn token() -> impl Strategy<Value = u32> {
    let parts = [
        "<|start|>",
        "<|end|>",
        "<|message|>",
        "<|channel|>",
        "<|constrain|>",
        "<|call|>",
        "<|return|>",
        "analysis",
        "comment",
        "ary",
        "final",
        "assistant",
        " to",
        "=",
        "functions",
        ".f",
        " ",
        "\n",
        "json",
        " json",
        "code",
        "a",
        "b",
        " user",
        "{\"",
        "hello",
        "<|reserved_200500|>",
    ];
    let mut ids: Vec<u32> = parts.iter().flat_map(|part| script(part)).collect();
    ids.extend([172, 241, 222, 96, 99, 247]);
    prop_oneof![8 => prop::sample::select(ids), 1 => 0u32..201_100]
}

fn tokens() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(token(), 0..60)
}

fn groups<'a>(ids: &'a [u32], sizes: &[usize]) -> Vec<&'a [u32]> {
    let mut groups = Vec::new();
    let mut rest = ids;
    for &size in sizes {
        let (group, tail) = rest.split_at(size.min(rest.len()));
        groups.push(group);
        rest = tail;
    }
    groups.push(rest);
    groups
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn any_grouping_gives_the_same_reply(
        ids in tokens(),
        sizes in prop::collection::vec(1usize..8, 0..60),
        stops in prop::collection::vec("[ab]{1,3}|hello|[a-f] ?", 0..3),
        by_length in any::<bool>(),
        turns_end_after in prop::option::of(0u32..20),
    ) {
        let ending = if by_length { Ending::Length } else { Ending::Stop };
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let options = || ChatOutputOptions { turns_end_after, ..options(&stops, &["f"]) };
        let whole = reply_in(options(), [&ids[..]], ending);
        let single = reply_in(options(), ids.chunks(1), ending);
        let split = reply_in(options(), groups(&ids, &sizes), ending);
        prop_assert_eq!(&whole, &single);
        prop_assert_eq!(&whole, &split);
        prop_assert!(whole.consumed as usize <= ids.len());
        prop_assert!(whole.reasoning_tokens <= whole.consumed);
        if stops.is_empty() && turns_end_after.is_none() {
            prop_assert_eq!(whole.consumed as usize, ids.len());
        }
    }

    #[test]
    fn entries_have_the_bytes_of_the_text(ids in tokens()) {
        let reply = reply_in(options(&[], &[]), ids.chunks(1), Ending::Length);
        prop_assert!(reply.entries.is_sorted_by(|a, b| a < b), "{:?}", reply.entries);
        let bytes: usize = reply.entries.iter().map(|&at| O200K.text_bytes(ids[at as usize]).len()).sum();
        let arguments: String = reply.calls.iter().map(|call| call.1.as_str()).collect();
        let text = format!("{}{}{arguments}", reply.reasoning, reply.content);
        // A replaced byte is three bytes of text.
        if !text.contains('\u{FFFD}') {
            // Header text that goes out as a reply may begin within a token; the lines between messages are no token's.
            let between = 2 * text.matches("\n\n").count();
            prop_assert!(bytes + between >= text.len(), "{bytes} bytes of entries for {text:?}");
        }
    }

    #[test]
    fn text_without_any_control_token_is_delivered_whole(text in "[ -~é뷁\n]{1,200}") {
        let ids = O200K.encode_ordinary(&text);
        let reply = reply_in(options(&[], &[]), ids.chunks(1), Ending::Length);
        let is_header = text.trim().is_empty() || text.trim_start().starts_with("to=") || text.trim_start().starts_with("assistant");
        if !is_header {
            prop_assert_eq!(&reply.content, &text);
            prop_assert_eq!(reply.entries.len(), ids.len());
        }
    }

    #[test]
    fn a_well_formed_reply_survives_whatever_its_texts_say(
        reasoning in ".{0,60}", content in ".{0,60}", size in 1usize..9,
    ) {
        let mut ids = script("<|channel|>analysis<|message|>");
        ids.extend(O200K.encode_ordinary(&reasoning));
        ids.extend(script("<|end|><|start|>assistant<|channel|>final<|message|>"));
        ids.extend(O200K.encode_ordinary(&content));
        ids.push(200_002);
        let reply = reply_in(options(&[], &[]), ids.chunks(size), Ending::Stop);
        prop_assert_eq!((reply.reasoning, reply.content), (reasoning, content));
    }
}

#[test]
fn a_long_run_of_one_token_costs_little_and_is_delivered() {
    // Blanks look like the beginning of a header for as long as they may.
    for text in ["\n", " ", "to=", "assistant", "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"] {
        let ids: Vec<u32> = script(text).into_iter().cycle().take(20_000).collect();
        let started = std::time::Instant::now();
        let mut output = ChatOutput::new(options(&[], &[]));
        let mut deltas = Vec::new();
        for id in &ids {
            output.push(&[*id], &mut deltas);
        }
        output.finish(Ending::Length, &mut deltas);
        assert_eq!(output.consumed(), 20_000);
        assert!(text.starts_with("<|") || deltas.len() > 10_000, "{text:?} gave {} deltas", deltas.len());
        assert!(started.elapsed().as_secs() < 5, "{text:?} took {:?}", started.elapsed());
    }
}
