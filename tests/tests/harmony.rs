//! Scripted token ids through the whole server: rings, scheduler, parser, HTTP.

// The lint knows test functions, but not their helpers.
#![allow(clippy::unwrap_used)]

use gossamer_tests::{
    client::{Client, Event},
    server::TestServer,
    text::{Reply, SimScript, chat, joined, tokenizer, whole},
};
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

fn say(word: &str, extra: Value) -> Value {
    let mut body = chat(extra);
    body["messages"] = json!([{"role": "user", "content": word}]);
    body
}

/// Asks in both ways, checks that they agree, and gives the answer and the events.
async fn ask(client: &Client, body: &Value) -> (Value, Vec<Event>) {
    let answer = client.post(PATH, body).await;
    let mut streamed = body.clone();
    streamed["stream_options"] = json!({"include_usage": true});
    let mut events = client.stream(PATH, &streamed).await;
    let usage = events.pop().expect("the usage comes last").data;
    assert_eq!(usage["choices"], json!([]));
    // The second request finds the prompt in the cache.
    assert_eq!(usage["usage"]["completion_tokens"], answer["usage"]["completion_tokens"]);
    assert_eq!(usage["usage"]["completion_tokens_details"], answer["usage"]["completion_tokens_details"]);
    let (mut first, second) = (whole(&answer, 0), joined(&events, 0));
    // Ids of calls differ between requests.
    assert_eq!(first.call_ids.len(), second.call_ids.len());
    first.call_ids.clone_from(&second.call_ids);
    assert_eq!(first, second, "{body}");
    (answer, events)
}

#[tokio::test]
async fn replies_that_leave_the_grammar_reach_the_client() {
    let mut after_end = tokenizer().encode_with_special("<|channel|>analysis<|message|>a<|end|>");
    after_end.extend([12606, 200_002]);
    let script = SimScript::new(&[
        ("music", Reply::Text("hello world")),
        ("apple", Reply::Text("<|channel|>commentary?commentary<|message|>x<|return|>")),
        ("river", Reply::Text("<|channel|><|channel|>final<|message|>x<|return|>")),
        ("stone", Reply::Ids(&after_end)),
        ("cloud", Reply::Text("<|message|><|message|>x<|start|><|start|>assistant<|end|>")),
    ]);
    for interval in ["1", "20"] {
        let server = TestServer::sim(&["--sim-script", script.path(), "--stream-interval", interval]).await;
        let client = server.client();
        for (word, expected) in
            [("music", "hello world"), ("apple", "x"), ("river", "x"), ("stone", "a"), ("cloud", "x")]
        {
            let (answer, _) = ask(&client, &say(word, json!({"logprobs": true}))).await;
            let found = whole(&answer, 0);
            assert!(found.text().contains(expected), "{word}: {answer}");
            assert_eq!(found.finish, "stop", "{word}");
        }
    }
}

#[tokio::test]
async fn a_flush_over_a_channel_change_is_split() {
    let text =
        "<|channel|>analysis<|message|>AAA<|end|><|start|>assistant<|channel|>final<|message|>BBB<|return|>";
    let script = SimScript::new(&[("music", Reply::Text(text))]);
    for interval in ["1", "20"] {
        let server = TestServer::sim(&["--sim-script", script.path(), "--stream-interval", interval]).await;
        let (answer, events) = ask(&server.client(), &say("music", json!({}))).await;
        let found = whole(&answer, 0);
        assert_eq!((&*found.reasoning, &*found.content, &*found.finish), ("AAA", "BBB", "stop"));
        assert_eq!(answer["usage"]["completion_tokens"], tokenizer().encode_with_special(text).len());
        let order: Vec<_> = events
            .iter()
            .map(|event| &event.data["choices"][0]["delta"])
            .filter(|delta| delta.get("content").is_some() || delta.get("reasoning").is_some())
            .map(|delta| delta.get("content").is_some())
            .collect();
        assert!(order.is_sorted(), "reasoning comes before content: {order:?}");
    }
}

#[tokio::test]
async fn a_reply_ends_where_the_model_plays_the_user() {
    let text = "<|channel|>final<|message|>Seven.<|end|><|start|>user<|message|>And 5 plus 5?<|end|>\
                <|start|>assistant<|channel|>final<|message|>Ten.<|return|>";
    let script = SimScript::new(&[("music", Reply::Text(text))]);
    for interval in ["1", "20"] {
        let server = TestServer::sim(&["--sim-script", script.path(), "--stream-interval", interval]).await;
        let (answer, _) = ask(&server.client(), &say("music", json!({"logprobs": true}))).await;
        let found = whole(&answer, 0);
        assert_eq!((&*found.content, &*found.finish), ("Seven.", "stop"), "{answer}");
        let read = "<|channel|>final<|message|>Seven.<|end|><|start|>user<|message|>";
        assert_eq!(answer["usage"]["completion_tokens"], tokenizer().encode_with_special(read).len());
        let ignoring = say("music", json!({"ignore_eos": true, "max_completion_tokens": 40, "seed": 1}));
        let (answer, _) = ask(&server.client(), &ignoring).await;
        assert!(whole(&answer, 0).content.starts_with("Seven.\n\nAnd 5 plus 5?\n\nTen."), "{answer}");
        assert_eq!(answer["usage"]["completion_tokens"], 40);
    }
}

#[tokio::test]
async fn calls_are_found_however_they_are_spelled() {
    let script = SimScript::new(&[
        (
            "music",
            Reply::Text("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\":1}<|call|>"),
        ),
        (
            "apple",
            Reply::Text("<|channel|>commentary to=functions.f<|constrain|>json<|message|>{\"a\":1}<|call|>"),
        ),
        ("river", Reply::Text(" to=functions.f<|channel|>commentary json<|message|>{\"a\":1}<|call|>")),
        ("stone", Reply::Text("<|channel|>analysis to=functions.f code<|message|>{\"a\":1}<|call|>")),
    ]);
    let server = TestServer::sim(&["--sim-script", script.path()]).await;
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    for word in ["music", "apple", "river", "stone"] {
        let (answer, _) = ask(&server.client(), &say(word, json!({"tools": tools}))).await;
        let found = whole(&answer, 0);
        assert_eq!(found.calls, [("f".to_owned(), "{\"a\":1}".to_owned())], "{word}");
        assert_eq!(found.finish, "tool_calls", "{word}");
        assert_eq!(answer["choices"][0]["message"]["content"], Value::Null, "{word}");
        // A budget that ends inside the arguments.
        let tokens = answer["usage"]["completion_tokens"].as_u64().expect("a count") - 2;
        let (cut, _) = ask(&server.client(), &say(word, json!({"tools": tools, "max_tokens": tokens}))).await;
        assert_eq!(whole(&cut, 0).finish, "length", "{word}");
    }
}

#[tokio::test]
async fn characters_split_over_tokens_come_whole() {
    let then = tokenizer().encode_ordinary(" then");
    let broken: Vec<u32> = [32, 96].into_iter().chain(then).chain([200_002]).collect();
    let script = SimScript::new(&[
        ("music", Reply::Ids(&[172, 241, 222, 222, 200_002])),
        ("apple", Reply::Ids(&broken)),
        ("river", Reply::Ids(&[172, 241, 200_002])),
    ]);
    let server = TestServer::sim(&["--sim-script", script.path()]).await;
    let client = server.client();
    for (word, expected, chunks) in [
        ("music", "𓀀", &["𓀀"][..]),
        ("apple", "A\u{FFFD} then", &["A", "\u{FFFD}", " then"]),
        ("river", "\u{FFFD}", &["\u{FFFD}"]),
    ] {
        let answer = client.post("/v1/completions", &json!({"prompt": word, "max_tokens": 20})).await;
        assert_eq!(answer["choices"][0]["text"], expected, "{word}");
        let events = client.stream("/v1/completions", &json!({"prompt": word, "max_tokens": 20})).await;
        let texts: Vec<_> = events
            .iter()
            .map(|event| event.data["choices"][0]["text"].as_str().expect("a text").to_owned())
            .filter(|text| !text.is_empty())
            .collect();
        assert_eq!(texts, chunks, "{word}");
        let (answer, _) = ask(&client, &say(word, json!({}))).await;
        assert_eq!(whole(&answer, 0).content, expected, "{word}");
    }
}

#[tokio::test]
async fn end_tokens_can_be_ignored_in_chat() {
    let reply =
        "<|channel|>final<|message|>one<|return|><|start|>assistant<|channel|>final<|message|>two<|return|>";
    let script = SimScript::new(&[("music", Reply::Text(reply))]);
    let server = TestServer::sim(&["--sim-script", script.path()]).await;
    let (answer, _) = ask(&server.client(), &say("music", json!({}))).await;
    assert_eq!(whole(&answer, 0).content, "one");
    let ignoring = say("music", json!({"ignore_eos": true, "max_completion_tokens": 256, "seed": 1}));
    let (answer, _) = ask(&server.client(), &ignoring).await;
    assert_eq!(answer["usage"]["completion_tokens"], 256);
    assert_eq!(whole(&answer, 0).finish, "length");
    assert!(whole(&answer, 0).content.starts_with("one\n\ntwo"), "{answer}");
}
