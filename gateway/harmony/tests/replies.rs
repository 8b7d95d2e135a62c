//! Generated tokens, scripted, and what the client gets of them.

// The lint knows test functions, not their helpers.
#![allow(clippy::unwrap_used)]

mod common;

use common::{O200K, Reply, options, reply, reply_in, reply_with, script};
use gossamer_harmony::{ChatDelta, ChatOutput, ChatOutputOptions, Ending, FinishReason};
use gossamer_tokenizer::StopStrings;

fn texts(reply: &Reply) -> (&str, &str) {
    (&reply.reasoning, &reply.content)
}

#[test]
fn a_well_formed_reply_is_split_into_reasoning_and_content() {
    let reply = reply(
        "<|channel|>analysis<|message|>AAA<|end|><|start|>assistant<|channel|>final<|message|>BBB<|return|>",
    );
    assert_eq!(texts(&reply), ("AAA", "BBB"));
    assert_eq!(reply.finish, Some(FinishReason::Stop));
    assert_eq!((reply.consumed, reply.reasoning_tokens), (12, 1));
    assert_eq!(reply.entries, [3, 10]);
}

#[test]
fn a_flush_over_a_channel_change_is_two_deltas() {
    let mut output = ChatOutput::new(options(&[], &[]));
    let mut deltas = Vec::new();
    output.push(
        &script("<|channel|>analysis<|message|>A b c<|end|><|start|>assistant<|channel|>final<|message|>D e"),
        &mut deltas,
    );
    assert!(
        matches!(&deltas[..], [ChatDelta::Reasoning { text: a, .. }, ChatDelta::Content { text: b, .. }]
            if a == "A b c" && b == "D e"),
        "{deltas:?}"
    );
}

#[test]
fn text_that_left_the_grammar_reaches_the_client() {
    for (generated, reasoning, content) in [
        ("hello world", "", "hello world"),
        ("<|channel|>commentary?commentary<|message|>x<|return|>", "", "x"),
        ("<|channel|><|channel|>final<|message|>x<|return|>", "", "x"),
        ("<|channel|>analysis<|channel|>final<|message|>x<|return|>", "", "x"),
        ("<|channel|>analysis<|message|>a<|end|>comment", "a", "comment"),
        ("<|channel|>analysis<|message|>a<|end|>assistant<|channel|>final<|message|>x", "a", "x"),
        ("<|channel|>analysis<|message|>a<|channel|>final<|message|>x", "a", "x"),
        ("<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>x", "a", "x"),
        ("<|message|>x", "", "x"),
        ("assistant<|message|>x", "", "x"),
        ("<|start|>assistant<|channel|>final<|message|>x", "", "x"),
        ("<|start|>user<|message|>x", "", "x"),
        ("<|start|>hello world", "", "hello world"),
        ("<|start|>hello world<|end|>", "", "hello world"),
        ("<|channel|>hello world<|return|>", "", "hello world"),
        ("<|channel|>hello<|channel|>final<|message|> x", "", "hello\n\n x"),
        ("<|channel|>final hello<|end|>", "", "hello"),
        (
            "<|channel|>analysis some words that are no header at all",
            "some words that are no header at all",
            "",
        ),
        ("<|channel|>final<|message|>x<|message|>y<|constrain|>z<|reserved_200013|>!", "", "xyz!"),
        ("a", "", "a"),
        ("to be or not", "", "to be or not"),
        ("<|end|><|end|><|return|><|call|>x", "", "x"),
    ] {
        assert_eq!(texts(&reply(generated)), (reasoning, content), "{generated}");
    }
}

#[test]
fn messages_of_one_kind_are_separated() {
    const FINAL: &str = "<|channel|>final<|message|>";
    for (generated, reasoning, content) in [
        (format!("{FINAL}a<|end|><|start|>assistant{FINAL}b<|return|>"), "", "a\n\nb"),
        (format!("{FINAL}a<|end|>{FINAL}b c<|end|>d"), "", "a\n\nb c\n\nd"),
        (format!("{FINAL}<|end|>{FINAL}b<|return|>"), "", "b"),
        (
            "<|channel|>commentary<|message|>Plan.<|end|><|start|>assistant<|channel|>final<|message|>b"
                .into(),
            "",
            "Plan.\n\nb",
        ),
        (
            format!(
                "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>{FINAL}c"
            ),
            "a\n\nb",
            "c",
        ),
        (
            format!("{FINAL}a<|end|><|channel|>analysis<|message|>b<|end|><|start|>assistant{FINAL}c"),
            "b",
            "a\n\nc",
        ),
    ] {
        assert_eq!(texts(&reply(&generated)), (reasoning, content), "{generated}");
    }
}

#[test]
fn the_turn_of_anybody_else_ends_an_answer() {
    let answer = "<|channel|>final<|message|>x<|end|>";
    let call = "<|channel|>commentary to=functions.f<|message|>{}<|end|>";
    for turn in [
        "<|start|>user<|message|>and now?<|end|><|start|>assistant<|channel|>final<|message|>y<|return|>",
        "<|start|>user and now?<|end|>",
        "<|start|>system<|message|>y",
        "<|start|>developer<|message|>y",
        "<|start|>functions.f to=assistant<|channel|>commentary<|message|>18 degrees<|end|>",
        "<|start|>browser.open to=assistant<|channel|>commentary<|message|>a page<|end|>",
    ] {
        for ending in [Ending::Stop, Ending::Length] {
            let answered = reply_with(&format!("{answer}{turn}"), &[], ending);
            assert_eq!((texts(&answered), answered.finish), (("", "x"), Some(FinishReason::Stop)), "{turn}");
            let called = reply_with(&format!("{call}{turn}"), &[], ending);
            assert_eq!(called.calls, [("f".to_owned(), "{}".to_owned())], "{turn}");
            assert_eq!((texts(&called), called.finish), (("", ""), Some(FinishReason::ToolCalls)), "{turn}");
        }
    }
    // What was read until then is counted, and nothing else.
    let user = "<|start|>user<|message|>";
    let counted = reply(&format!("{answer}{user}and now?<|end|>"));
    assert_eq!(counted.consumed as usize, script(&format!("{answer}{user}")).len());
    // A budget that ends inside the header ends the reply.
    assert_eq!(
        reply_with(&format!("{answer}<|start|>user"), &[], Ending::Length).finish,
        Some(FinishReason::Length)
    );
    // Without an answer the text is all there is; where no end is wanted it goes on.
    let thought = "<|channel|>analysis<|message|>a<|end|><|start|>user<|message|>x<|end|>";
    assert_eq!(texts(&reply(thought)), ("a", "x"));
    let ids = script(&format!("{answer}{user}y"));
    for (turns_end_after, content) in [(None, "x\n\ny"), (Some(ids.len() as u32), "x\n\ny"), (Some(0), "x")] {
        let options = ChatOutputOptions { turns_end_after, ..options(&[], &[]) };
        assert_eq!(reply_in(options, ids.chunks(1), Ending::Length).content, content, "{turns_end_after:?}");
    }
}

#[test]
fn headers_that_were_cut_off_are_not_shown() {
    for generated in [
        "",
        "<|channel|>",
        "<|channel|>comment",
        "<|channel|>final",
        "<|start|>",
        "<|start|>assis",
        "assistant",
        "<|start|>assistant",
        "<|start|>assistant<|channel|>analysis",
        "<|channel|>commentary to=functions.f json",
        " to=functions.f",
        "\n",
        "<|constrain|>",
    ] {
        let reply = reply_with(generated, &[], Ending::Length);
        assert_eq!(texts(&reply), ("", ""), "{generated}");
        assert!(reply.calls.is_empty() && reply.entries.is_empty(), "{generated}: {reply:?}");
        assert_eq!(reply.finish, Some(FinishReason::Length));
    }
}

#[test]
fn every_spelling_of_a_call_is_the_same_call() {
    for header in [
        "<|channel|>commentary to=functions.f <|constrain|>json",
        "<|channel|>commentary to=functions.f<|constrain|>json",
        "<|channel|>commentaryto=functions.f<|constrain|>json",
        "<|channel|>commentary to=functions.f json",
        "<|channel|>commentary to=functions.f",
        " to=functions.f<|channel|>commentary json",
        " to=functions.f<|channel|>commentary <|constrain|>json",
        " to=functions.f<|channel|>commentary",
        "<|channel|>analysis to=functions.f code",
        "<|channel|>analysis to=functions.f <|constrain|>json",
        "<|start|>assistant to=functions.f<|channel|>commentary json",
        "<|channel|><|channel|>commentary to=functions.f",
        " to=functions.f json",
    ] {
        let reply = reply(&format!("{header}<|message|>{{\"a\":1}}<|call|>"));
        assert_eq!(reply.calls, [("f".to_owned(), "{\"a\":1}".to_owned())], "{header}");
        assert_eq!(texts(&reply), ("", ""), "{header}");
        assert_eq!(reply.finish, Some(FinishReason::ToolCalls), "{header}");
    }
}

#[test]
fn a_recipient_without_namespace_is_a_call_only_of_a_tool_that_was_offered() {
    let ids = script("<|channel|>commentary to=f <|constrain|>json<|message|>{}<|call|>");
    let offered = reply_in(options(&[], &["f"]), [&ids[..]], Ending::Stop);
    assert_eq!(offered.calls, [("f".to_owned(), "{}".to_owned())]);
    let unknown = reply_in(options(&[], &["g"]), [&ids[..]], Ending::Stop);
    assert_eq!((texts(&unknown), unknown.finish), (("{}", ""), Some(FinishReason::Stop)));
}

#[test]
fn a_preamble_and_calls_keep_their_order_and_numbers() {
    let reply = reply(
        "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>commentary<|message|>Plan.<|end|>\
         <|start|>assistant<|channel|>commentary to=functions.a <|constrain|>json<|message|>{}<|call|>\
         <|start|>assistant<|channel|>commentary to=functions.b <|constrain|>json<|message|>[]<|call|>",
    );
    assert_eq!(texts(&reply), ("think", "Plan."));
    let calls = [("a".to_owned(), "{}".to_owned()), ("b".to_owned(), "[]".to_owned())];
    assert_eq!((&reply.calls[..], reply.finish), (&calls[..], Some(FinishReason::ToolCalls)));
}

#[test]
fn cut_arguments_end_by_length() {
    let reply = reply_with(
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\":",
        &[],
        Ending::Length,
    );
    assert_eq!(reply.calls, [("f".to_owned(), "{\"a\":".to_owned())]);
    assert_eq!(reply.finish, Some(FinishReason::Length));
}

#[test]
fn stop_tokens_give_no_text_but_are_counted() {
    let final_message = script("<|channel|>final<|message|>one");
    let mut ids = final_message.clone();
    ids.push(200_002);
    for (tokens, last) in
        [(&ids[..], None), (&final_message[..], Some(200_002)), (&final_message[..], script(" two").pop())]
    {
        let mut output = ChatOutput::new(options(&[], &[]));
        let mut deltas = Vec::new();
        output.push(tokens, &mut deltas);
        if let Some(last) = last {
            output.push_stop_token(last, &mut deltas);
        }
        assert_eq!(output.finish(Ending::Stop, &mut deltas), FinishReason::Stop);
        assert!(matches!(&deltas[..], [ChatDelta::Content { text, .. }] if text == "one"), "{deltas:?}");
        assert_eq!(output.consumed(), 5);
    }
}

#[test]
fn ignored_stop_tokens_do_not_end_the_text() {
    let reply = reply_with("<|channel|>final<|message|>one<|return|> two<|call|> three", &[], Ending::Length);
    assert_eq!((reply.content.as_str(), reply.finish), ("one\n\n two\n\n three", Some(FinishReason::Length)));
    assert_eq!(
        reply.consumed as usize,
        script("<|channel|>final<|message|>one<|return|> two<|call|> three").len()
    );
}

#[test]
fn stop_strings_cut_reasoning_and_content_but_no_headers_and_no_arguments() {
    let think = "<|channel|>analysis<|message|>one two three<|end|><|start|>assistant<|channel|>final<|message|>four five six<|return|>";
    let cut = reply_with(think, &["wo th"], Ending::Stop);
    assert_eq!((texts(&cut), cut.finish), (("one t", ""), Some(FinishReason::Stop)));
    let cut = reply_with(think, &["e si"], Ending::Stop);
    assert_eq!(texts(&cut), ("one two three", "four fiv"));
    let whole = reply_with(think, &["final", "assistant", "threefour", "six!"], Ending::Stop);
    assert_eq!(texts(&whole), ("one two three", "four five six"));
    let call = "<|channel|>commentary to=functions.f<|message|>{\"a\":1}<|call|>";
    assert_eq!(reply_with(call, &["\"a\"", "functions"], Ending::Stop).calls[0].1, "{\"a\":1}");
    // A budget that ends on the token which completes a stop string is still a stop.
    assert_eq!(reply_with("x stop", &["stop"], Ending::Length).finish, Some(FinishReason::Stop));
}

#[test]
fn split_characters_do_not_reach_over_a_channel_change() {
    let mut ids = script("<|channel|>analysis<|message|>");
    ids.extend([172, 241]);
    ids.extend(script("<|end|><|start|>assistant<|channel|>final<|message|>"));
    ids.extend([222, 222, 172, 241, 222, 222]);
    let reply = reply_in(options(&[], &[]), ids.chunks(1), Ending::Length);
    assert_eq!(texts(&reply), ("\u{FFFD}", "\u{FFFD}\u{FFFD}𓀀"));
}

#[test]
fn entries_follow_the_text_that_their_tokens_made() {
    let mut output = ChatOutput::new(options(&["zzz"], &[]));
    let mut steps = Vec::new();
    let mut ids = script("<|channel|>final<|message|>one");
    ids.extend([172, 241, 222, 222]);
    ids.extend(script(" zz two"));
    for id in &ids {
        let mut deltas = Vec::new();
        output.push(&[*id], &mut deltas);
        steps.extend(deltas);
    }
    let spans: Vec<(&str, u32, u32)> = steps
        .iter()
        .map(|delta| match delta {
            ChatDelta::Content { text, tokens } => (text.as_str(), tokens.start, tokens.end),
            other => panic!("unexpected {other:?}"),
        })
        .collect();
    assert_eq!(spans[..2], [("one", 3, 4), ("𓀀", 4, 8)]);
    let joined: String = spans[2..].iter().map(|(text, ..)| *text).collect();
    assert_eq!(joined, " zz two");
    let bytes: Vec<u8> = spans
        .iter()
        .flat_map(|&(_, start, end)| start..end)
        .flat_map(|at| O200K.text_bytes(ids[at as usize]))
        .copied()
        .collect();
    assert_eq!(bytes, "one𓀀 zz two".as_bytes());
}

#[test]
fn stop_strings_wait_for_their_token_in_every_body() {
    let text = "<|channel|>analysis<|message|>one two<|end|><|start|>assistant<|channel|>final<|message|>one two<|return|>";
    let ids = script(text);
    let header = script("<|channel|>analysis<|message|>").len() as u32;
    // The token that completes the word counts from its own position on: it is `min_tokens` tokens after the first.
    for (min_tokens, reasoning, content) in
        [(0, "", ""), (header, "", ""), (header + 1, "one two", ""), (ids.len() as u32, "one two", "one two")]
    {
        for size in [1, 2, ids.len()] {
            let mut options = options(&[], &[]);
            options.stops = StopStrings::new(["one"]).after(min_tokens);
            let reply = reply_in(options, ids.chunks(size), Ending::Stop);
            assert_eq!(texts(&reply), (reasoning, content), "{min_tokens} tokens, groups of {size}");
        }
    }
    // Text without a header is read as a body later than its tokens were drawn: their own positions count.
    for (min_tokens, content) in [(0, ""), (1, "to be or not")] {
        let mut options = options(&[], &[]);
        options.stops = StopStrings::new(["to"]).after(min_tokens);
        let mut output = ChatOutput::new(options);
        let mut deltas = Vec::new();
        output.push(&script("to be or not"), &mut deltas);
        output.finish(Ending::Stop, &mut deltas);
        let text: String = deltas
            .iter()
            .map(|delta| match delta {
                ChatDelta::Content { text, .. } => text.as_str(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!((text.as_str(), output.stop_string()), (content, (min_tokens == 0).then_some("to")));
    }
}
