//! Clients that leave: work for them stops, whether it streams or not, runs, waits, or is in its prompt.

use gossamer_tests::{
    client::Client,
    processes::{golden_server, idle, metric, taken_in},
    server::TestServer,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const COMPLETIONS: &str = "/v1/completions";
/// Gauges are back at 0 within this time.
const SOON: Duration = Duration::from_secs(5);

fn endless() -> Value {
    json!({"prompt": [1, 2, 3], "max_tokens": 20_000, "ignore_eos": true})
}

/// A request whose client will leave: a connection of its own, closed when the task is aborted.
fn plain(server: &TestServer, body: Value) -> JoinHandle<()> {
    let client = Client::new(server.port());
    tokio::spawn(async move { drop(client.try_post(COMPLETIONS, &body).await) })
}

async fn aborts(server: &TestServer) -> f64 {
    server.client().metric("request_success_total", "finished_reason=\"abort\"").await
}

#[tokio::test]
async fn fifty_streams_cut_at_once_leave_nothing() {
    let server = golden_server(&["--num-gpu-blocks-override", "2200"]).await;
    let mut streams = Vec::new();
    for _ in 0..50 {
        let client = Client::new(server.port());
        let mut stream = client
            .open(COMPLETIONS, &json!({"prompt": [4, 5], "max_tokens": 2000, "ignore_eos": true}))
            .await;
        stream.next().await.expect("it is whole").expect("it has begun");
        streams.push((client, stream));
    }
    drop(streams);
    let left = Instant::now();
    idle(&server).await;
    assert!(left.elapsed() < SOON, "it took {:?}", left.elapsed());
    // Some may have ended by themselves before they were cut.
    let client = server.client();
    let (aborted, ended) = (aborts(&server).await, client.metric("request_success_total", "").await);
    assert_eq!(ended, 50.0);
    assert!(aborted > 0.0, "{aborted} of 50 were aborted");
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
    let left = Instant::now();
    idle(&server).await;
    assert!(left.elapsed() < SOON, "it took {:?}", left.elapsed());
    assert_eq!(aborts(&server).await, 8.0);
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
    let left = Instant::now();
    idle(&server).await;
    assert!(left.elapsed() < SOON, "it took {:?}", left.elapsed());
    assert_eq!(aborts(&server).await, 2.0);
    // No token was drawn for anybody.
    assert_eq!(server.client().metric("generation_tokens_total", "").await, 0.0);
}
