//! Token counts of a request.

use serde::Serialize;

/// OpenAI's `usage`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Tokens of the prompt, once for all choices.
    pub prompt_tokens: u64,
    /// All tokens drawn, control tokens included, summed over the choices.
    pub completion_tokens: u64,
    /// Both.
    pub total_tokens: u64,
    /// Of the prompt.
    pub prompt_tokens_details: PromptDetails,
    /// Of the answer; chat only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionDetails>,
}

/// Where prompt tokens came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromptDetails {
    /// Found in the prefix cache.
    pub cached_tokens: u64,
}

/// What completion tokens were for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CompletionDetails {
    /// Spent on reasoning.
    pub reasoning_tokens: u64,
}

impl Usage {
    /// Counts of a request.
    pub fn new(prompt: u64, completion: u64, cached: u64, reasoning: Option<u64>) -> Self {
        Self {
            prompt_tokens: prompt,
            completion_tokens: completion,
            total_tokens: prompt + completion,
            prompt_tokens_details: PromptDetails { cached_tokens: cached },
            completion_tokens_details: reasoning
                .map(|reasoning_tokens| CompletionDetails { reasoning_tokens }),
        }
    }
}
