//! The harmony chat format of gpt-oss: conversations to prompts, and generated tokens to deltas.
//!
//! - [`render`](render::render) turns a [`Conversation`] into [`Piece`]s: control tokens, and texts that can
//!   never become control tokens, whatever they say. The format is OpenAI's harmony specification.
//! - [`ChatOutput`] reads the tokens of one choice, however they are grouped, and gives reasoning, content and
//!   tool calls. It accepts every sequence of tokens: there is no error to handle.
//!
//! This crate knows no HTTP, no requests and no sampling. It invents no ids for tool calls, and never judges
//! whether arguments are valid JSON.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod control;
mod conversation;
mod header;
mod output;
pub mod render;
mod typescript;

pub use control::{ControlIds, ControlToken, MissingControlToken};
pub use conversation::{Conversation, Effort, Message, SystemBlock, Tool, ToolCall};
pub use output::{ChatDelta, ChatOutput, ChatOutputOptions, Ending, FinishReason};
pub use render::{Piece, RenderError, render, render_history, segments};
