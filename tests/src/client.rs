//! A client that sees everything: status, headers, each event and when it came.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Method, Request, body::Incoming, header};
use hyper_util::{
    client::legacy::{Client as HyperClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;
use std::time::Instant;

/// Talks to one server on this machine.
#[derive(Clone)]
pub struct Client {
    http: HyperClient<HttpConnector, Full<Bytes>>,
    base: String,
    /// Sent with every request.
    headers: Vec<(&'static str, String)>,
}

/// An answer in one piece.
#[derive(Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Content type.
    pub kind: String,
    /// All headers.
    pub headers: HeaderMap,
    /// The document; a string if it is not JSON.
    pub body: Value,
}

/// An event of a stream.
#[derive(Debug, Clone)]
pub struct Event {
    /// When it was read.
    pub at: Instant,
    /// What stands behind `data: `.
    pub data: Value,
}

/// A stream that ended.
#[derive(Debug)]
pub struct Stream {
    /// The events, without `[DONE]`.
    pub events: Vec<Event>,
    /// Whether `[DONE]` came.
    pub done: bool,
}

/// A stream under way.
pub struct OpenStream {
    body: Incoming,
    /// The beginning of an event; a frame may end inside a character.
    rest: Vec<u8>,
    /// Whether `[DONE]` came.
    pub done: bool,
}

impl Client {
    /// A client of the server at a port.
    pub fn new(port: u16) -> Self {
        let http = HyperClient::builder(TokioExecutor::new()).build_http();
        Self { http, base: format!("http://127.0.0.1:{port}"), headers: Vec::new() }
    }

    /// The same client, which sends one header more.
    pub fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<hyper::Response<Incoming>, String> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(header::CONTENT_TYPE, "application/json");
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let request = request.body(Full::new(body)).map_err(|error| error.to_string())?;
        self.http
            .request(request)
            .await
            .map_err(|error| format!("{error}: {:?}", std::error::Error::source(&error)))
    }

    /// Sends bytes and reads the whole answer.
    pub async fn bytes(&self, method: Method, path: &str, body: impl Into<Bytes>) -> Result<Answer, String> {
        let response = self.send(method, path, body.into()).await?;
        let status = response.status().as_u16();
        let kind = response.headers().get(header::CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned();
        let headers = response.headers().clone();
        let bytes = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        Ok(Answer { status, kind, headers, body })
    }

    /// Gets a path.
    pub async fn get(&self, path: &str) -> Result<Answer, String> {
        self.bytes(Method::GET, path, Bytes::new()).await
    }

    /// Posts a document, whatever comes of it.
    pub async fn try_post(&self, path: &str, body: &Value) -> Result<Answer, String> {
        self.bytes(Method::POST, path, body.to_string()).await
    }

    /// Posts a document that must be answered 200.
    pub async fn post(&self, path: &str, body: &Value) -> Value {
        let answer = self.try_post(path, body).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(answer.status, 200, "{path} {body}: {}", answer.body);
        answer.body
    }

    /// Posts a document that must be refused: status and the error object.
    pub async fn refused(&self, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.try_post(path, body).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        refusal(answer)
    }

    /// Begins a stream that must be answered 200.
    pub async fn open(&self, path: &str, body: &Value) -> OpenStream {
        self.try_open(path, body).await.unwrap_or_else(|error| panic!("{path} {body}: {error}"))
    }

    /// Begins a stream, if it is answered 200.
    pub async fn try_open(&self, path: &str, body: &Value) -> Result<OpenStream, String> {
        let mut body = body.clone();
        body["stream"] = Value::Bool(true);
        let response = self.send(Method::POST, path, body.to_string().into()).await?;
        match response.status().as_u16() {
            200 => Ok(OpenStream { body: response.into_body(), rest: Vec::new(), done: false }),
            status => Err(format!("status {status}")),
        }
    }

    /// Reads a whole stream that must end with `[DONE]`.
    pub async fn stream(&self, path: &str, body: &Value) -> Vec<Event> {
        let mut stream = self.open(path, body).await;
        let all = stream.rest().await.unwrap_or_else(|error| panic!("{path} {body}: {error}"));
        assert!(all.done, "the stream of {body} ended without [DONE]");
        all.events
    }

    /// The value of a metric, summed over its labels that contain `label`.
    pub async fn metric(&self, name: &str, label: &str) -> f64 {
        let answer = self.get("/metrics").await.unwrap_or_else(|error| panic!("/metrics: {error}"));
        let text = answer.body.as_str().expect("metrics are text").to_owned();
        let prefix = format!("gossamer:{name}{{");
        let lines = text.lines().filter(|line| line.starts_with(&prefix) && line.contains(label));
        let values: Vec<f64> = lines
            .map(|line| line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number"))
            .collect();
        assert!(!values.is_empty(), "no metric {name} with {label} in\n{text}");
        values.iter().sum()
    }
}

impl OpenStream {
    /// The next events; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<Event>>, String> {
        loop {
            let Some(frame) = self.body.frame().await else {
                return match self.rest.is_empty() {
                    true => Ok(None),
                    false => {
                        let rest = String::from_utf8_lossy(&self.rest);
                        Err(format!("the stream ended inside an event: {rest}"))
                    }
                };
            };
            let frame = frame.map_err(|error| error.to_string())?;
            let Ok(data) = frame.into_data() else { continue };
            let at = Instant::now();
            self.rest.extend_from_slice(&data);
            let mut events = Vec::new();
            let whole = self.rest.windows(2).rposition(|pair| pair == b"\n\n").map_or(0, |at| at + 2);
            let ready: Vec<u8> = self.rest.drain(..whole).collect();
            let ready = std::str::from_utf8(&ready).map_err(|error| error.to_string())?;
            for event in ready.split_terminator("\n\n") {
                let data = event.lines().find_map(|line| line.strip_prefix("data: "));
                let data = data.ok_or_else(|| format!("no data in {event:?}"))?;
                assert!(!self.done, "something came after [DONE]: {data}");
                match data {
                    "[DONE]" => self.done = true,
                    data => {
                        let data = serde_json::from_str(data).map_err(|error| format!("{error}: {data}"))?;
                        events.push(Event { at, data });
                    }
                }
            }
            return Ok(Some(events));
        }
    }

    /// All that is left.
    pub async fn rest(&mut self) -> Result<Stream, String> {
        let mut events = Vec::new();
        while let Some(more) = self.next().await? {
            events.extend(more);
        }
        Ok(Stream { events, done: self.done })
    }
}

/// Checks that an answer has the shape of an error.
pub fn refusal(answer: Answer) -> (u16, Value) {
    assert_eq!(answer.kind, "application/json", "{}", answer.body);
    let error = answer.body["error"].clone();
    for field in ["message", "type", "param", "code"] {
        assert!(error.get(field).is_some(), "no {field} in {}", answer.body);
    }
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{error}");
    (answer.status, error)
}
