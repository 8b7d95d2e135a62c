//! What the tests share: the vocabulary of gpt-oss, and tokens written as text.

#![allow(clippy::unwrap_used, dead_code)]

use std::sync::{Arc, LazyLock};

use gossamer_harmony::{ChatDelta, ChatOutput, ChatOutputOptions, ControlIds, Ending, FinishReason};
use gossamer_tokenizer::{StopStrings, TokenSpan, Tokenizer};

pub static O200K: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| Arc::new(Tokenizer::o200k_harmony().unwrap()));

/// The ids of a generation written with control tokens by name.
pub fn script(text: &str) -> Vec<u32> {
    O200K.encode_with_special(text)
}

pub fn options(stops: &[&str], tools: &[&str]) -> ChatOutputOptions {
    ChatOutputOptions {
        tokenizer: O200K.clone(),
        control: ControlIds::find(&O200K).unwrap(),
        stops: StopStrings::new(stops),
        tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
        turns_end_after: Some(0),
    }
}

/// All that a client can know of a choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    pub reasoning: String,
    pub content: String,
    /// Name and arguments.
    pub calls: Vec<(String, String)>,
    /// Positions of the tokens that have log-probability entries, in the order of the deltas.
    pub entries: Vec<u32>,
    pub finish: Option<FinishReason>,
    pub consumed: u32,
    pub reasoning_tokens: u32,
}

impl Reply {
    pub fn absorb(&mut self, delta: ChatDelta) {
        let (text, tokens, place) = match delta {
            ChatDelta::CallStart { index, name } => {
                assert_eq!(index as usize, self.calls.len(), "calls are numbered in order");
                self.calls.push((name, String::new()));
                return;
            }
            ChatDelta::Reasoning { text, tokens } => (text, tokens, &mut self.reasoning),
            ChatDelta::Content { text, tokens } => (text, tokens, &mut self.content),
            ChatDelta::CallArguments { index, text, tokens } => {
                (text, tokens, &mut self.calls[index as usize].1)
            }
        };
        assert!(!text.is_empty(), "a delta without text");
        place.push_str(&text);
        let TokenSpan { start, end } = tokens;
        self.entries.extend(start..end);
    }
}

/// Runs the tokens in the given groups through a choice.
pub fn reply_in<'a>(
    options: ChatOutputOptions,
    groups: impl IntoIterator<Item = &'a [u32]>,
    ending: Ending,
) -> Reply {
    let mut output = ChatOutput::new(options);
    let mut reply = Reply::default();
    let mut deltas = Vec::new();
    for group in groups {
        output.push(group, &mut deltas);
        deltas.drain(..).for_each(|delta| reply.absorb(delta));
    }
    reply.finish = Some(output.finish(ending, &mut deltas));
    deltas.drain(..).for_each(|delta| reply.absorb(delta));
    reply.consumed = output.consumed();
    reply.reasoning_tokens = output.reasoning_tokens();
    reply
}

/// Runs a script token by token, and again in one group: both must agree.
pub fn reply(text: &str) -> Reply {
    reply_with(text, &[], Ending::Stop)
}

pub fn reply_with(text: &str, stops: &[&str], ending: Ending) -> Reply {
    let ids = script(text);
    let single = reply_in(options(stops, &[]), ids.chunks(1), ending);
    let whole = reply_in(options(stops, &[]), [&ids[..]], ending);
    assert_eq!(single, whole, "grouping changes the reply to {text:?}");
    single
}
