//! Operation: ports, drain, deaths, gauges, clients that leave, long prompts.

// The lint knows test functions, but not their helpers.
#![allow(clippy::unwrap_used)]

use gossamer_tests::{
    server::{TestServer, children_of, eventually, fixture, kill, run},
    text::{chat, joined},
};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn endless(prompt: &str) -> Value {
    json!({"prompt": prompt, "max_tokens": 2000, "ignore_eos": true})
}

/// Waits until nothing runs, nothing waits and no block is in use. Nothing else is sent meanwhile.
async fn idle(server: &TestServer) {
    let client = server.client();
    eventually("an idle engine", async || {
        let mut seen = Vec::new();
        for name in ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"] {
            seen.push((name, client.metric(name, "").await));
        }
        if seen.iter().all(|(_, value)| *value == 0.0) { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
}

#[tokio::test]
async fn clients_that_leave_stop_the_work_and_are_counted() {
    let server = TestServer::dummy(&["--max-num-seqs", "8"]).await;
    let client = server.client();
    let mut streams = Vec::new();
    for number in 0..8 {
        let mut stream = client.open(COMPLETIONS, &endless(&format!("{number}"))).await;
        stream.next().await.unwrap().expect("it has begun");
        streams.push(stream);
    }
    // These wait for a place, without a token yet: one streams, one does not.
    let waiting = [chat(json!({"stream": true, "max_tokens": 2000, "ignore_eos": true})), endless("queued")];
    let tasks = waiting.map(|body| {
        let client = client.clone();
        let path = if body.get("messages").is_some() { CHAT } else { COMPLETIONS };
        tokio::spawn(async move { drop(client.try_post(path, &body).await) })
    });
    eventually("two waiting requests", async || {
        let count = client.metric("num_requests_waiting", "").await;
        if count == 2.0 { Ok(()) } else { Err(format!("{count} waiting")) }
    })
    .await;
    tasks.iter().for_each(|task| task.abort());
    drop(streams);
    let left = Instant::now();
    idle(&server).await;
    let took = left.elapsed();
    assert!(took < Duration::from_secs(5), "the gauges took {took:?}");
    let aborted = client.metric("request_success_total", "finished_reason=\"abort\"").await;
    assert_eq!(aborted, 10.0);
    let finished = client.metric("request_success_total", "").await;
    assert_eq!(finished, 10.0);
    // Totals and histograms tell the same story.
    let total = client.metric("prompt_tokens_total", "").await;
    assert_eq!(total, client.metric("request_prompt_tokens_sum", "").await);
}

#[tokio::test]
async fn a_long_prompt_in_prefill_ends_with_its_client() {
    let server = TestServer::dummy(&["--max-num-batched-tokens", "256"]).await;
    let client = server.client();
    let body = json!({"prompt": vec![1000; 60_000], "max_tokens": 1});
    let task = tokio::spawn({
        let client = client.clone();
        async move { drop(client.try_post(COMPLETIONS, &body).await) }
    });
    eventually("a running prompt", async || {
        let count = client.metric("num_requests_running", "").await;
        if count == 1.0 { Ok(()) } else { Err(format!("{count} running")) }
    })
    .await;
    task.abort();
    let left = Instant::now();
    idle(&server).await;
    assert!(left.elapsed() < Duration::from_secs(3), "it took {:?}", left.elapsed());
}

#[tokio::test]
async fn a_port_in_use_is_reported_at_once() {
    let first = TestServer::spawn(&[&fixture("golden-a"), "--skip-tokenizer-init"]);
    let port = first.port().to_string();
    let start = Instant::now();
    let (status, said) = run(&["serve", &fixture("golden-a"), "--skip-tokenizer-init", "--port", &port]);
    let took = start.elapsed();
    assert!(!status.success());
    assert!(said.contains(&port) && said.contains("in use"), "{said}");
    assert!(took < Duration::from_secs(2), "it took {took:?}");
}

#[tokio::test]
async fn servers_that_start_at_the_same_moment_all_become_ready() {
    let model = fixture("golden-a");
    let mut servers: Vec<_> = (0..4).map(|_| TestServer::spawn(&[&model, "--skip-tokenizer-init"])).collect();
    for server in &mut servers {
        server.wait_ready().await;
        let answer = server.client().post(COMPLETIONS, &json!({"prompt": [1, 2], "max_tokens": 1})).await;
        assert_eq!(answer["usage"]["completion_tokens"], 1);
    }
}

#[tokio::test]
async fn health_is_503_until_the_model_is_loaded() {
    let mut server = TestServer::spawn(&[&fixture("o200k-dummy"), "--load-format", "dummy"]);
    let client = server.client();
    let mut seen = Vec::new();
    eventually("health", async || {
        let health = client.get("/health").await?.status;
        let live = client.get("/live").await?.status;
        assert_eq!(live, 200);
        seen.push(health);
        if health == 200 { Ok(()) } else { Err(format!("status {health}")) }
    })
    .await;
    let loading = seen.iter().filter(|status| **status != 200).copied().collect::<Vec<_>>();
    assert!(!loading.is_empty() && loading.iter().all(|status| *status == 503), "{seen:?}");
    server.wait_ready().await;
    assert_eq!(client.get("/version").await.unwrap().body["version"], env!("CARGO_PKG_VERSION"));
    let models = client.get("/v1/models").await.unwrap().body;
    assert_eq!(models["data"][0]["id"], "o200k-dummy");
    assert_eq!(models["data"][0]["max_model_len"], 131_072);
}

#[tokio::test]
async fn a_wrong_start_is_refused_with_the_reason() {
    let golden = fixture("golden-a");
    for (arguments, words) in [
        (&["serve", "/nowhere"][..], "does not exist"),
        (&["serve", &golden, "--max-model-len", "999999999"], "131072"),
        (&["serve", &golden, "-tp", "2"], "not supported yet"),
        (&["serve", &golden, "--kv-cache-dtype", "fp8"], "not supported yet"),
        (
            &["serve", &golden, "--attention-backend", "nonesuch", "--skip-tokenizer-init", "--port", "0"],
            "fallback",
        ),
        // No tokenizer, and not the vocabulary that is built in.
        (&["serve", &golden, "--port", "0"], "tokenizer.json"),
        (&["serve", &golden, "--bogus"], "--bogus"),
    ] {
        let (status, said) = run(arguments);
        assert!(!status.success(), "{arguments:?}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
}

#[tokio::test]
async fn sigterm_finishes_what_runs() {
    let mut server = TestServer::dummy(&["--shutdown-timeout", "50"]).await;
    let client = server.client();
    let body =
        chat(json!({"max_tokens": 300, "ignore_eos": true, "stream_options": {"include_usage": true}}));
    let mut stream = client.open(CHAT, &body).await;
    stream.next().await.unwrap().expect("it has begun");
    server.signal(Signal::TERM);
    eventually("unreadiness", async || match client.get("/ready").await {
        Ok(answer) if answer.status == 503 => Ok(()),
        // Few tokens, fast machine: all may be over already.
        Err(_) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let end = stream.rest().await.unwrap();
    assert!(end.done);
    let usage = end.events.last().unwrap().data["usage"]["completion_tokens"].clone();
    assert_eq!(usage, 300);
    assert!(server.wait_exit().await.success(), "{:?}", server.log());
}

#[tokio::test]
async fn a_killed_worker_is_a_pause_and_nothing_else() {
    let server = TestServer::dummy(&["--api-server-count", "2"]).await;
    let client = server.client();
    let body =
        chat(json!({"max_tokens": 300, "temperature": 1, "seed": 3, "ignore_eos": true, "logprobs": true}));
    let expected = joined(&client.stream(CHAT, &body).await, 0);
    let mut stream = client.open(CHAT, &body).await;
    let mut events = stream.next().await.unwrap().expect("it has begun");
    kill(server.child("worker-0"), Signal::KILL);
    let rest = stream.rest().await.unwrap();
    assert!(rest.done);
    events.extend(rest.events);
    assert_eq!(joined(&events, 0), expected);
    // The scheduler is refilled from the API servers' logs.
    let mut stream = client.open(CHAT, &body).await;
    let mut events = stream.next().await.unwrap().expect("it has begun");
    kill(server.child("scheduler"), Signal::KILL);
    let rest = stream.rest().await.unwrap();
    assert!(rest.done);
    events.extend(rest.events);
    assert_eq!(joined(&events, 0), expected);
}

#[tokio::test]
async fn without_restarts_a_dead_worker_is_an_error_for_all() {
    let mut server = TestServer::dummy(&["--max-restarts", "0"]).await;
    let client = server.client();
    let mut streams = Vec::new();
    for number in 0..4 {
        let mut stream = client.open(COMPLETIONS, &endless(&format!("{number}"))).await;
        stream.next().await.unwrap().expect("it has begun");
        streams.push(stream);
    }
    kill(server.child("worker-0"), Signal::KILL);
    for mut stream in streams {
        let end = stream.rest().await.unwrap();
        assert!(end.done, "the error is followed by [DONE]");
        let error = &end.events.last().expect("an error comes").data["error"];
        assert!(error["message"].is_string(), "{error}");
    }
    // The server lingers to say so, then ends.
    if let Ok(answer) = client.get("/health").await {
        assert_eq!(answer.status, 503);
    }
    assert!(!server.wait_exit().await.success());
}

#[tokio::test]
async fn nothing_survives_a_killed_supervisor() {
    let model = fixture("golden-a");
    let mine = |pid: u32| -> Vec<String> {
        let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.contains(&format!("{pid:x}")) || name.contains(&pid.to_string())).collect()
    };
    // At once, in the middle of the start, and ready.
    for moment in 0..6 {
        let mut server = TestServer::spawn(&[&model, "--skip-tokenizer-init"]);
        match moment % 3 {
            0 => {}
            1 => {
                eventually("some child", async || match server.children().len() {
                    0 => Err("none".into()),
                    _ => Ok(()),
                })
                .await;
            }
            _ => server.wait_ready().await,
        }
        let (pid, children) = (server.pid(), server.children());
        server.signal(Signal::KILL);
        server.wait_exit().await;
        eventually("the end of all children", async || {
            let left: Vec<_> = children
                .iter()
                .filter(|(_, child)| {
                    let command = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
                    command.windows(8).any(|word| word == b"gossamer")
                })
                .collect();
            if left.is_empty() && children_of(pid).is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
        assert_eq!(mine(pid), Vec::<String>::new(), "moment {moment}");
    }
    let server = TestServer::start(&[&model, "--skip-tokenizer-init"]).await;
    server.client().post(COMPLETIONS, &json!({"prompt": [1], "max_tokens": 1})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn long_prompts_do_not_freeze_the_others() {
    let server = TestServer::sim(&[]).await;
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(12_000);
    let mut tasks = Vec::new();
    for number in 0..8 {
        let client = server.client();
        let body = json!({"prompt": format!("{number} {text}"), "max_tokens": 1});
        tasks.push(tokio::spawn(async move { client.post(COMPLETIONS, &body).await }));
    }
    let client = server.client();
    let mut gaps = Vec::new();
    while !tasks.iter().all(|task| task.is_finished()) {
        let start = Instant::now();
        assert_eq!(client.get("/health").await.unwrap().status, 200);
        gaps.push(start.elapsed());
    }
    for task in tasks {
        let answer = task.await.unwrap();
        assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > 100_000);
    }
    gaps.sort();
    let p99 = gaps[(gaps.len() * 99 / 100).min(gaps.len() - 1)];
    assert!(gaps.len() >= 20, "only {} answers", gaps.len());
    assert!(p99 < Duration::from_millis(100), "p99 of {} answers: {p99:?}", gaps.len());
}

#[tokio::test]
async fn api_servers_share_their_counters() {
    let server = TestServer::sim(&["--api-server-count", "3"]).await;
    for _ in 0..30 {
        // A client each, so that connections spread.
        server
            .client()
            .post(COMPLETIONS, &json!({"prompt": "hi", "max_tokens": 4, "ignore_eos": true}))
            .await;
    }
    for _ in 0..6 {
        assert_eq!(server.client().metric("generation_tokens_total", "").await, 120.0);
    }
    assert_eq!(server.children().iter().filter(|(role, _)| role.starts_with("api-server")).count(), 3);
}

#[tokio::test]
async fn connections_spread_over_the_api_servers() {
    let server = TestServer::sim(&["--api-server-count", "3"]).await;
    let mut kept = Vec::new();
    for _ in 0..60 {
        // Kept alive by its client.
        let client = server.client();
        assert_eq!(client.get("/live").await.unwrap().status, 200);
        kept.push(client);
    }
    let sockets = |pid: u32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
    };
    let servers = server.children().into_iter().filter(|(role, _)| role.starts_with("api-server"));
    let counts: Vec<usize> = servers.map(|(_, pid)| sockets(pid)).collect();
    assert_eq!(counts.len(), 3);
    assert!(counts.iter().sum::<usize>() >= 60, "{counts:?}");
    assert!(counts.iter().all(|count| *count >= 10), "{counts:?}");
}

#[tokio::test]
async fn a_killed_api_server_takes_only_its_own_connections_along() {
    let server = TestServer::dummy(&["--api-server-count", "2"]).await;
    let body = endless("x");
    let mut streams = Vec::new();
    for _ in 0..6 {
        let mut stream = server.client().open(COMPLETIONS, &body).await;
        stream.next().await.unwrap().expect("it has begun");
        streams.push(stream);
    }
    kill(server.child("api-server-0"), Signal::KILL);
    let (mut broken, mut whole) = (0, 0);
    for mut stream in streams {
        match stream.rest().await {
            Ok(end) if end.done => whole += 1,
            _ => broken += 1,
        }
    }
    assert!(broken > 0 && whole > 0, "{broken} broken, {whole} whole");
    // Its successor serves, and nothing of the dead one's runs on.
    idle(&server).await;
    eventually("two API servers", async || match server.children().len() {
        4 => Ok(()),
        count => Err(format!("{count} children")),
    })
    .await;
    for _ in 0..6 {
        server.client().post(COMPLETIONS, &json!({"prompt": "x", "max_tokens": 2, "ignore_eos": true})).await;
    }
}

#[tokio::test]
async fn a_shutdown_that_waits_no_longer_says_so() {
    let mut server = TestServer::dummy(&["--shutdown-timeout", "0.2"]).await;
    let client = server.client();
    let mut body = endless("x");
    body["max_tokens"] = json!(20_000);
    let mut stream = client.open(COMPLETIONS, &body).await;
    stream.next().await.unwrap().expect("it has begun");
    server.signal(Signal::TERM);
    let end = stream.rest().await.unwrap();
    assert!(end.done);
    assert_eq!(end.events.last().unwrap().data["error"]["code"], "shutting_down");
    server.wait_exit().await;
}
