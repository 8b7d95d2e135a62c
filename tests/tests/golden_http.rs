//! The golden checkpoint over HTTP, by token ids: greedy tokens equal those of the reference.

// The lint knows test functions, but not their helpers.
#![allow(clippy::unwrap_used)]

use gossamer_tests::{
    client::Client,
    server::{TestServer, fixture},
};
use serde_json::{Value, json};
use std::path::Path;

struct Case {
    prompt: Vec<u64>,
    greedy: Vec<u64>,
    margin: Vec<f64>,
    top5: Vec<u64>,
    top5_logprobs: Vec<f64>,
}

fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(format!("{}/golden.json", fixture("golden-a"))).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    let ids = |value: &Value| value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    let floats = |value: &Value| value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    let cases = golden["cases"].as_array().unwrap();
    cases
        .iter()
        .map(|case| Case {
            prompt: ids(&case["prompt"]),
            greedy: ids(&case["greedy"]),
            margin: floats(&case["greedy_margin"]),
            top5: ids(case["tail_top5_ids"].as_array().unwrap().last().unwrap()),
            top5_logprobs: floats(case["tail_top5_logprobs"].as_array().unwrap().last().unwrap()),
        })
        .collect()
}

fn body(case: &Case) -> Value {
    json!({"prompt": case.prompt, "temperature": 0, "max_tokens": case.greedy.len(), "ignore_eos": true, "logprobs": 5})
}

fn check(case: &Case, choice: &Value, how: &str) {
    let length = case.prompt.len();
    let ids: Vec<u64> =
        choice["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    assert_eq!(ids.len(), case.greedy.len(), "{how}, prompt of {length}");
    // After a near tie either token is right, and what follows is another text.
    let sure = case.margin.iter().position(|margin| *margin < 1e-3).unwrap_or(ids.len());
    assert_eq!(ids[..sure], case.greedy[..sure], "{how}, prompt of {length}");
    let top = choice["logprobs"]["top_logprobs"][0].as_object().unwrap();
    for (id, expected) in case.top5.iter().zip(&case.top5_logprobs) {
        let got = top[&format!("token_id:{id}")].as_f64().unwrap();
        assert!(
            (got - expected).abs() < 1e-3,
            "{how}, prompt of {length}, token {id}: {got}, not {expected}"
        );
    }
}

async fn run(client: &Client, how: &str) {
    let cases = cases();
    assert_eq!(cases.len(), 6);
    for case in &cases {
        let answer = client.post("/v1/completions", &body(case)).await;
        assert_eq!(answer["usage"]["prompt_tokens"], case.prompt.len());
        assert_eq!(answer["choices"][0]["text"], "");
        check(case, &answer["choices"][0], how);
    }
    // All together.
    let requests = cases.iter().map(|case| {
        let client = client.clone();
        let body = body(case);
        tokio::spawn(async move { client.post("/v1/completions", &body).await })
    });
    for (case, request) in cases.iter().zip(requests.collect::<Vec<_>>()) {
        check(case, &request.await.unwrap()["choices"][0], how);
    }
}

#[tokio::test]
async fn greedy_tokens_equal_the_reference_whole_and_chunked() {
    let model = fixture("golden-a");
    for (how, arguments) in [
        ("whole prompts", &["--max-num-batched-tokens", "8192"][..]),
        ("chunks of 64", &["--max-num-batched-tokens", "64", "--max-num-seqs", "8"]),
        ("synchronous", &["--no-async-scheduling", "--no-enable-prefix-caching"]),
    ] {
        let all = [&[&model[..], "--skip-tokenizer-init"], arguments].concat();
        let server = TestServer::start(&all).await;
        run(&server.client(), how).await;
    }
}

#[tokio::test]
async fn a_checkpoint_without_tokenizer_says_what_it_cannot() {
    let server = TestServer::start(&[&fixture("golden-a"), "--skip-tokenizer-init"]).await;
    let client = server.client();
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "text"})),
        ("/v1/completions", json!({"prompt": [1], "stop": "x"})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "hi"}]})),
        ("/tokenize", json!({"prompt": "text"})),
    ] {
        let (status, error) = client.refused(path, &body).await;
        assert_eq!(status, 400, "{path}: {error}");
        assert!(error["message"].as_str().unwrap().contains("without"), "{path}: {error}");
    }
}

/// The golden checkpoint in `folder`, with an embedding of `token` that is not a number.
fn with_nan_embedding(folder: &Path, token: usize) -> String {
    let from = fixture("golden-a");
    let mut bytes = std::fs::read(format!("{from}/model.safetensors")).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let tensors: Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let table = &tensors["model.embed_tokens.weight"];
    assert_eq!(table["dtype"], "BF16");
    let row = table["shape"][1].as_u64().unwrap() as usize * 2;
    let start = header + table["data_offsets"][0].as_u64().unwrap() as usize + token * row;
    bytes[start..start + row].chunks_exact_mut(2).for_each(|value| value.copy_from_slice(&[0xC0, 0x7F]));
    std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
    std::fs::copy(format!("{from}/config.json"), folder.join("config.json")).unwrap();
    folder.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn logits_that_are_no_numbers_end_their_request_and_no_other() {
    // A token that no greedy answer below draws.
    const BROKEN: usize = 511;
    let cases = cases();
    assert!(cases.iter().all(|case| !case.prompt.iter().chain(&case.greedy).any(|id| *id == BROKEN as u64)));
    let folder = tempfile::tempdir().unwrap();
    let server =
        TestServer::start(&[&with_nan_embedding(folder.path(), BROKEN), "--skip-tokenizer-init"]).await;
    let client = server.client();
    let others = cases.iter().map(|case| {
        let (client, body) = (client.clone(), body(case));
        tokio::spawn(async move { client.post("/v1/completions", &body).await })
    });
    let others: Vec<_> = others.collect();
    const WORDS: &str = "the model's output is not a number";
    for (temperature, logprobs) in [(0, Value::Null), (1, Value::Null), (0, json!(2))] {
        let mut broken = json!({"prompt": [7, BROKEN, 8], "max_tokens": 4, "temperature": temperature,
            "logprobs": logprobs, "n": 3});
        let (status, error) = client.refused("/v1/completions", &broken).await;
        assert_eq!((status, error["code"].as_str()), (500, Some("internal_error")), "{error}");
        assert_eq!(error["message"], WORDS);
        broken["stream"] = json!(true);
        let end = client.open("/v1/completions", &broken).await.rest().await.expect("the stream is whole");
        assert!(end.done, "the error is followed by [DONE]");
        assert_eq!(end.events.last().expect("an error comes").data["error"]["message"], WORDS);
    }
    for (case, other) in cases.iter().zip(others) {
        check(case, &other.await.unwrap()["choices"][0], "beside broken requests");
    }
    // What they left in the cache disturbs nobody either.
    run(&client, "after broken requests").await;
    let logged = server.log().iter().filter(|line| line.contains(WORDS)).count();
    assert_eq!(logged, 6, "one line a request: {:?}", server.log());
}
