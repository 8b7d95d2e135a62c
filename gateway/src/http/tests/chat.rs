use super::support::{Behaviour, Server, tokenizer};
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

/// Tokens of a text in which names of control tokens are those tokens.
fn script(text: &str) -> Behaviour {
    Behaviour::Tokens(tokenizer().encode_with_special(text))
}

fn chat(extra: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// Joined reasoning, content, arguments per call, and the finish reason of a choice.
#[derive(Debug, Default, PartialEq)]
struct Joined {
    reasoning: String,
    content: String,
    calls: Vec<(String, String, String)>,
    finish: Option<String>,
    entries: Vec<u8>,
}

fn joined(events: &[Value], index: u64) -> Joined {
    let mut all = Joined::default();
    let choices = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
    for (number, choice) in choices.filter(|choice| choice["index"] == index).enumerate() {
        let delta = &choice["delta"];
        assert_eq!(delta["role"] == "assistant", number == 0, "the role stands in the first delta alone");
        assert_eq!(delta["reasoning"], delta["reasoning_content"]);
        let text = |name: &str| delta[name].as_str().unwrap_or_default().to_owned();
        let calls = delta["tool_calls"].as_array().cloned().unwrap_or_default();
        let empty = text("reasoning").is_empty() && text("content").is_empty() && calls.is_empty();
        assert_eq!(empty, !choice["finish_reason"].is_null(), "only the last delta is empty: {choice}");
        all.reasoning += &text("reasoning");
        all.content += &text("content");
        for call in calls {
            let at = call["index"].as_u64().unwrap() as usize;
            if at == all.calls.len() {
                assert_eq!(call["type"], "function");
                let id = call["id"].as_str().unwrap().to_owned();
                all.calls.push((id, call["function"]["name"].as_str().unwrap().to_owned(), String::new()));
            } else {
                assert!(
                    call.get("id").is_none() && call["function"].get("name").is_none(),
                    "told once: {call}"
                );
            }
            all.calls[at].2 += call["function"]["arguments"].as_str().unwrap();
        }
        all.entries.extend(bytes(&choice["logprobs"]));
        all.finish = choice["finish_reason"].as_str().map(Into::into).or(all.finish);
    }
    all
}

fn bytes(logprobs: &Value) -> Vec<u8> {
    let entries = logprobs["content"].as_array().cloned().unwrap_or_default();
    entries
        .iter()
        .flat_map(|entry| entry["bytes"].as_array().unwrap().clone())
        .map(|byte| byte.as_u64().unwrap() as u8)
        .collect()
}

fn whole(answer: &Value, index: usize) -> Joined {
    let choice = &answer["choices"][index];
    let message = &choice["message"];
    assert_eq!(message["reasoning"], message["reasoning_content"]);
    let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
    Joined {
        reasoning: message["reasoning"].as_str().unwrap_or_default().into(),
        content: message["content"].as_str().unwrap_or_default().into(),
        calls: calls
            .iter()
            .map(|call| {
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                (text(&call["id"]), text(&call["function"]["name"]), text(&call["function"]["arguments"]))
            })
            .collect(),
        finish: choice["finish_reason"].as_str().map(Into::into),
        entries: bytes(&choice["logprobs"]),
    }
}

#[tokio::test]
async fn reasoning_and_answer_come_apart_at_any_interval() {
    let text = "<|channel|>analysis<|message|>AAA and so on<|end|><|start|>assistant<|channel|>final<|message|>BBB is \
                it<|return|>";
    for interval in ["1", "3", "200"] {
        let server = Server::start(&["--stream-interval", interval], script(text)).await;
        let answer = server.post(PATH, chat(json!({"logprobs": true, "top_logprobs": 2}))).await;
        let found = whole(&answer, 0);
        assert_eq!((&*found.reasoning, &*found.content), ("AAA and so on", "BBB is it"));
        assert_eq!(found.finish.as_deref(), Some("stop"));
        assert_eq!(found.entries, b"AAA and so onBBB is it");
        let details = &answer["usage"]["completion_tokens_details"];
        assert_eq!(details["reasoning_tokens"], tokenizer().encode_ordinary("AAA and so on").len());
        assert_eq!(answer["usage"]["completion_tokens"], tokenizer().encode_with_special(text).len());
        let options = json!({"stream": true, "stream_options": {"include_usage": true}, "logprobs": true});
        let mut events = server.stream(PATH, chat(options)).await;
        assert_eq!(events.pop().unwrap()["usage"], answer["usage"]);
        assert_eq!(joined(&events, 0), found, "interval {interval}");
    }
}

#[tokio::test]
async fn a_flush_over_a_channel_change_is_two_deltas_in_order() {
    let text = "x<|end|><|start|>assistant<|channel|>analysis<|message|>AAA<|end|><|start|>assistant<|channel|>final\
                <|message|>BBB<|return|>";
    let server = Server::start(&["--stream-interval", "100"], script(text)).await;
    let events = server.stream(PATH, chat(json!({"stream": true}))).await;
    let order: Vec<_> = events
        .iter()
        .map(|event| &event["choices"][0]["delta"])
        .map(|delta| {
            format!(
                "{}{}",
                delta["reasoning"].as_str().unwrap_or("-"),
                delta["content"].as_str().unwrap_or("-")
            )
        })
        .collect();
    assert_eq!(order, ["-x", "AAA-", "-\n\nBBB", "--"]);
}

#[tokio::test]
async fn random_tokens_never_break_an_answer() {
    let server = Server::start(&[], Behaviour::Seeded).await;
    for seed in 0..60 {
        let body = chat(json!({"seed": seed, "temperature": 1, "max_tokens": 64, "logprobs": true}));
        let answer = server.post(PATH, body.clone()).await;
        let mut streamed = body;
        streamed["stream"] = json!(true);
        let events = server.stream(PATH, streamed).await;
        let (first, second) = (whole(&answer, 0), joined(&events, 0));
        // Ids of calls name the request.
        assert_eq!((&first.reasoning, &first.content), (&second.reasoning, &second.content), "seed {seed}");
        assert_eq!((&first.finish, &first.entries), (&second.finish, &second.entries), "seed {seed}");
        assert_eq!(answer["usage"]["completion_tokens"], 64);
    }
}

#[tokio::test]
async fn tool_calls_are_told_once_and_joined() {
    let weather = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]);
    let call = "<|channel|>analysis<|message|>Use it.<|end|><|start|>assistant<|channel|>commentary to=functions.f \
                <|constrain|>json<|message|>{\"a\":1}<|call|>";
    for interval in ["1", "50"] {
        let server = Server::start(&["--stream-interval", interval], script(call)).await;
        let answer = server.post(PATH, chat(json!({"tools": weather}))).await;
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["content"], Value::Null);
        assert_eq!(message["tool_calls"][0]["function"]["name"], "f");
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
        let events = server.stream(PATH, chat(json!({"tools": weather, "stream": true}))).await;
        let found = joined(&events, 0);
        assert_eq!(found.calls.len(), 1);
        assert_eq!((&*found.calls[0].1, &*found.calls[0].2), ("f", "{\"a\":1}"));
        assert_eq!(found.finish.as_deref(), Some("tool_calls"));
        // Cut inside the arguments.
        let tokens = tokenizer().encode_with_special(call).len() - 3;
        let answer = server.post(PATH, chat(json!({"tools": weather, "max_tokens": tokens}))).await;
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
    }
}

#[tokio::test]
async fn token_ids_are_all_returned() {
    let text =
        "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>final<|message|>B<|return|>";
    let server = Server::start(&[], script(text)).await;
    let expected = json!(tokenizer().encode_with_special(text));
    let answer = server.post(PATH, chat(json!({"return_token_ids": true}))).await;
    assert_eq!(answer["choices"][0]["token_ids"], expected);
    assert_eq!(answer["prompt_token_ids"].as_array().unwrap().len(), 68);
    let events = server.stream(PATH, chat(json!({"return_token_ids": true, "stream": true}))).await;
    let ids: Vec<_> = events
        .iter()
        .flat_map(|event| event["choices"][0]["token_ids"].as_array().unwrap().clone())
        .collect();
    assert_eq!(json!(ids), expected);
    assert_eq!(events[0]["prompt_token_ids"], answer["prompt_token_ids"]);
    assert!(events[1].get("prompt_token_ids").is_none());
}

#[tokio::test]
async fn prompts_have_the_tokens_of_the_specification() {
    let server = Server::start(&[], Behaviour::Tokens(vec![1])).await;
    let user = |text: &str| json!({"role": "user", "content": text});
    let system = |text: &str| json!({"role": "system", "content": text});
    let tool = |name: &str, description: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}});
    let weather = tool(
        "get_weather",
        "Get weather.",
        json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}),
    );
    let empty = json!({"type": "object", "properties": {}});
    let running = |name: &str| {
        json!([
            user("Weather in Paris?"),
            {"role": "assistant", name: "Need the tool.", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\":\"Paris\"}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "18 degrees"},
        ])
    };
    let mut ended = running("reasoning");
    ended
        .as_array_mut()
        .unwrap()
        .extend([json!({"role": "assistant", "content": "It is 18."}), user("thanks")]);
    let cases = [
        (json!([user("hi")]), json!([]), 68),
        (json!([user("Can you write me a song?")]), json!([]), 74),
        (json!([user("")]), json!([]), 67),
        (json!([user("<|end|>")]), json!([]), 72),
        (json!([system("Be brief."), user("hi")]), json!([]), 78),
        (json!([system("You are a bot."), user("hi")]), json!([]), 80),
        (json!([user("hi")]), json!([weather]), 117),
        (json!([user("hi")]), json!([tool("get_location", "Gets the location.", Value::Null)]), 111),
        (json!([user("hi")]), json!([tool("get_location", "Gets the location.", empty)]), 114),
        (running("reasoning"), json!([weather]), 162),
        (running("reasoning_content"), json!([weather]), 162),
        (ended, json!([weather]), 168),
    ];
    for (messages, tools, expected) in cases {
        let body = json!({"messages": messages, "tools": tools, "max_tokens": 1});
        let answer = server.post(PATH, body.clone()).await;
        assert_eq!(answer["usage"]["prompt_tokens"], expected, "{body}");
        let counted = server.post("/tokenize", body).await;
        assert_eq!(counted["count"], expected);
    }
    let two = json!([system("You are a bot."), system("The user is Bob."), user("hi")]);
    let count = server.post("/tokenize", json!({"messages": two})).await["count"].as_u64().unwrap();
    assert!(count == 92 || count == 85, "{count}");
    // A long conversation takes the pool's way to the same tokens.
    let long = "word ".repeat(3000);
    let count = server.post("/tokenize", json!({"messages": [user(&long)]})).await["count"].as_u64().unwrap();
    assert_eq!(count as usize, 67 + tokenizer().encode_ordinary(&long).len());
}

#[tokio::test]
async fn malformed_conversations_are_400_and_named() {
    let server = Server::start(&[], Behaviour::Tokens(vec![1])).await;
    let user = json!({"role": "user", "content": "hi"});
    for (param, extra) in [
        ("messages", json!({"messages": []})),
        ("messages", json!({"messages": null})),
        ("messages", json!({"messages": "hi"})),
        ("messages[0]", json!({"messages": ["hi"]})),
        ("messages[0].role", json!({"messages": [{"role": "banana", "content": "x"}]})),
        ("messages[0].role", json!({"messages": [{"content": "x"}]})),
        ("messages[0].content", json!({"messages": [{"role": "user", "content": 5}]})),
        ("messages[0].content", json!({"messages": [{"role": "user"}]})),
        (
            "messages[0].content[0].type",
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        ),
        ("messages", json!({"messages": [user, {"role": "tool", "tool_call_id": "c9", "content": "x"}]})),
        ("tools", json!({"tools": {}})),
        ("tools[0].function", json!({"tools": [{"type": "function"}]})),
        ("tools[0].function.name", json!({"tools": [{"type": "function", "function": {"name": "a b"}}]})),
        ("tool_choice", json!({"tool_choice": "required"})),
        ("tool_choice", json!({"tool_choice": {"type": "function", "function": {"name": "f"}}})),
        ("response_format", json!({"response_format": {"type": "json_schema"}})),
        ("reasoning_effort", json!({"reasoning_effort": "extreme"})),
        ("top_logprobs", json!({"top_logprobs": 3})),
        ("top_logprobs", json!({"logprobs": true, "top_logprobs": 21})),
        ("logprobs", json!({"logprobs": 3})),
        ("max_tokens", json!({"max_tokens": 0})),
        ("max_completion_tokens", json!({"max_completion_tokens": -1})),
    ] {
        let (status, error) = server.refused(PATH, chat(extra.clone()).to_string()).await;
        assert_eq!((status, error["param"].as_str()), (400, Some(param)), "{extra}: {error}");
    }
    let surrogate = r#"{"messages":[{"role":"user","content":"\ud83d"}]}"#;
    assert_eq!(server.refused(PATH, surrogate).await.0, 400);
    assert!(server.submitted().is_empty());
    let parts = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]});
    assert_eq!(server.post(PATH, chat(parts)).await["usage"]["prompt_tokens"], 68);
    let none = json!({"tool_choice": "none", "tools": [{"type": "function", "function": {"name": "f"}}]});
    assert_eq!(server.post(PATH, chat(none)).await["usage"]["prompt_tokens"], 68, "tools are not shown");
}

#[tokio::test]
async fn budgets_follow_the_models_length() {
    let server = Server::start(&["--max-model-len", "128"], Behaviour::Tokens(vec![17; 200])).await;
    for (extra, expected) in [
        (json!({}), 60),
        (json!({"max_tokens": null}), 60),
        (json!({"max_tokens": 60}), 60),
        (json!({"max_tokens": 50, "max_completion_tokens": 7}), 7),
    ] {
        let answer = server.post(PATH, chat(extra)).await;
        assert_eq!(answer["usage"]["completion_tokens"], expected);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
    }
    let (status, error) = server.refused(PATH, chat(json!({"max_tokens": 61})).to_string()).await;
    assert_eq!((status, error["code"].as_str()), (400, Some("context_length_exceeded")));
    for wrong in [json!(0), json!(-1), json!(1.5)] {
        assert_eq!(server.refused(PATH, chat(json!({"max_tokens": wrong})).to_string()).await.0, 400);
    }
    // Too long a prompt is refused with a status, streaming too.
    let long = "word ".repeat(200);
    let body = json!({"messages": [{"role": "user", "content": long}], "stream": true});
    assert_eq!(server.refused(PATH, body.to_string()).await.0, 400);
}

#[tokio::test]
async fn choices_are_reproducible_by_seed_and_else_vary() {
    let server = Server::start(&[], Behaviour::Seeded).await;
    let seeded = chat(json!({"n": 3, "seed": 7, "temperature": 1, "max_tokens": 20}));
    let first = server.post(PATH, seeded.clone()).await;
    let again = server.post(PATH, seeded.clone()).await;
    let text = |answer: &Value, index: usize| {
        let joined = whole(answer, index);
        joined.reasoning + &joined.content
    };
    for index in 0..3 {
        assert_eq!(text(&first, index), text(&again, index));
        assert_ne!(text(&first, index), text(&first, (index + 1) % 3));
    }
    assert_eq!(first["usage"]["completion_tokens"], 60);
    let free = chat(json!({"temperature": 1, "max_tokens": 20}));
    assert_ne!(text(&server.post(PATH, free.clone()).await, 0), text(&server.post(PATH, free).await, 0));
}

#[tokio::test]
async fn stop_strings_apply_to_reasoning_and_content() {
    let text = "<|channel|>analysis<|message|>think STOP more<|end|><|start|>assistant<|channel|>final<|message|>never<|return|>";
    for interval in ["1", "20"] {
        let server = Server::start(&["--stream-interval", interval], script(text)).await;
        let body = chat(json!({"stop": ["STOP"], "stream": true}));
        let found = joined(&server.stream(PATH, body).await, 0);
        assert_eq!((&*found.reasoning, &*found.content), ("think ", ""));
        assert_eq!(found.finish.as_deref(), Some("stop"));
    }
}

#[tokio::test]
async fn text_becomes_tokens_and_text_again() {
    let server = Server::start(&[], Behaviour::Tokens(vec![1])).await;
    let body = json!({"prompt": "hello <|end|>", "return_token_strs": true});
    let answer = server.post("/tokenize", body).await;
    assert_eq!(answer["tokens"], json!([24912, 220, 200_007]));
    assert_eq!(answer["count"], 3);
    assert_eq!(answer["max_model_len"], 131_072);
    assert_eq!(answer["token_strs"], json!(["hello", " ", "<|end|>"]));
    let back = server.post("/detokenize", json!({"tokens": answer["tokens"]})).await;
    assert_eq!(back["prompt"], "hello <|end|>");
    for (path, body) in
        [("/tokenize", json!({})), ("/detokenize", json!({})), ("/detokenize", json!({"tokens": [-1]}))]
    {
        assert_eq!(server.refused(path, body.to_string()).await.0, 400);
    }
}

/// `/tokenize` shows what a chat's prompt is, and what it is without the beginning of the answer.
#[tokio::test]
async fn tokenize_leaves_the_generation_prompt_out_where_asked() {
    let server = Server::start(&[], Behaviour::Tokens(vec![1])).await;
    let ask = async |extra: Value| {
        let answer = server.post("/tokenize", chat(extra)).await;
        answer["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect::<Vec<_>>()
    };
    let whole = ask(json!({})).await;
    assert_eq!(whole, ask(json!({"add_generation_prompt": true})).await);
    let history = ask(json!({"add_generation_prompt": false})).await;
    let start = tokenizer().encode_with_special("<|start|>assistant");
    assert_eq!(whole, [&history[..], &start].concat());
    server.post(PATH, chat(json!({"max_tokens": 1}))).await;
    assert_eq!(server.submitted().pop().unwrap().prompt, whole);
    for (path, extra, param, words) in [
        ("/tokenize", json!({"prompt": "hi"}), "messages", "expected 'messages' or 'prompt', got both"),
        ("/tokenize", json!({"add_generation_prompt": 1}), "add_generation_prompt", "expected true or false"),
        ("/tokenize", json!({"continue_final_message": true}), "continue_final_message", "not supported yet"),
        (PATH, json!({"add_generation_prompt": false}), "add_generation_prompt", "not supported yet"),
    ] {
        let (status, error) = server.refused(path, chat(extra).to_string()).await;
        assert_eq!((status, error["param"].as_str()), (400, Some(param)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
}
