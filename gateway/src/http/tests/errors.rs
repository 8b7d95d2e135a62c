use super::support::{Behaviour, Server};
use crate::{
    engine::Engine,
    http::{App, Board, router},
};
use axum::body::Body;
use axum::http::Request;
use gossamer_wire::{FromScheduler, Refusal};
use serde_json::{Value, json};
use std::sync::Arc;
use tower::ServiceExt;

const PATH: &str = "/v1/completions";

#[tokio::test]
async fn fields_out_of_range_are_400_and_named() {
    let server = Server::start(&[], Behaviour::Seeded).await;
    let many: Vec<u32> = (0..5000).collect();
    let stops: Vec<String> = (0..5000).map(|number| number.to_string()).collect();
    let cases = [
        ("logit_bias", json!({"201088": 5})),
        ("logit_bias", json!({"-1": 5})),
        ("logit_bias", json!({"x": 1})),
        ("logit_bias", json!({"1": 1000})),
        ("logit_bias", json!([1])),
        ("stop_token_ids", json!([999999999])),
        ("allowed_token_ids", json!(many)),
        ("allowed_token_ids", json!([])),
        ("stop", json!(stops)),
        ("stop", json!("")),
        ("stop", json!(5)),
        ("n", json!(0)),
        ("n", json!("2")),
        ("n", json!(1000)),
        ("temperature", json!(-1)),
        ("temperature", json!("hot")),
        ("top_p", json!(2)),
        ("top_p", json!(0)),
        ("top_k", json!(-2)),
        ("min_p", json!(1.5)),
        ("repetition_penalty", json!(0)),
        ("presence_penalty", json!(3)),
        ("frequency_penalty", json!(-3)),
        ("seed", json!(1.5)),
        ("best_of", json!(2)),
        ("min_tokens", json!(17)),
        ("min_tokens", json!(-1)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(1.5)),
        ("max_tokens", json!(131072)),
        ("logprobs", json!(21)),
        ("logprobs", json!(-1)),
        ("stream_options", json!({"include_usage": true})),
        ("stream", json!("yes")),
        ("suffix", json!("end")),
        ("response_format", json!({"type": "json_object"})),
        ("guided_json", json!({})),
        ("use_beam_search", json!(true)),
        ("model", json!(5)),
    ];
    for (name, value) in cases {
        let mut body = json!({"prompt": "x", "max_tokens": 16});
        body[name] = value.clone();
        let (status, error) = server.refused(PATH, body.to_string()).await;
        assert_eq!(status, 400, "{name}: {error}");
        assert!(error["param"].as_str().unwrap().starts_with(name), "{error}");
        assert_eq!(error["type"], "invalid_request_error", "{error}");
    }
    assert!(server.submitted().is_empty(), "nothing reached the engine");
    let harmless = [
        ("temperature", json!(1e9)),
        ("temperature", json!(1e-30)),
        ("top_k", json!(-1)),
        ("top_k", json!(999999)),
        ("seed", json!(-5)),
        ("seed", json!(u64::MAX)),
        ("max_tokens", Value::Null),
        ("response_format", json!({"type": "text"})),
        ("user", json!("somebody")),
        ("max_tokens", json!(3.0)),
    ];
    for (name, value) in harmless {
        let mut body = json!({"prompt": "x"});
        body[name] = value;
        server.set(Behaviour::Tokens(vec![1]));
        server.post(PATH, body).await;
    }
}

#[tokio::test]
async fn malformed_bodies_are_400_in_json() {
    let server = Server::start(&[], Behaviour::Tokens(vec![1])).await;
    let deep = format!("{{\"prompt\":{}{}}}", "[".repeat(300), "]".repeat(300));
    for body in [
        "{",
        "[]",
        "",
        "nonsense",
        "\u{0}",
        r#"{"prompt":"\ud83d"}"#,
        r#"{"prompt":null}"#,
        r#"{"prompt":5}"#,
        r#"{"prompt":[]}"#,
        r#"{"prompt":[1,"a"]}"#,
        r#"{"prompt":[201088]}"#,
        r#"{"prompt":[-1]}"#,
        r#"{"prompt":[[1],5]}"#,
        r#"{"prompt":""}"#,
        "{}",
        &deep,
    ] {
        let (status, error) = server.refused(PATH, body.to_owned()).await;
        assert_eq!(status, 400, "{body}: {error}");
    }
    let (status, _) = server.refused(PATH, vec![0xFF, 0xFE]).await;
    assert_eq!(status, 400);
    server.post(PATH, json!({"prompt": "still there"})).await;
}

#[tokio::test]
async fn paths_methods_models_and_sizes_have_their_status() {
    let server = Server::start(&[], Behaviour::Tokens(vec![1])).await;
    let (status, error) = server.refused("/v1/nothing", "{}").await;
    assert_eq!((status, error["code"].as_str()), (404, Some("unknown_path")));
    let (status, _, bytes) = server.raw(Request::get(PATH).body(Body::empty()).unwrap()).await;
    assert_eq!(status, 405);
    assert_eq!(serde_json::from_slice::<Value>(&bytes).unwrap()["error"]["code"], "method_not_allowed");
    let (status, error) = server.refused(PATH, json!({"model": "gpt-9", "prompt": "x"}).to_string()).await;
    assert_eq!((status, error["code"].as_str()), (404, Some("model_not_found")));
    let (status, error) = server.refused(PATH, vec![b' '; (32 << 20) + 1]).await;
    assert_eq!((status, error["code"].as_str()), (413, Some("request_too_large")));
    let announced = Request::post(PATH).header("content-length", "200000000").body(Body::empty()).unwrap();
    assert_eq!(server.raw(announced).await.0, 413);
}

#[tokio::test]
async fn keys_are_asked_for_where_there_are_some() {
    let server = Server::start(&["--api-key", "secret-a,secret-b"], Behaviour::Tokens(vec![1])).await;
    let request = |key: Option<&str>, path: &str| {
        let mut request = Request::post(path);
        if let Some(key) = key {
            request = request.header("authorization", key);
        }
        request.body(Body::from(json!({"prompt": "x"}).to_string())).unwrap()
    };
    for key in [
        None,
        Some("secret-a"),
        Some("Basic secret-a"),
        Some("Bearer secret"),
        Some("Bearer secret-aa"),
        Some("Bearer "),
    ] {
        for path in [PATH, "/tokenize", "/v1/chat/completions"] {
            let (status, _, bytes) = server.raw(request(key, path)).await;
            assert_eq!(status, 401, "{key:?} {path}");
            let error: Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(error["error"]["code"], "invalid_api_key");
        }
    }
    let mut tenants = Vec::new();
    for key in ["Bearer secret-a", "bearer secret-b"] {
        assert_eq!(server.raw(request(Some(key), PATH)).await.0, 200, "{key}");
        tenants.push(server.submitted().pop().unwrap().tenant);
    }
    assert_ne!(tenants[0], tenants[1]);
    let (status, _, _) = server.raw(Request::get("/health").body(Body::empty()).unwrap()).await;
    assert_eq!(status, 200, "probes carry no key");
}

#[tokio::test]
async fn probes_follow_the_engine() {
    let server = Server::start(&[], Behaviour::Tokens(vec![1])).await;
    let probe =
        async |path: &str| server.raw(Request::get(path).body(Body::empty()).unwrap()).await.0.as_u16();
    assert_eq!((probe("/live").await, probe("/ready").await, probe("/health").await), (200, 200, 200));
    server.app.engine.deliver(FromScheduler::Paused);
    assert_eq!((probe("/ready").await, probe("/health").await), (503, 200));
    server.app.engine.fail("workers died");
    assert_eq!((probe("/live").await, probe("/ready").await, probe("/health").await), (200, 503, 503));
    let (status, error) = server.refused(PATH, json!({"prompt": "x"}).to_string()).await;
    assert_eq!((status, error["code"].as_str()), (503, Some("engine_failed")));

    let server = Server::start(&[], Behaviour::Tokens(vec![1])).await;
    server.app.drain();
    let ready = server.raw(Request::get("/ready").body(Body::empty()).unwrap()).await.0;
    assert_eq!(ready, 503);
    // One word for a server that ends, whoever says it.
    let (status, error) = server.refused(PATH, json!({"prompt": "x"}).to_string()).await;
    assert_eq!((status, error["code"].as_str()), (503, Some("shutting_down")));
    let server = Server::start(&[], Behaviour::Refuse(Refusal::Draining)).await;
    let (status, error) = server.refused(PATH, json!({"prompt": "x"}).to_string()).await;
    assert_eq!((status, error["code"].as_str()), (503, Some("shutting_down")));
}

#[tokio::test]
async fn messages_name_what_the_client_sent_and_what_would_do() {
    let server = Server::start(&["--max-model-len", "128"], Behaviour::Tokens(vec![1; 200])).await;
    const CHAT: &str = "/v1/chat/completions";
    let chat = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (path, body, param, words) in [
        (
            CHAT,
            chat(json!({"max_completion_tokens": 100})),
            "max_completion_tokens",
            "lower max_completion_tokens to at most 60",
        ),
        (CHAT, chat(json!({"max_tokens": 100})), "max_tokens", "lower max_tokens to at most 60"),
        (
            CHAT,
            chat(json!({"max_completion_tokens": 5, "min_tokens": 6})),
            "min_tokens",
            "at most max_completion_tokens (5)",
        ),
        (
            CHAT,
            chat(json!({"reasoning_effort": "huge"})),
            "reasoning_effort",
            "'minimal', 'low', 'medium' or 'high'",
        ),
        (CHAT, chat(json!({"best_of": 3})), "best_of", "not supported yet"),
        (PATH, json!({"prompt": "x", "best_of": 3, "n": 2}), "best_of", "not supported yet"),
        (
            PATH,
            json!({"prompt": "x", "seed": 1e20}),
            "seed",
            "-9223372036854775808 to 18446744073709551615, got",
        ),
        (PATH, json!({"prompt": "x", "seed": "1"}), "seed", "expected an integer, got a string"),
        (PATH, json!({"prompt": "x", "n": 1e20}), "n", "expected an integer of 1 to 128, got"),
        (
            PATH,
            json!({"prompt": "x", "allowed_token_ids": [5, 6], "stop_token_ids": [6, 5], "min_tokens": 2}),
            "allowed_token_ids",
            "min_tokens (2) holds back",
        ),
        (
            CHAT,
            chat(json!({"allowed_token_ids": [200_002], "min_tokens": 1, "stream": true})),
            "allowed_token_ids",
            "(stop_token_ids and end of sequence)",
        ),
    ] {
        let (status, error) = server.refused(path, body.to_string()).await;
        assert_eq!((status, error["param"].as_str()), (400, Some(param)), "{body}: {error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{body}: {error}");
    }
    server.post(CHAT, chat(json!({"n": 2, "best_of": 2, "max_completion_tokens": 5}))).await;
    // Nothing is held back, or something is left.
    for more in [
        json!({"allowed_token_ids": [200_002], "min_tokens": 1, "ignore_eos": true}),
        json!({"allowed_token_ids": [200_002]}),
        json!({"allowed_token_ids": [200_002, 7], "min_tokens": 1}),
    ] {
        server.post(CHAT, chat(more)).await;
    }
}

#[tokio::test]
async fn health_is_that_of_the_server_and_not_of_a_process_that_is_replaced() {
    let health = async |board: &Board| {
        let config = Server::start(&[], Behaviour::Tokens(vec![1])).await.app.config.clone();
        let app = App::new(config, Engine::new(1, 2), Vec::new(), board.clone());
        let request = Request::get("/health").body(Body::empty()).unwrap();
        router(Arc::new(app)).oneshot(request).await.unwrap().status()
    };
    // Nobody was ready yet: the model loads.
    let board = Board::private();
    assert_eq!(health(&board).await, 503);
    board.set_was_ready();
    assert_eq!(health(&board).await, 200);
}

#[tokio::test]
async fn lengths_are_checked_against_the_model() {
    let server = Server::start(&["--max-model-len", "128"], Behaviour::Tokens(vec![1; 200])).await;
    let prompt = |len: usize| vec![1; len];
    let answer = server.post(PATH, json!({"prompt": prompt(127), "max_tokens": null})).await;
    assert_eq!(answer["usage"]["completion_tokens"], 1);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    // The default budget shrinks to the room left, an explicit one does not.
    let answer = server.post(PATH, json!({"prompt": prompt(120)})).await;
    assert_eq!(answer["usage"]["completion_tokens"], 8);
    for (len, max_tokens) in [(128, Value::Null), (500, Value::Null), (120, json!(9))] {
        let (status, error) =
            server.refused(PATH, json!({"prompt": prompt(len), "max_tokens": max_tokens}).to_string()).await;
        assert_eq!((status, error["code"].as_str()), (400, Some("context_length_exceeded")));
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("128") && message.contains(&len.to_string()), "{message}");
    }
}
