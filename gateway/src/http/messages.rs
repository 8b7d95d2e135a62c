//! The `messages` of a request.

use super::{
    error::ApiError,
    fields::{Fields, expected},
};
use gossamer_harmony::{Message, ToolCall};
use serde_json::{Map, Value};

/// Reads all messages.
pub fn read(items: Vec<Value>) -> Result<Vec<Message>, ApiError> {
    items
        .into_iter()
        .enumerate()
        .map(|(index, item)| {
            let at = format!("messages[{index}]");
            match item {
                Value::Object(map) => message(map, &at),
                other => Err(expected(&at, "an object", &other)),
            }
        })
        .collect()
}

fn message(map: Map<String, Value>, at: &str) -> Result<Message, ApiError> {
    let mut fields = Fields::of(map);
    let fields = &mut fields;
    let role = string(fields, "role", at)?.unwrap_or_default();
    let content = content(fields.take("content"), &format!("{at}.content"))?;
    let needed = |content: Option<String>| {
        content.ok_or_else(|| {
            let name = format!("{at}.content");
            ApiError::invalid(
                &name,
                format!("{name}: expected a string or a list of text parts, got nothing"),
            )
        })
    };
    match role.as_str() {
        "system" | "developer" => Ok(Message::Instructions(needed(content)?)),
        "user" => Ok(Message::User(needed(content)?)),
        "assistant" => {
            let reasoning = string(fields, "reasoning", at)?;
            let spelled_out = string(fields, "reasoning_content", at)?;
            Ok(Message::Assistant {
                reasoning: reasoning.or(spelled_out).filter(|text| !text.is_empty()),
                content,
                calls: calls(fields, at)?,
            })
        }
        "tool" | "function" => Ok(Message::Tool {
            call_id: string(fields, "tool_call_id", at)?,
            name: string(fields, "name", at)?,
            content: needed(content)?,
        }),
        other => {
            let name = format!("{at}.role");
            Err(ApiError::invalid(
                &name,
                format!(
                    "{name}: expected 'system', 'developer', 'user', 'assistant' or 'tool', got '{other}'"
                ),
            ))
        }
    }
}

fn string(fields: &mut Fields, name: &str, at: &str) -> Result<Option<String>, ApiError> {
    match fields.take(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(expected(&format!("{at}.{name}"), "a string", &other)),
    }
}

/// A text, or parts of text that belong together.
fn content(value: Option<Value>, at: &str) -> Result<Option<String>, ApiError> {
    let parts = match value {
        None => return Ok(None),
        Some(Value::String(text)) => return Ok(Some(text)),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(expected(at, "a string or a list of text parts", &other)),
    };
    let mut joined = String::new();
    for (index, part) in parts.into_iter().enumerate() {
        let at = format!("{at}[{index}]");
        let mut part = match part {
            Value::String(text) => {
                joined.push_str(&text);
                continue;
            }
            Value::Object(map) => Fields::of(map),
            other => return Err(expected(&at, "a text part", &other)),
        };
        let kind = string(&mut part, "type", &at)?.unwrap_or_else(|| "text".into());
        let field = match kind.as_str() {
            "text" | "input_text" | "output_text" => "text",
            "refusal" => "refusal",
            other => {
                return Err(ApiError::invalid(
                    format!("{at}.type"),
                    format!("{at}.type: expected 'text', got '{other}'; this model reads text only"),
                ));
            }
        };
        match string(&mut part, field, &at)? {
            Some(text) => joined.push_str(&text),
            None => {
                let name = format!("{at}.{field}");
                return Err(ApiError::invalid(&name, format!("{name}: expected a string, got nothing")));
            }
        }
    }
    Ok(Some(joined))
}

fn calls(fields: &mut Fields, at: &str) -> Result<Vec<ToolCall>, ApiError> {
    let items = match fields.take("tool_calls") {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(expected(&format!("{at}.tool_calls"), "a list of calls", &other)),
    };
    items
        .into_iter()
        .enumerate()
        .map(|(index, item)| {
            let at = format!("{at}.tool_calls[{index}]");
            let Value::Object(map) = item else { return Err(expected(&at, "an object", &item)) };
            let mut call = Fields::of(map);
            let id = string(&mut call, "id", &at)?.unwrap_or_default();
            let at = format!("{at}.function");
            let mut function = match call.take("function") {
                Some(Value::Object(map)) => Fields::of(map),
                Some(other) => return Err(expected(&at, "an object", &other)),
                None => return Err(ApiError::invalid(&at, format!("{at}: expected an object, got nothing"))),
            };
            let name =
                string(&mut function, "name", &at)?.filter(|name| !name.is_empty()).ok_or_else(|| {
                    ApiError::invalid(
                        format!("{at}.name"),
                        format!("{at}.name: expected a function's name, got nothing"),
                    )
                })?;
            let arguments = match function.take("arguments") {
                None => String::new(),
                Some(Value::String(text)) => text,
                // Some clients send the object that the string would spell.
                Some(object @ Value::Object(_)) => object.to_string(),
                Some(other) => return Err(expected(&format!("{at}.arguments"), "a string", &other)),
            };
            Ok(ToolCall { id, name, arguments })
        })
        .collect()
}
