//! A small server that speaks as much of the OpenAI API as a script says, on a port of its own.

#![allow(dead_code, clippy::unwrap_used)] // every test program uses its own part, and all of it is test code

use bytes::Bytes;
use clap::Parser;
use gossamer_bench::serve::ServeBenchArgs;
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::{Request, Response, StatusCode, service::service_fn};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;

/// One thing the server does in answer to a generation request.
#[derive(Clone, Debug)]
pub enum Act {
    /// Answers with this status and body.
    Status(u16, &'static str),
    /// Waits.
    Wait(u64),
    /// Sends one event.
    Event(String),
}

/// A chat chunk with this delta.
pub fn delta(json: &str) -> Act {
    Act::Event(format!(r#"{{"choices":[{{"index":0,"delta":{json}}}]}}"#))
}

/// A completion chunk with token ids.
pub fn tokens(ids: &[u32]) -> Act {
    Act::Event(format!(r#"{{"choices":[{{"index":0,"text":"x","token_ids":{ids:?}}}]}}"#))
}

/// The usage chunk.
pub fn usage(prompt: u64, completion: u64) -> Act {
    Act::Event(format!(
        r#"{{"choices":[],"usage":{{"prompt_tokens":{prompt},"completion_tokens":{completion}}}}}"#
    ))
}

/// The end of a stream.
pub fn done() -> Act {
    Act::Event("[DONE]".to_owned())
}

type Body = BoxBody<Bytes, Infallible>;

fn whole(status: u16, text: &'static str) -> Response<Body> {
    let body = http_body_util::Full::new(Bytes::from_static(text.as_bytes())).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

/// Bodies of the generation requests that came, parsed.
pub type Asked = Arc<Mutex<Vec<serde_json::Value>>>;

async fn answer(request: Request<Incoming>, script: Vec<Act>, asked: Asked) -> Response<Body> {
    if request.uri().path() == "/v1/models" {
        return whole(200, r#"{"data":[{"id":"fake"}]}"#);
    }
    if request.uri().path() == "/tokenize" {
        return whole(404, "{}");
    }
    let body = request.into_body().collect().await.unwrap().to_bytes();
    asked.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
    if let Some(Act::Status(status, text)) = script.first() {
        return whole(*status, text);
    }
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, Infallible>>(16);
    tokio::spawn(async move {
        for act in script {
            match act {
                Act::Wait(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
                Act::Event(data) => {
                    let _ = sender.send(Ok(Frame::data(Bytes::from(format!("data: {data}\n\n"))))).await;
                }
                Act::Status(..) => {}
            }
        }
    });
    Response::new(StreamBody::new(tokio_stream::wrappers::ReceiverStream::new(receiver)).boxed())
}

/// Starts the server and returns its port. It ends with the test's runtime.
pub async fn serve(script: Vec<Act>) -> u16 {
    serve_and_keep(script).await.0
}

/// The same, with what it was asked.
pub async fn serve_and_keep(script: Vec<Act>) -> (u16, Asked) {
    let asked = Asked::default();
    let kept = Arc::clone(&asked);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true).unwrap();
            let (script, asked) = (script.clone(), Arc::clone(&asked));
            let service = service_fn(move |request| {
                let (script, asked) = (script.clone(), Arc::clone(&asked));
                async move { Ok::<_, Infallible>(answer(request, script, asked).await) }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    (port, kept)
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: ServeBenchArgs,
}

/// Arguments against a port, with results in `directory`.
pub fn arguments(port: u16, directory: &Path, more: &[&str]) -> ServeBenchArgs {
    let port = port.to_string();
    let directory = directory.display().to_string();
    let fixed = ["bench", "--port", &port, "--disable-progress", "--save-result", "--result-dir", &directory];
    let named = ["--result-filename", "result.json", "--random-input-len", "8", "--random-output-len", "10"];
    Cli::parse_from([&fixed[..], &named[..], more].concat()).args
}

/// The saved result.
pub fn result(directory: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(directory.join("result.json")).unwrap()).unwrap()
}
