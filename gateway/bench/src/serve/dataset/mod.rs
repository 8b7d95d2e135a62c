//! Data sets: what is sent, and how many tokens are asked for.
//!
//! Invariant: one seed gives one sequence of prompts. What was left out of a file or repeated is counted and said.

mod files;
mod random;

use super::client::{Client, Server};
use super::{Backend, BenchError, DatasetName, ServeBenchArgs};
use std::path::PathBuf;
use thiserror::Error;

/// One request of a data set.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Token ids, for completions.
    Tokens {
        /// The ids.
        ids: Vec<u32>,
        /// Tokens to generate.
        output_len: usize,
    },
    /// Text.
    Text {
        /// The text.
        text: String,
        /// Tokens to generate.
        output_len: usize,
    },
}

impl Prompt {
    /// Tokens to generate.
    pub fn output_len(&self) -> usize {
        match self {
            Self::Tokens { output_len, .. } | Self::Text { output_len, .. } => *output_len,
        }
    }
}

/// The prompts of a run.
#[derive(Clone, Debug, Default)]
pub struct PromptSet {
    /// In sending order.
    pub prompts: Vec<Prompt>,
    /// What a reader of the result must know: skipped rows, repeats.
    pub notes: Vec<String>,
}

/// Why a data set cannot be used.
#[derive(Debug, Error)]
pub enum DatasetError {
    /// The file could not be read.
    #[error("cannot read the data set {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The tokenizer by which turns are measured could not be loaded.
    #[error(transparent)]
    Tokenizer(#[from] gossamer_tokenizer::TokenizerError),
    /// The file is not in the expected format.
    #[error("{path}: expected {expected}, got {got}")]
    Format {
        /// The file.
        path: PathBuf,
        /// The format.
        expected: &'static str,
        /// What was found.
        got: String,
    },
    /// No row could be used.
    #[error("{path}: none of {rows} rows can be used ({reasons})")]
    Empty {
        /// The file.
        path: PathBuf,
        /// Rows in the file.
        rows: usize,
        /// How many rows were left out for which reason.
        reasons: String,
    },
}

/// Makes the prompts that the arguments ask for.
pub async fn load(args: &ServeBenchArgs, client: &Client, server: &Server) -> Result<PromptSet, BenchError> {
    let text = args.backend == Backend::Chat;
    Ok(match args.dataset_name {
        DatasetName::Random | DatasetName::PrefixRepetition if !text => random::tokens(args, server),
        DatasetName::Random | DatasetName::PrefixRepetition => random::text(args, client, server).await,
        DatasetName::Sharegpt => files::sharegpt(args)?,
        DatasetName::Custom => files::custom(args)?,
    })
}
