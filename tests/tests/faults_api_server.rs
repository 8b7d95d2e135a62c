//! An API server that dies takes its own connections with it and nothing else.

use gossamer_tests::{
    client::Client,
    load::{Load, mixed, undisturbed},
    processes::{golden_server, idle, kill_and_await_successor, metric},
    server::{eventually, kill},
};
use rustix::process::Signal;
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

#[tokio::test]
async fn only_the_connections_of_a_killed_api_server_break() {
    let server = golden_server(&["--api-server-count", "2"]).await;
    let jobs = mixed(500);
    let expected = undisturbed(server.port(), &jobs).await;
    for role in ["api-server-0", "api-server-1"] {
        let load = Load::start(server.port(), &jobs);
        load.advance(800).await;
        kill_and_await_successor(&server, role).await;
        let results = load.results().await;
        let broken = results.iter().filter(|result| result.is_err()).count();
        // Connections spread, so that each server had some.
        assert!(broken > 0 && broken < results.len(), "{broken} of {} broke", results.len());
        for (number, (result, expected)) in results.into_iter().zip(&expected).enumerate() {
            if let Ok(outcome) = result {
                assert_eq!(&outcome, expected, "request {number} was not on the killed server");
            }
        }
        // What ran for the lost clients has ended, with no further traffic.
        idle(&server).await;
    }
    let again = undisturbed(server.port(), &jobs).await;
    assert_eq!(again, expected);
}

#[tokio::test]
async fn the_successor_takes_connections_and_the_counters_go_on() {
    let server = golden_server(&["--api-server-count", "2"]).await;
    let body = json!({"prompt": [1, 2], "max_tokens": 3, "ignore_eos": true});
    let ask = async |count: usize| {
        for _ in 0..count {
            server.client().post("/v1/completions", &body).await;
        }
    };
    ask(6).await;
    let before = server.client().metric("generation_tokens_total", "").await;
    assert_eq!(before, 18.0);
    kill_and_await_successor(&server, "api-server-0").await;
    // Counters are the server's, not the process's: they survive it.
    ask(6).await;
    assert_eq!(server.client().metric("generation_tokens_total", "").await, 36.0);
    // With the other one gone, the successor is all there is: everything is answered by it.
    kill_and_await_successor(&server, "api-server-1").await;
    ask(6).await;
    metric(&server, "generation_tokens_total", |count| count == 54.0).await;
}

#[tokio::test]
async fn a_lone_api_server_is_replaced_and_clients_can_come_again() {
    let server = golden_server(&[]).await;
    let client = server.client();
    let mut stream = client
        .open("/v1/completions", &json!({"prompt": [3], "max_tokens": 20000, "ignore_eos": true}))
        .await;
    stream.next().await.expect("it is whole").expect("it has begun");
    kill_and_await_successor(&server, "api-server-0").await;
    let end = stream.rest().await;
    assert!(end.as_ref().is_err() || end.as_ref().is_ok_and(|end| !end.done), "{end:?}");
    // The listening socket outlives the process: nobody is refused a connection, and the model is not loaded again.
    eventually("an answer", async || {
        let answer =
            server.client().try_post("/v1/completions", &json!({"prompt": [1], "max_tokens": 1})).await?;
        if answer.status == 200 { Ok(()) } else { Err(answer.body.to_string()) }
    })
    .await;
    idle(&server).await;
}

/// With the scheduler stopped, successors stay what they are for some milliseconds otherwise: servers that start.
#[tokio::test]
async fn successors_of_all_api_servers_keep_clients_waiting_and_refuse_nobody() {
    for count in ["1", "2"] {
        let server = golden_server(&["--api-server-count", count]).await;
        let scheduler = server.child("scheduler");
        kill(scheduler, Signal::STOP);
        for role in ["api-server-0", "api-server-1"].iter().take(count.parse().expect("a count")) {
            kill_and_await_successor(&server, role).await;
        }
        let client = server.client();
        let body = json!({"prompt": [1, 2], "max_tokens": 3, "ignore_eos": true});
        let mut answers: Vec<_> = (0..8)
            .map(|_| {
                let (client, body) = (client.clone(), body.clone());
                tokio::spawn(async move { client.try_post("/v1/completions", &body).await })
            })
            .collect();
        if count == "1" {
            // Probes are: there is no other server that could be asked.
            let health = tokio::time::timeout(Duration::from_secs(4), client.get("/health")).await;
            assert_eq!(health.expect("it does not wait").expect("it is answered").status, 200);
        }
        // Nobody is answered before there is an engine to ask.
        let early = tokio::time::timeout(Duration::from_millis(300), &mut answers[0]).await;
        assert!(early.is_err(), "{early:?}");
        kill(scheduler, Signal::CONT);
        for answer in answers {
            let answer = answer.await.expect("no request panics").expect("no connection breaks");
            assert_eq!(answer.status, 200, "{}", answer.body);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_healthy_while_an_api_server_is_replaced() {
    for count in ["1", "3"] {
        let server = golden_server(&["--api-server-count", count]).await;
        for _ in 0..3 {
            let over = Arc::new(AtomicBool::new(false));
            let (port, ends) = (server.port(), over.clone());
            let probes = tokio::spawn(async move {
                let mut statuses = Vec::new();
                while !ends.load(Ordering::Relaxed) {
                    // A connection each; one that was open to the killed process breaks.
                    if let Ok(answer) = Client::new(port).get("/health").await {
                        statuses.push(answer.status);
                    }
                }
                statuses
            });
            kill_and_await_successor(&server, "api-server-0").await;
            eventually("readiness", async || match server.client().get("/ready").await?.status {
                200 => Ok(()),
                other => Err(other.to_string()),
            })
            .await;
            over.store(true, Ordering::Relaxed);
            let statuses = probes.await.expect("no request panics");
            assert!(!statuses.is_empty() && statuses.iter().all(|status| *status == 200), "{statuses:?}");
        }
    }
}
