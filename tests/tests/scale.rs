//! What must not grow with the number of requests or cost much while idle, and what long prompts may cost the streams beside them.
//!
//! The sizes that the README states take a minute and many file descriptors:
//! `cargo test --release -p gossamer-tests --test scale -- --ignored --nocapture`.

use gossamer_kernels::cost::{CostModel, StepLoad};
use gossamer_tests::{client::Client, processes::idle, server::TestServer};
use serde_json::json;
use std::{
    io::Write,
    time::{Duration, Instant},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const PATH: &str = "/v1/completions";

/// Serves this many short requests, 64 at a time.
async fn serve(server: &TestServer, count: u32) {
    let tasks: Vec<_> = (0..64)
        .map(|lane: u32| {
            let client = Client::new(server.port());
            tokio::spawn(async move {
                for number in 0..count / 64 {
                    let prompt: Vec<u32> =
                        (0..40).map(|at| (lane * 7919 + number * 31 + at) % 100_000).collect();
                    let body = json!({"prompt": prompt, "max_tokens": 4, "ignore_eos": true, "stream": true});
                    let answer = client.try_post(PATH, &body).await.expect("an answer");
                    assert_eq!(answer.status, 200);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no request panics");
    }
    idle(server).await;
}

/// Memory of each process that is its own, in KiB: rings have a fixed size, but count only once they were written to.
fn resident(server: &TestServer) -> Vec<(String, u64)> {
    let mut all = vec![("supervisor".to_owned(), server.pid())];
    all.extend(server.children());
    all.into_iter()
        .map(|(role, pid)| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
            let line = status.lines().find(|line| line.starts_with("RssAnon")).expect("Linux tells");
            let kib = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number");
            (role, kib)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_does_not_grow_with_the_number_of_requests() {
    let server = TestServer::sim(&["--api-server-count", "2"]).await;
    // Pools, caches and the heap find their size.
    serve(&server, 6400).await;
    let before = resident(&server);
    serve(&server, 19_200).await;
    let after = resident(&server);
    println!("KiB after 6400 requests {before:?}, after 25600 {after:?}");
    for ((role, before), (_, after)) in before.iter().zip(&after) {
        // 100 bytes a request would be 1900 KiB.
        assert!(*after <= before + 1536, "{role} grew from {before} to {after} KiB over 19200 requests");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "200,000 requests"]
async fn memory_is_flat_over_200_000_requests() {
    let server = TestServer::sim(&["--api-server-count", "2"]).await;
    serve(&server, 25_600).await;
    let before = resident(&server);
    serve(&server, 174_400).await;
    let after = resident(&server);
    println!("KiB after 25,600 requests {before:?}, after 200,000 {after:?}");
    for ((role, before), (_, after)) in before.iter().zip(&after) {
        // 20 bytes a request would be 3400 KiB.
        assert!(*after <= before + 2048, "{role} grew from {before} to {after} KiB over 174,400 requests");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "10,000 connections"]
async fn ten_thousand_idle_connections_add_less_than_200_mb() {
    const CONNECTIONS: usize = 10_000;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let room = limit.current.unwrap_or(u64::MAX);
    assert!(
        room > CONNECTIONS as u64 + 500,
        "expected room for {CONNECTIONS} files, got {room}: raise `ulimit -n`"
    );
    let server = TestServer::sim(&["--api-server-count", "2"]).await;
    let total = |all: &[(String, u64)]| all.iter().map(|(_, kib)| kib).sum::<u64>();
    serve(&server, 640).await;
    let before = resident(&server);
    let mut idle = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        // One answer each, so that the server has seen it; then it stays open.
        let mut stream =
            tokio::net::TcpStream::connect(("127.0.0.1", server.port())).await.expect("it listens");
        stream.write_all(b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("it reads");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.expect("it answers");
        assert_eq!(&answer, b"HTTP/1.1 200");
        idle.push(stream);
    }
    let after = resident(&server);
    let grown = total(&after) - total(&before);
    println!("{CONNECTIONS} idle connections add {grown} KiB: {before:?}, then {after:?}");
    assert!(grown < 200_000, "{CONNECTIONS} idle connections add {grown} KiB");
    // They are still served.
    for stream in idle.iter_mut().step_by(997) {
        stream.write_all(b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("it is open");
    }
}

/// The p99 of the gaps between the tokens of 32 streams; `beside` runs with them.
async fn p99_gap(server: &TestServer, tokens: u32, beside: impl Future<Output = ()>) -> Duration {
    let mut streams = Vec::new();
    for lane in 0..32 {
        let client = Client::new(server.port());
        let body = json!({"prompt": [lane, 1, 2], "max_tokens": tokens, "ignore_eos": true, "return_token_ids": true});
        let mut stream = client.open(PATH, &body).await;
        stream.next().await.expect("it is whole").expect("it has begun");
        streams.push(stream);
    }
    let readers: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            tokio::spawn(async move {
                let (mut gaps, mut last) = (Vec::new(), None::<Instant>);
                while let Some(events) = stream.next().await.expect("the stream is whole") {
                    for event in events {
                        let count = event.data["choices"][0]["token_ids"].as_array().map_or(0, Vec::len);
                        // Tokens that came together have no gap between them.
                        for number in 0..count {
                            let gap = last.map_or(Duration::ZERO, |last| event.at.duration_since(last));
                            gaps.push(if number == 0 { gap } else { Duration::ZERO });
                            last = Some(event.at);
                        }
                    }
                }
                gaps
            })
        })
        .collect();
    beside.await;
    let mut gaps = Vec::new();
    for reader in readers {
        gaps.extend(reader.await.expect("no stream panics"));
    }
    gaps.sort();
    gaps[gaps.len() * 99 / 100]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_long_prompts_cost_the_other_streams_one_full_step() {
    // 20 ms to read the weights; 80 ms of arithmetic for a full budget of 8192 tokens.
    let cost = CostModel { dense_us: 20_000.0, token_us: 80_000.0 / 8192.0, ..CostModel::instant() };
    let full = cost.step(&StepLoad { tokens: 8192, ..StepLoad::default() });
    let mut file = tempfile::NamedTempFile::new().expect("there is room for a small file");
    write!(file, "{}", serde_json::to_string(&cost).expect("numbers"))
        .expect("there is room for a small file");
    let path = file.path().to_str().expect("temporary files have UTF-8 paths");
    let flags =
        ["--sim-calibration", path, "--max-num-batched-tokens", "8192", "--num-gpu-blocks-override", "20000"];
    let server = TestServer::sim(&flags).await;
    let alone = p99_gap(&server, 60, async {}).await;
    let long = async {
        let start = Instant::now();
        let prompts: Vec<_> = (0..4u32)
            .map(|number| {
                let client = Client::new(server.port());
                let prompt: Vec<u32> = (0..100_000).map(|at| (at * 7 + number * 13_331) % 190_000).collect();
                let body = json!({"prompt": prompt, "max_tokens": 1, "ignore_eos": true});
                tokio::spawn(async move { client.post(PATH, &body).await })
            })
            .collect();
        for prompt in prompts {
            let answer = prompt.await.expect("no request panics");
            assert_eq!(answer["usage"]["prompt_tokens"], 100_000);
        }
        // 400,000 tokens in steps of 8192 - 32: no budget was wasted.
        let steps = 400_000 / (8192 - 32);
        println!(
            "four prompts of 100,000 tokens took {:?}, {steps} full steps {:?}",
            start.elapsed(),
            full * steps
        );
    };
    let beside = p99_gap(&server, 160, long).await;
    println!(
        "p99 gap {alone:?} alone, {beside:?} beside four prompts of 100,000 tokens; a full step is {full:?}"
    );
    assert!(beside > alone, "the prompts were meant to be felt: {beside:?} after {alone:?}");
    assert!(
        beside <= alone + full,
        "p99 gap {beside:?}, {alone:?} without long prompts, a full step {full:?}"
    );
}
