//! `/v1/models`.

use super::{App, error::ApiError, router::authorize};
use axum::{
    Json,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use gossamer_wire::EngineInfo;
use serde_json::{Value, json};
use std::sync::Arc;

/// Token ids below this are text: control tokens come last in the vocabularies of gpt-oss. For clients that make prompts of
/// random tokens.
fn text_vocab_size(app: &App, info: &EngineInfo) -> u32 {
    match app.tokenizer() {
        Some(tokenizer) => {
            (0..info.vocab_size).find(|id| tokenizer.is_special(*id)).unwrap_or(info.vocab_size)
        }
        None => info.vocab_size,
    }
}

fn card(app: &App, name: &str, info: &EngineInfo) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": app.started,
        "owned_by": "gossamer",
        "root": app.config.model.display().to_string(),
        "parent": null,
        "max_model_len": info.max_model_len,
        "text_vocab_size": text_vocab_size(app, info),
    })
}

/// All names under which the model is served.
pub async fn list(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, ApiError> {
    authorize(&app, &headers)?;
    let info = app.admit()?;
    let names = &app.config.served_model_names;
    let data: Vec<_> = names.iter().map(|name| card(&app, name, &info)).collect();
    Ok(Json(json!({"object": "list", "data": data})).into_response())
}

/// One of them.
pub async fn one(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    authorize(&app, &headers)?;
    let info = app.admit()?;
    if !app.config.served_model_names.contains(&name) {
        return Err(ApiError {
            param: Some("model".into()),
            ..ApiError::new(StatusCode::NOT_FOUND, format!("the model '{name}' does not exist here"))
                .code("model_not_found")
        });
    }
    Ok(Json(card(&app, &name, &info)).into_response())
}
