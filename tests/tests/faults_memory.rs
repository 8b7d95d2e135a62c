//! Little KV memory: pre-emption and asynchronous scheduling change no token; what can never fit is refused at the door.

use gossamer_tests::{
    client::Client,
    load::{Job, Outcome, assert_same, undisturbed},
    processes::{golden_server, idle, metric},
    server::TestServer,
};
use serde_json::json;

/// Greedy requests with prompts of 10 to 1500 tokens.
fn jobs(count: u32) -> Vec<Job> {
    (0..count)
        .map(|number| {
            let length = 10 + number * number * 37 % 1490;
            let prompt: Vec<u32> =
                (0..length).map(|at| (at * 11 + number * 29 + at * at % 7) % 500).collect();
            let body = json!({
                "prompt": prompt, "max_tokens": 40 + number, "temperature": 0, "seed": number, "ignore_eos": true,
                "return_token_ids": true, "logprobs": 1,
            });
            Job { body, stream: number % 2 == 0 }
        })
        .collect()
}

#[tokio::test]
async fn asynchronous_scheduling_and_preemption_change_no_token() {
    let jobs = jobs(64);
    // One at a time, with room for all: the reference.
    let server = golden_server(&["--no-async-scheduling"]).await;
    let mut expected: Vec<Outcome> = Vec::new();
    for job in &jobs {
        expected.extend(undisturbed(server.port(), std::slice::from_ref(job)).await);
    }
    assert_eq!(server.client().metric("num_preemptions_total", "").await, 0.0);
    drop(server);
    for mode in ["--async-scheduling", "--no-async-scheduling"] {
        // 100 blocks for two groups of layers: room for a few of the 64.
        let server =
            golden_server(&[mode, "--num-gpu-blocks-override", "100", "--max-num-batched-tokens", "256"])
                .await;
        assert_same(&expected, &undisturbed(server.port(), &jobs).await, mode);
        // The cache is too small.
        metric(&server, "num_preemptions_total", |preemptions| preemptions > 0.0).await;
        idle(&server).await;
    }
}

/// The simulated device draws each token from the whole prefix, so that one which is lost, repeated or changed changes all
/// that follow, and it is fast enough for 256 streams.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_modes_say_the_same_from_one_stream_to_256() {
    let jobs = jobs(256);
    let mut expected: Option<Vec<Outcome>> = None;
    for concurrency in ["1", "16", "256"] {
        for mode in ["--no-async-scheduling", "--async-scheduling"] {
            let flags = [mode, "--max-num-seqs", concurrency, "--max-num-batched-tokens", "300"];
            let cache = ["--num-gpu-blocks-override", "100", "--stream-interval", "3"];
            let server = TestServer::sim(&[&flags[..], &cache].concat()).await;
            let outcomes = undisturbed(server.port(), &jobs).await;
            if concurrency != "1" {
                // The cache is too small for several streams.
                metric(&server, "num_preemptions_total", |preemptions| preemptions > 0.0).await;
            }
            match &expected {
                Some(expected) => assert_same(expected, &outcomes, &format!("{concurrency} streams, {mode}")),
                None => expected = Some(outcomes),
            }
            idle(&server).await;
        }
    }
}

#[tokio::test]
async fn what_can_never_fit_is_refused_and_the_others_go_on() {
    // Blocks for about 2000 tokens of the full layers.
    let server = golden_server(&["--num-gpu-blocks-override", "40", "--max-model-len", "8192"]).await;
    let client = Client::new(server.port());
    let mut running =
        client.open("/v1/completions", &json!({"prompt": [1], "max_tokens": 1000, "ignore_eos": true})).await;
    running.next().await.expect("it is whole").expect("it has begun");
    let (status, error) =
        client.refused("/v1/completions", &json!({"prompt": vec![3; 4000], "max_tokens": 1})).await;
    assert_eq!(status, 400, "{error}");
    let small = json!({"prompt": [1, 2], "max_tokens": 2, "ignore_eos": true});
    assert_eq!(client.post("/v1/completions", &small).await["usage"]["completion_tokens"], 2);
    // Fifty that together need far more than there is: all finish.
    let tasks: Vec<_> = (0..50)
        .map(|number: u32| {
            let client = client.clone();
            let body = json!({"prompt": vec![number; 200 + 10 * number as usize], "max_tokens": 30, "ignore_eos": true});
            tokio::spawn(async move { client.post("/v1/completions", &body).await })
        })
        .collect();
    for task in tasks {
        let answer = task.await.expect("no request panics");
        assert_eq!(answer["usage"]["completion_tokens"], 30);
    }
    assert!(running.rest().await.expect("it is whole").done);
    idle(&server).await;
}
