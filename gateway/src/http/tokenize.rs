//! `/tokenize` and `/detokenize`, with vLLM's fields.

use super::{
    App, body,
    chat_request::Conversation,
    error::ApiError,
    fields::{Fields, expected, token_ids},
    router::{authorize, json_bytes},
    sampling::check_model,
};
use axum::{body::Body, extract::State, http::Request, response::Response};
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

#[derive(Serialize)]
struct Tokenized {
    count: usize,
    max_model_len: u32,
    tokens: Vec<u32>,
    token_strs: Option<Vec<String>>,
}

#[derive(Serialize)]
struct Detokenized {
    prompt: String,
}

/// Text or a conversation to token ids.
pub async fn tokenize(State(app): State<Arc<App>>, request: Request<Body>) -> Result<Response, ApiError> {
    authorize(&app, request.headers())?;
    let info = app.admit()?;
    let text = app.text()?;
    let body = body::read(request).await?;
    let mut fields = super::generation::parse(&app, body).await?;
    check_model(&mut fields, &app.config.served_model_names)?;
    let with_strings = fields.boolean("return_token_strs")?.unwrap_or(false);
    // gpt-oss has no tokens to put around a prompt, so that this only says how names of special tokens are read.
    let special = fields.boolean("add_special_tokens")?.unwrap_or(true);
    if fields.has("messages") && fields.has("prompt") {
        return Err(ApiError::invalid(
            "messages",
            "messages: expected 'messages' or 'prompt', got both; send one",
        ));
    }
    let tokens = if fields.has("messages") {
        let conversation = Conversation::take(&app, &mut fields)?;
        conversation.encode(&app).await?
    } else {
        let prompt = fields.string("prompt")?.ok_or_else(|| {
            ApiError::invalid("prompt", "prompt: expected a string, or 'messages' in its place")
        })?;
        text.pool.encode_text(prompt, special).await?
    };
    let (tokens, token_strs) = match with_strings {
        false => (tokens, None),
        true => {
            text.pool
                .run(move |tokenizer| {
                    let strings = tokens
                        .iter()
                        .map(|id| String::from_utf8_lossy(tokenizer.token_bytes(*id)).into_owned())
                        .collect();
                    (tokens, Some(strings))
                })
                .await?
        }
    };
    let answer = Tokenized { count: tokens.len(), max_model_len: info.max_model_len, tokens, token_strs };
    Ok(json_bytes(serde_json::to_vec(&answer).map_err(|error| ApiError::internal(error.to_string()))?))
}

/// Token ids to text; special tokens by their names.
pub async fn detokenize(State(app): State<Arc<App>>, request: Request<Body>) -> Result<Response, ApiError> {
    authorize(&app, request.headers())?;
    let info = app.admit()?;
    let text = app.text()?;
    let body = body::read(request).await?;
    let mut fields: Fields = super::generation::parse(&app, body).await?;
    check_model(&mut fields, &app.config.served_model_names)?;
    let tokens = match fields.take("tokens") {
        Some(Value::Array(items)) => token_ids(&items, "tokens", info.vocab_size)?,
        Some(other) => return Err(expected("tokens", "a list of token ids", &other)),
        None => return Err(ApiError::invalid("tokens", "tokens: expected a list of token ids, got nothing")),
    };
    let prompt = text.pool.decode(tokens, false).await?;
    Ok(json_bytes(
        serde_json::to_vec(&Detokenized { prompt }).map_err(|error| ApiError::internal(error.to_string()))?,
    ))
}
