//! The body of `/v1/chat/completions`, checked: its conversation, tools and options.

use super::{
    App,
    completion_request::INLINE_PROMPT_BYTES,
    error::ApiError,
    fields::{Fields, expected},
    messages,
    sampling::{Common, Limits, check_model, take_max_tokens},
    unix_seconds,
};
use gossamer_harmony::{self as harmony, Effort, Tool};
use gossamer_tokenizer::{RenderError, Segment};
use serde_json::{Map, Value};

/// A checked request.
pub struct ChatRequest {
    /// What both endpoints share.
    pub common: Common,
    /// What is said.
    pub conversation: Conversation,
    /// Names of the functions offered.
    pub tools: Vec<String>,
    /// Alternatives per token.
    pub logprobs: Option<u32>,
    /// The budget; `None`: the room left.
    pub max_tokens: Option<u32>,
    /// Whether the answer shows its reasoning.
    pub include_reasoning: bool,
}

/// A conversation and its size.
pub struct Conversation {
    inner: harmony::Conversation,
    bytes: usize,
    /// Whether the prompt ends where the assistant's next message begins.
    generation_prompt: bool,
}

impl ChatRequest {
    /// Takes a request out of its body.
    pub fn take(app: &App, mut fields: Fields, limits: &Limits) -> Result<Self, ApiError> {
        let fields = &mut fields;
        check_model(fields, &app.config.served_model_names)?;
        let mut common = Common::take(fields, limits)?;
        let wanted = fields.boolean("logprobs")?.unwrap_or(false);
        let top = fields.integer("top_logprobs", 0..=i64::from(limits.max_logprobs))?;
        if top.is_some_and(|top| top > 0) && !wanted {
            return Err(ApiError::invalid(
                "top_logprobs",
                "top_logprobs: expected only together with 'logprobs': true",
            ));
        }
        common.sampling.logprobs = wanted.then_some(top.unwrap_or(0) as u32);
        let asked = take_max_tokens(fields, "max_completion_tokens", 1)?;
        if asked.is_some() {
            common.budget_field = "max_completion_tokens";
        }
        let max_tokens = asked.or(take_max_tokens(fields, "max_tokens", 1)?);
        for (name, what) in [
            ("functions", "the old form of tools"),
            ("echo", "repeating the conversation"),
            ("audio", "audio"),
            ("web_search_options", "web search"),
            ("prediction", "predicted output"),
        ] {
            fields.refuse(name, what, &[])?;
        }
        let text_only = Value::Array(vec![Value::String("text".into())]);
        fields.refuse("modalities", "output other than text", &[text_only])?;
        let include_reasoning = fields.boolean("include_reasoning")?.unwrap_or(true);
        let conversation = Conversation::take(app, fields)?;
        if !conversation.generation_prompt {
            return Err(ApiError::not_supported_yet(
                "add_generation_prompt",
                "letting the model say whose turn it is",
            ));
        }
        let tools = conversation.inner.tools.iter().map(|tool| tool.name.clone()).collect();
        Ok(Self {
            logprobs: common.sampling.logprobs,
            common,
            conversation,
            tools,
            max_tokens,
            include_reasoning,
        })
    }
}

impl Conversation {
    /// Takes the fields that make the prompt.
    pub fn take(app: &App, fields: &mut Fields) -> Result<Self, ApiError> {
        app.text()?
            .control
            .as_ref()
            .map_err(|missing| ApiError::invalid("messages", missing.to_string()).code("no_chat"))?;
        let bytes = fields.size();
        for (name, what) in [
            ("continue_final_message", "continuing a message"),
            ("chat_template", "chat templates other than harmony"),
            ("documents", "documents"),
        ] {
            fields.refuse(name, what, &[])?;
        }
        let generation_prompt = fields.boolean("add_generation_prompt")?.unwrap_or(true);
        let messages = match fields.take("messages") {
            Some(Value::Array(items)) if items.is_empty() => {
                return Err(ApiError::invalid(
                    "messages",
                    "messages: expected at least one message, got none",
                ));
            }
            Some(Value::Array(items)) => messages::read(items)?,
            Some(other) => return Err(expected("messages", "a list of messages", &other)),
            None => {
                return Err(ApiError::invalid(
                    "messages",
                    "messages: expected a list of messages, got nothing",
                ));
            }
        };
        let system = harmony::SystemBlock {
            date: Some(date(unix_seconds())),
            effort: effort(fields)?,
            ..harmony::SystemBlock::default()
        };
        let tools = tools(fields)?;
        Ok(Self { inner: harmony::Conversation { system, tools, messages }, bytes, generation_prompt })
    }

    /// The prompt's tokens; long conversations are rendered and encoded off the runtime.
    pub async fn encode(self, app: &App) -> Result<Vec<u32>, ApiError> {
        let text = app.text()?;
        let control = match &text.control {
            Ok(control) => *control,
            Err(missing) => return Err(ApiError::invalid("messages", missing.to_string())),
        };
        let Self { inner, bytes, generation_prompt } = self;
        let render = move || -> Result<Vec<Segment>, harmony::RenderError> {
            let pieces = match generation_prompt {
                true => harmony::render(&inner)?,
                false => harmony::render_history(&inner)?,
            };
            Ok(harmony::segments(pieces, &control))
        };
        let refuse = |error: harmony::RenderError| ApiError::invalid("messages", error.to_string());
        if bytes <= INLINE_PROMPT_BYTES {
            return Ok(text.pool.tokenizer().encode_segments(render().map_err(refuse)?));
        }
        text.pool.render_and_encode(move |_| render()).await.map_err(|error| match error {
            RenderError::Render(error) => refuse(error),
            RenderError::Pool(error) => error.into(),
        })
    }
}

fn effort(fields: &mut Fields) -> Result<Effort, ApiError> {
    let template = match fields.nested("chat_template_kwargs")? {
        Some(mut options) => options.string("reasoning_effort")?,
        None => None,
    };
    let asked = fields.string("reasoning_effort")?.or(template);
    match asked.as_deref() {
        None | Some("medium") => Ok(Effort::Medium),
        Some("low" | "minimal") => Ok(Effort::Low),
        Some("high") => Ok(Effort::High),
        Some(other) => Err(ApiError::invalid(
            "reasoning_effort",
            format!("reasoning_effort: expected 'minimal', 'low', 'medium' or 'high', got '{other}'"),
        )),
    }
}

/// The functions offered; none where the client forbids calls.
fn tools(fields: &mut Fields) -> Result<Vec<Tool>, ApiError> {
    let items = match fields.take("tools") {
        None => Vec::new(),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(expected("tools", "a list of tools", &other)),
    };
    let tools = items
        .into_iter()
        .enumerate()
        .map(|(index, item)| match item {
            Value::Object(map) => tool(map, index),
            other => Err(expected(&format!("tools[{index}]"), "an object", &other)),
        })
        .collect::<Result<Vec<_>, _>>()?;
    match fields.take("tool_choice") {
        None => Ok(tools),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => Ok(tools),
            "none" => Ok(Vec::new()),
            "required" => Err(ApiError::not_supported_yet("tool_choice", "forcing a tool call")),
            other => Err(ApiError::invalid(
                "tool_choice",
                format!("tool_choice: expected 'auto', 'none', 'required' or a function, got '{other}'"),
            )),
        },
        Some(Value::Object(_)) => {
            Err(ApiError::not_supported_yet("tool_choice", "forcing a named tool call"))
        }
        Some(other) => Err(expected("tool_choice", "a string or an object", &other)),
    }
}

fn tool(map: Map<String, Value>, index: usize) -> Result<Tool, ApiError> {
    let at = |name: &str| format!("tools[{index}].{name}");
    let mut fields = Fields::of(map);
    let named = |mut error: ApiError| {
        error.param = Some(format!("tools[{index}]"));
        error
    };
    match fields.string("type").map_err(named)?.as_deref() {
        None | Some("function") => {}
        Some(other) => {
            return Err(ApiError::invalid(
                at("type"),
                format!(
                    "{}: expected 'function', got '{other}'; other tools are not supported yet",
                    at("type")
                ),
            ));
        }
    }
    let mut function = fields.nested("function").map_err(named)?.ok_or_else(|| {
        ApiError::invalid(at("function"), format!("{}: expected an object, got nothing", at("function")))
    })?;
    let name = function.string("name").map_err(named)?.unwrap_or_default();
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > 64 || !name.chars().all(legal) {
        return Err(ApiError::invalid(
            at("function.name"),
            format!(
                "{}: expected 1 to 64 letters, digits, '_', '-' or '.', got '{name}'",
                at("function.name")
            ),
        ));
    }
    let description = function.string("description").map_err(named)?;
    let parameters = function.object("parameters").map_err(named)?.map(Value::Object);
    Ok(Tool { name, description, parameters })
}

/// `YYYY-MM-DD` of a Unix time, in UTC (the days-to-civil algorithm of the proleptic Gregorian calendar).
fn date(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, date) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_798_675_199, "2026-12-30"),
            (4_102_444_800, "2100-01-01"),
        ] {
            assert_eq!(super::date(seconds), date);
        }
    }
}
