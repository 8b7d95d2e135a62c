//! The chat console: one page at `/`, for a person with a browser.

use axum::{
    http::header,
    response::{IntoResponse, Response},
};

/// The page. It loads nothing from elsewhere.
pub async fn page() -> Response {
    const CONTENT: &str = include_str!("console.html");
    (
        [
            (header::CONTENT_TYPE, "text/html; charset=utf-8"),
            (header::CACHE_CONTROL, "no-cache"),
            (
                header::CONTENT_SECURITY_POLICY,
                "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; \
                 script-src 'unsafe-inline'",
            ),
        ],
        CONTENT,
    )
        .into_response()
}
