//! Accidents that any process may have, and what must be the same after them whoever had them.

use crate::{
    load::{Load, assert_same, mixed, undisturbed},
    processes::{golden_server, idle, kill_and_await_successor, successor},
    server::{TestServer, kill},
    text::{chat, joined},
};
use rustix::process::Signal;
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";

/// Kills the process with a role three times under load, at two stream intervals. Gives each server away for more.
pub async fn three_kills_under_load(role: &str, flags: &[&str], mut then: impl AsyncFnMut(&TestServer)) {
    let jobs = mixed(500);
    let mut expected = None;
    for interval in ["1", "20"] {
        let common = ["--stream-interval", interval, "--max-num-batched-tokens", "256"];
        let server = golden_server(&[&common, flags].concat()).await;
        // The interval changes no token either: one undisturbed run is the reference of both.
        let reference = match expected.take() {
            Some(reference) => reference,
            None => undisturbed(server.port(), &jobs).await,
        };
        let load = Load::start(server.port(), &jobs);
        for _ in 0..3 {
            load.advance(400).await;
            kill_and_await_successor(&server, role).await;
        }
        assert_same(&reference, &load.outcomes().await, &format!("{role}, stream interval {interval}"));
        idle(&server).await;
        then(&server).await;
        // The server that had these accidents is as good as new.
        assert_same(&reference, &undisturbed(server.port(), &jobs).await, "after the kills");
        expected = Some(reference);
    }
}

/// Freezes the process with a role under load: it is replaced after the stall timeout, and no token changes.
pub async fn a_freeze_under_load(role: &str) -> TestServer {
    let server = golden_server(&["--stall-timeout", "8"]).await;
    let jobs = mixed(400);
    let expected = undisturbed(server.port(), &jobs).await;
    let load = Load::start(server.port(), &jobs);
    load.advance(400).await;
    let frozen = server.child(role);
    kill(frozen, Signal::STOP);
    successor(&server, role, frozen).await;
    assert_same(&expected, &load.outcomes().await, "frozen");
    assert!(server.log().iter().any(|line| line.contains("--stall-timeout")), "{:?}", server.log());
    idle(&server).await;
    server
}

/// Kills the process with a role while four chats of the demo model stream: no word changes.
pub async fn a_kill_during_chats(role: &str) {
    let server = TestServer::start(&["--served-model-name", "m"]).await;
    let client = server.client();
    let body = |seed: u32| {
        let question = "Tell me about the sea.";
        chat(json!({
            "messages": [{"role": "user", "content": question}], "temperature": 1, "seed": seed,
            "max_tokens": 300, "ignore_eos": true, "logprobs": true
        }))
    };
    let mut expected = Vec::new();
    for seed in 0..4 {
        expected.push(joined(&client.stream(CHAT, &body(seed)).await, 0));
    }
    let mut streams = Vec::new();
    for seed in 0..4 {
        let mut stream = client.open(CHAT, &body(seed)).await;
        let begun = stream.next().await.expect("it is whole").expect("it has begun");
        streams.push((stream, begun));
    }
    kill_and_await_successor(&server, role).await;
    for ((mut stream, mut events), expected) in streams.into_iter().zip(expected) {
        let rest = stream.rest().await.expect("it is whole");
        assert!(rest.done);
        events.extend(rest.events);
        assert_eq!(joined(&events, 0), expected, "{role}");
    }
}
