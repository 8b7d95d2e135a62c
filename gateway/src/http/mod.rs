//! The HTTP service: OpenAI's API over axum, on top of [`Engine`] and the tokenizer pool.
//!
//! A request is parsed, validated, rendered and tokenized here, then submitted as sequences; their tokens come back
//! through the choice's decoder ([`choice`]) and leave as one JSON document or as server-sent events. Long inputs are
//! handled on the tokenizer pool's threads, so that the runtime's threads only ever do short work.
//!
//! Invariant: every answer that is not a success is JSON in OpenAI's error shape, whoever produced the error.
//!
//! Invariant: dropping a handler's future or a stream's body ends its sequences. There is no other way in which a
//! client's departure is noticed, and none is needed.

mod auth;
mod board;
mod body;
mod chat;
mod chat_request;
mod chat_stream;
mod choice;
mod completion_request;
mod completion_stream;
mod completions;
mod console;
mod error;
mod fields;
mod generation;
mod health;
mod hold;
mod listen;
mod logprobs;
mod messages;
mod metrics;
mod models;
mod router;
mod sampling;
mod sse;
mod timeline;
mod tokenize;
mod usage;

pub use board::{BOARD_LAYOUT, BOARD_WORDS, Board, BoardMemory, REPLACED_WORD};
pub use error::ApiError;
pub use listen::{Drain, serve_listener};
pub use router::router;

use crate::engine::{Engine, EngineState};
use gossamer_config::ServeConfig;
use gossamer_tokenizer::{Tokenizer, TokenizerPool};
use gossamer_wire::EngineInfo;
use sampling::Limits;
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

/// What every handler sees.
pub struct App {
    /// The configuration.
    pub config: ServeConfig,
    /// The engine.
    pub engine: Engine,
    /// End-of-sequence tokens of the model's files.
    eos: Vec<u32>,
    /// Counters shared by all API servers.
    pub board: Board,
    /// When the process started, in seconds since the Unix epoch: the model's `created`.
    pub started: u64,
    /// Empty while the tokenizer loads, and always under `--skip-tokenizer-init`.
    text: OnceLock<TextServices>,
    draining: AtomicBool,
    hold: hold::Hold,
}

/// What a server with a tokenizer has.
pub struct TextServices {
    /// The pool for long inputs.
    pub pool: TokenizerPool,
    /// Harmony's control tokens in this vocabulary; without them there is no chat.
    pub control: Result<gossamer_harmony::ControlIds, gossamer_harmony::MissingControlToken>,
}

impl TextServices {
    /// Services of a tokenizer.
    pub fn new(pool: TokenizerPool) -> Self {
        let control = gossamer_harmony::ControlIds::find(pool.tokenizer());
        Self { pool, control }
    }
}

impl App {
    /// A service over an engine that may not be ready yet, and without a tokenizer yet.
    pub fn new(config: ServeConfig, engine: Engine, eos: Vec<u32>, board: Board) -> Self {
        Self {
            config,
            engine,
            eos,
            board,
            started: unix_seconds(),
            text: OnceLock::new(),
            draining: AtomicBool::new(false),
            hold: hold::Hold::default(),
        }
    }

    /// The tokenizer is there. Only the first one counts.
    pub fn set_text(&self, text: TextServices) {
        // A second one would be the same tokenizer again.
        let _ = self.text.set(text);
    }

    /// From now on `/ready` is false and new requests are refused; running ones go on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether the service drains.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Whether requests cannot be taken yet, but soon will be.
    pub fn is_starting(&self) -> bool {
        let loads = self.text.get().is_none() && !self.config.skip_tokenizer_init;
        !self.is_draining() && (loads || matches!(self.engine.state(), EngineState::Starting))
    }

    /// Tells the other API servers, and the successors of them all, if this one takes requests.
    pub fn publish_readiness(&self) {
        if self.admit().is_ok() {
            self.board.set_was_ready();
        }
    }

    /// The engine, if requests can be taken.
    fn admit(&self) -> Result<EngineInfo, ApiError> {
        if self.is_draining() {
            return Err(ApiError::shutting_down("the server shuts down"));
        }
        if self.text.get().is_none() && !self.config.skip_tokenizer_init {
            return Err(ApiError::unavailable("the tokenizer is still loading"));
        }
        match self.engine.state() {
            EngineState::Ready(info) | EngineState::Paused(info) => Ok(info),
            EngineState::Starting => Err(ApiError::unavailable("the model is still loading")),
            EngineState::Failed(message) => Err(ApiError {
                retry_after_s: None,
                ..ApiError::unavailable(format!("the engine failed: {message}")).code("engine_failed")
            }),
        }
    }

    /// Tokens that end a sequence: those of the model's files and harmony's own, whatever the files say.
    fn eos(&self) -> Vec<u32> {
        let mut all = self.eos.clone();
        if let Some(Ok(control)) = self.text.get().map(|text| text.control.as_ref()) {
            let missing = control.stops().into_iter().filter(|id| !self.eos.contains(id));
            all.extend(missing);
        }
        all
    }

    /// The tokenizer, where there is one.
    fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        self.text.get().map(|text| text.pool.tokenizer())
    }

    fn limits(&self, info: &EngineInfo) -> Limits {
        Limits::new(info, self.config.max_logprobs)
    }

    fn text(&self) -> Result<&TextServices, ApiError> {
        self.text.get().ok_or_else(|| {
            ApiError::new(
                axum::http::StatusCode::BAD_REQUEST,
                "this server runs without a tokenizer (--skip-tokenizer-init): send prompts as token ids to \
                 /v1/completions",
            )
            .code("no_tokenizer")
        })
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

#[cfg(test)]
mod tests;
