//! When things happened to a request: what the latency histograms are made of.

use super::board::{Board, Counter, Histogram};
use std::time::Instant;

/// Measures one request with its choices.
pub struct Timeline {
    board: Board,
    arrival: Instant,
    prompt_tokens: u64,
    first_seen: bool,
    choices: Vec<Option<Instant>>,
    open: usize,
}

/// How a choice ended, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself.
    Stop,
    /// By its budget.
    Length,
    /// By an error.
    Error,
}

impl Timeline {
    /// A request of `choices` that arrived at `arrival`.
    pub fn new(board: Board, arrival: Instant, prompt_tokens: u64, choices: usize) -> Self {
        Self { board, arrival, prompt_tokens, first_seen: false, choices: vec![None; choices], open: choices }
    }

    /// `count` tokens of a choice came.
    pub fn tokens(&mut self, choice: usize, count: usize, now: Instant) {
        if count == 0 {
            return;
        }
        let count = count as u64;
        self.board.add(Counter::GenerationTokens, count);
        if !self.first_seen {
            self.first_seen = true;
            self.board.observe_time(Histogram::TimeToFirstToken, now - self.arrival, 1);
            self.board.add(Counter::PromptTokens, self.prompt_tokens);
            self.board.observe(Histogram::PromptTokens, self.prompt_tokens, 1);
        }
        let Some(last) = self.choices.get_mut(choice) else { return };
        if let Some(before) = last.replace(now) {
            // Tokens that came together share the time since those before them.
            self.board.observe_time(Histogram::InterTokenLatency, (now - before) / count as u32, count);
        }
    }

    /// Prompt tokens were found in the prefix cache.
    pub fn cached(&self, tokens: u32) {
        self.board.add(Counter::CachedTokens, u64::from(tokens));
    }

    /// The request was not admitted; it leaves no trace in the counters of choices.
    pub fn refused(&mut self) {
        self.open = 0;
    }

    /// A choice ended after `tokens`.
    pub fn ended(&mut self, tokens: u32, how: Ended) {
        self.open = self.open.saturating_sub(1);
        self.board.observe(Histogram::GenerationTokens, u64::from(tokens), 1);
        self.board.add(
            match how {
                Ended::Stop => Counter::FinishedStop,
                Ended::Length => Counter::FinishedLength,
                Ended::Error => Counter::FinishedError,
            },
            1,
        );
        if self.open == 0 {
            self.board.observe_time(Histogram::EndToEnd, self.arrival.elapsed(), 1);
        }
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        // What did not end was cut off by its client.
        self.board.add(Counter::FinishedAbort, self.open as u64);
    }
}
