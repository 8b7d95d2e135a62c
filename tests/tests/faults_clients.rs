//! Clients that leave: work for them stops, whether it streams or not, runs, waits, or is in its prompt.

use gossamer_tests::{
    client::Client,
    processes::{golden_server, idle, metric, taken_in},
    server::{TestServer, eventually},
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
/// Gauges are back at 0, and stay there, within this time.
const SOON: Duration = Duration::from_secs(5);

fn endless() -> Value {
    json!({"prompt": [1, 2, 3], "max_tokens": 20_000, "ignore_eos": true})
}

/// A request whose client will leave: a connection of its own, closed when the task is aborted.
fn plain(server: &TestServer, body: Value) -> JoinHandle<()> {
    plain_to(server, COMPLETIONS, body)
}

fn plain_to(server: &TestServer, path: &'static str, body: Value) -> JoinHandle<()> {
    let client = Client::new(server.port());
    tokio::spawn(async move { drop(client.try_post(path, &body).await) })
}

/// Waits until as many choices were cut off by their clients, and until nothing is left of them.
async fn aborted(server: &TestServer, count: f64) {
    let (client, left) = (server.client(), Instant::now());
    eventually("aborts", async || {
        match client.metric("request_success_total", "finished_reason=\"abort\"").await {
            seen if seen == count => Ok(()),
            seen => Err(format!("{seen} of {count}")),
        }
    })
    .await;
    idle(server).await;
    assert!(left.elapsed() < SOON, "it took {:?}", left.elapsed());
}

#[tokio::test]
async fn fifty_streams_cut_at_once_leave_nothing() {
    let server = golden_server(&["--num-gpu-blocks-override", "2200"]).await;
    let mut streams = Vec::new();
    for _ in 0..50 {
        let client = Client::new(server.port());
        let mut stream = client
            .open(COMPLETIONS, &json!({"prompt": [4, 5], "max_tokens": 8000, "ignore_eos": true}))
            .await;
        stream.next().await.expect("it is whole").expect("it has begun");
        streams.push((client, stream));
    }
    drop(streams);
    // Each stream that was cut is one abort, and none can have ended by itself: the last one begins long before the first one's
    // 8000 tokens are drawn.
    aborted(&server, 50.0).await;
    let client = server.client();
    assert_eq!(client.metric("request_success_total", "").await, 50.0);
    assert_eq!(
        client.metric("prompt_tokens_total", "").await,
        client.metric("request_prompt_tokens_sum", "").await
    );
    // What was cut off is in the histograms as well: one entry each, of all its tokens.
    for name in [
        "request_prompt_tokens_count",
        "request_generation_tokens_count",
        "e2e_request_latency_seconds_count",
    ] {
        assert_eq!(client.metric(name, "").await, 50.0, "{name}");
    }
    assert_eq!(
        client.metric("generation_tokens_total", "").await,
        client.metric("request_generation_tokens_sum", "").await
    );
    metric(&server, "open_connections", |open| open <= 3.0).await;
}

#[tokio::test]
async fn running_and_queued_requests_end_with_their_clients() {
    let server = golden_server(&["--max-num-seqs", "4", "--api-server-count", "2"]).await;
    // Four run, of which two stream; four wait.
    let mut tasks: Vec<_> = (0..2).map(|_| plain(&server, endless())).collect();
    metric(&server, "num_requests_running", |count| count == 2.0).await;
    let mut streams = Vec::new();
    for _ in 0..2 {
        let client = Client::new(server.port());
        let mut stream = client.open(COMPLETIONS, &endless()).await;
        stream.next().await.expect("it is whole").expect("it has begun");
        streams.push((client, stream));
    }
    tasks.extend((0..4).map(|number| {
        let mut body = endless();
        body["stream"] = (number % 2 == 0).into();
        plain(&server, body)
    }));
    metric(&server, "num_requests_waiting", |count| count == 4.0).await;
    // Those that wait leave first: those that run are not disturbed.
    let queued = tasks.split_off(2);
    queued.iter().for_each(JoinHandle::abort);
    metric(&server, "num_requests_waiting", |count| count == 0.0).await;
    assert_eq!(server.client().metric("num_requests_running", "").await, 4.0);
    tasks.iter().for_each(JoinHandle::abort);
    drop(streams);
    aborted(&server, 8.0).await;
}

#[tokio::test]
async fn chats_end_with_their_clients() {
    let server = TestServer::dummy(&[]).await;
    for (number, stream) in [(1.0, true), (2.0, false)] {
        let body = json!({
            "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20_000, "ignore_eos": true, "stream": stream,
        });
        // One that streams leaves after its first event, the other one once it runs.
        match stream {
            true => {
                let client = Client::new(server.port());
                let mut stream = client.open(CHAT, &body).await;
                stream.next().await.expect("it is whole").expect("it has begun");
            }
            false => {
                let task = plain_to(&server, CHAT, body);
                metric(&server, "num_requests_running", |count| count == 1.0).await;
                task.abort();
            }
        }
        aborted(&server, number).await;
    }
    let drawn = server.client().metric("generation_tokens_total", "").await;
    assert!(drawn < 2.0 * 20_000.0, "{drawn} tokens were drawn for clients who had left");
}

#[tokio::test]
async fn prompts_under_way_end_with_their_clients() {
    let server = golden_server(&["--max-num-seqs", "16", "--max-num-batched-tokens", "64"]).await;
    let mut tasks = Vec::new();
    for stream in [true, false] {
        tasks.push(plain(&server, json!({"prompt": vec![7; 50_000], "max_tokens": 1, "stream": stream})));
    }
    // The first takes the whole budget of each step; the second waits behind it.
    taken_in(&server, 2.0).await;
    tasks.iter().for_each(JoinHandle::abort);
    aborted(&server, 2.0).await;
    // No token was drawn for anybody.
    assert_eq!(server.client().metric("generation_tokens_total", "").await, 0.0);
}
