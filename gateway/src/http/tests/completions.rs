use super::support::{Behaviour, Server, tokenizer};
use axum::body::Body;
use axum::http::Request;
use gossamer_wire::{AbortReason, Refusal, ToScheduler};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

const PATH: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn joined(events: &[Value], index: u64) -> String {
    events
        .iter()
        .flat_map(|event| event["choices"].as_array().unwrap())
        .filter(|choice| choice["index"] == index)
        .map(|choice| choice["text"].as_str().unwrap())
        .collect()
}

fn words(text: &str) -> Behaviour {
    Behaviour::Tokens(tokenizer().encode_ordinary(text))
}

#[tokio::test]
async fn a_completion_has_openais_shape() {
    let server = Server::start(&[], words(" world, this is it")).await;
    let answer = server.post(PATH, json!({"model": "m", "prompt": "hello", "max_tokens": 3})).await;
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["choices"][0]["text"], " world, this");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["choices"][0]["logprobs"], Value::Null);
    assert_eq!(answer["usage"]["prompt_tokens"], 1);
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    assert_eq!(answer["usage"]["total_tokens"], 4);
    assert!(answer["usage"].get("completion_tokens_details").is_none());
}

#[tokio::test]
async fn streams_of_any_interval_give_the_text_of_the_whole_answer() {
    let body = json!({"prompt": "x", "max_tokens": 200, "seed": 5, "n": 3, "logprobs": 2});
    let mut seen = Vec::new();
    for interval in ["1", "20"] {
        let server = Server::start(&["--stream-interval", interval], Behaviour::Seeded).await;
        let whole = server.post(PATH, body.clone()).await;
        let mut streamed = body.clone();
        streamed["stream"] = json!(true);
        streamed["stream_options"] = json!({"include_usage": true});
        let mut events = server.stream(PATH, streamed).await;
        let usage = events.pop().unwrap();
        assert_eq!(usage["choices"], json!([]));
        assert_eq!(usage["usage"], whole["usage"]);
        assert!(events.iter().all(|event| event.get("usage").is_none()), "usage only at the end");
        for index in 0..3 {
            let choice = &whole["choices"][index as usize];
            assert_eq!(joined(&events, index), choice["text"].as_str().unwrap());
            let entries: Vec<_> = events
                .iter()
                .filter(|event| event["choices"][0]["index"] == index)
                .flat_map(|event| {
                    event["choices"][0]["logprobs"]["tokens"].as_array().cloned().unwrap_or_default()
                })
                .collect();
            assert_eq!(&json!(entries), &choice["logprobs"]["tokens"]);
            assert_eq!(entries.len(), 200);
            seen.push(choice["text"].clone());
        }
    }
    assert_eq!(seen[..3], seen[3..]);
    assert!(seen[0] != seen[1] && seen[1] != seen[2]);
}

#[tokio::test]
async fn a_stop_string_over_several_tokens_cuts_the_text_and_the_work() {
    for interval in ["1", "7"] {
        let server = Server::start(&["--stream-interval", interval], words("one two STOP! three four")).await;
        let body = json!({"prompt": "x", "max_tokens": 50, "stop": ["o STOP!"], "stream": true});
        let events = server.stream(PATH, body).await;
        assert_eq!(joined(&events, 0), "one tw");
        assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "stop");
        let never = json!({"prompt": "x", "max_tokens": 50, "stop": ["fourth", "x one"], "stream": true});
        assert_eq!(joined(&server.stream(PATH, never).await, 0), "one two STOP! three four");
    }
}

#[tokio::test]
async fn stop_tokens_give_no_text_and_are_named() {
    let mut script = tokenizer().encode_ordinary("alpha beta");
    let stop = script[1];
    script.push(200_002);
    let server = Server::start(&[], Behaviour::Tokens(script.clone())).await;
    let answer = server.post(PATH, json!({"prompt": "x", "stop_token_ids": [stop]})).await;
    assert_eq!(answer["choices"][0]["text"], "alpha");
    assert_eq!(answer["choices"][0]["stop_reason"], stop);
    assert_eq!(answer["usage"]["completion_tokens"], 2);
    let answer = server.post(PATH, json!({"prompt": "x", "return_token_ids": true})).await;
    assert_eq!(answer["choices"][0]["text"], "alpha beta");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["choices"][0]["stop_reason"], Value::Null);
    assert_eq!(answer["choices"][0]["token_ids"], json!(script));
    let submit = server.submitted().pop().unwrap();
    assert_eq!(submit.stop.stop_token_ids, [200_002, 199_999, 200_012]);
    server.post(PATH, json!({"prompt": "x", "ignore_eos": true})).await;
    assert!(server.submitted().pop().unwrap().stop.stop_token_ids.is_empty());
}

/// As vLLM: stop strings are looked for in what comes after `min_tokens` tokens, and the one found is `stop_reason`.
#[tokio::test]
async fn stop_strings_wait_for_min_tokens_and_are_named() {
    let chat = |body: Value| {
        let mut body = body;
        body["messages"] = json!([{"role": "user", "content": "x"}]);
        body["ignore_eos"] = json!(true);
        body
    };
    let text = "one STOP two STOP three";
    let script = tokenizer().encode_ordinary(text);
    let after_first = tokenizer().encode_ordinary("one STOP").len();
    assert!(after_first < tokenizer().encode_ordinary("one STOP two STOP").len());
    for interval in ["1", "7"] {
        let server = Server::start(&["--stream-interval", interval], Behaviour::Tokens(script.clone())).await;
        for (min_tokens, stop, expected, reason) in [
            (0, json!(["never", "STOP"]), "one ", json!("STOP")),
            (after_first, json!(["STOP"]), "one STOP two ", json!("STOP")),
            // Begun by an early token and completed by a later one.
            (after_first, json!(["OP tw"]), "one ST", json!("OP tw")),
            (script.len(), json!(["STOP"]), text, Value::Null),
        ] {
            let body = json!({
                "prompt": "x", "max_tokens": script.len(), "min_tokens": min_tokens, "stop": stop,
            });
            let finish = if reason.is_null() { "length" } else { "stop" };
            let answer = server.post(PATH, body.clone()).await["choices"][0].clone();
            assert_eq!((&answer["text"], &answer["stop_reason"]), (&json!(expected), &reason), "{body}");
            assert_eq!(answer["finish_reason"], finish, "{body}");
            let mut streamed = body.clone();
            streamed["stream"] = json!(true);
            let events = server.stream(PATH, streamed).await;
            assert_eq!(joined(&events, 0), expected, "{body}");
            assert_eq!(events.last().unwrap()["choices"][0]["stop_reason"], reason, "{body}");

            let answer = server.post(CHAT, chat(body.clone())).await["choices"][0].clone();
            let found = (&answer["message"]["content"], &answer["stop_reason"], &answer["finish_reason"]);
            assert_eq!(found, (&json!(expected), &reason, &json!(finish)), "{body}");
            let mut streamed = chat(body.clone());
            streamed["stream"] = json!(true);
            let last = server.stream(CHAT, streamed).await.pop().unwrap()["choices"][0].clone();
            assert_eq!(last.get("stop_reason"), Some(&reason), "told, or told to be nothing: {last}");
        }
    }
}

#[tokio::test]
async fn prompts_come_as_text_tokens_or_batches_of_either() {
    let server = Server::start(&[], words("!")).await;
    for (prompt, expected) in [
        (json!("hello"), vec![vec![24912]]),
        (json!([1, 2, 3]), vec![vec![1, 2, 3]]),
        (json!(["hello", "hello"]), vec![vec![24912], vec![24912]]),
        (json!([[1, 2], [3]]), vec![vec![1, 2], vec![3]]),
    ] {
        server.scripted.log.lock().unwrap().clear();
        let answer = server.post(PATH, json!({"prompt": prompt, "max_tokens": 1, "n": 2})).await;
        let submitted: Vec<_> = server.submitted().into_iter().map(|submit| submit.prompt).collect();
        let doubled: Vec<_> = expected.iter().flat_map(|ids| [ids.clone(), ids.clone()]).collect();
        assert_eq!(submitted, doubled, "{prompt}");
        let indices: Vec<_> =
            answer["choices"].as_array().unwrap().iter().map(|choice| choice["index"].clone()).collect();
        assert_eq!(indices, (0..doubled.len()).map(|index| json!(index)).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn echo_repeats_the_prompt_and_allows_no_tokens() {
    let server = Server::start(&[], words(" there")).await;
    let answer = server.post(PATH, json!({"prompt": "hi", "echo": true, "max_tokens": 1})).await;
    assert_eq!(answer["choices"][0]["text"], "hi there");
    let answer = server.post(PATH, json!({"prompt": "hi", "echo": true, "max_tokens": 0})).await;
    assert_eq!(answer["choices"][0]["text"], "hi");
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    let events =
        server.stream(PATH, json!({"prompt": "hi", "echo": true, "max_tokens": 1, "stream": true})).await;
    assert_eq!(joined(&events, 0), "hi there");
    let (status, error) = server.refused(PATH, json!({"prompt": "hi", "max_tokens": 0}).to_string()).await;
    assert_eq!((status, error["param"].as_str()), (400, Some("max_tokens")));
}

#[tokio::test]
async fn refusals_have_a_status_even_for_streams() {
    let server = Server::start(&[], Behaviour::Refuse(Refusal::QueueFull { retry_after_s: 3 })).await;
    for stream in [false, true] {
        let (status, error) =
            server.refused(PATH, json!({"prompt": "x", "stream": stream}).to_string()).await;
        assert_eq!((status, error["code"].as_str()), (429, Some("queue_full")));
    }
    server.set(Behaviour::Refuse(Refusal::NeverFits { tokens: 9000, capacity: 2000 }));
    for stream in [false, true] {
        let (status, error) =
            server.refused(PATH, json!({"prompt": "x", "stream": stream}).to_string()).await;
        assert_eq!((status, error["code"].as_str()), (400, Some("context_length_exceeded")));
    }
}

#[tokio::test]
async fn an_error_in_mid_stream_is_an_event_before_done() {
    let server = Server::start(&[], Behaviour::Fail(tokenizer().encode_ordinary("some words"))).await;
    let events = server.stream(PATH, json!({"prompt": "x", "stream": true})).await;
    let error = &events.last().unwrap()["error"];
    assert!(error["message"].as_str().unwrap().contains("the device is gone"), "{error}");
    let (status, _) = server.refused(PATH, json!({"prompt": "x"}).to_string()).await;
    assert_eq!(status, 500);
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_sequences() {
    let server = Server::start(&[], Behaviour::Hang(tokenizer().encode_ordinary("some words"))).await;
    let request = Request::post(PATH)
        .body(Body::from(json!({"prompt": "x", "n": 2, "stream": true}).to_string()))
        .unwrap();
    let mut body = server.router.clone().oneshot(request).await.unwrap().into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(first.starts_with(b"data: "));
    assert_eq!(server.app.engine.open_requests(), 1);
    drop(body);
    // Not streaming: the handler's future is what is dropped.
    let request = Request::post(PATH).body(Body::from(json!({"prompt": "x"}).to_string())).unwrap();
    let waiting = server.router.clone().oneshot(request);
    assert!(tokio::time::timeout(std::time::Duration::from_millis(20), waiting).await.is_err());
    assert_eq!(server.app.engine.open_requests(), 0);
    let log = server.scripted.log.lock().unwrap();
    let aborts = log
        .iter()
        .filter(|message| matches!(message, ToScheduler::Abort { reason: AbortReason::Disconnected, .. }))
        .count();
    assert_eq!(aborts, 3);
}

#[tokio::test]
async fn without_a_tokenizer_tokens_go_in_and_out() {
    let server = Server::start(&["--skip-tokenizer-init"], Behaviour::Tokens(vec![7, 8, 9])).await;
    let answer = server.post(PATH, json!({"prompt": [1, 2], "max_tokens": 2, "logprobs": 0})).await;
    assert_eq!(answer["choices"][0]["text"], "");
    assert_eq!(answer["choices"][0]["token_ids"], json!([7, 8]));
    assert_eq!(answer["choices"][0]["prompt_token_ids"], json!([1, 2]));
    assert_eq!(answer["choices"][0]["logprobs"]["token_logprobs"], json!([-0.5, -0.5]));
    let events = server.stream(PATH, json!({"prompt": [1, 2], "max_tokens": 3, "stream": true})).await;
    let ids: Vec<_> = events
        .iter()
        .flat_map(|event| event["choices"][0]["token_ids"].as_array().unwrap().clone())
        .collect();
    assert_eq!(json!(ids), json!([7, 8, 9]));
    for body in [json!({"prompt": "text"}), json!({"prompt": [1], "stop": "x"})] {
        let (status, error) = server.refused(PATH, body.to_string()).await;
        assert_eq!(status, 400, "{error}");
        assert!(error["message"].as_str().unwrap().contains("without"), "{error}");
    }
}

#[tokio::test]
async fn event_ids_name_request_choice_and_position() {
    let server = Server::start(&[], words("a b c")).await;
    let body = json!({"prompt": "x", "stream": true, "stream_options": {"event_ids": true}});
    let (_, _, bytes) = server.send(PATH, body.to_string()).await;
    let text = String::from_utf8(bytes).unwrap();
    let ids: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    assert_eq!(ids.len(), 3, "{text}");
    for (position, id) in ids.iter().enumerate() {
        assert!(id.ends_with(&format!(":0:{position}")), "{id}");
    }
}

#[tokio::test]
async fn counters_agree_with_usage() {
    let server = Server::start(&[], Behaviour::Seeded).await;
    server.post(PATH, json!({"prompt": [1, 2, 3], "max_tokens": 10, "n": 2})).await;
    server.stream(PATH, json!({"prompt": [1, 2], "max_tokens": 5, "stream": true})).await;
    let request = Request::get("/metrics").body(Body::empty()).unwrap();
    let (_, _, bytes) = server.raw(request).await;
    let text = String::from_utf8(bytes).unwrap();
    for line in [
        "gossamer:prompt_tokens_total{model_name=\"m\"} 5",
        "gossamer:generation_tokens_total{model_name=\"m\"} 25",
        "gossamer:request_success_total{model_name=\"m\",finished_reason=\"length\"} 3",
        "gossamer:request_success_total{model_name=\"m\",finished_reason=\"abort\"} 0",
        "gossamer:request_prompt_tokens_sum{model_name=\"m\"} 5",
        "gossamer:request_generation_tokens_sum{model_name=\"m\"} 25",
        "gossamer:request_prompt_tokens_count{model_name=\"m\"} 2",
        "gossamer:request_generation_tokens_count{model_name=\"m\"} 2",
        "gossamer:request_generation_tokens_bucket{model_name=\"m\",le=\"10\"} 1",
        "gossamer:e2e_request_latency_seconds_count{model_name=\"m\"} 2",
        "gossamer:time_to_first_token_seconds_count{model_name=\"m\"} 2",
        "gossamer:http_requests_total{model_name=\"m\",status=\"2xx\"} 2",
    ] {
        assert!(text.lines().any(|found| found == line), "no line {line} in\n{text}");
    }
}
