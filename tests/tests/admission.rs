//! Who is let in, when, and for how long: full queues, deadlines, shares and caches of API keys.

use gossamer_tests::{
    client::{Client, refusal},
    processes::{idle, metric},
    server::TestServer,
    text::joined_completion,
};
use serde_json::{Value, json};
use std::{
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tempfile::NamedTempFile;

const PATH: &str = "/v1/completions";

/// A simulated device whose steps take `ms` milliseconds.
fn steps_of(ms: f64) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("there is room for a small file");
    let model = json!({
        "schema": 1, "device": "test", "fixed_us": ms * 1e3, "dense_us": 0, "experts_us": 0, "num_experts": 1,
        "experts_per_token": 1, "token_us": 0, "context_us": 0, "pair_us": 0,
    });
    write!(file, "{model}").expect("there is room for a small file");
    file
}

async fn sim(steps: &NamedTempFile, flags: &[&str]) -> TestServer {
    let path = steps.path().to_str().expect("temporary files have UTF-8 paths");
    TestServer::sim(&[&["--sim-calibration", path], flags].concat()).await
}

fn endless() -> Value {
    json!({"prompt": [1, 2, 3], "max_tokens": 100_000, "ignore_eos": true})
}

#[tokio::test]
async fn a_full_queue_is_a_429_that_says_when_to_come_back() {
    let steps = steps_of(5.0);
    let server = sim(&steps, &["--max-num-seqs", "1", "--max-queued-requests", "2"]).await;
    let client = server.client();
    let mut running = client.open(PATH, &endless()).await;
    running.next().await.expect("it is whole").expect("it has begun");
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let client = Client::new(server.port());
            tokio::spawn(async move { drop(client.try_post(PATH, &endless()).await) })
        })
        .collect();
    metric(&server, "num_requests_waiting", |count| count == 2.0).await;
    for stream in [false, true] {
        let mut body = endless();
        body["stream"] = json!(stream);
        let answer = client.try_post(PATH, &body).await.expect("an answer");
        let wait = answer.headers.get("retry-after").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (status, error) = refusal(answer);
        assert_eq!((status, error["code"].as_str()), (429, Some("queue_full")), "stream {stream}");
        let seconds = wait.as_ref().and_then(|wait| wait.parse::<u32>().ok());
        assert!(seconds.is_some_and(|seconds| (1..=60).contains(&seconds)), "Retry-After: {wait:?}");
    }
    // Whoever leaves makes room.
    waiting[0].abort();
    metric(&server, "num_requests_waiting", |count| count == 1.0).await;
    drop(running);
    waiting[1].abort();
    idle(&server).await;
    client.post(PATH, &json!({"prompt": [1], "max_tokens": 2, "ignore_eos": true})).await;
}

#[tokio::test]
async fn a_deadline_ends_requests_that_run_and_that_wait_and_frees_them() {
    let steps = steps_of(5.0);
    let server = sim(&steps, &["--max-num-seqs", "2"]).await;
    let limited = server.client().with_header("x-request-timeout", "0.7");
    let start = Instant::now();
    let mut stream = limited.open(PATH, &endless()).await;
    let plain = |client: Client| tokio::spawn(async move { client.try_post(PATH, &endless()).await });
    // Two run; the third waits for a place that it never gets.
    let others = [plain(limited.clone()), plain(limited.clone())];
    let end = stream.rest().await.expect("the stream is whole");
    assert!(end.done, "the error is followed by [DONE]");
    let last = &end.events.last().expect("an error comes").data;
    assert_eq!(last["error"]["code"], "deadline_exceeded", "{last}");
    assert!(end.events.len() > 10, "what came in time was delivered: {} events", end.events.len());
    for task in others {
        let (status, error) = refusal(task.await.expect("no request panics").expect("an answer"));
        assert_eq!((status, error["code"].as_str()), (504, Some("deadline_exceeded")));
    }
    assert!(start.elapsed() >= Duration::from_millis(700), "{:?}", start.elapsed());
    idle(&server).await;
    // Who needs less than the limit does not notice it.
    let short = limited.post(PATH, &json!({"prompt": [1], "max_tokens": 3, "ignore_eos": true})).await;
    assert_eq!(short["usage"]["completion_tokens"], 3);
    for wrong in ["0", "-1", "soon"] {
        let client = server.client().with_header("x-request-timeout", wrong);
        let (status, error) = client.refused(PATH, &endless()).await;
        assert_eq!((status, error["param"].as_str()), (400, Some("x-request-timeout")), "{wrong}");
    }
}

#[tokio::test]
async fn a_flood_of_one_key_leaves_another_key_its_share() {
    let steps = steps_of(2.0);
    let server =
        sim(&steps, &["--max-num-seqs", "4", "--api-key", "flood,modest", "--no-enable-prefix-caching"])
            .await;
    let done = Arc::new(AtomicUsize::new(0));
    let send = |key: &str, number: usize, done: Option<Arc<AtomicUsize>>| {
        let client = Client::new(server.port()).with_header("authorization", format!("Bearer {key}"));
        tokio::spawn(async move {
            let body = json!({"prompt": vec![number; 30], "max_tokens": 20, "ignore_eos": true});
            client.post(PATH, &body).await;
            if let Some(done) = done {
                done.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let flood: Vec<_> = (0..160).map(|number| send("flood", number, Some(done.clone()))).collect();
    metric(&server, "num_requests_waiting", |count| count > 120.0).await;
    let before = done.load(Ordering::Relaxed);
    let modest: Vec<_> = (200..220).map(|number| send("modest", number, None)).collect();
    for task in modest {
        task.await.expect("no request panics");
    }
    // In turn, 20 of the flood would end with the 20; in the order of arrival, nearly all 160 before.
    let meanwhile = done.load(Ordering::Relaxed) - before;
    assert!(meanwhile <= 60, "{meanwhile} of the flood ended before 20 of the other key did");
    for task in flood {
        task.await.expect("no request panics");
    }
}

#[tokio::test]
async fn prefixes_are_shared_within_a_key_and_a_salt_only() {
    let server = TestServer::sim(&["--api-key", "one,two"]).await;
    let cached = async |key: &str, salt: Option<&str>| {
        let client = server.client().with_header("authorization", format!("Bearer {key}"));
        let mut body = json!({"prompt": vec![7; 300], "max_tokens": 2, "ignore_eos": true});
        if let Some(salt) = salt {
            body["cache_salt"] = json!(salt);
        }
        let usage = client.post(PATH, &body).await["usage"].clone();
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_else(|| panic!("{usage}"))
    };
    assert_eq!(cached("one", None).await, 0, "cold");
    assert_eq!(cached("one", None).await, 256, "whole blocks of 64");
    assert_eq!(cached("two", None).await, 0, "another key");
    assert_eq!(cached("two", None).await, 256);
    assert_eq!(cached("one", Some("s")).await, 0, "another salt");
    assert_eq!(cached("one", Some("s")).await, 256);
    assert_eq!(cached("two", Some("s")).await, 0, "a salt is its key's own");
}

/// Case 12 for streams: a request behind others gets its text whole.
#[tokio::test]
async fn who_waits_for_a_place_gets_the_same_as_who_does_not() {
    let server = TestServer::sim(&["--max-num-seqs", "1"]).await;
    let body = json!({"prompt": [5, 6], "max_tokens": 50, "seed": 1, "ignore_eos": true});
    let expected = joined_completion(&server.client().stream(PATH, &body).await, 0);
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let (client, body) = (Client::new(server.port()), body.clone());
            tokio::spawn(async move { joined_completion(&client.stream(PATH, &body).await, 0) })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.expect("no request panics"), expected);
    }
}
