//! Errors in OpenAI's shape: `{"error":{"message","type","param","code"}}`, always JSON.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use crate::engine::LinkError;
use gossamer_tokenizer::PoolError;
use gossamer_wire::Refusal;

/// A refusal or failure of one request.
#[derive(Clone, Debug)]
pub struct ApiError {
    /// Status line.
    pub status: StatusCode,
    /// For people: what was expected, what came, what to do.
    pub message: String,
    /// The field at fault.
    pub param: Option<String>,
    /// For programs.
    pub code: Option<&'static str>,
    /// Seconds after which a retry is sensible.
    pub retry_after_s: Option<u32>,
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: ErrorBody<'a>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: Option<&'static str>,
}

impl ApiError {
    /// An error without field and code.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None, retry_after_s: None }
    }

    /// 400 about one field.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// 400: a feature that is planned but not there.
    pub fn not_supported_yet(param: &str, what: &str) -> Self {
        Self {
            code: Some("unsupported_parameter"),
            ..Self::invalid(param, format!("not supported yet: {what}; leave '{param}' out"))
        }
    }

    /// Sets the code.
    pub fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// 503 with a hint to come back.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self {
            retry_after_s: Some(1),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message).code("not_ready")
        }
    }

    /// 503: this server will take no request any more; another, or its successor, will.
    pub fn shutting_down(message: impl Into<String>) -> Self {
        Self::unavailable(message).code("shutting_down")
    }

    /// 500.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message).code("internal_error")
    }

    /// The prompt or budget exceeds a length.
    pub fn too_long(param: &str, message: String) -> Self {
        Self::invalid(param, message).code("context_length_exceeded")
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::NOT_FOUND => "not_found_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The JSON document.
    pub fn to_json(&self) -> Vec<u8> {
        let envelope = Envelope {
            error: ErrorBody {
                message: &self.message,
                r#type: self.kind(),
                param: self.param.as_deref(),
                code: self.code,
            },
        };
        serde_json::to_vec(&envelope).unwrap_or_else(|_| {
            br#"{"error":{"message":"internal error","type":"server_error","param":null,"code":null}}"#
                .to_vec()
        })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.to_json()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<LinkError> for ApiError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Closed | LinkError::Full => Self::unavailable(error.to_string()),
            LinkError::TooLong { .. } => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string()).code("request_too_large")
            }
        }
    }
}

impl From<PoolError> for ApiError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Busy { .. } => Self {
                retry_after_s: Some(1),
                ..Self::new(StatusCode::TOO_MANY_REQUESTS, error.to_string()).code("queue_full")
            },
            PoolError::Stopped => Self::unavailable(error.to_string()),
            PoolError::Failed => Self::internal(error.to_string()),
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NeverFits { tokens, capacity } => Self::too_long(
                "max_tokens",
                format!(
                    "the request may reach {tokens} tokens, but the KV cache holds {capacity}; shorten the prompt or \
                     lower max_tokens"
                ),
            ),
            Refusal::QueueFull { retry_after_s } => Self {
                retry_after_s: Some(retry_after_s),
                ..Self::new(StatusCode::TOO_MANY_REQUESTS, "too many requests wait; try again later")
                    .code("queue_full")
            },
            Refusal::Draining => Self::shutting_down("the server shuts down"),
        }
    }
}
