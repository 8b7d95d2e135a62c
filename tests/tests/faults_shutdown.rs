//! An orderly end: readiness turns false, what runs may finish, new requests are refused, the exit status is 0.

use gossamer_tests::{
    client::{Client, refusal},
    load::{Load, assert_same, mixed, undisturbed},
    processes::{all_gone, golden_server, kill_and_await_successor},
    server::{PATIENCE, TestServer, eventually},
};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const COMPLETIONS: &str = "/v1/completions";

fn endless() -> Value {
    json!({"prompt": [1, 2, 3], "max_tokens": 100_000, "ignore_eos": true})
}

/// Waits until `/ready` says 503.
async fn unready(client: &Client) {
    eventually("unreadiness", async || match client.get("/ready").await {
        Ok(answer) if answer.status == 503 => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

/// A server with an endless stream, told to end.
async fn draining(timeout: &str, signal: Signal) -> (TestServer, gossamer_tests::client::OpenStream) {
    let server = golden_server(&["--shutdown-timeout", timeout]).await;
    let mut stream = server.client().open(COMPLETIONS, &endless()).await;
    stream.next().await.expect("it is whole").expect("it has begun");
    server.signal(signal);
    unready(&server.client()).await;
    (server, stream)
}

#[tokio::test]
async fn sigterm_lets_a_whole_load_finish_and_refuses_new_requests() {
    let mut server = golden_server(&["--shutdown-timeout", "60", "--api-server-count", "2"]).await;
    let jobs = mixed(800);
    let expected = undisturbed(server.port(), &jobs).await;
    let load = Load::start(server.port(), &jobs);
    load.advance(400).await;
    server.signal(Signal::TERM);
    // Both API servers say so; new connections reach either.
    for _ in 0..4 {
        unready(&Client::new(server.port())).await;
    }
    assert!(load.ended() < jobs.len(), "readiness turns false before the last request ends");
    let refused = Client::new(server.port()).refused(COMPLETIONS, &endless()).await;
    assert_eq!(refused.0, 503, "{}", refused.1);
    let children = server.children();
    assert_same(&expected, &load.outcomes().await, "drained");
    let exit = server.wait_exit().await;
    assert!(exit.success(), "{exit}: {:?}", server.log());
    all_gone(&children).await;
}

#[tokio::test]
async fn a_worker_that_dies_while_the_server_drains_is_still_replaced() {
    let mut server = golden_server(&["--shutdown-timeout", "60"]).await;
    let jobs = mixed(800);
    let expected = undisturbed(server.port(), &jobs).await;
    let load = Load::start(server.port(), &jobs);
    load.advance(400).await;
    server.signal(Signal::TERM);
    unready(&server.client()).await;
    kill_and_await_successor(&server, "worker-0").await;
    assert_same(&expected, &load.outcomes().await, "drained in spite of a death");
    assert!(server.wait_exit().await.success(), "{:?}", server.log());
}

#[tokio::test]
async fn what_does_not_finish_in_time_ends_with_an_error_and_the_status_is_still_0() {
    let start = Instant::now();
    let (mut server, mut stream) = draining("1", Signal::TERM).await;
    let end = stream.rest().await.expect("the stream is whole");
    assert!(end.done, "the error is followed by [DONE]");
    let last = &end.events.last().expect("an error comes").data;
    assert_eq!(last["error"]["code"], "shutting_down", "{last}");
    let exit = server.wait_exit().await;
    assert!(exit.success(), "cutting off what is late is part of an orderly end: {exit}");
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_plain_request_that_does_not_finish_in_time_is_a_503() {
    let mut server = golden_server(&["--shutdown-timeout", "1"]).await;
    let client = server.client();
    let task = tokio::spawn({
        let client = client.clone();
        async move { client.try_post(COMPLETIONS, &endless()).await }
    });
    eventually("a running request", async || match client.metric("num_requests_running", "").await {
        1.0 => Ok(()),
        other => Err(other.to_string()),
    })
    .await;
    server.signal(Signal::TERM);
    let (status, error) = refusal(task.await.expect("no panic").expect("an answer"));
    assert_eq!((status, error["code"].as_str()), (503, Some("shutting_down")), "{error}");
    assert!(server.wait_exit().await.success());
}

#[tokio::test]
async fn a_second_signal_ends_the_server_at_once_with_a_failure() {
    for signal in [Signal::INT, Signal::TERM] {
        let (mut server, stream) = draining("600", signal).await;
        let children = server.children();
        let start = Instant::now();
        server.signal(signal);
        let exit = server.wait_exit().await;
        assert!(!exit.success(), "requests were cut off: {exit}");
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
        all_gone(&children).await;
        drop(stream);
    }
}

#[tokio::test]
async fn an_idle_server_ends_at_once_even_while_it_loads() {
    for (ready, signal) in
        [(true, Signal::TERM), (false, Signal::TERM), (true, Signal::INT), (false, Signal::INT)]
    {
        let mut server = match ready {
            true => golden_server(&[]).await,
            false => {
                let arguments = gossamer_tests::processes::golden(&[]);
                TestServer::spawn(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
            }
        };
        // A kept connection without a request is nothing to wait for.
        let client = server.client();
        client.get("/live").await.expect("an answer");
        let start = Instant::now();
        server.signal(signal);
        let exit = server.wait_exit().await;
        assert_eq!(exit.code(), Some(0), "{signal:?}, ready {ready}: {exit} {:?}", server.log());
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
}
