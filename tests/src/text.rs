//! What a client makes of an answer: the joined texts of a choice, and how it ended.

use crate::client::Event;
use gossamer_tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::{
    io::Write,
    sync::{Arc, OnceLock},
};

/// Everything of one choice of a chat.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Choice {
    /// Reasoning.
    pub reasoning: String,
    /// The answer.
    pub content: String,
    /// Per call: name and arguments.
    pub calls: Vec<(String, String)>,
    /// Ids of the calls.
    pub call_ids: Vec<String>,
    /// How it ended.
    pub finish: String,
    /// Number of log-probability entries.
    pub entries: usize,
    /// Their joined bytes.
    pub entry_bytes: Vec<u8>,
}

impl Choice {
    fn add_logprobs(&mut self, logprobs: &Value) {
        for entry in logprobs["content"].as_array().into_iter().flatten() {
            self.entries += 1;
            let bytes = entry["bytes"].as_array().expect("bytes are a list");
            self.entry_bytes.extend(bytes.iter().map(|byte| byte.as_u64().expect("a byte") as u8));
        }
    }

    /// Reasoning and answer.
    pub fn text(&self) -> String {
        format!("{}{}", self.reasoning, self.content)
    }
}

/// A choice of a chat answered in one document.
pub fn whole(answer: &Value, index: usize) -> Choice {
    let choice = &answer["choices"][index];
    assert_eq!(choice["index"], index, "{answer}");
    let message = &choice["message"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut all = Choice {
        reasoning: text(&message["reasoning"]),
        content: text(&message["content"]),
        finish: text(&choice["finish_reason"]),
        ..Choice::default()
    };
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        all.call_ids.push(text(&call["id"]));
        all.calls.push((text(&call["function"]["name"]), text(&call["function"]["arguments"])));
    }
    all.add_logprobs(&choice["logprobs"]);
    all
}

/// A choice of a streamed chat. Checks what holds for every stream.
pub fn joined(events: &[Event], index: usize) -> Choice {
    let mut all = Choice::default();
    for event in events {
        assert!(event.data.get("error").is_none(), "an error event: {}", event.data);
        for choice in event.data["choices"].as_array().expect("choices are a list") {
            if choice["index"] != index {
                continue;
            }
            assert_eq!(all.finish, "", "something came after the end: {choice}");
            let delta = &choice["delta"];
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (reasoning, content) = (text(&delta["reasoning"]), text(&delta["content"]));
            let calls = delta["tool_calls"].as_array().cloned().unwrap_or_default();
            all.finish = text(&choice["finish_reason"]);
            let is_empty = reasoning.is_empty() && content.is_empty() && calls.is_empty();
            assert!(!is_empty || !all.finish.is_empty(), "an empty delta: {choice}");
            all.reasoning += &reasoning;
            all.content += &content;
            for call in calls {
                let at = call["index"].as_u64().expect("an index") as usize;
                if at == all.calls.len() {
                    all.call_ids.push(text(&call["id"]));
                    all.calls.push((text(&call["function"]["name"]), String::new()));
                } else {
                    assert!(call["id"].is_null() && call["function"]["name"].is_null(), "told twice: {call}");
                }
                all.calls[at].1 += &text(&call["function"]["arguments"]);
            }
            all.add_logprobs(&choice["logprobs"]);
        }
    }
    assert_ne!(all.finish, "", "choice {index} has no end");
    all
}

/// The joined text of a choice of a streamed completion, and how it ended.
pub fn joined_completion(events: &[Event], index: usize) -> (String, String) {
    let (mut text, mut finish) = (String::new(), String::new());
    for event in events {
        assert!(event.data.get("error").is_none(), "an error event: {}", event.data);
        for choice in event.data["choices"].as_array().expect("choices are a list") {
            if choice["index"] == index {
                text += choice["text"].as_str().expect("a text");
                finish += choice["finish_reason"].as_str().unwrap_or_default();
            }
        }
    }
    (text, finish)
}

/// A chat request that says `hi`, with more fields.
pub fn chat(extra: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    for (name, value) in extra.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

/// The vocabulary of gpt-oss.
pub fn tokenizer() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    TOKENIZER.get_or_init(|| Arc::new(Tokenizer::o200k_harmony().expect("it is built in"))).clone()
}

/// A script of the simulated device: for each word that a user says, the tokens that follow. A reply is text, in which
/// names of control tokens are those tokens, or ids.
pub struct SimScript {
    file: tempfile::NamedTempFile,
}

/// What the simulated model says.
pub enum Reply<'a> {
    /// Text with control tokens by name.
    Text(&'a str),
    /// Tokens.
    Ids(&'a [u32]),
}

impl SimScript {
    /// A script. Words must be single tokens that stand nowhere else in a prompt.
    pub fn new(replies: &[(&str, Reply<'_>)]) -> Self {
        let tokenizer = tokenizer();
        let by_marker: serde_json::Map<String, Value> = replies
            .iter()
            .map(|(word, reply)| {
                let ids = tokenizer.encode_ordinary(word);
                assert_eq!(ids.len(), 1, "'{word}' is not one token: {ids:?}");
                let tokens = match reply {
                    Reply::Text(text) => tokenizer.encode_with_special(text),
                    Reply::Ids(ids) => ids.to_vec(),
                };
                (ids[0].to_string(), json!(tokens))
            })
            .collect();
        let mut file = tempfile::NamedTempFile::new().expect("there is room for a small file");
        write!(file, "{}", json!({"by_marker": by_marker})).expect("there is room for a small file");
        Self { file }
    }

    /// Its path.
    pub fn path(&self) -> &str {
        self.file.path().to_str().expect("temporary files have UTF-8 paths")
    }
}
