//! A worker that dies or freezes: its successor goes on from the token log, and no client can tell but by a pause.

use gossamer_tests::{
    load::{Load, assert_same, mixed, undisturbed},
    processes::{golden_server, idle, kill_and_await_successor, metric, successor, taken_in},
    server::{TestServer, eventually, kill},
    text::{chat, joined},
};
use rustix::process::Signal;
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn three_kills_under_load_change_no_token_at_any_stream_interval() {
    let jobs = mixed(500);
    let mut expected = None;
    for interval in ["1", "20"] {
        let server = golden_server(&["--stream-interval", interval, "--max-num-batched-tokens", "256"]).await;
        // The interval changes no token either: one undisturbed run is the reference of both.
        let reference = match expected.take() {
            Some(reference) => reference,
            None => undisturbed(server.port(), &jobs).await,
        };
        let load = Load::start(server.port(), &jobs);
        for _ in 0..3 {
            load.advance(400).await;
            kill_and_await_successor(&server, "worker-0").await;
        }
        assert_same(&reference, &load.outcomes().await, &format!("stream interval {interval}"));
        idle(&server).await;
        metric(&server, "worker_restarts_total", |count| count == 3.0).await;
        // The server that had these accidents is as good as new.
        assert_same(&reference, &undisturbed(server.port(), &jobs).await, "after the kills");
        expected = Some(reference);
    }
}

#[tokio::test]
async fn a_kill_while_long_prompts_are_prefilled_changes_nothing() {
    // Small steps: the prompts take many.
    let server = golden_server(&[
        "--max-num-seqs",
        "16",
        "--max-num-batched-tokens",
        "64",
        "--no-enable-prefix-caching",
    ])
    .await;
    let client = server.client();
    let body = |number: u32| {
        let prompt: Vec<u32> = (0..1500).map(|at| (at * number + at * at % 17) % 500).collect();
        json!({"prompt": prompt, "max_tokens": 30, "temperature": 0, "return_token_ids": true, "ignore_eos": true})
    };
    let mut expected = Vec::new();
    for number in 1..4 {
        expected.push(client.post("/v1/completions", &body(number)).await["choices"].clone());
    }
    let tasks: Vec<_> = (1..4)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(
                async move { client.post("/v1/completions", &body(number)).await["choices"].clone() },
            )
        })
        .collect();
    taken_in(&server, 3.0).await;
    kill_and_await_successor(&server, "worker-0").await;
    for (task, expected) in tasks.into_iter().zip(expected) {
        assert_eq!(task.await.expect("no request panics"), expected);
    }
    metric(&server, "worker_restarts_total", |count| count == 1.0).await;
}

#[tokio::test]
async fn a_killed_worker_changes_no_word_of_a_chat() {
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
    kill_and_await_successor(&server, "worker-0").await;
    for ((mut stream, mut events), expected) in streams.into_iter().zip(expected) {
        let rest = stream.rest().await.expect("it is whole");
        assert!(rest.done);
        events.extend(rest.events);
        assert_eq!(joined(&events, 0), expected);
    }
}

#[tokio::test]
async fn a_frozen_worker_is_replaced_after_the_stall_timeout() {
    let server = golden_server(&["--stall-timeout", "8"]).await;
    let jobs = mixed(400);
    let expected = undisturbed(server.port(), &jobs).await;
    let load = Load::start(server.port(), &jobs);
    load.advance(400).await;
    let frozen = server.child("worker-0");
    kill(frozen, Signal::STOP);
    successor(&server, "worker-0", frozen).await;
    assert_same(&expected, &load.outcomes().await, "frozen");
    assert!(server.log().iter().any(|line| line.contains("--stall-timeout")), "{:?}", server.log());
    eventually("readiness", async || match server.client().get("/ready").await?.status {
        200 => Ok(()),
        other => Err(other.to_string()),
    })
    .await;
}
