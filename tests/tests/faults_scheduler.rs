//! A scheduler that dies: the API servers refill its successor from their own copies of prompts and tokens.

use gossamer_tests::{
    accidents::{a_freeze_under_load, a_kill_during_chats, three_kills_under_load},
    load::{Load, assert_same, mixed, undisturbed},
    processes::{golden_server, idle, successor},
    server::{eventually, kill},
};
use rustix::process::Signal;
use serde_json::json;

#[tokio::test]
async fn three_kills_under_load_change_no_token_at_any_stream_interval() {
    three_kills_under_load("scheduler", &["--api-server-count", "2"], async |_| ()).await;
}

#[tokio::test]
async fn a_killed_scheduler_changes_no_word_of_a_chat() {
    a_kill_during_chats("scheduler").await;
}

#[tokio::test]
async fn a_frozen_scheduler_is_replaced_after_the_stall_timeout() {
    a_freeze_under_load("scheduler").await;
}

#[tokio::test]
async fn a_scheduler_and_a_worker_that_die_together_cost_a_pause() {
    let server = golden_server(&[]).await;
    let jobs = mixed(400);
    let expected = undisturbed(server.port(), &jobs).await;
    let load = Load::start(server.port(), &jobs);
    // In both orders: each may be told of the other's death late.
    for (first, second) in [("scheduler", "worker-0"), ("worker-0", "scheduler")] {
        load.advance(400).await;
        let pids = [(first, server.child(first)), (second, server.child(second))];
        pids.iter().for_each(|(_, pid)| kill(*pid, Signal::KILL));
        for (role, pid) in pids {
            successor(&server, role, pid).await;
        }
    }
    assert_same(&expected, &load.outcomes().await, "both killed");
    idle(&server).await;
}

#[tokio::test]
async fn requests_that_come_while_there_is_no_scheduler_are_served_by_the_next() {
    let server = golden_server(&[]).await;
    let client = server.client();
    let body = json!({"prompt": [1, 2, 3], "max_tokens": 20, "temperature": 0, "return_token_ids": true});
    let expected = client.post("/v1/completions", &body).await["choices"].clone();
    let old = server.child("scheduler");
    kill(old, Signal::KILL);
    // From the death on, through the pause and beyond: each is served, or told by a 503 to come again.
    let mut served_by_successor = 0;
    eventually("ten answers of the next scheduler", async || {
        let answer = client.try_post("/v1/completions", &body).await?;
        match answer.status {
            200 => assert_eq!(answer.body["choices"], expected),
            503 => return Err(answer.body.to_string()),
            other => panic!("status {other}: {}", answer.body),
        }
        let replaced = server.children().iter().any(|(role, pid)| role == "scheduler" && *pid != old);
        served_by_successor += usize::from(replaced);
        if served_by_successor >= 10 { Ok(()) } else { Err(format!("{served_by_successor} answers")) }
    })
    .await;
}

#[tokio::test]
async fn clients_that_leave_while_there_is_no_scheduler_leave_nothing_running() {
    let server = golden_server(&["--max-num-seqs", "4"]).await;
    let client = server.client();
    let endless = json!({"prompt": [5, 6, 7], "max_tokens": 20000, "ignore_eos": true});
    let mut streams = Vec::new();
    for _ in 0..4 {
        let mut stream = client.open("/v1/completions", &endless).await;
        stream.next().await.expect("it is whole").expect("it has begun");
        streams.push(stream);
    }
    let old = server.child("scheduler");
    kill(old, Signal::KILL);
    drop(streams);
    successor(&server, "scheduler", old).await;
    idle(&server).await;
    // All places are free again.
    let short = json!({"prompt": [5, 6, 7], "max_tokens": 5, "ignore_eos": true});
    assert_eq!(client.post("/v1/completions", &short).await["usage"]["completion_tokens"], 5);
}
