//! What an API server reads of the model's directory: tokenizer and end-of-sequence tokens. Never weights.

use gossamer_config::{ModelConfig, ModelConfigError, ServeConfig};
use gossamer_tokenizer::{Tokenizer, TokenizerError};
use serde_json::Value;
use std::{path::PathBuf, sync::Arc};
use thiserror::Error;

/// Why the model's directory cannot be used.
#[derive(Debug, Error)]
pub enum ModelFilesError {
    /// `config.json` was refused.
    #[error(transparent)]
    Config(#[from] ModelConfigError),
    /// There is no usable tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// `generation_config.json` is there but cannot be used.
    #[error("{path}: {reason}")]
    Generation {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// The tokenizer, unless the server goes without.
pub fn tokenizer(config: &ServeConfig) -> Result<Option<Arc<Tokenizer>>, ModelFilesError> {
    if config.skip_tokenizer_init {
        return Ok(None);
    }
    let model = ModelConfig::load(&config.model)?;
    Ok(Some(Arc::new(Tokenizer::load(&config.model, model.vocab_size as usize)?)))
}

/// All tokens that end a sequence: those of `generation_config.json` and `config.json`.
pub fn end_tokens(config: &ServeConfig) -> Result<Vec<u32>, ModelFilesError> {
    let mut all = ModelConfig::load(&config.model)?.eos_token_ids;
    let path = config.model.join("generation_config.json");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(all),
        Err(error) => return Err(ModelFilesError::Generation { path, reason: error.to_string() }),
    };
    let wrong = |reason: String| ModelFilesError::Generation { path: path.clone(), reason };
    let value: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let ids = match value.get("eos_token_id") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(ids)) => ids.clone(),
        Some(id) => vec![id.clone()],
    };
    for id in ids {
        let id = id
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| wrong(format!("eos_token_id: expected a token id or a list of them, got {id}")))?;
        if !all.contains(&id) {
            all.push(id);
        }
    }
    Ok(all)
}
