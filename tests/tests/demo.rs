//! The demo model: one command, and a person chats.

// The lint knows test functions, but not their helpers.
#![allow(clippy::unwrap_used)]

use gossamer_tests::{
    server::{TestServer, printed},
    text::{joined, whole},
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[tokio::test]
async fn the_demo_model_answers_and_reasons() {
    let start = Instant::now();
    let server = TestServer::start(&[]).await;
    let took = start.elapsed();
    // Asked for: under a second on an idle machine. Tests share theirs.
    assert!(took < Duration::from_secs(5), "the start took {took:?}");
    let client = server.client();
    let body = json!({"temperature": 0, "messages": [{"role": "user", "content": "What is the capital of France?"}]});
    let answer = client.post("/v1/chat/completions", &body).await;
    let found = whole(&answer, 0);
    assert!(found.content.contains("Paris"), "{answer}");
    assert!(!found.reasoning.is_empty(), "{answer}");
    assert_eq!(found.finish, "stop");
    assert_eq!(answer["model"], "demo");
    let events = client.stream("/v1/chat/completions", &body).await;
    assert_eq!(joined(&events, 0), found);
    let page = client.get("/").await.unwrap();
    assert!(page.kind.starts_with("text/html"), "{}", page.kind);
    assert!(page.body.as_str().unwrap().contains("/v1/chat/completions"));
}

#[tokio::test]
async fn chat_streams_and_log_probabilities_agree_at_any_interval() {
    let body = json!({"temperature": 0.7, "seed": 11, "logprobs": true, "top_logprobs": 3,
        "messages": [{"role": "user", "content": "Tell me a short story."}], "max_tokens": 120});
    let mut seen = Vec::new();
    for interval in ["1", "20"] {
        let server = TestServer::start(&["--stream-interval", interval]).await;
        let client = server.client();
        let answer: Value = client.post("/v1/chat/completions", &body).await;
        let found = whole(&answer, 0);
        assert_eq!(joined(&client.stream("/v1/chat/completions", &body).await, 0), found);
        assert_eq!(String::from_utf8_lossy(&found.entry_bytes), found.text());
        seen.push(found);
    }
    assert_eq!(seen[0], seen[1]);
}

#[tokio::test]
async fn backends_and_graph_are_printed() {
    let backends = printed(&["backends"]);
    let fallback = section(&backends, "fallback ");
    for operation in ["embed", "attention of layer 0", "moe-experts of layer 0", "sample"] {
        let line = fallback.iter().find(|line| line.trim_start().starts_with(operation));
        let line = line.unwrap_or_else(|| panic!("no line for {operation}: {backends}"));
        assert!(line.contains(" yes: "), "{line}");
    }
    let graph = printed(&["graph"]);
    let (before, after) = graph.split_once("after fusion, ").expect("both graphs are printed");
    for (part, name, words) in [
        (before, "kv-write", "group 1 from plane 0"),
        (before, "attention", "6 heads over 2, window 128, sinks"),
        (before, "moe-route", "4 of 8"),
        (before, "pass", "rope-kv-write"),
        (after, "rope-kv-write", "qkv[T,640]"),
        (after, "moe-experts", "expert-ids[T,4]u32"),
        (after, "sample", "logits[R,3072]"),
    ] {
        let found = part.lines().any(|line| line.trim_start().starts_with(name) && line.contains(words));
        assert!(found, "no {name} with {words:?}: {graph}");
    }
    assert!(!after.lines().any(|line| line.trim_start().starts_with("kv-write")), "it was fused: {graph}");
}

/// The lines from the first one that begins so to the next empty one.
fn section<'a>(text: &'a str, begin: &str) -> Vec<&'a str> {
    text.lines()
        .skip_while(|line| !line.starts_with(begin))
        .take_while(|line| !line.trim().is_empty())
        .collect()
}
