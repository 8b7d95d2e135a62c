//! The fields that both completion endpoints share: sampling, stopping, streaming.
//!
//! Invariant: what leaves this module is in range for the engine; the scheduler and workers check nothing again.

use super::{
    error::ApiError,
    fields::{Fields, integer},
};
use gossamer_tokenizer::StopStrings;
use gossamer_wire::{EngineInfo, SamplingParams, StopRules};
use rand::Rng;
use serde_json::{Value, json};
use std::hash::{Hash, Hasher};

/// Most entries of `logit_bias`, `allowed_token_ids` and `stop_token_ids`: each costs work for every drawn token.
const MOST_TOKEN_IDS: usize = 1024;
const MOST_STOP_STRINGS: usize = 128;
const LONGEST_STOP_STRING: usize = 1024;
const MOST_CHOICES: i64 = 128;
/// Repetition penalties beyond this, or below its inverse, are as strong: no logit outweighs them. It keeps what they make of a
/// logit finite, since -inf forbids a token.
const STRONGEST_REPETITION_PENALTY: f32 = 1e30;
/// vLLM's limit: below it the distribution is greedy within float accuracy, and the division would overflow.
const COLDEST: f32 = 1e-5;

/// The shared fields, checked.
#[derive(Clone, Debug)]
pub struct Common {
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Tokens that end a choice at the client's wish; reported as `stop_reason`.
    pub stop_token_ids: Vec<u32>,
    /// Strings that end a choice.
    pub stop: StopStrings,
    /// Least number of tokens.
    pub min_tokens: u32,
    /// End-of-sequence tokens do not end a choice.
    pub ignore_eos: bool,
    /// The field that gave the budget, for errors.
    pub budget_field: &'static str,
    /// Choices per prompt.
    pub n: u32,
    /// Answer as server-sent events.
    pub stream: bool,
    /// Options of the stream.
    pub stream_options: StreamOptions,
    /// Add token ids to the answer.
    pub return_token_ids: bool,
    /// Lower runs earlier.
    pub priority: i32,
    /// Separates prefix caches.
    pub cache_salt: u64,
    /// Width of the logits.
    vocab_size: u32,
}

/// `stream_options`.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamOptions {
    /// One chunk with usage at the end.
    pub include_usage: bool,
    /// Usage so far in every chunk.
    pub continuous_usage_stats: bool,
    /// An `id:` line in every event, which names the token: `request:choice:position`.
    pub event_ids: bool,
}

/// Limits of this server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest sequence.
    pub max_model_len: u32,
    /// Tokens that the KV cache holds for one sequence.
    pub kv_capacity: u64,
    /// Width of the logits.
    pub vocab_size: u32,
    /// Most alternatives per token.
    pub max_logprobs: u32,
}

impl Limits {
    /// Those of an engine.
    pub fn new(info: &EngineInfo, max_logprobs: u32) -> Self {
        Self {
            max_model_len: info.max_model_len,
            kv_capacity: info.kv_capacity_tokens,
            vocab_size: info.vocab_size,
            max_logprobs,
        }
    }
}

impl Common {
    /// Takes the shared fields out of a body. `logprobs` is left to the endpoint, which spells it its own way.
    pub fn take(fields: &mut Fields, limits: &Limits) -> Result<Self, ApiError> {
        refuse_unknown_features(fields)?;
        let seed = match fields.take("seed") {
            None => None,
            Some(value) => Some(match value.as_u64() {
                Some(seed) => seed,
                // Both readings of 64 bits are seeds.
                None => {
                    integer(&value, "seed", i64::MIN..=i64::MAX).map_err(|error| match value.is_number() {
                        true if !value.as_f64().is_some_and(|number| number.abs() < 9.0e15) => {
                            ApiError::invalid(
                                "seed",
                                format!(
                                    "seed: expected an integer of {} to {}, got {value}",
                                    i64::MIN,
                                    u64::MAX
                                ),
                            )
                        }
                        _ => error,
                    })? as u64
                }
            }),
        };
        let temperature = fields.number("temperature", 0.0..=f64::from(f32::MAX))?.unwrap_or(1.0);
        let sampling = SamplingParams {
            temperature: if temperature < COLDEST { 0.0 } else { temperature },
            top_p: positive(fields.number("top_p", 0.0..=1.0)?, "top_p")?.unwrap_or(1.0),
            top_k: match fields.integer("top_k", -1..=i64::MAX)?.unwrap_or(0) {
                k if k <= 0 || k >= i64::from(limits.vocab_size) => 0,
                k => k as u32,
            },
            min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(0.0),
            seed: seed.unwrap_or_else(|| rand::rng().random()),
            repetition_penalty: positive(
                fields.number("repetition_penalty", 0.0..=f64::from(f32::MAX))?,
                "repetition_penalty",
            )?
            .unwrap_or(1.0)
            .clamp(1.0 / STRONGEST_REPETITION_PENALTY, STRONGEST_REPETITION_PENALTY),
            presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0),
            frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0),
            logit_bias: logit_bias(fields, limits.vocab_size)?,
            allowed_token_ids: allowed(fields, limits.vocab_size)?,
            logprobs: None,
        };
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let min_tokens = fields.integer("min_tokens", 0..=i64::from(u32::MAX))?.unwrap_or(0) as u32;
        Ok(Self {
            sampling,
            stop_token_ids: fields.token_ids("stop_token_ids", limits.vocab_size, MOST_TOKEN_IDS)?,
            stop: stop_strings(fields)?.after(min_tokens),
            min_tokens,
            ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
            budget_field: "max_tokens",
            n: choices(fields)?,
            stream,
            stream_options: stream_options(fields, stream)?,
            return_token_ids: fields.boolean("return_token_ids")?.unwrap_or(false),
            priority: fields.integer("priority", i64::from(i32::MIN)..=i64::from(i32::MAX))?.unwrap_or(0)
                as i32,
            cache_salt: fields.string("cache_salt")?.map_or(0, |salt| stable_hash(&salt)),
            vocab_size: limits.vocab_size,
        })
    }

    /// The engine's rules for a budget of `max_tokens`; errors name the field that gave it.
    pub fn stop_rules(&self, eos: &[u32], max_tokens: u32) -> Result<StopRules, ApiError> {
        if self.min_tokens > max_tokens {
            return Err(ApiError::invalid(
                "min_tokens",
                format!(
                    "min_tokens: expected at most {} ({max_tokens}), got {}",
                    self.budget_field, self.min_tokens
                ),
            ));
        }
        let mut stop_token_ids = self.stop_token_ids.clone();
        if !self.ignore_eos {
            stop_token_ids.extend(eos.iter().copied().filter(|id| !self.stop_token_ids.contains(id)));
        }
        self.check_first_token(&stop_token_ids)?;
        Ok(StopRules { max_tokens, min_tokens: self.min_tokens, stop_token_ids })
    }

    /// Tokens that end a choice may not be drawn before it has `min_tokens`: another one must be allowed.
    fn check_first_token(&self, held_back: &[u32]) -> Result<(), ApiError> {
        let allowed = &self.sampling.allowed_token_ids;
        let held = |id: &u32| held_back.contains(id);
        let none_left = match allowed.is_empty() {
            false => allowed.iter().all(held),
            // Whether such short lists hold the whole vocabulary is a question of very small ones alone.
            true => held_back.len() >= self.vocab_size as usize && (0..self.vocab_size).all(|id| held(&id)),
        };
        if self.min_tokens == 0 || !none_left {
            return Ok(());
        }
        let (param, what) = match allowed.is_empty() {
            false => ("allowed_token_ids", "a token"),
            true => ("stop_token_ids", "a token to be left"),
        };
        Err(ApiError::invalid(
            param,
            format!(
                "{param}: expected {what} that does not end a choice, since min_tokens ({}) holds back those that do \
                 (stop_token_ids{}), got none; allow another token, or set min_tokens to 0",
                self.min_tokens,
                if self.ignore_eos { "" } else { " and end of sequence" }
            ),
        ))
    }
}

/// The budget of a prompt: what was asked for if it fits, else the room left. `param` is the field of the prompt, `field`
/// that of the budget.
pub fn max_tokens(
    limits: &Limits,
    prompt_len: usize,
    asked: Option<u32>,
    param: &str,
    field: &str,
) -> Result<u32, ApiError> {
    let limit = limits.max_model_len as usize;
    if prompt_len >= limit {
        return Err(ApiError::too_long(
            param,
            format!(
                "this model's longest sequence is {limit} tokens, but the prompt alone has {prompt_len}; shorten it to \
                 at most {} tokens",
                limit - 1
            ),
        ));
    }
    // The cache need not hold the last token, which is drawn but never read.
    let capacity = usize::try_from(limits.kv_capacity).unwrap_or(usize::MAX);
    if prompt_len > capacity {
        return Err(ApiError::too_long(
            param,
            format!(
                "the prompt has {prompt_len} tokens, but the KV cache holds {capacity}; shorten it, or start the server \
                 with more KV blocks"
            ),
        ));
    }
    let room = limit - prompt_len;
    match asked {
        None => Ok(room.min((capacity - prompt_len).max(1)) as u32),
        Some(asked) if asked as usize <= room => {
            let most = capacity - prompt_len + 1;
            if asked as usize > most {
                return Err(ApiError::too_long(
                    field,
                    format!(
                        "the KV cache holds {capacity} tokens of a sequence, but the prompt has {prompt_len} and {asked} were \
                         asked for; lower {field} to at most {most}, or start the server with more KV blocks"
                    ),
                ));
            }
            Ok(asked)
        }
        Some(asked) => Err(ApiError::too_long(
            field,
            format!(
                "this model's longest sequence is {limit} tokens, but {} were asked for: {prompt_len} in the prompt and \
                 {asked} to generate; lower {field} to at most {room}",
                prompt_len + asked as usize
            ),
        )),
    }
}

/// FNV-1a: the same in every process and start, unlike the standard library's hasher.
pub fn stable_hash(text: &str) -> u64 {
    struct Fnv(u64);
    impl Hasher for Fnv {
        fn finish(&self) -> u64 {
            self.0
        }
        fn write(&mut self, bytes: &[u8]) {
            for byte in bytes {
                self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    text.hash(&mut hasher);
    // 0 is the salt and tenant of those who gave none.
    hasher.finish().max(1)
}

fn refuse_unknown_features(fields: &mut Fields) -> Result<(), ApiError> {
    fields.refuse("response_format", "structured output", &[json!({"type": "text"})])?;
    for name in ["structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"] {
        fields.refuse(name, "structured output", &[])?;
    }
    fields.refuse("use_beam_search", "beam search", &[])?;
    fields.refuse("prompt_logprobs", "log-probabilities of the prompt", &[])?;
    fields.refuse("truncate_prompt_tokens", "truncating prompts", &[])?;
    fields.refuse("logits_processors", "custom logits processors", &[])?;
    fields.refuse("bad_words", "excluded words", &[])?;
    fields.refuse("include_stop_str_in_output", "keeping the stop string in the output", &[])?;
    fields.refuse("return_tokens_as_token_ids", "token ids in place of tokens", &[])?;
    Ok(())
}

/// `n`. `best_of` asks for nothing where it equals that.
fn choices(fields: &mut Fields) -> Result<u32, ApiError> {
    let n = fields.integer("n", 1..=MOST_CHOICES)?.unwrap_or(1) as u32;
    match fields.integer("best_of", 1..=i64::MAX)? {
        Some(best_of) if best_of != i64::from(n) => {
            Err(ApiError::not_supported_yet("best_of", "choosing the best of several answers"))
        }
        _ => Ok(n),
    }
}

fn positive(value: Option<f32>, name: &str) -> Result<Option<f32>, ApiError> {
    match value {
        Some(value) if value <= 0.0 => {
            Err(ApiError::invalid(name, format!("{name}: expected a number above 0, got {value}")))
        }
        value => Ok(value),
    }
}

fn logit_bias(fields: &mut Fields, vocab_size: u32) -> Result<Vec<(u32, f32)>, ApiError> {
    let map = fields.object("logit_bias")?.unwrap_or_default();
    if map.len() > MOST_TOKEN_IDS {
        return Err(ApiError::invalid(
            "logit_bias",
            format!("logit_bias: expected at most {MOST_TOKEN_IDS} entries, got {}", map.len()),
        ));
    }
    map.iter()
        .map(|(key, value)| {
            let id = key.parse::<u32>().ok().filter(|id| *id < vocab_size).ok_or_else(|| {
                ApiError::invalid(
                    "logit_bias",
                    format!("logit_bias: expected token ids of 0 to {} as keys, got '{key}'", vocab_size - 1),
                )
            })?;
            let bias = value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias)).ok_or_else(|| {
                ApiError::invalid(
                    "logit_bias",
                    format!("logit_bias: expected numbers of -100 to 100, got {value} for '{key}'"),
                )
            })?;
            Ok((id, bias as f32))
        })
        .collect()
}

fn allowed(fields: &mut Fields, vocab_size: u32) -> Result<Vec<u32>, ApiError> {
    let given = fields.has("allowed_token_ids");
    let ids = fields.token_ids("allowed_token_ids", vocab_size, MOST_TOKEN_IDS)?;
    if given && ids.is_empty() {
        return Err(ApiError::invalid(
            "allowed_token_ids",
            "allowed_token_ids: expected at least one token id, got an empty list",
        ));
    }
    Ok(ids)
}

fn stop_strings(fields: &mut Fields) -> Result<StopStrings, ApiError> {
    let strings = fields.strings("stop")?;
    if strings.len() > MOST_STOP_STRINGS {
        return Err(ApiError::invalid(
            "stop",
            format!("stop: expected at most {MOST_STOP_STRINGS} strings, got {}", strings.len()),
        ));
    }
    for string in &strings {
        if string.is_empty() || string.len() > LONGEST_STOP_STRING {
            return Err(ApiError::invalid(
                "stop",
                format!(
                    "stop: expected strings of 1 to {LONGEST_STOP_STRING} bytes, got one of {}",
                    string.len()
                ),
            ));
        }
    }
    Ok(StopStrings::new(strings))
}

fn stream_options(fields: &mut Fields, stream: bool) -> Result<StreamOptions, ApiError> {
    let Some(mut options) = fields.nested("stream_options")? else { return Ok(StreamOptions::default()) };
    if !stream {
        return Err(ApiError::invalid(
            "stream_options",
            "stream_options: expected only together with 'stream': true",
        ));
    }
    let mut flag = |name: &str| {
        options.boolean(name).map(|value| value.unwrap_or(false)).map_err(|mut error| {
            error.param = Some(format!("stream_options.{name}"));
            error
        })
    };
    Ok(StreamOptions {
        include_usage: flag("include_usage")?,
        continuous_usage_stats: flag("continuous_usage_stats")?,
        event_ids: flag("event_ids")?,
    })
}

/// `max_tokens` of a body: a positive integer, or absent.
pub fn take_max_tokens(fields: &mut Fields, name: &str, least: i64) -> Result<Option<u32>, ApiError> {
    Ok(fields.integer(name, least..=i64::from(u32::MAX))?.map(|count| count as u32))
}

/// The model's name in a body; absent names the only model there is.
pub fn check_model(fields: &mut Fields, served: &[String]) -> Result<(), ApiError> {
    let Some(value) = fields.take("model") else { return Ok(()) };
    let Value::String(name) = value else {
        return Err(super::fields::expected("model", "a string", &value));
    };
    if served.contains(&name) {
        return Ok(());
    }
    Err(ApiError {
        param: Some("model".into()),
        code: Some("model_not_found"),
        ..ApiError::new(
            axum::http::StatusCode::NOT_FOUND,
            format!("the model '{name}' does not exist here; this server has {}", served.join(", ")),
        )
    })
}
