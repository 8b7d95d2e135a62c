//! Conversations to prompts.
//!
//! History: the reasoning of a turn that ended in a final answer is left out; that of the turn which is still
//! calling tools stays, since the model goes on from it. The text that an assistant wrote beside its calls is
//! a preamble, on the commentary channel.
//!
//! Invariant: control tokens come from this file alone; all text of clients is in [`Piece::Text`].

use std::collections::HashMap;

use gossamer_tokenizer::Segment;

use crate::control::{ControlIds, ControlToken};
use crate::conversation::{Conversation, Effort, Message, SystemBlock, Tool, ToolCall};
use crate::typescript;

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A control token.
    Control(ControlToken),
    /// Text, to be encoded without special tokens.
    Text(String),
}

/// A conversation that has no prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// A tool's result answers no call of the conversation.
    #[error(
        "expected the tool_call_id of a call in an earlier assistant message, got {}; send that message too, or \
         give the tool message a name",
        call_id.as_deref().map_or("none".to_owned(), |id| format!("'{id}'"))
    )]
    UnknownCall {
        /// The id that the result carries.
        call_id: Option<String>,
    },
}

/// Renders the conversation up to where the assistant's next message begins.
///
/// # Errors
/// A tool's result cannot be matched with a call.
pub fn render(conversation: &Conversation) -> Result<Vec<Piece>, RenderError> {
    let mut pieces = render_history(conversation)?;
    pieces.push(Piece::Control(ControlToken::Start));
    pieces.push(Piece::Text("assistant".into()));
    Ok(pieces)
}

/// Renders the conversation's messages, and nothing for the assistant to go on from.
///
/// # Errors
/// As [`render`].
pub fn render_history(conversation: &Conversation) -> Result<Vec<Piece>, RenderError> {
    let messages = &conversation.messages;
    let mut renderer = Renderer::default();
    let has_tools = !conversation.tools.is_empty();
    renderer.message("system", None, |text| system_block(text, &conversation.system, has_tools));

    // Instructions before the first turn and the tools share one developer message.
    let leading = messages.iter().take_while(|m| matches!(m, Message::Instructions(_))).count();
    let instructions: Vec<&str> = messages[..leading]
        .iter()
        .filter_map(|m| if let Message::Instructions(text) = m { Some(text.as_str()) } else { None })
        .collect();
    if leading > 0 || has_tools {
        let instructions = (leading > 0).then(|| instructions.join("\n\n"));
        renderer.message("developer", None, |text| {
            developer_block(text, instructions.as_deref(), &conversation.tools);
        });
    }

    let keep_reasoning_from = messages.iter().rposition(is_final_answer).map_or(0, |last| last + 1);
    for (index, message) in messages.iter().enumerate().skip(leading) {
        match message {
            Message::Instructions(instructions) => {
                renderer.message("developer", None, |text| developer_block(text, Some(instructions), &[]));
            }
            Message::User(content) => renderer.message("user", None, |text| text.push_str(content)),
            Message::Assistant { reasoning, content, calls } => {
                let reasoning = reasoning.as_deref().filter(|_| index >= keep_reasoning_from);
                renderer.assistant(reasoning, content.as_deref(), calls);
            }
            Message::Tool { call_id, name, content } => {
                renderer.tool_result(call_id.as_deref(), name.as_deref(), content)?;
            }
        }
    }
    Ok(renderer.pieces)
}

/// The pieces as the tokenizer takes them.
pub fn segments(pieces: Vec<Piece>, ids: &ControlIds) -> Vec<Segment> {
    let segment = |piece| match piece {
        Piece::Control(token) => Segment::Token(ids.id(token)),
        Piece::Text(text) => Segment::Text(text),
    };
    pieces.into_iter().map(segment).collect()
}

fn is_final_answer(message: &Message) -> bool {
    matches!(message, Message::Assistant { content: Some(_), calls, .. } if calls.is_empty())
}

fn system_block(text: &mut String, system: &SystemBlock, has_tools: bool) {
    let effort = match system.effort {
        Effort::Low => "low",
        Effort::Medium => "medium",
        Effort::High => "high",
    };
    text.push_str(&system.identity);
    text.push_str("\nKnowledge cutoff: ");
    text.push_str(&system.knowledge_cutoff);
    if let Some(date) = &system.date {
        text.push_str("\nCurrent date: ");
        text.push_str(date);
    }
    text.push_str("\n\nReasoning: ");
    text.push_str(effort);
    text.push_str(
        "\n\n# Valid channels: analysis, commentary, final. Channel must be included for every message.",
    );
    if has_tools {
        text.push_str("\nCalls to these tools must go to the commentary channel: 'functions'.");
    }
}

fn developer_block(text: &mut String, instructions: Option<&str>, tools: &[Tool]) {
    if let Some(instructions) = instructions {
        text.push_str("# Instructions\n\n");
        text.push_str(instructions);
    }
    if tools.is_empty() {
        return;
    }
    if !text.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str("# Tools\n\n## functions\n\nnamespace functions {\n\n");
    for tool in tools {
        typescript::write_function(text, tool);
    }
    text.push_str("} // namespace functions");
}

#[derive(Default)]
struct Renderer<'a> {
    pieces: Vec<Piece>,
    /// Names of the functions called so far, by the call's id.
    called: HashMap<&'a str, &'a str>,
}

impl<'a> Renderer<'a> {
    fn control(&mut self, token: ControlToken) {
        self.pieces.push(Piece::Control(token));
    }

    fn text(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !text.is_empty() {
            self.pieces.push(Piece::Text(text));
        }
    }

    /// One message from `<|start|>` to `<|end|>`.
    fn message(&mut self, role: &str, channel: Option<&str>, body: impl FnOnce(&mut String)) {
        self.control(ControlToken::Start);
        self.text(role);
        if let Some(channel) = channel {
            self.control(ControlToken::Channel);
            self.text(channel);
        }
        self.control(ControlToken::Message);
        let mut text = String::new();
        body(&mut text);
        self.text(text);
        self.control(ControlToken::End);
    }

    fn assistant(&mut self, reasoning: Option<&str>, content: Option<&str>, calls: &'a [ToolCall]) {
        if let Some(reasoning) = reasoning {
            self.message("assistant", Some("analysis"), |text| text.push_str(reasoning));
        }
        if let Some(content) = content {
            let channel = if calls.is_empty() { "final" } else { "commentary" };
            // A client that has nothing to show beside a call often sends an empty text.
            if calls.is_empty() || !content.is_empty() {
                self.message("assistant", Some(channel), |text| text.push_str(content));
            }
        }
        for call in calls {
            self.called.insert(&call.id, &call.name);
            self.control(ControlToken::Start);
            // History is written role first, although models generate the channel first: this is how the
            // published templates show past calls to the model.
            self.text(format!("assistant to=functions.{}", call.name));
            self.control(ControlToken::Channel);
            self.text("commentary json");
            self.control(ControlToken::Message);
            self.text(call.arguments.as_str());
            self.control(ControlToken::Call);
        }
    }

    fn tool_result(
        &mut self,
        call_id: Option<&str>,
        name: Option<&str>,
        content: &str,
    ) -> Result<(), RenderError> {
        let called = call_id.and_then(|id| self.called.get(id).copied());
        let name =
            called.or(name).ok_or_else(|| RenderError::UnknownCall { call_id: call_id.map(Into::into) })?;
        let role = format!("functions.{name} to=assistant");
        self.message(&role, Some("commentary"), |text| text.push_str(content));
        Ok(())
    }
}
