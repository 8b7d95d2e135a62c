//! `/live`, `/ready`, `/health` and `/version`.

use super::{App, error::ApiError};
use crate::engine::EngineState;
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use serde_json::json;
use std::sync::Arc;

/// The process answers.
pub async fn live() -> Response {
    Json(json!({"status": "live"})).into_response()
}

/// New requests are taken.
pub async fn ready(State(app): State<Arc<App>>) -> Response {
    match app.admit() {
        Err(error) => error.into_response(),
        Ok(_) if matches!(app.engine.state(), EngineState::Paused(_)) => {
            ApiError::unavailable("a worker is being replaced").into_response()
        }
        Ok(_) => {
            // Who hears this may come again at once, and reach another API server.
            app.publish_readiness();
            Json(json!({"status": "ready"})).into_response()
        }
    }
}

/// The engine works, or is being repaired without loss.
///
/// It is the server that is asked about, not this process of it: the successor of an API server that died knows no engine
/// yet, and is no reason to take the server for dead.
pub async fn health(State(app): State<Arc<App>>) -> Response {
    match app.engine.state() {
        EngineState::Ready(_) => Json(json!({"status": "healthy"})).into_response(),
        EngineState::Paused(_) => Json(json!({"status": "recovering"})).into_response(),
        EngineState::Starting if app.board.was_ready() => {
            Json(json!({"status": "recovering"})).into_response()
        }
        EngineState::Starting => ApiError::unavailable("the model is still loading").into_response(),
        EngineState::Failed(message) => ApiError::unavailable(format!("the engine failed: {message}"))
            .code("engine_failed")
            .into_response(),
    }
}

/// The version of the program.
pub async fn version() -> Response {
    Json(json!({"version": env!("CARGO_PKG_VERSION")})).into_response()
}
