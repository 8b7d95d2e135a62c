//! Messages between API servers and the scheduler.

use crate::SchedulerStats;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A request, unique over all API servers and their incarnations for the life of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub u64);

impl RequestId {
    /// The `serial`-th request of an API server in its `epoch`-th incarnation.
    pub fn new(api_server: u16, epoch: u16, serial: u32) -> Self {
        Self(u64::from(api_server) << 48 | u64::from(epoch) << 32 | u64::from(serial))
    }

    /// The API server that owns the request.
    pub fn api_server(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The incarnation of that API server.
    pub fn epoch(self) -> u16 {
        (self.0 >> 32) as u16
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// One of the `n` choices of a request: what the scheduler calls a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SequenceKey {
    /// The request.
    pub request: RequestId,
    /// Index of the choice, `0..n`.
    pub choice: u32,
}

/// How the next token is drawn. Values are validated by the API server; the scheduler and worker trust the ranges.
///
/// Gumbel-max with a counter-based generator keyed by (seed, choice, position, token id): a replay draws the same token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// Nucleus mass, `(0, 1]`.
    pub top_p: f32,
    /// The k likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Least probability relative to the likeliest token, `[0, 1]`.
    pub min_p: f32,
    /// Always set: drawn by the API server where the client gave none.
    pub seed: u64,
    /// 1 is off; applies to prompt and output tokens.
    pub repetition_penalty: f32,
    /// 0 is off; applies once to every token in the output.
    pub presence_penalty: f32,
    /// 0 is off; applies per occurrence in the output.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// When not empty, only these tokens may be drawn.
    pub allowed_token_ids: Vec<u32>,
    /// Number of alternatives per token wanted beside the chosen one's log-probability; `None`: no log-probabilities.
    /// Log-probabilities are those of the unmodified logits.
    pub logprobs: Option<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            allowed_token_ids: Vec::new(),
            logprobs: None,
        }
    }
}

/// When a sequence ends by itself. Stop strings are the API server's business: it sees text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StopRules {
    /// Most tokens to generate, at least 1 (validated against the model's length).
    pub max_tokens: u32,
    /// No stop token is drawn before this many were generated.
    pub min_tokens: u32,
    /// Tokens that end the sequence. Empty under `ignore_eos`. The stop token is the last token reported.
    pub stop_token_ids: Vec<u32>,
}

/// One choice of a request, to be generated. A request of `n` choices is submitted as `n` of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Submit {
    /// Name of the sequence.
    pub key: SequenceKey,
    /// Prompt token ids; never empty.
    pub prompt: Vec<u32>,
    /// Tokens already generated: empty at first, the API server's copy of the token log when it refills a restarted
    /// scheduler.
    pub generated: Vec<u32>,
    /// How to draw tokens.
    pub sampling: SamplingParams,
    /// When to end.
    pub stop: StopRules,
    /// Tokens per [`TokenDelta`] after the first, at least 1.
    pub stream_interval: u32,
    /// Lower runs earlier.
    pub priority: i32,
    /// Whose share of the device this uses (a hash of the API key); fairness is among tenants.
    pub tenant: u64,
    /// Sequences share cached prefixes only under an equal salt.
    pub cache_salt: u64,
    /// Milliseconds since the Unix epoch after which the sequence is ended.
    pub deadline_unix_ms: Option<u64>,
}

/// Why the API server ends a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AbortReason {
    /// The client went away.
    Disconnected,
    /// A stop string matched: the sequence counts as finished, not as aborted.
    StopString,
    /// The server shuts down.
    Shutdown,
}

/// API server to scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToScheduler {
    /// Generate this sequence.
    Submit(Box<Submit>),
    /// End this sequence and free what it holds. Unknown keys are ignored (the sequence may just have finished).
    Abort {
        /// The sequence.
        key: SequenceKey,
        /// Why.
        reason: AbortReason,
    },
    /// The API server has (re)attached; all sequences of its earlier incarnations are void.
    Hello {
        /// Index of the API server.
        api_server: u16,
        /// Its incarnation.
        epoch: u16,
    },
}

/// Why a sequence ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinishReason {
    /// A stop token was drawn; it is the last token of the delta.
    Stop,
    /// `max_tokens` or the model's length was reached.
    Length,
    /// The API server asked for it.
    Abort,
    /// The deadline passed.
    Deadline,
    /// The engine failed for good (workers died more often than `--max-restarts`).
    Error(String),
}

/// Log-probabilities of one drawn token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprobs {
    /// Log-probability of the drawn token.
    pub logprob: f32,
    /// The likeliest tokens, likeliest first.
    pub top: Vec<(u32, f32)>,
}

/// New tokens of one sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenDelta {
    /// The sequence.
    pub key: SequenceKey,
    /// Position of the first token among the generated ones. A reader drops positions it already has.
    pub position: u32,
    /// The tokens; empty only with `finish`.
    pub tokens: Vec<u32>,
    /// One entry per token where asked for, else empty.
    pub logprobs: Vec<TokenLogprobs>,
    /// Prompt tokens found in the prefix cache; reported with the first delta.
    pub cached_prompt_tokens: Option<u32>,
    /// Set on the last delta.
    pub finish: Option<FinishReason>,
}

/// Why a sequence was not admitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Prompt and budget can never fit the KV cache.
    NeverFits {
        /// Tokens the sequence may reach.
        tokens: u64,
        /// Tokens that the KV cache can hold.
        capacity: u64,
    },
    /// The waiting queue is full.
    QueueFull {
        /// Seconds after which a retry is sensible.
        retry_after_s: u32,
    },
    /// The server drains.
    Draining,
}

/// What API servers must know of the engine before they can validate a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineInfo {
    /// Longest sequence, prompt and output together.
    pub max_model_len: u32,
    /// Tokens that the KV cache can hold for one sequence.
    pub kv_capacity_tokens: u64,
    /// Width of the logits.
    pub vocab_size: u32,
}

/// Scheduler to API server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromScheduler {
    /// All workers are ready. Sent after every (re)attachment, and again after a worker was replaced.
    Ready(EngineInfo),
    /// A worker is being replaced; sequences wait and go on later.
    Paused,
    /// New tokens of several sequences.
    Tokens(Vec<TokenDelta>),
    /// The sequence was not admitted.
    Refused {
        /// The sequence.
        key: SequenceKey,
        /// Why.
        refusal: Refusal,
    },
    /// Counters and gauges, at most a second old.
    Stats(SchedulerStats),
}
