//! The tokens of one choice to the deltas that its client sees.
//!
//! A machine with two states: in a header, or in a body. Control tokens move it; text in a body goes out as it
//! becomes certain (whole characters, no beginning of a stop string).
//!
//! Invariants:
//! - Every sequence of tokens is accepted. Text that is not a header reaches the client: as content where it
//!   has no valid header, until the next control token that begins or ends a message.
//! - The deltas, joined by kind, do not depend on how tokens are grouped into pushes; nor do the counts.
//! - No delta has an empty text.
//! - Decoding of split characters and stop strings never reach from one body into another.
//! - Two bodies of one kind are two messages: an empty line stands between their texts, made of no token.
//! - Once the assistant has answered or called, the turn of anybody else ends the reply: a model that goes on with the user's
//!   words or a tool's result plays a part that is not its own, and none of it reaches the client. Before an answer, and
//!   where the client wants no end (`ignore_eos`), it is text like any other.
//!
//! Stop strings apply to reasoning and content. They do not apply to headers, nor to the arguments of calls,
//! which they could only make useless.

use std::sync::Arc;

use gossamer_tokenizer::{StopStrings, TextLane, TokenSpan, Tokenizer};

use crate::control::{ControlIds, ControlToken};
use crate::header::{Body, MAX_HEADER, Part, classify, is_anothers_turn, is_plausible, recipient, remainder};

/// Between the texts of two messages.
const BETWEEN_MESSAGES: &str = "\n\n";

/// A piece of a reply. `tokens` are the tokens that made the text, for log-probabilities: tokens of headers
/// and control tokens between bodies belong to no delta.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatDelta {
    /// Reasoning.
    Reasoning {
        /// The text.
        text: String,
        /// Its tokens.
        tokens: TokenSpan,
    },
    /// The answer, or a preamble to tool calls.
    Content {
        /// The text.
        text: String,
        /// Its tokens.
        tokens: TokenSpan,
    },
    /// A tool call begins. Its id is the caller's to give.
    CallStart {
        /// Which call of the choice this is, from 0.
        index: u32,
        /// The function, without namespace.
        name: String,
    },
    /// More of a call's arguments.
    CallArguments {
        /// The call.
        index: u32,
        /// The text.
        text: String,
        /// Its tokens.
        tokens: TokenSpan,
    },
}

/// How the engine ended a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// On an end-of-sequence or stop token.
    Stop,
    /// On the budget of tokens.
    Length,
}

/// What the client is told about the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The reply is complete, or was cut at a stop string.
    Stop,
    /// The budget of tokens is used up.
    Length,
    /// The reply ended after one or more tool calls.
    ToolCalls,
}

/// What the choices of a request share; cheap to clone.
#[derive(Clone)]
pub struct ChatOutputOptions {
    /// The model's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its control tokens.
    pub control: ControlIds,
    /// The request's stop strings.
    pub stops: StopStrings,
    /// Names of the tools that were offered.
    pub tools: Arc<[String]>,
    /// Tokens after which somebody else's turn ends the reply, as a stop string would; `None`: it never does.
    pub turns_end_after: Option<u32>,
}

/// Reads one choice.
pub struct ChatOutput {
    options: ChatOutputOptions,
    state: State,
    header: Header,
    /// Text of reasoning and content, which stop strings end.
    text: TextLane,
    /// Text of arguments.
    arguments: TextLane,
    /// Whether the last delta of the output belongs to the body being read.
    delta_open: bool,
    /// Whether the body being read has given text.
    body_told: bool,
    reasoning_told: bool,
    content_told: bool,
    /// Whether a body of the answer, or a call, has ended.
    answered: bool,
    scratch: String,
    consumed: u32,
    reasoning_tokens: u32,
    calls: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Header,
    Reasoning,
    Content,
    Call,
    /// A stop string was found, or somebody else's turn.
    Stopped,
}

/// The header being read: the text of its current part, token by token.
#[derive(Debug)]
struct Header {
    part: Part,
    /// The recipient, if the role part named one.
    recipient: Option<String>,
    bytes: Vec<u8>,
    tokens: Vec<HeaderToken>,
    /// Position of the part's first token.
    first: u32,
}

#[derive(Clone, Copy, Debug)]
struct HeaderToken {
    /// Where the token's bytes end in the part.
    end: usize,
    /// Whether they are a blank that stands for a control token, and not text of the model.
    is_mark: bool,
}

impl Header {
    fn add(&mut self, bytes: &[u8], is_mark: bool) {
        self.bytes.extend_from_slice(bytes);
        self.tokens.push(HeaderToken { end: self.bytes.len(), is_mark });
    }

    fn begin(&mut self, part: Part, first: u32) {
        self.part = part;
        self.first = first;
        self.bytes.clear();
        self.tokens.clear();
        if part != Part::Channel {
            self.recipient = None;
        }
    }
}

impl ChatOutput {
    /// A choice whose prompt ended in `<|start|>assistant`.
    pub fn new(options: ChatOutputOptions) -> Self {
        let text = TextLane::new(options.stops.clone());
        let header =
            Header { part: Part::Implied, recipient: None, bytes: Vec::new(), tokens: Vec::new(), first: 0 };
        Self {
            options,
            state: State::Header,
            header,
            text,
            arguments: TextLane::default(),
            delta_open: false,
            body_told: false,
            reasoning_told: false,
            content_told: false,
            answered: false,
            scratch: String::new(),
            consumed: 0,
            reasoning_tokens: 0,
            calls: 0,
        }
    }

    /// Takes generated tokens and appends what they make to `out`. Tokens after a stop string are not read.
    pub fn push(&mut self, tokens: &[u32], out: &mut Vec<ChatDelta>) {
        self.delta_open = false;
        let tokenizer = self.options.tokenizer.clone();
        for &token in tokens {
            if self.state == State::Stopped {
                return;
            }
            self.take(token, tokenizer.text_bytes(token), out);
        }
    }

    /// Takes the token on which the engine stopped: it is counted, and gives no text.
    pub fn push_stop_token(&mut self, token: u32, out: &mut Vec<ChatDelta>) {
        self.delta_open = false;
        if self.state != State::Stopped {
            self.take(token, &[], out);
        }
    }

    /// Ends the choice: appends all that was held back, and says how it ended.
    pub fn finish(&mut self, ending: Ending, out: &mut Vec<ChatDelta>) -> FinishReason {
        self.delta_open = false;
        if self.state == State::Header {
            self.abandon_header(out);
        }
        self.close_body(out);
        let stopped = self.state == State::Stopped;
        match ending {
            Ending::Length if !stopped => FinishReason::Length,
            _ if self.calls > 0 => FinishReason::ToolCalls,
            _ => FinishReason::Stop,
        }
    }

    /// Whether a stop string or somebody else's turn ended the reply; the engine need not go on.
    pub fn stopped(&self) -> bool {
        self.state == State::Stopped
    }

    /// The stop string that ended the reply.
    pub fn stop_string(&self) -> Option<&str> {
        self.text.stop_string()
    }

    /// Tokens read, the one that ended the reply included: what usage counts.
    pub fn consumed(&self) -> u32 {
        self.consumed
    }

    /// Tokens of reasoning bodies among those read.
    pub fn reasoning_tokens(&self) -> u32 {
        self.reasoning_tokens
    }

    /// Tool calls begun.
    pub fn calls(&self) -> u32 {
        self.calls
    }

    fn take(&mut self, token: u32, bytes: &[u8], out: &mut Vec<ChatDelta>) {
        let position = self.consumed;
        self.consumed += 1;
        let control = self.options.control.token(token);
        match (self.state, control) {
            (State::Header, Some(control)) => self.header_control(control, position, out),
            (State::Header, None) => {
                self.header.add(bytes, false);
                if !bytes.is_empty() && !is_plausible(self.header.part, &lossy(&self.header.bytes)) {
                    self.abandon_header(out);
                }
            }
            // Signs of a header inside a body mean nothing: tokens without text.
            (_, None | Some(ControlToken::Message | ControlToken::Constrain)) => {
                if self.state == State::Reasoning {
                    self.reasoning_tokens += 1;
                }
                self.feed(bytes, out);
            }
            (_, Some(control)) => {
                self.close_body(out);
                if self.state != State::Stopped {
                    self.begin_header(control, position);
                }
            }
        }
    }

    /// Starts the header that `control`, at `position`, leads to.
    fn begin_header(&mut self, control: ControlToken, position: u32) {
        self.state = State::Header;
        let part = match control {
            ControlToken::Start => Part::Role,
            ControlToken::Channel => Part::Channel,
            _ => Part::Implied,
        };
        self.header.recipient = None;
        self.header.begin(part, position + 1);
    }

    fn header_control(&mut self, control: ControlToken, position: u32, out: &mut Vec<ChatDelta>) {
        match control {
            ControlToken::Message | ControlToken::Channel if self.is_anothers_turn(position) => {
                self.state = State::Stopped;
            }
            ControlToken::Message => {
                let text = lossy(&self.header.bytes).into_owned();
                let named = recipient(&text).or(self.header.recipient.as_deref());
                let channel = if self.header.part == Part::Channel { text.as_str() } else { "" };
                let body = classify(channel, named, &self.options.tools);
                self.open_body(body, position + 1, out);
            }
            ControlToken::Channel if self.header.part != Part::Channel => {
                self.header.recipient = recipient(&lossy(&self.header.bytes)).map(Into::into);
                self.header.begin(Part::Channel, position + 1);
            }
            ControlToken::Constrain => {
                // A word of its own, even where no blank stands before it.
                self.header.add(b" ", true);
            }
            _ => {
                let named = recipient(&lossy(&self.header.bytes)).map(Into::into);
                let named = named.or_else(|| self.header.recipient.clone());
                self.abandon_header(out);
                let was_header = self.state == State::Header;
                self.close_body(out);
                if self.state != State::Stopped {
                    self.begin_header(control, position);
                    if was_header && control == ControlToken::Channel {
                        self.header.recipient = named;
                    }
                }
            }
        }
    }

    /// Whether the header is that of somebody else's turn, which ends the reply at this position.
    fn is_anothers_turn(&self, position: u32) -> bool {
        let ends = self.options.turns_end_after.is_some_and(|tokens| position >= tokens);
        ends && self.answered
            && self.header.part == Part::Role
            && is_anothers_turn(&lossy(&self.header.bytes))
    }

    /// Gives up on the header: what is not header in it opens a body. If it is all header nothing happens.
    fn abandon_header(&mut self, out: &mut Vec<ChatDelta>) {
        let text = lossy(&self.header.bytes).into_owned();
        let mut start = remainder(self.header.part, &text);
        // Offsets in the replaced text are those of the bytes, unless something was replaced.
        if text.as_bytes() != self.header.bytes || (start == text.len() && text.len() > MAX_HEADER) {
            start = 0;
        }
        if start >= text.len() {
            return;
        }
        if self.is_anothers_turn(self.consumed.saturating_sub(1)) {
            self.state = State::Stopped;
            return;
        }
        let body = if start > 0 {
            let named = recipient(&text[..start]).or(self.header.recipient.as_deref());
            let channel = if self.header.part == Part::Channel { text.as_str() } else { "" };
            classify(channel, named, &self.options.tools)
        } else {
            Body::Content
        };
        let bytes = std::mem::take(&mut self.header.bytes);
        let tokens = std::mem::take(&mut self.header.tokens);
        let skipped = if start == 0 { 0 } else { tokens.partition_point(|token| token.end <= start) };
        self.open_body(body, self.header.first + skipped as u32, out);
        let mut from = start;
        for &HeaderToken { end, is_mark } in &tokens[skipped..] {
            if self.state == State::Stopped {
                break;
            }
            if self.state == State::Reasoning {
                self.reasoning_tokens += 1;
            }
            self.feed(if is_mark { &[] } else { &bytes[from..end] }, out);
            from = end;
        }
        self.header.bytes = bytes;
        self.header.tokens = tokens;
    }

    fn open_body(&mut self, body: Body, first: u32, out: &mut Vec<ChatDelta>) {
        self.delta_open = false;
        self.body_told = false;
        match body {
            Body::Reasoning => self.state = State::Reasoning,
            Body::Content => self.state = State::Content,
            Body::Call(name) => {
                self.state = State::Call;
                out.push(ChatDelta::CallStart { index: self.calls, name });
                self.calls += 1;
            }
        }
        match self.state {
            State::Call => self.arguments.restart(first),
            _ => self.text.restart(first),
        }
    }

    fn feed(&mut self, bytes: &[u8], out: &mut Vec<ChatDelta>) {
        let mut span = TokenSpan::default();
        self.scratch.clear();
        let lane = if self.state == State::Call { &mut self.arguments } else { &mut self.text };
        let matched = lane.push(bytes, &mut self.scratch, &mut span);
        self.emit(span, out);
        if matched {
            self.state = State::Stopped;
        }
    }

    fn close_body(&mut self, out: &mut Vec<ChatDelta>) {
        let mut span = TokenSpan::default();
        self.scratch.clear();
        let matched = match self.state {
            State::Header | State::Stopped => return,
            State::Call => self.arguments.flush(&mut self.scratch, &mut span),
            State::Reasoning | State::Content => self.text.flush(&mut self.scratch, &mut span),
        };
        self.emit(span, out);
        self.delta_open = false;
        self.answered |= matches!(self.state, State::Content | State::Call);
        if matched {
            self.state = State::Stopped;
        }
    }

    /// Appends the scratch text to the body's delta, or begins one.
    fn emit(&mut self, span: TokenSpan, out: &mut Vec<ChatDelta>) {
        if self.scratch.is_empty() {
            return;
        }
        if self.delta_open
            && let Some(
                ChatDelta::Reasoning { text, tokens }
                | ChatDelta::Content { text, tokens }
                | ChatDelta::CallArguments { text, tokens, .. },
            ) = out.last_mut()
        {
            text.push_str(&self.scratch);
            if tokens.is_empty() {
                *tokens = span;
            } else if !span.is_empty() {
                tokens.end = span.end;
            }
            return;
        }
        let is_new = !std::mem::replace(&mut self.body_told, true);
        let kind_told = match self.state {
            // Arguments are told apart by their index.
            State::Call => false,
            State::Reasoning => std::mem::replace(&mut self.reasoning_told, true),
            _ => std::mem::replace(&mut self.content_told, true),
        };
        let text = format!("{}{}", if is_new && kind_told { BETWEEN_MESSAGES } else { "" }, self.scratch);
        out.push(match self.state {
            State::Call => ChatDelta::CallArguments { index: self.calls - 1, text, tokens: span },
            State::Reasoning => ChatDelta::Reasoning { text, tokens: span },
            State::Header | State::Content | State::Stopped => ChatDelta::Content { text, tokens: span },
        });
        self.delta_open = true;
    }
}

fn lossy(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}
