//! When things happened to a request: what the histograms are made of.
//!
//! Invariant: once nothing runs, the histograms per request have one entry each for every request that got a token,
//! however it ended; so their counts agree. A request is in them before its end is counted.

use super::board::{Board, Counter, Histogram};
use std::time::Instant;

/// Measures one request with its choices.
pub struct Timeline {
    board: Board,
    arrival: Instant,
    prompt_tokens: u64,
    first_seen: bool,
    generated: u64,
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
        let choices_seen = vec![None; choices];
        Self {
            board,
            arrival,
            prompt_tokens,
            first_seen: false,
            generated: 0,
            choices: choices_seen,
            open: choices,
        }
    }

    /// `count` tokens of a choice came.
    pub fn tokens(&mut self, choice: usize, count: usize, now: Instant) {
        if count == 0 {
            return;
        }
        let count = count as u64;
        self.board.add(Counter::GenerationTokens, count);
        self.generated += count;
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

    /// A choice ended.
    pub fn ended(&mut self, how: Ended) {
        self.open = self.open.saturating_sub(1);
        if self.open == 0 {
            self.close();
        }
        self.board.add(
            match how {
                Ended::Stop => Counter::FinishedStop,
                Ended::Length => Counter::FinishedLength,
                Ended::Error => Counter::FinishedError,
            },
            1,
        );
    }

    /// The request is over. Said twice it counts once.
    fn close(&mut self) {
        if std::mem::take(&mut self.first_seen) {
            self.board.observe(Histogram::GenerationTokens, self.generated, 1);
            self.board.observe_time(Histogram::EndToEnd, self.arrival.elapsed(), 1);
        }
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        self.close();
        // What did not end was cut off by its client.
        self.board.add(Counter::FinishedAbort, self.open as u64);
    }
}
