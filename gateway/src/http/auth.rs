//! Bearer keys (`--api-key`, `--api-key-file`).

use super::{App, error::ApiError, sampling::stable_hash};
use axum::http::{HeaderMap, StatusCode, header};

/// Checks the key of a request. The answer names the tenant whose share of the device the request uses; 0 where no key
/// is asked for.
pub fn tenant(app: &App, headers: &HeaderMap) -> Result<u64, ApiError> {
    if app.config.api_keys.is_empty() {
        return Ok(0);
    }
    let refuse = |message: &str| ApiError::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key");
    let value = headers
        .get(header::AUTHORIZATION)
        .ok_or_else(|| refuse("expected an API key in the header 'Authorization: Bearer KEY'"))?;
    let (scheme, key) = value
        .to_str()
        .ok()
        .and_then(|value| value.split_once(' '))
        .ok_or_else(|| refuse("expected 'Authorization: Bearer KEY', got another form"))?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(refuse("expected 'Authorization: Bearer KEY', got another scheme"));
    }
    // All keys are looked at, each in full, so that the time tells nothing.
    let found = app
        .config
        .api_keys
        .iter()
        .fold(false, |found, known| found | equal(known.expose().as_bytes(), key.trim().as_bytes()));
    if found { Ok(stable_hash(key.trim())) } else { Err(refuse("the API key is not known here")) }
}

fn equal(known: &[u8], given: &[u8]) -> bool {
    let mut difference = known.len() ^ given.len();
    for (index, byte) in given.iter().enumerate() {
        difference |= usize::from(byte ^ known[index % known.len().max(1)]);
    }
    difference == 0 && !known.is_empty()
}
