//! The body of `/v1/completions`, checked.

use super::{
    App,
    error::ApiError,
    fields::{Fields, expected, token_ids},
    generation::Prompt,
    sampling::{Common, Limits, check_model, max_tokens, take_max_tokens},
};
use gossamer_tokenizer::Tokenizer;
use serde_json::Value;

/// OpenAI's default budget of this endpoint.
const DEFAULT_MAX_TOKENS: u32 = 16;
/// Prompts times choices of one request.
const MOST_SEQUENCES: usize = 2048;
/// Prompts up to this size are tokenized where they are: faster than the way to another thread.
pub const INLINE_PROMPT_BYTES: usize = 4 << 10;

/// A checked request.
pub struct CompletionRequest {
    /// What both endpoints share.
    pub common: Common,
    /// The prompts.
    pub prompts: Vec<Prompt>,
    /// Their texts, where they are to be repeated.
    pub echo: Option<Vec<String>>,
    /// Alternatives per token.
    pub logprobs: Option<u32>,
    /// Special tokens give no text.
    pub skip_special: bool,
}

enum PromptInput {
    Text(String),
    Tokens(Vec<u32>),
}

impl CompletionRequest {
    /// Takes a request out of its body.
    pub async fn take(app: &App, mut fields: Fields, limits: &Limits) -> Result<Self, ApiError> {
        let fields = &mut fields;
        check_model(fields, &app.config.served_model_names)?;
        let mut common = Common::take(fields, limits)?;
        fields.refuse("suffix", "text after the completion", &[Value::String(String::new())])?;
        let logprobs =
            fields.integer("logprobs", 0..=i64::from(limits.max_logprobs))?.map(|count| count as u32);
        common.sampling.logprobs = logprobs;
        let echo = fields.boolean("echo")?.unwrap_or(false);
        if echo && logprobs.is_some() {
            return Err(ApiError::not_supported_yet("echo", "log-probabilities of an echoed prompt"));
        }
        // Explicit null asks for the room left, absence for the default.
        let defaulted = !fields.names("max_tokens");
        let asked = match defaulted {
            true => Some(DEFAULT_MAX_TOKENS),
            false => take_max_tokens(fields, "max_tokens", if echo { 0 } else { 1 })?,
        };
        let inputs = prompts(fields, limits.vocab_size)?;
        if inputs.len() * common.n as usize > MOST_SEQUENCES {
            return Err(ApiError::invalid(
                "prompt",
                format!(
                    "expected at most {MOST_SEQUENCES} prompts times n, got {}",
                    inputs.len() * common.n as usize
                ),
            ));
        }
        if app.config.skip_tokenizer_init {
            if !common.stop.is_empty() {
                return Err(ApiError::invalid(
                    "stop",
                    "stop: stop strings need a tokenizer, and this server runs without one; use stop_token_ids",
                ));
            }
            common.return_token_ids = true;
        }
        let special = fields.boolean("add_special_tokens")?.unwrap_or(true);
        let skip_special = fields.boolean("skip_special_tokens")?.unwrap_or(true);
        let mut prompts = Vec::with_capacity(inputs.len());
        let mut texts = Vec::new();
        for input in inputs {
            let (tokens, text) = resolve(app, input, special, echo).await?;
            if tokens.is_empty() {
                return Err(ApiError::invalid(
                    "prompt",
                    "prompt: expected at least one token, got an empty prompt",
                ));
            }
            let room = max_tokens(limits, tokens.len(), None, "prompt", "max_tokens")?;
            let budget = match asked {
                Some(asked) if defaulted => asked.min(room),
                Some(0) => 0,
                asked => max_tokens(limits, tokens.len(), asked, "prompt", "max_tokens")?,
            };
            prompts.push(Prompt { tokens, max_tokens: budget });
            texts.extend(text);
        }
        Ok(Self { common, prompts, echo: echo.then_some(texts), logprobs, skip_special })
    }
}

async fn resolve(
    app: &App,
    input: PromptInput,
    special: bool,
    echo: bool,
) -> Result<(Vec<u32>, Option<String>), ApiError> {
    match input {
        PromptInput::Tokens(tokens) if echo => {
            let text = app.text()?.pool.decode(tokens.clone(), true).await?;
            Ok((tokens, Some(text)))
        }
        PromptInput::Tokens(tokens) => Ok((tokens, None)),
        PromptInput::Text(text) => {
            let pool = &app.text()?.pool;
            let kept = echo.then(|| text.clone());
            let tokens = if text.len() <= INLINE_PROMPT_BYTES {
                encode(pool.tokenizer(), &text, special)
            } else {
                pool.encode_text(text, special).await?
            };
            Ok((tokens, kept))
        }
    }
}

fn encode(tokenizer: &Tokenizer, text: &str, special: bool) -> Vec<u32> {
    if special { tokenizer.encode_with_special(text) } else { tokenizer.encode_ordinary(text) }
}

/// A text, tokens, or a batch of either.
fn prompts(fields: &mut Fields, vocab_size: u32) -> Result<Vec<PromptInput>, ApiError> {
    const SHAPES: &str = "a string, a list of token ids, or a list of either";
    let items = match fields.take("prompt") {
        Some(Value::String(text)) => return Ok(vec![PromptInput::Text(text)]),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(expected("prompt", SHAPES, &other)),
        None => return Err(ApiError::invalid("prompt", format!("prompt: expected {SHAPES}, got nothing"))),
    };
    match items.first() {
        None => Err(ApiError::invalid("prompt", format!("prompt: expected {SHAPES}, got an empty list"))),
        Some(Value::Number(_)) => Ok(vec![PromptInput::Tokens(token_ids(&items, "prompt", vocab_size)?)]),
        Some(_) => items
            .into_iter()
            .enumerate()
            .map(|(index, item)| match item {
                Value::String(text) => Ok(PromptInput::Text(text)),
                Value::Array(ids) => {
                    token_ids(&ids, &format!("prompt[{index}]"), vocab_size).map(PromptInput::Tokens)
                }
                other => {
                    Err(expected(&format!("prompt[{index}]"), "a string or a list of token ids", &other))
                }
            })
            .collect(),
    }
}
