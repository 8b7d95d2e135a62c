//! Deaths without replacement: streams end with an error and `[DONE]`, `/health` says 503, the exit status is not zero.

use gossamer_tests::{
    client::refusal,
    processes::golden_server,
    server::{TestServer, eventually, kill},
    text::chat,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// All of it is over within this time of the death.
const SOON: Duration = Duration::from_secs(10);
/// Long enough that a busy machine freezes nobody for as long.
const STALL: Duration = Duration::from_secs(5);

/// Eight streams and two plain requests run; something happens; all end with an error and the server with a failure.
async fn all_end_with_an_error(
    mut server: TestServer,
    path: &str,
    body: Value,
    within: Duration,
    accident: impl Fn(&TestServer),
) {
    let client = server.client();
    let mut streams = Vec::new();
    for _ in 0..8 {
        let mut stream = client.open(path, &body).await;
        stream.next().await.expect("it is whole").expect("it has begun");
        streams.push(stream);
    }
    let plain: Vec<_> = (0..2)
        .map(|_| {
            let (client, path, body) = (client.clone(), path.to_owned(), body.clone());
            tokio::spawn(async move { client.try_post(&path, &body).await })
        })
        .collect();
    eventually("ten running requests", async || match client.metric("num_requests_running", "").await {
        10.0 => Ok(()),
        other => Err(other.to_string()),
    })
    .await;
    let start = Instant::now();
    accident(&server);
    for mut stream in streams {
        let end = stream.rest().await.expect("the stream is whole");
        assert!(end.done, "the error is followed by [DONE]");
        let last = &end.events.last().expect("an error comes").data;
        let error = &last["error"];
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{last}");
        assert_eq!(error["code"], "engine_failed", "{last}");
    }
    for task in plain {
        let answer = task.await.expect("no request panics").expect("an answer");
        let (status, error) = refusal(answer);
        assert!(status >= 500, "{status} {error}");
    }
    // The server lingers to say so.
    let health = client.get("/health").await.expect("it lingers");
    assert_eq!(refusal(health).0, 503);
    let (status, _) = client.refused(path, &body).await;
    assert_eq!(status, 503);
    let exit = server.wait_exit().await;
    let took = start.elapsed();
    assert!(exit.code().is_some_and(|code| code != 0), "{exit}");
    assert!(took < within, "it took {took:?}");
}

fn endless() -> Value {
    json!({"prompt": [1, 2, 3], "max_tokens": 100_000, "ignore_eos": true})
}

#[tokio::test]
async fn a_killed_worker_without_restarts_is_the_end() {
    let server = golden_server(&["--max-restarts", "0"]).await;
    all_end_with_an_error(server, "/v1/completions", endless(), SOON, |server| {
        kill(server.child("worker-0"), Signal::KILL);
    })
    .await;
}

#[tokio::test]
async fn a_killed_scheduler_without_restarts_is_the_end() {
    let server = golden_server(&["--max-restarts", "0"]).await;
    all_end_with_an_error(server, "/v1/completions", endless(), SOON, |server| {
        kill(server.child("scheduler"), Signal::KILL);
    })
    .await;
}

#[tokio::test]
async fn chats_end_with_an_error_too() {
    let server = TestServer::start(&["--served-model-name", "m", "--max-restarts", "0"]).await;
    let body = chat(json!({"max_tokens": 100_000, "ignore_eos": true}));
    let limit =
        server.client().get("/v1/models").await.expect("an answer").body["data"][0]["max_model_len"].clone();
    let room = limit.as_u64().expect("a number") - 200;
    let mut body = body;
    body["max_tokens"] = room.min(100_000).into();
    all_end_with_an_error(server, "/v1/chat/completions", body, SOON, |server| {
        kill(server.child("worker-0"), Signal::KILL);
    })
    .await;
}

#[tokio::test]
async fn a_frozen_worker_without_restarts_is_the_end_after_the_stall_timeout() {
    let server =
        golden_server(&["--max-restarts", "0", "--stall-timeout", &STALL.as_secs().to_string()]).await;
    all_end_with_an_error(server, "/v1/completions", endless(), STALL + SOON, |server| {
        kill(server.child("worker-0"), Signal::STOP);
    })
    .await;
}
