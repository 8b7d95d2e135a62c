//! Results: tokens go into the log, and sequences end.
//!
//! Invariant: results arrive in the order of the plans. One that contradicts its plan changes nothing.
//! Invariant: a result for a sequence that ended meanwhile is dropped. With steps in flight, a sequence that drew a stop
//! token may run once more; nobody hears of the token that this draws.

use crate::queue::Place;
use crate::scheduler::Scheduler;
use crate::sequence::Sequence;
use gossamer_wire::{FinishReason, SampledToken, StepResult};
use thiserror::Error;

/// What a request is told whose logits hold no number.
const NOT_A_NUMBER: &str = "the model's output is not a number";

/// A result that contradicts the plan: the worker is not to be trusted any more.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum CompleteError {
    /// Another step was due.
    #[error("expected the result of step {expected:?}, got that of step {got}: restart the worker")]
    Step {
        /// The oldest step in flight, if there is one.
        expected: Option<u64>,
        /// The step of the result.
        got: u64,
    },
    /// Too many or too few tokens.
    #[error("expected {expected} tokens from step {step}, got {got}: restart the worker")]
    Count {
        /// The step.
        step: u64,
        /// Runs with `sample` in its plan.
        expected: usize,
        /// Tokens in the result.
        got: usize,
    },
    /// A token of another sequence or position.
    #[error(
        "expected a token for slot {expected_slot} at position {expected_position} from step {step}, got one for slot \
         {slot} at position {position}: restart the worker"
    )]
    Place {
        /// The step.
        step: u64,
        /// Slot by the plan.
        expected_slot: u32,
        /// Position by the plan.
        expected_position: u32,
        /// Slot of the token.
        slot: u32,
        /// Position of the token.
        position: u32,
    },
    /// No such token.
    #[error("expected token ids below {vocab_size} from step {step}, got {token}: restart the worker")]
    Token {
        /// The step.
        step: u64,
        /// Width of the logits.
        vocab_size: u32,
        /// The token.
        token: u32,
    },
}

impl Scheduler {
    /// Takes in the result of the oldest step in flight.
    pub fn complete(&mut self, result: StepResult) -> Result<(), CompleteError> {
        self.check_result(&result)?;
        let Some(mut done) = self.in_flight.pop_front() else { return Ok(()) };
        let mut ended = false;
        for (sample, drawn) in done.samples.drain(..).zip(result.sampled) {
            let Some(sequence) = self.sequences.find_mut(sample.id) else { continue };
            debug_assert_eq!(sequence.tokens.len(), sample.position as usize);
            sequence.pending -= 1;
            if drawn.token == SampledToken::NOT_A_NUMBER {
                let request = sequence.key.request;
                // Once for all choices of a request.
                if self.not_a_number.replace(request) != Some(request) {
                    tracing::error!(%request, position = sample.position, "{NOT_A_NUMBER}: the request ends");
                }
                ended |= sequence.slot.is_some();
                self.end(sample.id, Some(FinishReason::Error(NOT_A_NUMBER.into())));
                continue;
            }
            sequence.tokens.push(drawn.token);
            if let Some(logprobs) = drawn.logprobs {
                sequence.logprobs.push(logprobs);
            }
            self.stats.generation_tokens += 1;
            if let Some(finish) = sequence.natural_end() {
                ended |= sequence.slot.is_some();
                self.end(sample.id, Some(finish));
                continue;
            }
            self.outbox.report(sequence, None);
            if (sample.position + 1) % self.layout.block_size == 0 {
                self.register_blocks(sample.id);
            }
        }
        if ended {
            let sequences = &self.sequences;
            self.running.retain(|place: &Place| sequences.find(place.id).is_some());
        }
        self.scratch.spare_samples.push(done.samples);
        self.stats.steps += 1;
        Ok(())
    }

    fn check_result(&self, result: &StepResult) -> Result<(), CompleteError> {
        let step = result.step;
        let Some(done) = self.in_flight.front().filter(|done| done.step == step) else {
            let expected = self.in_flight.front().map(|done| done.step);
            return Err(CompleteError::Step { expected, got: step });
        };
        if done.samples.len() != result.sampled.len() {
            let (expected, got) = (done.samples.len(), result.sampled.len());
            return Err(CompleteError::Count { step, expected, got });
        }
        for (sample, drawn) in done.samples.iter().zip(&result.sampled) {
            if (sample.slot, sample.position) != (drawn.slot, drawn.position) {
                return Err(CompleteError::Place {
                    step,
                    expected_slot: sample.slot,
                    expected_position: sample.position,
                    slot: drawn.slot,
                    position: drawn.position,
                });
            }
            let vocab_size = self.layout.vocab_size;
            if drawn.token >= vocab_size && drawn.token != SampledToken::NOT_A_NUMBER {
                return Err(CompleteError::Token { step, vocab_size, token: drawn.token });
            }
        }
        Ok(())
    }
}

impl Sequence {
    /// Whether the last token of the log ends the sequence.
    pub fn natural_end(&self) -> Option<FinishReason> {
        let generated = self.generated();
        let last = *self.tokens.last()?;
        if generated > self.min_tokens && self.stop_token_ids.contains(&last) {
            return Some(FinishReason::Stop);
        }
        (self.tokens.len() as u32 >= self.max_total).then_some(FinishReason::Length)
    }
}
