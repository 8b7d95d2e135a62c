//! Streams of a model with random weights: it never speaks harmony, so every request walks the error paths.

// The lint knows test functions, but not their helpers.
#![allow(clippy::unwrap_used)]

use gossamer_tests::{
    server::TestServer,
    text::{chat, joined, joined_completion, whole},
};
use serde_json::json;
use std::sync::Arc;
use tokio::{sync::Semaphore, task::JoinSet};

const PATH: &str = "/v1/chat/completions";

#[tokio::test(flavor = "multi_thread")]
async fn no_token_sequence_breaks_an_answer_and_streams_equal_whole_answers() {
    let server = TestServer::dummy(&["--cpu-threads", "2"]).await;
    let places = Arc::new(Semaphore::new(64));
    let mut tasks = JoinSet::new();
    // Half of the requests stream. The first 100 seeds are asked for both ways, and compared.
    for seed in 0..200 {
        let (client, places) = (server.client(), places.clone());
        tasks.spawn(async move {
            let _place = places.acquire().await.expect("it is never closed");
            let body = chat(json!({"temperature": 1, "max_tokens": 64, "seed": seed, "logprobs": true}));
            let (choice, usage) = if seed < 150 {
                let answer = client.post(PATH, &body).await;
                (whole(&answer, 0), answer["usage"].clone())
            } else {
                let mut body = body.clone();
                body["stream_options"] = json!({"include_usage": true});
                let mut events = client.stream(PATH, &body).await;
                let usage = events.pop().expect("the usage comes last").data["usage"].clone();
                (joined(&events, 0), usage)
            };
            let count = usage["completion_tokens"].as_u64();
            assert!(count == Some(64) || choice.finish == "stop", "seed {seed}: {usage} {choice:?}");
            assert_eq!(String::from_utf8_lossy(&choice.entry_bytes), choice.text(), "seed {seed}");
            if seed < 100 {
                assert_eq!(choice, joined(&client.stream(PATH, &body).await, 0), "seed {seed}");
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test]
async fn ignored_ends_give_the_whole_budget() {
    let server = TestServer::dummy(&[]).await;
    let client = server.client();
    for extra in [
        json!({"max_completion_tokens": 256, "ignore_eos": true}),
        json!({"max_tokens": 256, "min_tokens": 256}),
    ] {
        let mut body = chat(extra.clone());
        body["messages"][0]["content"] = json!("Say hi.");
        let answer = client.post(PATH, &body).await;
        assert_eq!(answer["usage"]["completion_tokens"], 256, "{extra}");
        assert_eq!(answer["choices"][0]["finish_reason"], "length", "{extra}");
        body["stream_options"] = json!({"include_usage": true});
        let mut events = client.stream(PATH, &body).await;
        let usage = events.pop().expect("the usage comes last").data["usage"].clone();
        assert_eq!(usage["completion_tokens"], 256, "{extra}");
        assert_eq!(joined(&events, 0).finish, "length", "{extra}");
    }
}

#[tokio::test]
async fn the_stream_interval_changes_nothing_but_the_chunks() {
    let body = chat(json!({"temperature": 0, "max_tokens": 200, "logprobs": true, "top_logprobs": 2}));
    let mut seen = Vec::new();
    for interval in ["1", "20"] {
        let server = TestServer::dummy(&["--stream-interval", interval]).await;
        let client = server.client();
        let answer = client.post(PATH, &body).await;
        let mut streamed = body.clone();
        streamed["stream_options"] = json!({"include_usage": true});
        let mut events = client.stream(PATH, &streamed).await;
        let usage = events.pop().expect("the usage comes last").data["usage"].clone();
        assert_eq!(usage["completion_tokens"], answer["usage"]["completion_tokens"]);
        let choice = joined(&events, 0);
        assert_eq!(choice, whole(&answer, 0));
        seen.push((choice, usage["completion_tokens"].clone(), events.len()));
    }
    assert_eq!(seen[0].0, seen[1].0);
    assert_eq!(seen[0].1, seen[1].1);
    assert!(seen[0].2 > 2 * seen[1].2, "{} chunks at 1, {} at 20", seen[0].2, seen[1].2);
}

#[tokio::test]
async fn stop_strings_over_chunk_borders_cut_exactly() {
    for interval in ["1", "20"] {
        let server = TestServer::dummy(&["--stream-interval", interval]).await;
        let client = server.client();
        for path in [PATH, "/v1/completions"] {
            let body = match path {
                PATH => chat(json!({"temperature": 0, "max_tokens": 100})),
                _ => json!({"prompt": "hi", "temperature": 0, "max_tokens": 100}),
            };
            let text_of = |events: &[gossamer_tests::client::Event]| match path {
                PATH => (joined(events, 0).text(), joined(events, 0).finish),
                _ => joined_completion(events, 0),
            };
            let events = client.stream(path, &body).await;
            let (full, _) = text_of(&events);
            let chunks: Vec<String> = events
                .iter()
                .map(|event| &event.data["choices"][0])
                .map(|choice| {
                    let delta = &choice["delta"];
                    let text = [&delta["reasoning"], &delta["content"], &choice["text"]];
                    text.into_iter().filter_map(|text| text.as_str()).collect()
                })
                .filter(|text: &String| !text.is_empty())
                .collect();
            assert!(chunks.len() > 3, "{chunks:?}");
            for k in 0..chunks.len().min(6) - 1 {
                let tail: Vec<char> = chunks[k].chars().rev().take(2).collect();
                let stop: String = tail.into_iter().rev().chain(chunks[k + 1].chars().take(2)).collect();
                let mut stopping = body.clone();
                stopping["stop"] = json!([stop]);
                let (cut, finish) = text_of(&client.stream(path, &stopping).await);
                let end = full.find(&stop).expect("it stands in the text");
                assert_eq!(cut, full[..end], "{path}, interval {interval}, stop {stop:?}");
                assert_eq!(finish, "stop");
            }
            let mut never = body.clone();
            never["stop"] = json!(["\u{1}never\u{2}", &format!("{full}more")]);
            assert_eq!(text_of(&client.stream(path, &never).await).0, full, "{path}, interval {interval}");
        }
    }
}
