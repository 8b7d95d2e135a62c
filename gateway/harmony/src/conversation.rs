//! A conversation as the renderer takes it. The gateway makes it from requests; nothing here is an API type.

use serde_json::Value;

/// Everything that the prompt is made of.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// The block that opens the prompt.
    pub system: SystemBlock,
    /// The functions that the model may call. Leave empty where the client forbids calls.
    pub tools: Vec<Tool>,
    /// The messages, oldest first.
    pub messages: Vec<Message>,
}

/// The system block: facts that the model was trained to find at the top of its prompt.
#[derive(Clone, Debug)]
pub struct SystemBlock {
    /// Who the model is, in its first line.
    pub identity: String,
    /// The month in which its training data end.
    pub knowledge_cutoff: String,
    /// Today, as `YYYY-MM-DD`; the line is left out where it is `None`.
    pub date: Option<String>,
    /// How long the model should reason.
    pub effort: Effort,
}

impl Default for SystemBlock {
    fn default() -> Self {
        Self {
            identity: "You are ChatGPT, a large language model trained by OpenAI.".to_owned(),
            knowledge_cutoff: "2024-06".to_owned(),
            date: None,
            effort: Effort::Medium,
        }
    }
}

/// How long the model should reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// `low`
    Low,
    /// `medium`
    #[default]
    Medium,
    /// `high`
    High,
}

/// A function that the model may call.
#[derive(Clone, Debug, Default)]
pub struct Tool {
    /// Its name, without namespace.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// JSON schema of its parameters; `None` or `null` for a function without.
    pub parameters: Option<Value>,
}

/// A message of the conversation.
#[derive(Clone, Debug)]
pub enum Message {
    /// Instructions, of the role system or developer.
    Instructions(String),
    /// What the user said.
    User(String),
    /// What the model answered.
    Assistant {
        /// Its reasoning, which the prompt keeps only while the turn goes on.
        reasoning: Option<String>,
        /// Its answer; beside calls, what it told the user before calling.
        content: Option<String>,
        /// The functions that it called.
        calls: Vec<ToolCall>,
    },
    /// What a function returned.
    Tool {
        /// The id of the call that it answers.
        call_id: Option<String>,
        /// The function's name, for clients that give it; else the call's id must be known.
        name: Option<String>,
        /// The result.
        content: String,
    },
}

/// A call that the model made.
#[derive(Clone, Debug, Default)]
pub struct ToolCall {
    /// The id under which its result comes back.
    pub id: String,
    /// The function's name, without namespace.
    pub name: String,
    /// The arguments as the model wrote them.
    pub arguments: String,
}
