//! Reading of request bodies within a limit.

use super::error::ApiError;
use axum::{
    body::Body,
    http::{Request, StatusCode, header},
};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;

/// Longest body: a prompt of a full context as token ids, many times over.
pub const MOST_BODY_BYTES: usize = 32 << 20;

fn too_large() -> ApiError {
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        format!("expected a body of at most {} MiB; split the request", MOST_BODY_BYTES >> 20),
    )
    .code("request_too_large")
}

/// Reads a body. One that says it is too long is refused before it is read.
pub async fn read(request: Request<Body>) -> Result<Bytes, ApiError> {
    let announced = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > MOST_BODY_BYTES as u64) {
        return Err(too_large());
    }
    let mut body = request.into_body();
    // Most bodies come in one piece, which is used as it is.
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            ApiError::new(StatusCode::BAD_REQUEST, format!("the body broke off: {error}"))
        })?;
        let Ok(data) = frame.into_data() else { continue };
        if first.as_ref().map_or(0, Bytes::len) + rest.len() + data.len() > MOST_BODY_BYTES {
            return Err(too_large());
        }
        match (&first, rest.is_empty()) {
            (None, true) => first = Some(data),
            _ => {
                if let Some(first) = first.take() {
                    rest.extend_from_slice(&first);
                }
                rest.extend_from_slice(&data);
            }
        }
    }
    Ok(first.unwrap_or_else(|| rest.freeze()))
}
