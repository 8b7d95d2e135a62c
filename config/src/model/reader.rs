//! Typed access to the keys of a JSON file, with errors that name file and key.

use serde_json::{Map, Value};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a model's configuration was refused.
#[derive(Debug, Error)]
pub enum ModelConfigError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}; name a directory that holds a model's config.json")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not a JSON object.
    #[error("{path}: {message}")]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        message: String,
    },
    /// The model is not one that is served.
    #[error("{path}: architecture '{got}' is not supported; expected {}", super::ARCHITECTURE)]
    Architecture {
        /// The file.
        path: PathBuf,
        /// The architectures that it names.
        got: String,
    },
    /// A key is missing.
    #[error("{path}: the key '{key}' is missing")]
    Missing {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A key has a value that is not supported.
    #[error("{path}: '{key}': expected {expected}, got {got}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What it should be.
        expected: String,
        /// What it is.
        got: String,
    },
}

/// A JSON object and where it is.
pub(super) struct Reader {
    path: PathBuf,
    /// Keys that lead to the object, each with a dot behind it.
    prefix: String,
    map: Map<String, Value>,
}

impl Reader {
    pub fn open(path: &Path) -> Result<Self, ModelConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ModelConfigError::Read { path: path.to_owned(), source })?;
        let map = serde_json::from_str(&text)
            .map_err(|error| ModelConfigError::Json { path: path.to_owned(), message: error.to_string() })?;
        Ok(Self { path: path.to_owned(), prefix: String::new(), map })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn missing(&self, key: &str) -> ModelConfigError {
        ModelConfigError::Missing { path: self.path.clone(), key: format!("{}{key}", self.prefix) }
    }

    pub fn invalid(&self, key: &str, expected: impl Into<String>, got: impl Display) -> ModelConfigError {
        ModelConfigError::Invalid {
            path: self.path.clone(),
            key: format!("{}{key}", self.prefix),
            expected: expected.into(),
            got: got.to_string(),
        }
    }

    /// The value of a key; `null` counts as absent.
    fn value(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    pub fn object(&self, key: &str) -> Result<Option<Reader>, ModelConfigError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Reader {
                path: self.path.clone(),
                prefix: format!("{}{key}.", self.prefix),
                map: map.clone(),
            })),
            Some(other) => Err(self.invalid(key, "an object", other)),
        }
    }

    pub fn number(&self, key: &str, least: u32, most: u32) -> Result<u32, ModelConfigError> {
        let value = self.value(key).ok_or_else(|| self.missing(key))?;
        let fits = |number: &u64| (u64::from(least)..=u64::from(most)).contains(number);
        let number = value.as_u64().filter(fits);
        number
            .map(|number| number as u32)
            .ok_or_else(|| self.invalid(key, format!("a whole number from {least} to {most}"), value))
    }

    pub fn float(&self, key: &str, above: f64, most: f64) -> Result<f64, ModelConfigError> {
        let value = self.value(key).ok_or_else(|| self.missing(key))?;
        value
            .as_f64()
            .filter(|number| *number > above && *number <= most)
            .ok_or_else(|| self.invalid(key, format!("a number above {above} and at most {most}"), value))
    }

    pub fn float_or(&self, key: &str, default: f64, above: f64, most: f64) -> Result<f64, ModelConfigError> {
        if self.has(key) { self.float(key, above, most) } else { Ok(default) }
    }

    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool, ModelConfigError> {
        match self.value(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.invalid(key, "true or false", value)),
        }
    }

    pub fn text(&self, key: &str) -> Result<Option<String>, ModelConfigError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(self.invalid(key, "a string", other)),
        }
    }

    pub fn strings(&self, key: &str) -> Result<Vec<String>, ModelConfigError> {
        let value = self.value(key).ok_or_else(|| self.missing(key))?;
        let strings = |list: &Vec<Value>| list.iter().map(|item| item.as_str().map(str::to_owned)).collect();
        value.as_array().and_then(strings).ok_or_else(|| self.invalid(key, "a list of strings", value))
    }

    /// One token id or a list of them; empty where the key is absent.
    pub fn token_ids(&self, key: &str) -> Result<Vec<u32>, ModelConfigError> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        match self.value(key) {
            None => Some(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(id).collect::<Option<_>>(),
            Some(value) => id(value).map(|id| vec![id]),
        }
        .ok_or_else(|| self.invalid(key, "a token id or a list of them", &self.map[key]))
    }
}
