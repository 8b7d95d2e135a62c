//! One choice while it is generated: tokens in, pieces of the answer out.
//!
//! Invariant: the joined pieces, and the order of the tokens they carry, do not depend on how tokens were grouped into
//! deltas; streams of any interval and answers in one document are made of the same pieces.

use gossamer_harmony::{ChatDelta, ChatOutput, Ending, FinishReason as ChatFinish};
use gossamer_tokenizer::{TextDelta, TextOutput, TokenSpan};
use gossamer_wire::{FinishReason, TokenDelta, TokenLogprobs};
use serde::Serialize;
use std::{collections::VecDeque, sync::Arc};

/// Where text goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// The answer.
    Content(String),
    /// Reasoning.
    Reasoning(String),
    /// A tool call begins.
    CallStart {
        /// Which call of the choice.
        index: u32,
        /// The function.
        name: String,
    },
    /// More of its arguments.
    CallArguments {
        /// Which call of the choice.
        index: u32,
        /// The text.
        text: String,
    },
}

/// A part of a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its text.
    pub body: Body,
    /// The tokens that belong to it.
    pub tokens: TokenSpan,
}

/// Why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token or string.
    Stop,
    /// The budget.
    Length,
    /// A complete tool call.
    ToolCalls,
}

impl Finish {
    /// OpenAI's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// What of the client's own ended a choice: vLLM's `stop_reason`. An end-of-sequence token is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StopReason {
    /// One of `stop_token_ids`.
    Token(u32),
    /// One of `stop`.
    Text(String),
}

/// A token with what is known of its draw.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// The token.
    pub token: u32,
    /// Where asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// Turns tokens into text.
pub enum Decoder {
    /// Harmony.
    Chat(Box<ChatOutput>, Vec<ChatDelta>),
    /// Plain text.
    Text(TextOutput),
    /// No tokenizer: tokens stay tokens. Counts them.
    Ids(u32),
}

/// One choice.
pub struct Choice {
    decoder: Decoder,
    /// What the last step made.
    pub pieces: Vec<Piece>,
    /// Set once.
    pub finish: Option<Finish>,
    /// What the client asked to stop at, if that ended the choice.
    pub stop_reason: Option<StopReason>,
    client_stops: Arc<[u32]>,
    keep_tokens: bool,
    pending: VecDeque<Drawn>,
    /// Position of the first of `pending`.
    first: u32,
}

impl Choice {
    /// A choice at its beginning. With `keep_tokens`, pieces can be asked for their tokens.
    pub fn new(decoder: Decoder, client_stops: Arc<[u32]>, keep_tokens: bool) -> Self {
        Self {
            decoder,
            pieces: Vec::new(),
            finish: None,
            stop_reason: None,
            client_stops,
            keep_tokens,
            pending: VecDeque::new(),
            first: 0,
        }
    }

    /// Takes what the engine reported.
    pub fn push(&mut self, delta: TokenDelta) {
        self.pieces.clear();
        if self.keep_tokens {
            let mut logprobs = delta.logprobs.into_iter();
            self.pending
                .extend(delta.tokens.iter().map(|token| Drawn { token: *token, logprobs: logprobs.next() }));
        }
        let (tokens, stop) = match (&delta.finish, delta.tokens.split_last()) {
            (Some(FinishReason::Stop), Some((stop, tokens))) => (tokens, Some(*stop)),
            _ => (&delta.tokens[..], None),
        };
        self.decoder.push(tokens, &mut self.pieces);
        if !self.decoder.stopped()
            && let Some(stop) = stop
        {
            self.decoder.push_stop_token(stop, &mut self.pieces);
            self.stop_reason = self.client_stops.contains(&stop).then_some(StopReason::Token(stop));
        }
        let stopped = self.decoder.stopped();
        if stopped || delta.finish.is_some() {
            let ending = match stopped || delta.finish == Some(FinishReason::Stop) {
                true => Ending::Stop,
                false => Ending::Length,
            };
            self.finish = Some(self.decoder.finish(ending, &mut self.pieces));
            if self.decoder.stopped() {
                // A string that is complete earlier, or in what a stop token released, is the first to end the choice.
                self.stop_reason = self.decoder.stop_string().map(|text| StopReason::Text(text.to_owned()));
            }
        }
    }

    /// The tokens up to the end of a piece, oldest first, each once. Those that are not in the piece's span (headers
    /// and control tokens before it) come without log-probabilities: they are no part of its text.
    pub fn take_tokens(&mut self, span: TokenSpan) -> impl Iterator<Item = Drawn> + '_ {
        let first = self.first;
        let count = (span.end.saturating_sub(first) as usize).min(self.pending.len());
        self.first += count as u32;
        self.pending.drain(..count).zip(first..).map(move |(mut drawn, position)| {
            if position < span.start {
                drawn.logprobs = None;
            }
            drawn
        })
    }

    /// At the end of the choice, the tokens that belong to no piece.
    pub fn take_rest(&mut self) -> impl Iterator<Item = Drawn> + '_ {
        let end = self.consumed();
        self.take_tokens(TokenSpan { start: end, end })
    }

    /// Tokens read so far: what usage counts.
    pub fn consumed(&self) -> u32 {
        match &self.decoder {
            Decoder::Chat(output, _) => output.consumed(),
            Decoder::Text(output) => output.consumed(),
            Decoder::Ids(count) => *count,
        }
    }

    /// Of these, those spent on reasoning.
    pub fn reasoning_tokens(&self) -> u32 {
        match &self.decoder {
            Decoder::Chat(output, _) => output.reasoning_tokens(),
            Decoder::Text(_) | Decoder::Ids(_) => 0,
        }
    }

    /// Whether a stop string ended the choice: the engine does not know of it.
    pub fn stopped_by_text(&self) -> bool {
        self.decoder.stopped()
    }
}

impl Decoder {
    fn push(&mut self, tokens: &[u32], pieces: &mut Vec<Piece>) {
        match self {
            Self::Chat(output, deltas) => {
                output.push(tokens, deltas);
                pieces.extend(deltas.drain(..).map(Piece::from));
            }
            Self::Text(output) => pieces.extend(output.push(tokens).map(Piece::from)),
            Self::Ids(count) => {
                let start = *count;
                *count += tokens.len() as u32;
                if *count > start {
                    let tokens = TokenSpan { start, end: *count };
                    pieces.push(Piece { body: Body::Content(String::new()), tokens });
                }
            }
        }
    }

    fn push_stop_token(&mut self, token: u32, pieces: &mut Vec<Piece>) {
        match self {
            Self::Chat(output, deltas) => {
                output.push_stop_token(token, deltas);
                pieces.extend(deltas.drain(..).map(Piece::from));
            }
            Self::Text(output) => output.push_stop_token(),
            Self::Ids(_) => self.push(&[token], pieces),
        }
    }

    fn finish(&mut self, ending: Ending, pieces: &mut Vec<Piece>) -> Finish {
        match self {
            Self::Chat(output, deltas) => {
                let finish = output.finish(ending, deltas);
                pieces.extend(deltas.drain(..).map(Piece::from));
                match finish {
                    ChatFinish::Stop => Finish::Stop,
                    ChatFinish::Length => Finish::Length,
                    ChatFinish::ToolCalls => Finish::ToolCalls,
                }
            }
            Self::Text(output) => {
                pieces.extend(output.finish().map(Piece::from));
                // What was held back may have completed a stop string.
                if output.stopped() { Finish::Stop } else { Finish::from(ending) }
            }
            Self::Ids(_) => Finish::from(ending),
        }
    }

    fn stop_string(&self) -> Option<&str> {
        match self {
            Self::Chat(output, _) => output.stop_string(),
            Self::Text(output) => output.stop_string(),
            Self::Ids(_) => None,
        }
    }

    fn stopped(&self) -> bool {
        match self {
            Self::Chat(output, _) => output.stopped(),
            Self::Text(output) => output.stopped(),
            Self::Ids(_) => false,
        }
    }
}

impl From<Ending> for Finish {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Stop => Self::Stop,
            Ending::Length => Self::Length,
        }
    }
}

impl From<ChatDelta> for Piece {
    fn from(delta: ChatDelta) -> Self {
        let (body, tokens) = match delta {
            ChatDelta::Reasoning { text, tokens } => (Body::Reasoning(text), tokens),
            ChatDelta::Content { text, tokens } => (Body::Content(text), tokens),
            ChatDelta::CallStart { index, name } => (Body::CallStart { index, name }, TokenSpan::default()),
            ChatDelta::CallArguments { index, text, tokens } => (Body::CallArguments { index, text }, tokens),
        };
        Self { body, tokens }
    }
}

impl From<TextDelta> for Piece {
    fn from(delta: TextDelta) -> Self {
        Self { body: Body::Content(delta.text), tokens: delta.tokens }
    }
}
