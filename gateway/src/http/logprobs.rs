//! Log-probabilities in the shapes of both endpoints.

use super::choice::Drawn;
use gossamer_tokenizer::Tokenizer;
use serde::Serialize;

/// Stands for an impossible token: JSON has no infinity. vLLM's value.
const LEAST: f32 = -9999.0;

/// Chat: `logprobs` of a choice or chunk.
#[derive(Debug, Default, Serialize)]
pub struct ChatLogprobs {
    /// One entry per token.
    pub content: Vec<ChatEntry>,
}

/// One token.
#[derive(Debug, Serialize)]
pub struct ChatEntry {
    #[serde(flatten)]
    chosen: ChatToken,
    top_logprobs: Vec<ChatToken>,
}

#[derive(Debug, Serialize)]
struct ChatToken {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

/// Completions: `logprobs` of a choice or chunk.
#[derive(Debug, Default, Serialize)]
pub struct TextLogprobs {
    /// Where each token begins, in characters.
    pub text_offset: Vec<usize>,
    /// Of the tokens drawn.
    pub token_logprobs: Vec<f32>,
    /// The tokens.
    pub tokens: Vec<String>,
    /// The alternatives of each.
    pub top_logprobs: Vec<Alternatives>,
}

/// A map that keeps its order and is written as a JSON object.
#[derive(Debug, Default)]
pub struct Alternatives(Vec<(String, f32)>);

impl Serialize for Alternatives {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, logprob)| (token, logprob)))
    }
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob.max(LEAST) } else { LEAST }
}

/// A token's text for people; without a tokenizer its number, as vLLM writes it.
fn name(tokenizer: Option<&Tokenizer>, token: u32) -> String {
    match tokenizer {
        Some(tokenizer) => String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned(),
        None => format!("token_id:{token}"),
    }
}

impl ChatLogprobs {
    /// Adds a token. Special tokens have no bytes, so that the joined bytes of the entries are the text.
    pub fn push(&mut self, tokenizer: &Tokenizer, drawn: &Drawn, top: usize) {
        let Some(logprobs) = &drawn.logprobs else { return };
        let entry = |token: u32, logprob: f32| ChatToken {
            token: name(Some(tokenizer), token),
            logprob: finite(logprob),
            bytes: tokenizer.text_bytes(token).to_vec(),
        };
        self.content.push(ChatEntry {
            chosen: entry(drawn.token, logprobs.logprob),
            top_logprobs: logprobs
                .top
                .iter()
                .take(top)
                .map(|(token, logprob)| entry(*token, *logprob))
                .collect(),
        });
    }
}

impl TextLogprobs {
    /// Adds a token whose text begins at `offset`, and moves `offset` past it.
    pub fn push(&mut self, tokenizer: Option<&Tokenizer>, drawn: &Drawn, top: usize, offset: &mut usize) {
        let Some(logprobs) = &drawn.logprobs else { return };
        let token = name(tokenizer, drawn.token);
        self.text_offset.push(*offset);
        *offset += token.chars().count();
        self.token_logprobs.push(finite(logprobs.logprob));
        let mut alternatives: Vec<(String, f32)> = logprobs
            .top
            .iter()
            .take(top)
            .map(|(token, logprob)| (name(tokenizer, *token), finite(*logprob)))
            .collect();
        // The drawn token is always told, likely or not.
        if !logprobs.top.iter().take(top).any(|(other, _)| *other == drawn.token) {
            alternatives.push((token.clone(), finite(logprobs.logprob)));
        }
        self.top_logprobs.push(Alternatives(alternatives));
        self.tokens.push(token);
    }
}
