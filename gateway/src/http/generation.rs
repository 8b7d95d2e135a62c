//! From checked requests to running sequences, and from their events to updates of choices.

use super::{
    App,
    choice::{Choice, Finish},
    error::ApiError,
    fields::Fields,
    sampling::Common,
    timeline::{Ended, Timeline},
    usage::Usage,
};
use crate::engine::{Event, Ticket};
use axum::http::HeaderMap;
use bytes::Bytes;
use gossamer_wire::{FinishReason, RequestId, SequenceKey, Submit};
use std::{
    future::poll_fn,
    task::{Context, Poll, ready},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Bodies up to this size are parsed where they are; that takes well under a millisecond.
const INLINE_BODY_BYTES: usize = 64 << 10;
/// Refusals come at once; a stream's status line waits this long for one before it says 200.
pub const REFUSAL_WAIT: Duration = Duration::from_secs(1);

/// Parses a body, a long one off the runtime.
pub async fn parse(app: &App, body: Bytes) -> Result<Fields, ApiError> {
    if body.len() <= INLINE_BODY_BYTES {
        return Fields::parse(&body);
    }
    match app.text.get() {
        Some(text) => text.pool.run(move |_| Fields::parse(&body)).await?,
        None => tokio::task::spawn_blocking(move || Fields::parse(&body))
            .await
            .map_err(|error| ApiError::internal(error.to_string()))?,
    }
}

/// One prompt, ready to run.
pub struct Prompt {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Its budget.
    pub max_tokens: u32,
}

/// What a request's headers say about how it runs.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// When it arrived.
    pub arrival: Instant,
    /// Whose share it uses.
    pub tenant: u64,
    /// When it ends at the latest, in milliseconds since the Unix epoch.
    pub deadline_unix_ms: Option<u64>,
}

impl Terms {
    /// Reads `x-request-timeout` (seconds).
    pub fn new(headers: &HeaderMap, tenant: u64) -> Result<Self, ApiError> {
        let deadline_unix_ms = match headers.get("x-request-timeout") {
            None => None,
            Some(value) => {
                let limit = value
                    .to_str()
                    .ok()
                    .and_then(|text| text.trim().parse::<f64>().ok())
                    .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
                    .filter(|limit| !limit.is_zero())
                    .ok_or_else(|| {
                        ApiError::invalid(
                            "x-request-timeout",
                            format!(
                                "x-request-timeout: expected a positive number of seconds, got '{}'",
                                String::from_utf8_lossy(value.as_bytes())
                            ),
                        )
                    })?;
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                now.checked_add(limit).and_then(|end| u64::try_from(end.as_millis()).ok())
            }
        };
        Ok(Self { arrival: Instant::now(), tenant, deadline_unix_ms })
    }
}

/// What happened last.
#[derive(Debug)]
pub enum Step {
    /// The choice of this index has new pieces, or ended.
    Choice(usize),
    /// All choices have ended.
    Finished,
    /// The request failed as a whole; its choices are ended.
    Failed(ApiError),
}

/// The sequences of one HTTP request.
pub struct Generation {
    ticket: Ticket,
    timeline: Timeline,
    /// `prompt_index * n + choice`.
    pub choices: Vec<Choice>,
    n: usize,
    prompt_tokens: u64,
    cached_tokens: u64,
    open: usize,
    chat: bool,
    /// An event that was looked at before the answer began.
    early: Option<Event>,
}

impl Generation {
    /// Submits prompts. `choices` has one decoder per prompt and choice.
    pub fn start(
        app: &App,
        prompts: Vec<Prompt>,
        choices: Vec<Choice>,
        common: &Common,
        terms: Terms,
        chat: bool,
    ) -> Result<Self, ApiError> {
        let prompt_tokens = prompts.iter().map(|prompt| prompt.tokens.len() as u64).sum();
        let n = common.n as usize;
        let eos = app.eos();
        let mut templates = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            let submit = Submit {
                key: SequenceKey { request: RequestId(0), choice: 0 },
                prompt: prompt.tokens,
                generated: Vec::new(),
                sampling: common.sampling.clone(),
                stop: common.stop_rules(&eos, prompt.max_tokens)?,
                stream_interval: if common.stream { app.config.stream_interval } else { u32::MAX },
                priority: common.priority,
                tenant: terms.tenant,
                // Keys do not share prefixes: how fast a prompt is read would tell one what another asked.
                cache_salt: common.cache_salt.rotate_left(1) ^ terms.tenant,
                deadline_unix_ms: terms.deadline_unix_ms,
            };
            templates.push((submit, common.n));
        }
        let open = choices.len();
        let timeline = Timeline::new(app.board.clone(), terms.arrival, prompt_tokens, open);
        let ticket = app.engine.submit(templates)?;
        Ok(Self { ticket, timeline, choices, n, prompt_tokens, cached_tokens: 0, open, chat, early: None })
    }

    /// Name of the (first) request.
    pub fn id(&self) -> RequestId {
        self.ticket.id(0).unwrap_or(RequestId(0))
    }

    /// Waits for the first event, but not long: an answer that cannot be given is then refused with a status code of
    /// its own.
    pub async fn first(&mut self) -> Result<(), ApiError> {
        match tokio::time::timeout(REFUSAL_WAIT, self.ticket.event()).await {
            Ok(Some(Event::Refused { refusal, .. })) => {
                self.timeline.refused();
                Err(refusal.into())
            }
            Ok(Some(Event::Failed { message })) => {
                self.fail_open();
                Err(engine_failed(message))
            }
            Ok(Some(Event::ShutDown)) => {
                self.fail_open();
                Err(shut_down())
            }
            Ok(event) => {
                self.early = event;
                Ok(())
            }
            Err(_) => Ok(()),
        }
    }

    /// The next step; the pieces it made are in the choice.
    pub async fn step(&mut self) -> Step {
        poll_fn(|context| self.poll_step(context)).await
    }

    /// As [`Self::step`].
    pub fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Step> {
        loop {
            if self.open == 0 {
                return Poll::Ready(Step::Finished);
            }
            let event = match self.early.take() {
                Some(event) => Some(event),
                None => ready!(self.ticket.poll_event(context)),
            };
            let (prompt_index, delta) = match event {
                Some(Event::Tokens { prompt_index, delta }) => (prompt_index, delta),
                Some(Event::Refused { refusal, .. }) => {
                    self.open = 0;
                    self.timeline.refused();
                    return Poll::Ready(Step::Failed(refusal.into()));
                }
                Some(Event::Failed { message }) => {
                    self.fail_open();
                    return Poll::Ready(Step::Failed(engine_failed(message)));
                }
                Some(Event::ShutDown) => {
                    self.fail_open();
                    return Poll::Ready(Step::Failed(shut_down()));
                }
                None => {
                    self.fail_open();
                    return Poll::Ready(Step::Failed(ApiError::internal("the engine forgot the request")));
                }
            };
            let index = prompt_index as usize * self.n + delta.key.choice as usize;
            let Some(choice) = self.choices.get_mut(index) else { continue };
            if choice.finish.is_some() {
                continue;
            }
            if let Some(cached) = delta.cached_prompt_tokens
                && delta.key.choice == 0
            {
                self.cached_tokens += u64::from(cached);
                self.timeline.cached(cached);
            }
            let key = delta.key;
            let error = match &delta.finish {
                Some(FinishReason::Error(message)) => Some(ApiError::internal(message.clone())),
                Some(FinishReason::Deadline) => Some(
                    ApiError::new(
                        axum::http::StatusCode::GATEWAY_TIMEOUT,
                        "the request's deadline passed before it was finished",
                    )
                    .code("deadline_exceeded"),
                ),
                Some(FinishReason::Abort) => {
                    Some(ApiError::unavailable("the request was cut off by the server"))
                }
                _ => None,
            };
            let before = choice.consumed();
            choice.push(delta);
            self.timeline.tokens(index, (choice.consumed() - before) as usize, Instant::now());
            if let Some(error) = error {
                self.fail_open();
                return Poll::Ready(Step::Failed(error));
            }
            if let Some(finish) = choice.finish {
                self.open -= 1;
                if choice.stopped_by_text() {
                    self.ticket.finish(key);
                }
                let ended = if finish == Finish::Length { Ended::Length } else { Ended::Stop };
                self.timeline.ended(ended);
            }
            return Poll::Ready(Step::Choice(index));
        }
    }

    fn fail_open(&mut self) {
        for _ in self.choices.iter().filter(|choice| choice.finish.is_none()) {
            self.timeline.ended(Ended::Error);
        }
        self.open = 0;
    }

    /// The counts so far.
    pub fn usage(&self) -> Usage {
        let completion = self.choices.iter().map(|choice| u64::from(choice.consumed())).sum();
        let reasoning =
            self.chat.then(|| self.choices.iter().map(|choice| u64::from(choice.reasoning_tokens())).sum());
        Usage::new(self.prompt_tokens, completion, self.cached_tokens, reasoning)
    }
}

fn engine_failed(message: String) -> ApiError {
    ApiError::internal(format!("the engine failed: {message}")).code("engine_failed")
}

fn shut_down() -> ApiError {
    ApiError::shutting_down("the server shut down before the request was finished")
}
