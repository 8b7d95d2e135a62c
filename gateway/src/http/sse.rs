//! Answers as server-sent events.
//!
//! The body is polled by the connection's own task: what the engine sent since the last poll becomes one frame. There
//! is no task or channel per stream.

use super::{
    error::ApiError,
    generation::{Generation, Step},
    usage::Usage,
};
use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Frame;
use serde::Serialize;
use std::{
    convert::Infallible,
    io::Write,
    pin::Pin,
    task::{Context, Poll},
};

/// Events are handed to the connection in frames of about this size.
const FRAME_BYTES: usize = 32 << 10;

/// Writes the events of one endpoint.
pub trait ChunkWriter: Send + Unpin + 'static {
    /// Events before any token.
    fn begin(&mut self, generation: &mut Generation, out: &mut Vec<u8>);
    /// Events for what a choice's last step made.
    fn choice(&mut self, generation: &mut Generation, index: usize, out: &mut Vec<u8>);
    /// The event that carries usage at the end.
    fn usage(&mut self, usage: &Usage, out: &mut Vec<u8>);
}

/// A stream of events.
pub struct EventStream<W> {
    generation: Generation,
    writer: W,
    include_usage: bool,
    out: Vec<u8>,
    begun: bool,
    done: bool,
}

impl<W: ChunkWriter> EventStream<W> {
    /// A response that streams a generation.
    pub fn response(generation: Generation, writer: W, include_usage: bool) -> Response {
        let stream = Self { generation, writer, include_usage, out: Vec::new(), begun: false, done: false };
        let mut response = Response::new(Body::new(stream.map_err(|never: Infallible| match never {})));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // Proxies would otherwise collect events.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }

    fn end(&mut self, error: Option<ApiError>) {
        match error {
            None if self.include_usage => self.writer.usage(&self.generation.usage(), &mut self.out),
            None => {}
            Some(error) => {
                self.out.extend_from_slice(b"data: ");
                self.out.extend_from_slice(&error.to_json());
                self.out.extend_from_slice(b"\n\n");
            }
        }
        self.out.extend_from_slice(b"data: [DONE]\n\n");
        self.done = true;
    }
}

impl<W: ChunkWriter> hyper::body::Body for EventStream<W> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let stream = self.get_mut();
        if stream.done {
            return Poll::Ready(None);
        }
        if !stream.begun {
            stream.begun = true;
            stream.writer.begin(&mut stream.generation, &mut stream.out);
        }
        while !stream.done && stream.out.len() < FRAME_BYTES {
            match stream.generation.poll_step(context) {
                Poll::Pending => break,
                Poll::Ready(Step::Choice(index)) => {
                    stream.writer.choice(&mut stream.generation, index, &mut stream.out);
                }
                Poll::Ready(Step::Finished) => stream.end(None),
                Poll::Ready(Step::Failed(error)) => stream.end(Some(error)),
            }
        }
        if stream.out.is_empty() {
            return Poll::Pending;
        }
        let frame = Bytes::copy_from_slice(&stream.out);
        stream.out.clear();
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.done
    }
}

/// The parts of a chunk that are the same in all events of a stream, encoded once.
pub struct ChunkFrame {
    head: Vec<u8>,
    /// `request` of event ids, where they are asked for.
    event_ids: Option<String>,
}

#[derive(Serialize)]
struct Head<'a> {
    id: &'a str,
    object: &'a str,
    created: u64,
    model: &'a str,
}

impl ChunkFrame {
    /// Chunks of one answer.
    pub fn new(id: &str, object: &str, created: u64, model: &str, event_ids: Option<String>) -> Self {
        let mut head = b"data: ".to_vec();
        // Strings and a number cannot fail to serialise.
        let _ = serde_json::to_writer(&mut head, &Head { id, object, created, model });
        head.pop();
        Self { head, event_ids }
    }

    /// One event with one choice, and usage where given. `at` names the choice and the position of its first token.
    pub fn event<C: Serialize>(
        &self,
        out: &mut Vec<u8>,
        choice: &C,
        usage: Option<&Usage>,
        extra: impl FnOnce(&mut Vec<u8>),
        at: (usize, u32),
    ) {
        out.extend_from_slice(&self.head);
        out.extend_from_slice(b",\"choices\":[");
        let _ = serde_json::to_writer(&mut *out, choice);
        out.push(b']');
        if let Some(usage) = usage {
            out.extend_from_slice(b",\"usage\":");
            let _ = serde_json::to_writer(&mut *out, usage);
        }
        extra(out);
        self.close(out, at);
    }

    /// The last event: no choice, only usage.
    pub fn usage(&self, out: &mut Vec<u8>, usage: &Usage) {
        out.extend_from_slice(&self.head);
        out.extend_from_slice(b",\"choices\":[],\"usage\":");
        let _ = serde_json::to_writer(&mut *out, usage);
        out.extend_from_slice(b"}\n\n");
    }

    fn close(&self, out: &mut Vec<u8>, (choice, position): (usize, u32)) {
        match &self.event_ids {
            None => out.extend_from_slice(b"}\n\n"),
            // Behind the data: readers that only look at the beginning of an event then still find it there.
            Some(request) => {
                let _ = write!(out, "}}\nid: {request}:{choice}:{position}\n\n");
            }
        }
    }
}
