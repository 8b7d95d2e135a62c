//! Events of `/v1/chat/completions`.
//!
//! Invariant: every delta but a choice's last carries text or a call's beginning; the role stands in the first.

use super::{
    App,
    chat::Plan,
    choice::{Body, Piece, StopReason},
    generation::Generation,
    logprobs::ChatLogprobs,
    sampling::StreamOptions,
    sse::{ChunkFrame, ChunkWriter},
    unix_seconds,
    usage::Usage,
};
use serde::Serialize;

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: usize,
    delta: Delta<'a>,
    logprobs: Option<&'a ChatLogprobs>,
    finish_reason: Option<&'static str>,
    /// Told with the end: a reason, or null.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<Option<&'a StopReason>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
}

#[derive(Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[CallDelta<'a>; 1]>,
}

#[derive(Serialize)]
struct CallDelta<'a> {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: FunctionDelta<'a>,
}

#[derive(Serialize)]
struct FunctionDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

/// Writes chunks.
pub struct ChatWriter {
    frame: ChunkFrame,
    plan: Plan,
    options: StreamOptions,
    /// Per choice: whether the role was told, and the position of the next token.
    told: Vec<(bool, u32)>,
    prompt_told: bool,
    ids: Vec<u32>,
}

impl ChatWriter {
    /// Chunks of the answer `id` with `n` choices.
    pub fn new(app: &App, id: &str, plan: Plan, n: usize, options: StreamOptions) -> Self {
        let event_ids = options.event_ids.then(|| plan.request.to_string());
        Self {
            frame: ChunkFrame::new(
                id,
                "chat.completion.chunk",
                unix_seconds(),
                app.config.model_name(),
                event_ids,
            ),
            plan,
            options,
            told: vec![(false, 0); n],
            prompt_told: false,
            ids: Vec::new(),
        }
    }

    fn send(
        &mut self,
        out: &mut Vec<u8>,
        index: usize,
        mut delta: Delta<'_>,
        logprobs: Option<&ChatLogprobs>,
        end: Option<(&'static str, Option<&StopReason>)>,
        usage: Option<&Usage>,
    ) {
        let (role_told, position) = &mut self.told[index];
        if !std::mem::replace(role_told, true) {
            delta.role = Some("assistant");
        }
        let chunk = ChunkChoice {
            index,
            delta,
            logprobs,
            finish_reason: end.map(|(reason, _)| reason),
            stop_reason: end.map(|(_, reason)| reason),
            token_ids: self.plan.return_token_ids.then_some(&self.ids[..]),
        };
        let prompt_ids = self.plan.prompt_ids.as_ref().filter(|_| !self.prompt_told);
        self.prompt_told = true;
        self.frame.event(
            out,
            &chunk,
            usage,
            |out| {
                if let Some(ids) = prompt_ids {
                    out.extend_from_slice(b",\"prompt_token_ids\":");
                    // Numbers cannot fail to serialise.
                    let _ = serde_json::to_writer(out, ids);
                }
            },
            (index, *position),
        );
    }

    /// The delta of a piece; `None` for reasoning that the client does not want.
    fn delta<'a>(&self, index: usize, piece: &'a Piece) -> Option<Delta<'a>> {
        Some(match &piece.body {
            Body::Content(text) => Delta { content: Some(text), ..Delta::default() },
            Body::Reasoning(text) if self.plan.include_reasoning => {
                Delta { reasoning: Some(text), reasoning_content: Some(text), ..Delta::default() }
            }
            Body::Reasoning(_) => return None,
            Body::CallStart { index: call, name } => Delta {
                tool_calls: Some([CallDelta {
                    index: *call,
                    id: Some(self.plan.call_id(index, *call)),
                    r#type: Some("function"),
                    function: FunctionDelta { name: Some(name), arguments: "" },
                }]),
                ..Delta::default()
            },
            Body::CallArguments { index: call, text } => Delta {
                tool_calls: Some([CallDelta {
                    index: *call,
                    id: None,
                    r#type: None,
                    function: FunctionDelta { name: None, arguments: text },
                }]),
                ..Delta::default()
            },
        })
    }
}

impl ChunkWriter for ChatWriter {
    fn begin(&mut self, _generation: &mut Generation, _out: &mut Vec<u8>) {}

    fn choice(&mut self, generation: &mut Generation, index: usize, out: &mut Vec<u8>) {
        let usage = self.options.continuous_usage_stats.then(|| generation.usage());
        let choice = &mut generation.choices[index];
        let pieces = std::mem::take(&mut choice.pieces);
        let keep_tokens = self.plan.return_token_ids || self.plan.logprobs.is_some();
        for piece in &pieces {
            self.ids.clear();
            let mut logprobs = self.plan.logprobs.map(|_| ChatLogprobs::default());
            if keep_tokens {
                for drawn in choice.take_tokens(piece.tokens) {
                    self.ids.push(drawn.token);
                    if let (Some(top), Some(logprobs)) = (self.plan.logprobs, &mut logprobs) {
                        logprobs.push(&self.plan.tokenizer, &drawn, top as usize);
                    }
                }
            }
            if let Some(delta) = self.delta(index, piece) {
                self.told[index].1 = self.told[index].1.max(piece.tokens.start);
                self.send(out, index, delta, logprobs.as_ref(), None, usage.as_ref());
                self.told[index].1 = self.told[index].1.max(piece.tokens.end);
            }
        }
        if let Some(finish) = choice.finish {
            self.ids.clear();
            if keep_tokens {
                self.ids.extend(choice.take_rest().map(|drawn| drawn.token));
            }
            let stop_reason = choice.stop_reason.take();
            let end = Some((finish.as_str(), stop_reason.as_ref()));
            self.send(out, index, Delta::default(), None, end, usage.as_ref());
        }
        // Given back so that its memory is used again.
        generation.choices[index].pieces = pieces;
    }

    fn usage(&mut self, usage: &Usage, out: &mut Vec<u8>) {
        self.frame.usage(out, usage);
    }
}
