//! Why a tokenizer could not be loaded.

use std::path::PathBuf;

/// Loading a tokenizer failed; the start stops with this message.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The directory has no tokenizer, and the model is not one whose vocabulary is built in.
    #[error(
        "expected tokenizer.json in {dir} (the built-in gpt-oss vocabulary has 201088 entries, the model has \
         {vocab_size}); add the file, or serve token ids alone with --skip-tokenizer-init"
    )]
    Missing {
        /// The checkpoint directory.
        dir: PathBuf,
        /// Width of the model's logits.
        vocab_size: usize,
    },
    /// The file is there but could not be read.
    #[error("could not read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not a tokenizer.
    #[error("expected a tokenizer in {path}, got: {reason}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        reason: String,
    },
    /// The tokenizer is of a kind whose tokens cannot be turned into bytes one by one.
    #[error(
        "expected byte-level BPE in {path}, got {found}; convert the tokenizer, or use --skip-tokenizer-init"
    )]
    NotByteLevel {
        /// The file.
        path: PathBuf,
        /// What stands there instead.
        found: String,
    },
    /// The tokenizer has ids that the model has no logits for.
    #[error("expected token ids below the model's vocab_size {vocab_size}, got {largest} in {path}")]
    TooManyTokens {
        /// The file.
        path: PathBuf,
        /// The largest id of the tokenizer.
        largest: usize,
        /// Width of the model's logits.
        vocab_size: usize,
    },
    /// The built-in vocabulary could not be built.
    #[error("the built-in gpt-oss vocabulary could not be built: {reason}")]
    Embedded {
        /// What its reader said.
        reason: String,
    },
}
