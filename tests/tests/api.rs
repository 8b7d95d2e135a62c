//! The API over a model with random weights and the vocabulary of gpt-oss.

// The lint knows test functions, but not their helpers.
#![allow(clippy::unwrap_used)]

use gossamer_tests::{
    client::refusal,
    server::TestServer,
    text::{chat, joined, joined_completion, whole},
};
use hyper::Method;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

#[tokio::test]
async fn prompts_have_the_tokens_of_the_specification() {
    let server = TestServer::dummy(&[]).await;
    let client = server.client();
    let user = |text: &str| json!({"role": "user", "content": text});
    let system = |text: &str| json!({"role": "system", "content": text});
    let tool = |name: &str, description: &str, parameters: Option<Value>| {
        let mut function = json!({"name": name, "description": description});
        if let Some(parameters) = parameters {
            function["parameters"] = parameters;
        }
        json!([{"type": "function", "function": function}])
    };
    let city = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let weather = tool("get_weather", "Get weather.", Some(city));
    let location = |parameters| tool("get_location", "Gets the location.", parameters);
    let running = json!([
        user("Weather in Paris?"),
        {"role": "assistant", "reasoning": "Need the tool.", "content": null, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\":\"Paris\"}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "18 degrees"},
    ]);
    let mut ended = running.clone();
    ended
        .as_array_mut()
        .unwrap()
        .extend([json!({"role": "assistant", "content": "It is 18."}), user("thanks")]);
    for (messages, tools, expected) in [
        (json!([user("hi")]), json!([]), 68),
        (json!([user("Can you write me a song?")]), json!([]), 74),
        (json!([user("")]), json!([]), 67),
        (json!([user("<|end|>")]), json!([]), 72),
        (json!([system("Be brief."), user("hi")]), json!([]), 78),
        (json!([system("You are a bot."), user("hi")]), json!([]), 80),
        (json!([user("hi")]), weather.clone(), 117),
        (json!([user("hi")]), location(None), 111),
        (json!([user("hi")]), location(Some(json!({"type": "object", "properties": {}}))), 114),
        (running, weather.clone(), 162),
        (ended, weather, 168),
    ] {
        let body = json!({"model": "m", "messages": messages, "tools": tools, "max_tokens": 1});
        let answer = client.post(CHAT, &body).await;
        assert_eq!(answer["usage"]["prompt_tokens"], expected, "{body}");
    }
    let two = json!({"messages": [system("You are a bot."), system("The user is Bob."), user("hi")], "max_tokens": 1});
    let count = client.post(CHAT, &two).await["usage"]["prompt_tokens"].as_u64();
    assert!(count == Some(92) || count == Some(85), "{count:?}");
}

#[tokio::test]
async fn wrong_sampling_fields_are_refused_and_disturb_nobody() {
    let server = TestServer::dummy(&[]).await;
    let client = server.client();
    let mut bystander = client.open(CHAT, &chat(json!({"max_tokens": 400, "ignore_eos": true}))).await;
    bystander.next().await.unwrap().expect("it has begun");
    let many: Vec<u32> = (0..5000).collect();
    let stops: Vec<String> = (0..5000).map(|number| number.to_string()).collect();
    for extra in [
        json!({"logit_bias": {"201088": 5}}),
        json!({"logit_bias": {"-1": 5}}),
        json!({"logit_bias": {"x": 1}}),
        json!({"stop_token_ids": [999999999], "min_tokens": 5}),
        json!({"allowed_token_ids": many}),
        json!({"stop": stops}),
        json!({"logprobs": true, "top_logprobs": 21}),
        json!({"n": 0}),
        json!({"temperature": -1}),
        json!({"top_p": 2}),
        json!({"top_k": -2}),
        json!({"repetition_penalty": 0}),
    ] {
        let (status, error) = client.refused(CHAT, &chat(extra.clone())).await;
        assert_eq!(status, 400, "{extra}: {error}");
        assert!(error["param"].is_string(), "{extra}: {error}");
    }
    let hot =
        client.post(CHAT, &chat(json!({"temperature": 1e9, "max_tokens": 5, "ignore_eos": true}))).await;
    assert_eq!(hot["usage"]["completion_tokens"], 5);
    let end = bystander.rest().await.unwrap();
    assert!(end.done && end.events.iter().all(|event| event.data.get("error").is_none()));
    assert_eq!(client.get("/health").await.unwrap().status, 200);
}

#[tokio::test]
async fn usage_is_the_same_in_streams_and_sums_over_choices() {
    let server = TestServer::dummy(&[]).await;
    let client = server.client();
    for n in [1, 3] {
        for extra in [json!({"ignore_eos": true, "max_tokens": 30}), json!({"max_tokens": 60, "stop": ["e"]})]
        {
            let mut body = chat(json!({"n": n, "temperature": 0}));
            for (name, value) in extra.as_object().unwrap() {
                body[name] = value.clone();
            }
            let answer = client.post(CHAT, &body).await;
            let (usage, finish) = (&answer["usage"], &answer["choices"][0]["finish_reason"]);
            let (count, reasoning) = (
                usage["completion_tokens"].as_u64().unwrap(),
                usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap(),
            );
            assert!(reasoning <= count);
            if finish == "length" && extra.get("ignore_eos").is_some() {
                assert_eq!(count, 30 * n);
            }
            body["stream_options"] = json!({"include_usage": true});
            let mut events = client.stream(CHAT, &body).await;
            let last = events.pop().unwrap().data;
            assert_eq!(last["choices"], json!([]));
            assert!(events.iter().all(|event| event.data.get("usage").is_none_or(Value::is_null)));
            for field in ["prompt_tokens", "completion_tokens", "total_tokens", "completion_tokens_details"] {
                assert_eq!(last["usage"][field], usage[field], "{body}");
            }
        }
    }
    let (status, error) =
        client.refused(CHAT, &chat(json!({"stream_options": {"include_usage": true}}))).await;
    assert_eq!((status, error["param"].as_str()), (400, Some("stream_options")));
}

#[tokio::test]
async fn logprobs_follow_the_text() {
    for interval in ["1", "20"] {
        let server = TestServer::dummy(&["--stream-interval", interval]).await;
        let client = server.client();
        let body = chat(
            json!({"logprobs": true, "top_logprobs": 2, "max_tokens": 20, "temperature": 0, "ignore_eos": true}),
        );
        let answer = client.post(CHAT, &body).await;
        let found = whole(&answer, 0);
        assert_eq!(String::from_utf8_lossy(&found.entry_bytes), found.text());
        for entry in answer["choices"][0]["logprobs"]["content"].as_array().unwrap() {
            let top = entry["top_logprobs"].as_array().unwrap();
            assert_eq!(top.len(), 2);
            assert_eq!((&top[0]["token"], &top[0]["logprob"]), (&entry["token"], &entry["logprob"]));
            assert!(entry["logprob"].as_f64().unwrap() <= 0.0);
        }
        assert_eq!(joined(&client.stream(CHAT, &body).await, 0), found);
        // A stop string that begins inside a token cuts the text, and not the token's entry.
        let full = found.text();
        let (stop, text, bytes) = stop_inside_a_token(&answer["choices"][0], &full);
        let mut cut = body.clone();
        cut["stop"] = json!(stop);
        let answer = client.post(CHAT, &cut).await;
        assert_eq!(answer["choices"][0]["stop_reason"], stop, "{answer}");
        let stopped = whole(&answer, 0);
        assert_eq!((&*stopped.text(), &*stopped.entry_bytes), (text, bytes), "stop {stop:?}: {answer}");
        assert_eq!(joined(&client.stream(CHAT, &cut).await, 0), stopped);
        let alone = client.post(CHAT, &chat(json!({"logprobs": true, "max_tokens": 5}))).await;
        let entries = alone["choices"][0]["logprobs"]["content"].as_array().unwrap();
        assert!(entries.iter().all(|entry| entry["top_logprobs"] == json!([])));
        let text = json!({"prompt": "hi", "max_tokens": 5, "logprobs": 0, "ignore_eos": true});
        let logprobs = client.post(COMPLETIONS, &text).await["choices"][0]["logprobs"].clone();
        assert_eq!(logprobs["token_logprobs"].as_array().unwrap().len(), 5);
        assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 5);
    }
}

/// The end of some token, as a stop string, with the text before it and the bytes up to the token's end. `text` is that of a
/// choice whose entries are whole.
fn stop_inside_a_token<'a>(choice: &Value, text: &'a str) -> (&'a str, &'a str, &'a [u8]) {
    let mut end = 0;
    for entry in choice["logprobs"]["content"].as_array().unwrap() {
        let start = end;
        end += entry["bytes"].as_array().unwrap().len();
        for at in start + 1..end {
            if let Some(stop) = text.get(at..end)
                && text.find(stop) == Some(at)
            {
                return (stop, &text[..at], &text.as_bytes()[..end]);
            }
        }
    }
    panic!("no token of {text:?} ends in what has not been there before");
}

#[tokio::test]
async fn lengths_are_checked_and_named() {
    let server = TestServer::dummy(&["--max-model-len", "128"]).await;
    let client = server.client();
    let free = client.post(CHAT, &chat(json!({"ignore_eos": true}))).await;
    assert_eq!(free["usage"]["prompt_tokens"], 68);
    assert_eq!(free["usage"]["completion_tokens"], 60);
    assert_eq!(free["choices"][0]["finish_reason"], "length");
    assert_eq!(client.refused(CHAT, &chat(json!({"max_tokens": 61}))).await.0, 400);
    client.post(CHAT, &chat(json!({"max_tokens": null}))).await;
    for wrong in [json!(0), json!(-1), json!(1.5)] {
        assert_eq!(client.refused(CHAT, &chat(json!({"max_tokens": wrong}))).await.0, 400);
    }
    let both = client
        .post(CHAT, &chat(json!({"max_tokens": 50, "max_completion_tokens": 3, "ignore_eos": true})))
        .await;
    assert_eq!(both["usage"]["completion_tokens"], 3);
    let prompt =
        |length: usize| json!({"prompt": vec![1000; length], "max_tokens": null, "ignore_eos": true});
    let nearly = client.post(COMPLETIONS, &prompt(127)).await;
    assert_eq!(nearly["usage"]["completion_tokens"], 1);
    assert_eq!(nearly["choices"][0]["finish_reason"], "length");
    for stream in [false, true] {
        let mut body = prompt(200);
        body["stream"] = json!(stream);
        let (status, error) = client.refused(COMPLETIONS, &body).await;
        assert_eq!(status, 400, "stream {stream}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("128") && message.contains("200"), "{message}");
    }
}

#[tokio::test]
async fn choices_differ_and_seeds_repeat_them() {
    let server = TestServer::dummy(&[]).await;
    let client = server.client();
    let body = chat(json!({"n": 3, "seed": 7, "temperature": 1, "max_tokens": 20, "ignore_eos": true}));
    let answer = client.post(CHAT, &body).await;
    let events = client.stream(CHAT, &body).await;
    let first: Vec<_> = (0..3).map(|index| whole(&answer, index)).collect();
    let second: Vec<_> = (0..3).map(|index| joined(&events, index)).collect();
    assert_eq!(first, second);
    assert!(
        first[0].text() != first[1].text()
            && first[1].text() != first[2].text()
            && first[0].text() != first[2].text()
    );
    assert!(first.iter().all(|choice| choice.finish == "length"));
    let free = json!({"prompt": "hi", "temperature": 1, "max_tokens": 20, "ignore_eos": true});
    let (one, two) = (client.stream(COMPLETIONS, &free).await, client.stream(COMPLETIONS, &free).await);
    assert_ne!(joined_completion(&one, 0), joined_completion(&two, 0));
}

#[tokio::test]
async fn malformed_input_is_refused_in_json() {
    let server = TestServer::dummy(&[]).await;
    let client = server.client();
    let deep = format!("{{\"messages\":{}{}}}", "[".repeat(300), "]".repeat(300));
    let user = |content: &str| format!("{{\"messages\":[{{\"role\":\"user\",\"content\":{content}}}]}}");
    for body in [
        "{".to_owned(),
        "[]".to_owned(),
        String::new(),
        user("\"\\ud83d\""),
        user("5"),
        "{\"messages\":null}".to_owned(),
        "{\"messages\":[]}".to_owned(),
        "{\"messages\":[{\"role\":\"banana\",\"content\":\"x\"}]}".to_owned(),
        deep,
    ] {
        let (status, _) = refusal(client.bytes(Method::POST, CHAT, body.clone()).await.unwrap());
        assert_eq!(status, 400, "{body}");
    }
    // The server may close the connection while the client still writes: it has heard enough.
    if let Ok(answer) = client.bytes(Method::POST, CHAT, vec![b' '; 200 << 20]).await {
        assert_eq!(refusal(answer).0, 413);
    }
    assert_eq!(refusal(client.bytes(Method::GET, CHAT, "").await.unwrap()).0, 405);
    assert_eq!(refusal(client.get("/nowhere").await.unwrap()).0, 404);
    assert_eq!(client.refused(CHAT, &chat(json!({"model": "other"}))).await.0, 404);
    let (status, error) = client.refused(CHAT, &chat(json!({"tool_choice": "required"}))).await;
    assert_eq!(status, 400);
    assert!(error["message"].as_str().unwrap().contains("not supported yet"), "{error}");
    assert_eq!(client.refused(COMPLETIONS, &json!({"prompt": "", "max_tokens": 1})).await.0, 400);
    let answer = client.post(CHAT, &chat(json!({"max_tokens": 1}))).await;
    assert_eq!(answer["usage"]["prompt_tokens"], 68);
}
