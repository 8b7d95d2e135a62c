//! A worker that dies or freezes: its successor goes on from the token log, and no client can tell but by a pause.

use gossamer_tests::{
    accidents::{a_freeze_under_load, a_kill_during_chats, three_kills_under_load},
    processes::{golden_server, kill_and_await_successor, metric, taken_in},
    server::eventually,
};
use serde_json::json;

#[tokio::test]
async fn three_kills_under_load_change_no_token_at_any_stream_interval() {
    three_kills_under_load("worker-0", &[], async |server| {
        metric(server, "worker_restarts_total", |count| count == 3.0).await;
    })
    .await;
}

#[tokio::test]
async fn a_killed_worker_changes_no_word_of_a_chat() {
    a_kill_during_chats("worker-0").await;
}

#[tokio::test]
async fn a_frozen_worker_is_replaced_after_the_stall_timeout() {
    let server = a_freeze_under_load("worker-0").await;
    eventually("readiness", async || match server.client().get("/ready").await?.status {
        200 => Ok(()),
        other => Err(other.to_string()),
    })
    .await;
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
async fn deaths_of_every_process_are_counted_and_the_counts_outlive_them_all() {
    let server = golden_server(&["--api-server-count", "2"]).await;
    for role in ["worker-0", "scheduler", "api-server-0", "worker-0"] {
        kill_and_await_successor(&server, role).await;
        // The next death is not that of a process that still loads.
        eventually("readiness", async || match server.client().get("/ready").await?.status {
            200 => Ok(()),
            other => Err(other.to_string()),
        })
        .await;
    }
    let client = server.client();
    for (process, expected) in [("worker", 2.0), ("scheduler", 1.0), ("api-server", 1.0)] {
        let label = format!("process=\"{process}\"");
        assert_eq!(client.metric("process_restarts_total", &label).await, expected, "{process}");
    }
    assert_eq!(client.metric("worker_restarts_total", "").await, 2.0);
}
