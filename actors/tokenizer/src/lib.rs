//! Text to token ids and back: tokenizers, incremental detokenization, stop strings, and the actor pool
//! that keeps the heavy part of it off the asynchronous runtime.
//!
//! - [`Tokenizer`] is loaded from a checkpoint directory, or from the vocabulary of gpt-oss that is part of
//!   the program. Nothing is ever downloaded.
//! - [`Detokenizer`], [`StopMatcher`] and [`TextLane`] turn the tokens of one choice into text as they
//!   arrive; [`TextOutput`] joins them for `/v1/completions`.
//! - [`TokenizerPool`] runs encoding, rendering and decoding on a bounded set of threads, in slices, so that
//!   a long prompt does not hold up a short one.
//!
//! Invariant: text never becomes a control token. Only [`Segment::Token`] and the explicitly named
//! [`Tokenizer::split_special`] give ids of special tokens.
//!
//! This crate knows tokens and text, not chat formats: harmony is rendered and parsed elsewhere.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod byte_level;
mod detokenizer;
mod encode;
mod error;
mod json;
mod o200k_file;
mod pool;
mod rank_bpe;
mod slices;
mod stop;
mod text_lane;
mod tokenizer;
mod vocabulary;

pub use detokenizer::Detokenizer;
pub use encode::{EncodeCursor, Segment};
pub use error::TokenizerError;
pub use pool::{PoolError, PoolMessage, PoolOptions, PoolStats, RenderError, TokenizerPool};
pub use stop::{StopMatcher, StopStrings};
pub use text_lane::{TextDelta, TextLane, TextOutput, TokenSpan};
pub use tokenizer::Tokenizer;
