//! From tokens to text with all that stands between: decoding, stop strings, and which tokens made which text.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::detokenizer::Detokenizer;
use crate::stop::{StopMatcher, StopStrings};
use crate::tokenizer::Tokenizer;

/// Positions of generated tokens in their choice, counted from 0: `start..end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenSpan {
    /// The first token.
    pub start: u32,
    /// One past the last token.
    pub end: u32,
}

impl TokenSpan {
    /// Number of tokens.
    pub fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether there is no token.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// One text of a choice while it is being generated: a message body, or a whole completion.
///
/// A token belongs to the piece of text that holds the first byte which it made. Tokens that made no text
/// (special ones, all but the last of a split character) belong to the text that follows.
///
/// Invariant: the joined text and the order of attributed tokens do not depend on how tokens are grouped.
#[derive(Clone, Debug, Default)]
pub struct TextLane {
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    decoded: String,
    /// Bytes of text decoded so far.
    text_len: usize,
    /// Bytes of text released so far.
    released: usize,
    /// For the tokens from `first` on, which are not attributed yet: where their text begins.
    starts: VecDeque<usize>,
    /// Position of the first token that is not attributed.
    first: u32,
}

impl TextLane {
    /// A lane at the beginning of a text.
    pub fn new(stops: StopStrings) -> Self {
        Self { matcher: StopMatcher::new(stops), ..Self::default() }
    }

    /// The stop string that ended the text.
    pub fn stop_string(&self) -> Option<&str> {
        self.matcher.matched()
    }

    /// Starts a new text whose first token has the given position.
    pub fn restart(&mut self, position: u32) {
        self.detokenizer = Detokenizer::new();
        self.matcher.flush(&mut String::new());
        self.text_len = 0;
        self.released = 0;
        self.starts.clear();
        self.first = position;
    }

    /// Takes the bytes of the next token, appends what is certain to `out`, and widens `span` by the tokens
    /// that the released text belongs to. `true` when a stop string is complete.
    pub fn push(&mut self, bytes: &[u8], out: &mut String, span: &mut TokenSpan) -> bool {
        self.starts.push_back(self.text_len);
        self.decoded.clear();
        self.detokenizer.push(bytes, &mut self.decoded);
        self.release(out, span)
    }

    /// Ends the text: whatever is held back is released. `true` when that completed a stop string.
    pub fn flush(&mut self, out: &mut String, span: &mut TokenSpan) -> bool {
        self.decoded.clear();
        self.detokenizer.flush(&mut self.decoded);
        let matched = self.release(out, span);
        if !matched {
            let before = out.len();
            self.matcher.flush(out);
            self.attribute(out.len() - before, span);
        }
        matched
    }

    /// Takes the tokens that made no text to the end, for callers that account for every token.
    pub fn take_rest(&mut self, span: &mut TokenSpan) {
        self.widen(self.starts.len(), span);
        self.starts.clear();
    }

    fn release(&mut self, out: &mut String, span: &mut TokenSpan) -> bool {
        self.text_len += self.decoded.len();
        let before = out.len();
        let position = (self.first + self.starts.len() as u32).saturating_sub(1);
        let counts = self.matcher.stops().count_at(position);
        let matched = self.matcher.push(&self.decoded, counts, out);
        self.attribute(out.len() - before, span);
        matched
    }

    fn attribute(&mut self, bytes: usize, span: &mut TokenSpan) {
        if bytes == 0 {
            return;
        }
        self.released += bytes;
        let count = self.starts.partition_point(|&start| start < self.released);
        self.starts.drain(..count);
        self.widen(count, span);
    }

    fn widen(&mut self, count: usize, span: &mut TokenSpan) {
        if count > 0 {
            if span.is_empty() {
                span.start = self.first;
            }
            self.first += count as u32;
            span.end = self.first;
        }
    }
}

/// A piece of a completion's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextDelta {
    /// The text.
    pub text: String,
    /// The tokens that belong to it.
    pub tokens: TokenSpan,
}

/// One choice of `/v1/completions`: tokens in, text out.
pub struct TextOutput {
    tokenizer: Arc<Tokenizer>,
    lane: TextLane,
    skip_special: bool,
    consumed: u32,
    stopped: bool,
}

impl TextOutput {
    /// A choice at its beginning. With `skip_special`, special tokens give no text; else their names.
    pub fn new(tokenizer: Arc<Tokenizer>, stops: StopStrings, skip_special: bool) -> Self {
        Self { tokenizer, lane: TextLane::new(stops), skip_special, consumed: 0, stopped: false }
    }

    /// Takes generated tokens; `None` when they released no text. Tokens after a stop string are not read.
    pub fn push(&mut self, tokens: &[u32]) -> Option<TextDelta> {
        let mut delta = TextDelta::default();
        for &token in tokens {
            if self.stopped {
                break;
            }
            self.consumed += 1;
            let bytes = match self.skip_special {
                true => self.tokenizer.text_bytes(token),
                false => self.tokenizer.token_bytes(token),
            };
            self.stopped = self.lane.push(bytes, &mut delta.text, &mut delta.tokens);
        }
        (!delta.text.is_empty()).then_some(delta)
    }

    /// Takes the token on which the engine stopped (an end-of-sequence or stop token id): it is counted, and
    /// gives no text.
    pub fn push_stop_token(&mut self) {
        if !self.stopped {
            self.consumed += 1;
            // Read as a token without bytes, so that it is accounted for with the rest.
            let delta = &mut TextDelta::default();
            self.lane.push(&[], &mut delta.text, &mut delta.tokens);
        }
    }

    /// Ends the choice. The delta has all text that was held back, and the tokens without text (so its text
    /// can be empty, its tokens then are not); `None` when neither is left.
    pub fn finish(&mut self) -> Option<TextDelta> {
        let mut delta = TextDelta::default();
        if !self.stopped {
            self.stopped = self.lane.flush(&mut delta.text, &mut delta.tokens);
        }
        if !self.stopped {
            self.lane.take_rest(&mut delta.tokens);
        }
        (!delta.text.is_empty() || !delta.tokens.is_empty()).then_some(delta)
    }

    /// Whether a stop string ended the text.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// The stop string that ended the text.
    pub fn stop_string(&self) -> Option<&str> {
        self.lane.stop_string()
    }

    /// Tokens read, the one that completed a stop string included: what usage counts.
    pub fn consumed(&self) -> u32 {
        self.consumed
    }
}
