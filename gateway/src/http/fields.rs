//! Typed access to the fields of a request body, with errors that name the field.
//!
//! A body is parsed to a JSON tree first: only so can a wrong value be reported as "`n`: expected an integer, got a
//! string" instead of a byte position. `null` counts as absent everywhere, as in OpenAI's clients.

use super::error::ApiError;
use axum::http::StatusCode;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// The fields of a request body.
pub struct Fields {
    map: Map<String, Value>,
    size: usize,
}

impl Fields {
    /// Parses a body, which must be a JSON object.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let value: Value = serde_json::from_slice(body).map_err(|error| {
            ApiError::new(StatusCode::BAD_REQUEST, format!("the body is not valid JSON: {error}"))
                .code("invalid_json")
        })?;
        match value {
            Value::Object(map) => Ok(Self { map, size: body.len() }),
            other => Err(ApiError::new(
                StatusCode::BAD_REQUEST,
                format!("expected a JSON object as the body, got {}", kind(&other)),
            )),
        }
    }

    /// Bytes of the body: says whether its texts are long.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Fields of an object inside a body.
    pub fn of(map: Map<String, Value>) -> Self {
        Self { map, size: 0 }
    }

    /// Takes a field; `null` is absent.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// Whether a field is there and not `null`.
    pub fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    /// Whether a field is there, be it as `null`.
    pub fn names(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    /// Refuses fields whose effect does not exist yet, unless they ask for nothing: false, empty, or `neutral`.
    pub fn refuse(&mut self, name: &str, what: &str, neutral: &[Value]) -> Result<(), ApiError> {
        match self.take(name) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(Value::Array(items)) if items.is_empty() => Ok(()),
            Some(value) if neutral.contains(&value) => Ok(()),
            Some(_) => Err(ApiError::not_supported_yet(name, what)),
        }
    }

    /// A boolean.
    pub fn boolean(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(expected(name, "true or false", &other)),
        }
    }

    /// A number in a range.
    pub fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let Some(number) = value.as_f64() else { return Err(expected(name, "a number", &value)) };
        if !range.contains(&number) || !(number as f32).is_finite() {
            return Err(ApiError::invalid(
                name,
                format!("{name}: expected a number of {}, got {number}", range_text(&range)),
            ));
        }
        Ok(Some(number as f32))
    }

    /// An integer in a range.
    pub fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        integer(&value, name, range).map(Some)
    }

    /// A string.
    pub fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(expected(name, "a string", &other)),
        }
    }

    /// A string or a list of strings.
    pub fn strings(&mut self, name: &str) -> Result<Vec<String>, ApiError> {
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text]),
            Some(Value::Array(items)) => items
                .into_iter()
                .enumerate()
                .map(|(index, item)| match item {
                    Value::String(text) => Ok(text),
                    other => Err(expected(&format!("{name}[{index}]"), "a string", &other)),
                })
                .collect(),
            Some(other) => Err(expected(name, "a string or a list of strings", &other)),
        }
    }

    /// A list of token ids below `vocab_size`.
    pub fn token_ids(&mut self, name: &str, vocab_size: u32, most: usize) -> Result<Vec<u32>, ApiError> {
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) if items.len() > most => Err(ApiError::invalid(
                name,
                format!("{name}: expected at most {most} token ids, got {}", items.len()),
            )),
            Some(Value::Array(items)) => token_ids(&items, name, vocab_size),
            Some(other) => Err(expected(name, "a list of token ids", &other)),
        }
    }

    /// An object.
    pub fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(expected(name, "an object", &other)),
        }
    }

    /// A nested object as fields.
    pub fn nested(&mut self, name: &str) -> Result<Option<Fields>, ApiError> {
        Ok(self.object(name)?.map(Self::of))
    }
}

/// Token ids of a JSON list.
pub fn token_ids(items: &[Value], name: &str, vocab_size: u32) -> Result<Vec<u32>, ApiError> {
    let limit = i64::from(vocab_size) - 1;
    items
        .iter()
        .enumerate()
        // The name is only made for the error: prompts are long.
        .map(|(index, item)| match item.as_u64() {
            Some(id) if id < u64::from(vocab_size) => Ok(id as u32),
            _ => integer(item, &format!("{name}[{index}]"), 0..=limit).map(|id| id as u32),
        })
        .collect()
}

/// An integer in a range; `4.0` is one, `4.5` is not.
pub fn integer(value: &Value, name: &str, range: RangeInclusive<i64>) -> Result<i64, ApiError> {
    let whole = || value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 9.0e15);
    let number = match (value.as_i64(), value.as_u64(), value.is_f64().then(whole).flatten()) {
        (Some(number), _, _) => number,
        (None, Some(_), _) => i64::MAX,
        (None, None, Some(number)) => number as i64,
        // Whole, but beyond what 64 bits hold: it is the range that it leaves.
        (None, None, None) if value.as_f64().is_some_and(|number| number.abs() >= 9.0e15) => {
            return Err(out_of_range(value, name, &range));
        }
        (None, None, None) => return Err(expected(name, "an integer", value)),
    };
    if !range.contains(&number) {
        return Err(out_of_range(value, name, &range));
    }
    Ok(number)
}

fn out_of_range(value: &Value, name: &str, range: &RangeInclusive<i64>) -> ApiError {
    let (low, high) = (range.start(), range.end());
    let range = if *high == i64::MAX { format!("at least {low}") } else { format!("{low} to {high}") };
    ApiError::invalid(name, format!("{name}: expected an integer of {range}, got {value}"))
}

/// "expected X, got Y" about a field of the wrong type.
pub fn expected(name: &str, what: &str, got: &Value) -> ApiError {
    ApiError::invalid(name, format!("{name}: expected {what}, got {}", kind(got)))
}

fn range_text(range: &RangeInclusive<f64>) -> String {
    if range.end().is_finite() && *range.end() < f64::from(f32::MAX) {
        format!("{} to {}", range.start(), range.end())
    } else {
        format!("at least {}", range.start())
    }
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(_) => "a string".into(),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}
