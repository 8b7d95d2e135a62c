//! Routes, and what holds for all of them: keys, JSON errors, counters.

use super::{
    App, auth, chat, completions, console, error::ApiError, health, hold::hold, metrics, models, tokenize,
};
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use std::sync::Arc;

/// The service as a router.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::handle))
        .route("/v1/completions", post(completions::handle))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::one))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/ready", get(health::ready))
        .route_layer(from_fn_with_state(app.clone(), hold))
        .route("/", get(console::page))
        .route("/version", get(health::version))
        .route("/live", get(health::live))
        .route("/health", get(health::health).post(health::health))
        .route("/ping", get(health::health).post(health::health))
        .route("/metrics", get(metrics::handle))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(app.clone(), count))
        .with_state(app)
}

/// Checks the key; the answer names the tenant.
pub fn authorize(app: &App, headers: &HeaderMap) -> Result<u64, ApiError> {
    auth::tenant(app, headers)
}

/// Answers with a JSON document that is already encoded.
pub fn json_bytes(body: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

async fn unknown_path(request: Request) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, format!("there is nothing at {}", request.uri().path()))
        .code("unknown_path")
}

async fn wrong_method(request: Request) -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("the method {} is not allowed at {}", request.method(), request.uri().path()),
    )
    .code("method_not_allowed")
}

/// Counts answers by status. Errors that axum itself makes (a path that is not UTF-8) are brought into the error shape.
async fn count(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let status = response.status();
    app.board.count_status(status.as_u16());
    let is_json = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    if (status.is_client_error() || status.is_server_error()) && !is_json {
        let reason = status.canonical_reason().unwrap_or("the request could not be handled");
        return ApiError::new(status, reason.to_lowercase()).into_response();
    }
    response
}
