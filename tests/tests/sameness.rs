//! What a client gets does not depend on the stream interval, nor on how many API servers there are.

use gossamer_tests::{
    server::TestServer,
    text::{Choice, Reply, SimScript, chat, joined, tokenizer, whole},
};
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

/// Everything of an answer that a client can compare: ids of calls differ from request to request.
fn comparable(mut choice: Choice, usage: &Value) -> (Choice, Value) {
    choice.call_ids.iter_mut().for_each(String::clear);
    // How much of a prompt was found in the cache depends on who asked before.
    let mut usage = usage.clone();
    usage.as_object_mut().expect("usage is an object").remove("prompt_tokens_details");
    (choice, usage)
}

#[tokio::test]
async fn text_reasoning_calls_log_probabilities_and_usage_are_the_same_for_all_intervals_and_servers() {
    let arguments = |count: usize| {
        let items: Vec<String> =
            (0..count).map(|number| format!("{{\"city\":\"Zürich {number} 🦙\"}}")).collect();
        format!("{{\"places\":[{}]}}", items.join(","))
    };
    let first = arguments(9);
    let second = arguments(4);
    let calls = format!(
        "<|channel|>analysis<|message|>I need the weather of many places, 𓀀 and 한국어 too.<|end|>\
         <|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>\
         <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{first}<|call|>\
         <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{second}<|call|>"
    );
    let answer = "<|channel|>analysis<|message|>They say hi; so do I.<|end|>\
         <|start|>assistant<|channel|>final<|message|>Grüezi! 🦙 This is a longer answer, over many chunks.<|return|>";
    let script = SimScript::new(&[("music", Reply::Text(&calls)), ("apple", Reply::Text(answer))]);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let ask = |word: &str, extra: Value| {
        let mut body = chat(extra);
        body["messages"][0]["content"] = json!(word);
        body["tools"] = tools.clone();
        body["logprobs"] = json!(true);
        body["top_logprobs"] = json!(2);
        body["seed"] = json!(5);
        body
    };
    let bodies = [
        // Both calls; a call that the budget cuts; an answer; one that a stop string cuts; seeded tokens, of two choices.
        ask(
            "music",
            json!({"ignore_eos": true, "max_tokens": tokenizer().encode_with_special(&calls).len()}),
        ),
        ask("music", json!({"max_tokens": 60})),
        ask("apple", json!({})),
        ask("apple", json!({"stop": ["longer an"]})),
        ask("river", json!({"max_tokens": 90, "n": 2})),
    ];
    let mut expected: Option<Vec<(Choice, Value)>> = None;
    let mut chunks = Vec::new();
    for interval in ["1", "2", "7", "20"] {
        for servers in ["1", "3"] {
            let flags = ["--stream-interval", interval, "--api-server-count", servers];
            let server = TestServer::sim(&[&flags[..], &["--sim-script", script.path()]].concat()).await;
            let (mut seen, mut count) = (Vec::new(), 0);
            for body in &bodies {
                let n = body["n"].as_u64().unwrap_or(1) as usize;
                // A connection each, so that each API server is asked.
                let whole_answer = server.client().post(PATH, body).await;
                let mut streamed = body.clone();
                streamed["stream_options"] = json!({"include_usage": true});
                let mut events = server.client().stream(PATH, &streamed).await;
                let usage = events.pop().expect("the usage comes last").data["usage"].clone();
                count += events.len();
                for index in 0..n {
                    let streamed = comparable(joined(&events, index), &usage);
                    let in_one = comparable(whole(&whole_answer, index), &whole_answer["usage"]);
                    assert_eq!(streamed, in_one, "interval {interval}, {servers} servers, {body}");
                    seen.push(streamed);
                }
            }
            chunks.push(count);
            match &expected {
                Some(expected) => {
                    for (expected, seen) in expected.iter().zip(&seen) {
                        assert_eq!(expected, seen, "interval {interval}, {servers} servers");
                    }
                }
                None => expected = Some(seen),
            }
        }
    }
    let expected = expected.expect("there were servers");
    // The comparison was of what it says: calls with arguments, cut ones too, reasoning, log-probabilities.
    let [both, cut, answer, stopped, ..] = &expected[..] else { panic!("{expected:?}") };
    assert_eq!(both.0.calls, [("f".to_owned(), first.clone()), ("f".to_owned(), second)]);
    assert_eq!((&*both.0.content, both.0.finish.as_str()), ("Let me look.", "length"));
    assert!(!cut.0.calls[0].1.is_empty() && first.starts_with(&cut.0.calls[0].1), "{cut:?}");
    assert_eq!(answer.0.content, "Grüezi! 🦙 This is a longer answer, over many chunks.");
    assert_eq!(stopped.0.content, "Grüezi! 🦙 This is a ");
    for (choice, usage) in &expected {
        assert!(choice.entries > 10 && usage["completion_tokens"].as_u64() > Some(10), "{choice:?} {usage}");
    }
    assert!(chunks[0] > 5 * chunks[7], "a longer interval gives fewer chunks: {chunks:?}");
}
