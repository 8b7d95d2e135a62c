//! Events of `/v1/completions`.

use super::{
    App,
    choice::{Body, StopReason},
    completions::Plan,
    generation::Generation,
    logprobs::TextLogprobs,
    sse::{ChunkFrame, ChunkWriter},
    unix_seconds,
    usage::Usage,
};
use gossamer_tokenizer::Tokenizer;
use gossamer_wire::RequestId;
use serde::Serialize;
use std::sync::Arc;

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: usize,
    text: &'a str,
    logprobs: Option<&'a TextLogprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<&'a StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
}

/// Writes chunks.
pub struct CompletionWriter {
    frame: ChunkFrame,
    plan: Plan,
    tokenizer: Option<Arc<Tokenizer>>,
    /// Per choice, where the next token's text begins.
    offsets: Vec<usize>,
    /// Per choice, tokens sent.
    positions: Vec<u32>,
    ids: Vec<u32>,
}

impl CompletionWriter {
    /// Chunks of the answer `id`.
    pub fn new(app: &App, id: &str, request: RequestId, plan: Plan) -> Self {
        let event_ids = plan.request.common.stream_options.event_ids.then(|| request.to_string());
        Self {
            frame: ChunkFrame::new(id, "text_completion", unix_seconds(), app.config.model_name(), event_ids),
            plan,
            tokenizer: app.tokenizer().cloned(),
            offsets: Vec::new(),
            positions: Vec::new(),
            ids: Vec::new(),
        }
    }

    fn usage_so_far(&self, generation: &Generation) -> Option<Usage> {
        self.plan.request.common.stream_options.continuous_usage_stats.then(|| generation.usage())
    }
}

impl ChunkWriter for CompletionWriter {
    fn begin(&mut self, generation: &mut Generation, out: &mut Vec<u8>) {
        let count = generation.choices.len();
        self.positions = vec![0; count];
        self.offsets = vec![0; count];
        let usage = self.usage_so_far(generation);
        for index in 0..count {
            let Some(text) = self.plan.echo(index) else { continue };
            self.offsets[index] = text.chars().count();
            let chunk = ChunkChoice {
                index,
                text,
                logprobs: None,
                finish_reason: None,
                stop_reason: None,
                token_ids: None,
                prompt_token_ids: None,
            };
            self.frame.event(out, &chunk, usage.as_ref(), |_| {}, (index, 0));
        }
    }

    fn choice(&mut self, generation: &mut Generation, index: usize, out: &mut Vec<u8>) {
        let usage = self.usage_so_far(generation);
        let choice = &mut generation.choices[index];
        let finish = choice.finish.map(|finish| finish.as_str());
        let stop_reason = choice.stop_reason.take();
        let pieces = std::mem::take(&mut choice.pieces);
        let common = &self.plan.request.common;
        let keep_tokens = common.return_token_ids || self.plan.request.logprobs.is_some();
        let last = pieces.len().saturating_sub(1);
        for (number, piece) in pieces.iter().enumerate() {
            let Body::Content(text) = &piece.body else { continue };
            let mut logprobs = self.plan.request.logprobs.map(|_| TextLogprobs::default());
            self.ids.clear();
            if keep_tokens {
                for drawn in choice.take_tokens(piece.tokens) {
                    self.ids.push(drawn.token);
                    if let (Some(top), Some(logprobs)) = (self.plan.request.logprobs, &mut logprobs) {
                        let tokenizer = self.tokenizer.as_deref();
                        logprobs.push(tokenizer, &drawn, top as usize, &mut self.offsets[index]);
                    }
                }
            }
            if finish.is_some() && number == last {
                self.ids.extend(choice.take_rest().map(|drawn| drawn.token));
            }
            let position = self.positions[index];
            let first = position == 0;
            self.positions[index] += piece.tokens.len() as u32;
            let chunk = ChunkChoice {
                index,
                text,
                logprobs: logprobs.as_ref(),
                finish_reason: finish.filter(|_| number == last),
                stop_reason: stop_reason.as_ref().filter(|_| number == last),
                token_ids: common.return_token_ids.then_some(&self.ids[..]),
                prompt_token_ids: match &self.plan.prompt_ids {
                    Some(ids) if first => ids.get(index / common.n as usize).map(Vec::as_slice),
                    _ => None,
                },
            };
            self.frame.event(out, &chunk, usage.as_ref(), |_| {}, (index, position));
        }
        if pieces.is_empty() && finish.is_some() {
            self.ids.clear();
            self.ids.extend(choice.take_rest().map(|drawn| drawn.token));
            let chunk = ChunkChoice {
                index,
                text: "",
                logprobs: None,
                finish_reason: finish,
                stop_reason: stop_reason.as_ref(),
                token_ids: common.return_token_ids.then_some(&self.ids[..]),
                prompt_token_ids: None,
            };
            self.frame.event(out, &chunk, usage.as_ref(), |_| {}, (index, self.positions[index]));
        }
        generation.choices[index].pieces = pieces;
    }

    fn usage(&mut self, usage: &Usage, out: &mut Vec<u8>) {
        self.frame.usage(out, usage);
    }
}
