//! One HTTP client for all requests, and what it observes of each.

use super::sse::Splitter;
use super::{Backend, BenchError, Prompt, ServeBenchArgs};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, StatusCode, Uri, body::Incoming, header};
use hyper_util::client::legacy::{Client as Pool, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// What happened to one request.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Sent, in seconds since the benchmark began.
    pub sent: f64,
    /// Seconds to the first token.
    pub ttft: f64,
    /// Seconds to the last token.
    pub latency: f64,
    /// Seconds between chunks that carried tokens, divided by the tokens of a chunk where the server tells them.
    pub itl: Vec<f64>,
    /// `usage.prompt_tokens`.
    pub prompt_tokens: u64,
    /// `usage.completion_tokens`.
    pub completion_tokens: u64,
    /// Generated text: reasoning, content and tool arguments, in order.
    pub text: String,
    /// Set when the request failed.
    pub error: Option<String>,
}

/// All samples of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// In the order of the prompts.
    pub samples: Vec<Sample>,
    /// Seconds from the first request to the end of the last.
    pub duration: f64,
    /// Most requests in flight at once.
    pub peak_concurrency: usize,
}

/// What the server says about itself.
#[derive(Clone, Debug)]
pub struct Server {
    /// Model that is driven.
    pub model: String,
    /// Vocabulary without control tokens, where the server tells.
    pub vocab_size: Option<u32>,
}

/// The client.
pub struct Client {
    pool: Pool<HttpConnector, Full<Bytes>>,
    url: String,
    path: String,
    backend: Backend,
    api_key: Option<String>,
    model: Option<String>,
    ignore_eos: bool,
    temperature: Option<f32>,
}

#[derive(Deserialize, Default)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
}

#[derive(Deserialize, Default)]
struct Delta {
    content: Option<String>,
    reasoning: Option<String>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<ToolCall>>,
}

#[derive(Deserialize)]
struct ToolCall {
    function: Option<Function>,
}

#[derive(Deserialize)]
struct Function {
    arguments: Option<String>,
}

#[derive(Deserialize)]
struct Choice {
    text: Option<String>,
    delta: Option<Delta>,
    token_ids: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Value>,
}

impl Chunk {
    /// Appends the chunk's text; returns whether it carried tokens, and how many if it says so.
    fn take(&self, text: &mut String) -> (bool, Option<usize>) {
        let (mut carried, mut tokens) = (false, None);
        for choice in &self.choices {
            let mut add = |part: Option<&String>| {
                if let Some(part) = part.filter(|part| !part.is_empty()) {
                    text.push_str(part);
                    carried = true;
                }
            };
            add(choice.text.as_ref());
            if let Some(delta) = &choice.delta {
                add(delta.reasoning.as_ref().or(delta.reasoning_content.as_ref()));
                add(delta.content.as_ref());
                for call in delta.tool_calls.iter().flatten() {
                    add(call.function.as_ref().and_then(|function| function.arguments.as_ref()));
                }
            }
            if let Some(ids) = choice.token_ids.as_ref().filter(|ids| !ids.is_empty()) {
                carried = true;
                *tokens.get_or_insert(0) += ids.len();
            }
        }
        (carried, tokens)
    }
}

impl Client {
    /// A client for the server that the arguments name.
    pub fn new(args: &ServeBenchArgs) -> Result<Self, BenchError> {
        let url = args.url();
        let uri =
            url.parse::<Uri>().ok().filter(|uri| uri.scheme_str() == Some("http") && uri.host().is_some());
        if uri.is_none() {
            return Err(BenchError::Arguments(format!(
                "expected a base URL such as http://127.0.0.1:8000, got '{url}'"
            )));
        }
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let pool = Pool::builder(TokioExecutor::new()).pool_max_idle_per_host(usize::MAX).build(connector);
        Ok(Self {
            pool,
            url,
            path: args.path().to_owned(),
            backend: args.backend,
            api_key: args.api_key.clone(),
            model: args.model.clone(),
            ignore_eos: args.ignore_eos,
            temperature: args.temperature,
        })
    }

    async fn send(&self, path: &str, body: Option<&Value>) -> Result<Response<Incoming>, String> {
        let mut request = Request::builder().uri(format!("{}{path}", self.url));
        if let Some(key) = &self.api_key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = match body {
            None => request.body(Full::default()),
            Some(body) => request
                .method("POST")
                .header(header::CONTENT_TYPE, "application/json")
                .body(Full::new(Bytes::from(body.to_string()))),
        };
        let request = request.map_err(|error| error.to_string())?;
        self.pool.request(request).await.map_err(|error| {
            let cause =
                std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            format!("{error}{cause}")
        })
    }

    async fn json(&self, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let response = self.send(path, body).await?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        if !status.is_success() {
            return Err(format!("HTTP {status}: {}", String::from_utf8_lossy(&body[..body.len().min(300)])));
        }
        serde_json::from_slice(&body).map_err(|error| format!("not JSON: {error}"))
    }

    /// Waits until the server lists its models, and picks one.
    pub async fn discover(&self, patience: Duration) -> Result<Server, BenchError> {
        let give_up = Instant::now() + patience;
        loop {
            match self.json("/v1/models", None).await {
                Ok(models) => {
                    let entries = models["data"].as_array().map(Vec::as_slice).unwrap_or_default();
                    let named = |entry: &&Value| {
                        self.model.is_none() || entry["id"].as_str() == self.model.as_deref()
                    };
                    let entry = entries.iter().find(named);
                    let listed = entry.and_then(|entry| entry["id"].as_str()).map(str::to_owned);
                    let Some(model) = self.model.clone().or(listed) else {
                        return Err(BenchError::Arguments(
                            "the server lists no model; pass --model".to_owned(),
                        ));
                    };
                    let vocab = entry.and_then(|entry| entry["text_vocab_size"].as_u64());
                    return Ok(Server { model, vocab_size: vocab.and_then(|size| u32::try_from(size).ok()) });
                }
                Err(message) if Instant::now() >= give_up => {
                    return Err(BenchError::Unreachable { url: self.url.clone(), message });
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Tokens of a text, where the server has `/tokenize`.
    pub async fn count_tokens(&self, model: &str, text: &str) -> Option<usize> {
        let body = json!({"model": model, "prompt": text, "add_special_tokens": false});
        let answer = self.json("/tokenize", Some(&body)).await.ok()?;
        answer["count"].as_u64().and_then(|count| usize::try_from(count).ok())
    }

    fn body(&self, model: &str, prompt: &Prompt) -> Value {
        let mut body = json!({"model": model, "stream": true, "stream_options": {"include_usage": true}});
        match (self.backend, prompt) {
            (Backend::Completions, Prompt::Tokens { ids, .. }) => body["prompt"] = json!(ids),
            (Backend::Completions, Prompt::Text { text, .. }) => body["prompt"] = json!(text),
            (Backend::Chat, Prompt::Text { text, .. }) => {
                body["messages"] = json!([{"role": "user", "content": text}])
            }
            (Backend::Chat, Prompt::Tokens { ids, .. }) => {
                body["messages"] = json!([{"role": "user", "content": ids}])
            }
        }
        let budget = if self.backend == Backend::Chat { "max_completion_tokens" } else { "max_tokens" };
        body[budget] = json!(prompt.output_len());
        if self.ignore_eos {
            body["ignore_eos"] = json!(true);
        }
        if let Some(temperature) = self.temperature {
            body["temperature"] = json!(temperature);
        }
        body
    }

    /// Sends one prompt and follows its stream to the end.
    pub async fn generate(&self, model: &str, prompt: &Prompt, began: Instant) -> Sample {
        let sent = Instant::now();
        let mut sample = Sample { sent: (sent - began).as_secs_f64(), ..Sample::default() };
        if let Err(error) = self.follow(model, prompt, sent, &mut sample).await {
            sample.error = Some(error);
        }
        sample
    }

    async fn follow(
        &self,
        model: &str,
        prompt: &Prompt,
        sent: Instant,
        sample: &mut Sample,
    ) -> Result<(), String> {
        let response = self.send(&self.path, Some(&self.body(model, prompt))).await?;
        let status = response.status();
        let mut body = response.into_body();
        if status != StatusCode::OK {
            let bytes = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
            return Err(format!(
                "HTTP {status}: {}",
                String::from_utf8_lossy(&bytes[..bytes.len().min(500)])
            ));
        }
        let (mut splitter, mut last, mut done, mut usage) =
            (Splitter::default(), None::<Instant>, false, None);
        let mut failure = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| format!("the stream broke: {error}"))?;
            let Some(data) = frame.data_ref() else { continue };
            let now = Instant::now();
            splitter.push(data, |event| {
                if event == b"[DONE]" {
                    done = true;
                    return;
                }
                let chunk = match serde_json::from_slice::<Chunk>(event) {
                    Ok(chunk) => chunk,
                    Err(error) => {
                        failure.get_or_insert(format!("a stream event is not a chunk: {error}"));
                        return;
                    }
                };
                if let Some(error) = &chunk.error {
                    failure.get_or_insert(
                        error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned),
                    );
                }
                let (carried, tokens) = chunk.take(&mut sample.text);
                if carried {
                    match last {
                        None => sample.ttft = (now - sent).as_secs_f64(),
                        Some(last) => {
                            let tokens = tokens.unwrap_or(1);
                            let gap = (now - last).as_secs_f64() / tokens as f64;
                            sample.itl.extend(std::iter::repeat_n(gap, tokens));
                        }
                    }
                    last = Some(now);
                    sample.latency = (now - sent).as_secs_f64();
                }
                usage = chunk.usage.or(usage.take());
            });
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        if !done {
            return Err("the stream ended without [DONE]".to_owned());
        }
        let usage = usage.ok_or("the server sent no usage; it must honour stream_options.include_usage")?;
        (sample.prompt_tokens, sample.completion_tokens) = (usage.prompt_tokens, usage.completion_tokens);
        if last.is_none() {
            // Control tokens alone carry no text: the stream's end is all there is to see.
            sample.ttft = sent.elapsed().as_secs_f64();
            sample.latency = sample.ttft;
        }
        Ok(())
    }
}
