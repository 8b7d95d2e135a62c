//! From sampling parameters to the rows, edits and masks of the sampling operation.
//!
//! Invariant: the numbers that change a pending token's logit are those that would change it were the token known; they are worked out
//! here, in one place (`Penalties`), for the token that it turns out to be on the device.

use crate::slots::Slot;
use gossamer_backend_api::ops::{LogitEdit, SampleRow};
use gossamer_wire::SamplingParams;
use std::collections::BTreeMap;

/// A row that takes the likeliest token and that nobody asks for.
const GREEDY: SampleRow = SampleRow {
    seed: 0,
    position: 0,
    choice: 0,
    temperature: 0.0,
    top_p: 1.0,
    min_p: 0.0,
    top_k: 0,
    first_edit: 0,
    edits: 0,
    logprobs: SampleRow::NO_LOGPROBS,
    masked: 0,
    pending: 0,
    kept: 0,
    pending_repetition: 1.0,
    pending_add: 0.0,
};

/// What a sequence's penalties make of a token's occurrences.
struct Penalties<'slot>(&'slot SamplingParams);

impl Penalties<'_> {
    /// What is added to the logit of a token that was generated so often.
    fn add(&self, output: u32) -> f32 {
        if output == 0 { 0.0 } else { -(self.0.presence_penalty + self.0.frequency_penalty * output as f32) }
    }
}

/// Inputs and outputs of the sampling operation for one step.
#[derive(Debug, Default)]
pub struct SampleInputs {
    /// `[R]`.
    pub rows: Vec<SampleRow>,
    /// Edits of all rows.
    pub edits: Vec<LogitEdit>,
    /// `[R, ceil(V / 32)]`, or empty when no row is masked.
    pub masks: Vec<u32>,
    edits_of_row: BTreeMap<u32, LogitEdit>,
    /// Rows that are to count a token that their slot does not know.
    awaiting: Vec<usize>,
}

impl SampleInputs {
    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.edits.clear();
        self.masks.clear();
        self.awaiting.clear();
    }

    /// Rows that take the likeliest token.
    pub fn fill_greedy(&mut self, rows: u32) {
        self.clear();
        self.rows.resize(rows as usize, SampleRow { position: 1, ..GREEDY });
    }

    /// Adds a row: the token at `position` of `slot` is to be drawn.
    ///
    /// Token ids beyond the vocabulary have no effect: there is no logit to change. They must not end the step for all
    /// the others in the batch.
    pub fn push(&mut self, slot: &Slot, position: u32, vocab: u32) {
        let sampling = &slot.sampling;
        let first_edit = self.edits.len() as u32;
        self.push_edits(slot, vocab);
        let masked = !sampling.allowed_token_ids.is_empty();
        self.push_mask(&sampling.allowed_token_ids, masked, vocab);
        if slot.counts() && slot.undrawn() > 0 {
            self.awaiting.push(self.rows.len());
        }
        self.rows.push(SampleRow {
            seed: sampling.seed,
            position,
            choice: slot.choice,
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            top_k: sampling.top_k,
            first_edit,
            edits: self.edits.len() as u32 - first_edit,
            logprobs: sampling.logprobs.unwrap_or(SampleRow::NO_LOGPROBS),
            masked: masked.into(),
            // `locate` writes both.
            pending: 0,
            kept: 0,
            pending_repetition: sampling.repetition_penalty,
            pending_add: Penalties(sampling).add(1),
        });
    }

    /// Tells rows where their sequences' last tokens lie, in order: the drawn one is kept there, and there a row finds the one that
    /// was being drawn when it was pushed. Rows of padding, which come last, have no such place.
    pub fn locate(&mut self, places: impl Iterator<Item = u64>) {
        for (row, place) in self.rows.iter_mut().zip(places) {
            row.kept = place;
        }
        for row in &self.awaiting {
            let row = &mut self.rows[*row];
            row.pending = row.kept;
        }
    }

    /// Adds a row that is drawn greedily and that nobody asks for.
    pub fn push_greedy(&mut self) {
        self.rows.push(GREEDY);
    }

    fn push_edits(&mut self, slot: &Slot, vocab: u32) {
        let sampling = &slot.sampling;
        let penalties = Penalties(sampling);
        let edits = &mut self.edits_of_row;
        edits.clear();
        let unseen = |token| LogitEdit {
            token,
            repetition: 1.0,
            add: penalties.add(0),
            pending_add: penalties.add(1),
        };
        let mut edit = |token: u32, change: &dyn Fn(&mut LogitEdit)| {
            if token < vocab {
                change(edits.entry(token).or_insert_with(|| unseen(token)));
            }
        };
        for (token, seen) in &slot.occurrences {
            edit(*token, &|edit| {
                edit.repetition = sampling.repetition_penalty;
                edit.add = penalties.add(seen.output);
                edit.pending_add = penalties.add(seen.output + 1);
            });
        }
        for (token, bias) in &sampling.logit_bias {
            edit(*token, &|edit| {
                edit.add += bias;
                edit.pending_add += bias;
            });
        }
        // Tokens that are being drawn are generated ones: only which they are is unknown.
        if slot.generated() < slot.min_tokens {
            for token in &slot.stop_token_ids {
                edit(*token, &|edit| (edit.add, edit.pending_add) = (f32::NEG_INFINITY, f32::NEG_INFINITY));
            }
        }
        self.edits.extend(self.edits_of_row.values());
    }

    fn push_mask(&mut self, allowed: &[u32], masked: bool, vocab: u32) {
        let words = vocab.div_ceil(32) as usize;
        let row = self.rows.len() * words;
        if !masked {
            // Rows after a masked one need their place; what is in it is not read.
            if !self.masks.is_empty() {
                self.masks.resize(row + words, u32::MAX);
            }
            return;
        }
        self.masks.resize(row, u32::MAX);
        self.masks.resize(row + words, 0);
        for token in allowed.iter().filter(|token| **token < vocab) {
            self.masks[row + (token / 32) as usize] |= 1 << (token % 32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::{SlotLimits, SlotTable};
    use gossamer_backend_api::conformance::Random;
    use gossamer_backend_api::ops::{SampleArgs, SampleDesc};
    use gossamer_backend_api::{DType, Exported, HostServices, KernelBackend, Launch, OpArgs, OpDesc};
    use gossamer_fallback::Fallback;
    use gossamer_wire::{RankPlan, SlotJoin, StepPlan, WorkerInfo};

    fn slot(tokens: &[u32], prompt_len: u32, sampling: SamplingParams, min_tokens: u32) -> Slot {
        let info = WorkerInfo {
            rank: 0,
            num_blocks: 1,
            block_size: 64,
            groups: vec![],
            max_model_len: 64,
            vocab_size: 100,
        };
        let join = SlotJoin {
            slot: 0,
            tokens: tokens.to_vec(),
            prompt_len,
            choice: 2,
            sampling,
            min_tokens,
            stop_token_ids: vec![9, 3],
        };
        let plan = StepPlan {
            snapshot: true,
            ranks: vec![RankPlan { join: vec![join], ..RankPlan::default() }],
            ..StepPlan::default()
        };
        let mut table = SlotTable::new(info, SlotLimits { slots: 1, runs: 1, tokens: 64 }, 0);
        table.apply(&plan).unwrap();
        table.get(0).unwrap().clone()
    }

    #[test]
    fn penalties_biases_and_held_back_stops_become_one_edit_per_token() {
        let sampling = SamplingParams {
            repetition_penalty: 1.5,
            presence_penalty: 0.25,
            frequency_penalty: 0.5,
            logit_bias: vec![(3, 1.0), (5, 2.0), (1000, 4.0)],
            ..SamplingParams::default()
        };
        let mut inputs = SampleInputs::default();
        inputs.push(&slot(&[5, 6, 7, 7], 2, sampling, 10), 4, 100);
        let edit = |token, repetition, add, pending_add| LogitEdit { token, repetition, add, pending_add };
        let expected = [
            edit(3, 1.0, f32::NEG_INFINITY, f32::NEG_INFINITY),
            edit(5, 1.5, 2.0, 2.0 - 0.75),
            edit(6, 1.5, 0.0, -0.75),
            edit(7, 1.5, -0.25 - 2.0 * 0.5, -0.25 - 3.0 * 0.5),
            edit(9, 1.0, f32::NEG_INFINITY, f32::NEG_INFINITY),
        ];
        assert_eq!(inputs.edits, expected);
        assert_eq!((inputs.rows[0].pending_repetition, inputs.rows[0].pending_add), (1.5, -0.75));
        assert_eq!((inputs.rows[0].edits, inputs.rows[0].position, inputs.rows[0].choice), (5, 4, 2));
        assert!(inputs.masks.is_empty());
    }

    #[test]
    fn only_rows_with_penalties_await_a_token_that_is_being_drawn() {
        let counting = SamplingParams { repetition_penalty: 1.5, ..SamplingParams::default() };
        let mut inputs = SampleInputs::default();
        for sampling in [SamplingParams::default(), counting.clone(), counting] {
            let mut slot = slot(&[5, 6], 2, sampling, 0);
            if inputs.rows.len() < 2 {
                slot.push_undrawn();
            }
            inputs.push(&slot, slot.tokens.len() as u32, 100);
        }
        inputs.push_greedy();
        inputs.locate((0..3).map(|row| 256 + row * 4));
        let places: Vec<_> = inputs.rows.iter().map(|row| (row.pending, row.kept)).collect();
        assert_eq!(places, [(0, 256), (260, 260), (0, 264), (0, 0)]);
        inputs.clear();
        inputs.push(&slot(&[5], 1, SamplingParams::default(), 0), 1, 100);
        inputs.locate(std::iter::once(4));
        assert_eq!(inputs.rows[0].pending, 0);
    }

    const VOCAB: u32 = 24;

    /// Draws one token for the inputs' only row.
    fn draw(backend: &Fallback, inputs: &SampleInputs, logits: &[f32]) -> (u32, f32) {
        let desc = SampleDesc { vocab: VOCAB, vocab_offset: 0, logits: DType::F32, max_logprobs: 0 };
        let op = OpDesc::Sample(desc);
        let mut workspace = vec![0u64; backend.workspace(&op, 0, 1).div_ceil(8) as usize + 32];
        let (mut logits, mut token, mut logprob) = (logits.to_vec(), u32::MAX, f32::NAN);
        let args = SampleArgs {
            logits: logits.as_mut_ptr() as u64,
            rows: inputs.rows.as_ptr() as u64,
            edits: inputs.edits.as_ptr() as u64,
            masks: inputs.masks.as_ptr() as u64,
            tokens: &raw mut token as u64,
            logprobs: &raw mut logprob as u64,
            top_ids: 0,
            top_logprobs: 0,
            row_count: 1,
        };
        let launch = Launch {
            args: OpArgs::Sample(args),
            tactic: 0,
            workspace: (workspace.as_mut_ptr() as u64).next_multiple_of(256),
            workspace_bytes: backend.workspace(&op, 0, 1),
            stream: 0,
        };
        // SAFETY: every address is that of a vector or variable above or of the caller's inputs, as large as one row needs; the
        // kernel returns when it is done.
        unsafe { backend.launch(&op, &launch) }.unwrap();
        (token, logprob)
    }

    /// Two sequences that are the same but for when the host learns their tokens: at once, or a step later.
    #[test]
    fn a_step_ahead_of_the_host_draws_the_same_tokens() {
        let backend = Fallback::open(HostServices::inline()).unwrap();
        let mut random = Random::new(7);
        let mut repeated = 0;
        for case in 0..60 {
            let mut one_of = |values: &[f32]| values[random.below(values.len() as u32) as usize];
            let sampling = SamplingParams {
                seed: case,
                temperature: one_of(&[0.0, 0.8, 1.5]),
                top_p: one_of(&[1.0, 0.8]),
                repetition_penalty: one_of(&[1.0, 1.3, 0.7]),
                presence_penalty: one_of(&[0.0, 0.9, -0.7]),
                frequency_penalty: one_of(&[0.0, 0.3, 1.1, -0.4]),
                logit_bias: vec![(4, 1.25), (9, -0.5)],
                allowed_token_ids: if case % 7 == 0 { vec![1, 3, 4, 5, 9, 23] } else { vec![] },
                logprobs: (case % 2 == 0).then_some(0),
                ..SamplingParams::default()
            };
            let mut known = slot(&[5, 6, 7, 7, 6], 4, sampling, 9);
            let mut ahead = known.clone();
            let mut inputs = SampleInputs::default();
            let mut last = 0;
            for step in 0..24 {
                let logits: Vec<f32> =
                    random.normals(VOCAB as usize, 1.5).iter().map(|x| *x as f32).collect();
                let position = known.tokens.len() as u32;
                let mut drawn = |slot: &Slot, mut last: u32| {
                    inputs.clear();
                    inputs.push(slot, position, VOCAB);
                    inputs.locate(std::iter::once(&raw mut last as u64));
                    let (token, logprob) = draw(&backend, &inputs, &logits);
                    assert_eq!(last, token, "it is kept");
                    (token, logprob)
                };
                let (token, logprob) = drawn(&known, u32::MAX);
                let (same, same_logprob) = drawn(&ahead, last);
                assert_eq!(
                    (same, same_logprob.to_bits()),
                    (token, logprob.to_bits()),
                    "case {case}, step {step}: {known:?}"
                );
                repeated += u32::from(known.tokens.contains(&token));
                if step > 0 {
                    ahead.resolve(position - 1, last);
                }
                ahead.push_undrawn();
                known.push(token);
                last = token;
            }
        }
        assert!(repeated > 100, "{repeated} tokens of 1440 had been there before: too few to say anything");
    }

    #[test]
    fn stops_are_free_once_enough_tokens_were_generated() {
        let mut inputs = SampleInputs::default();
        inputs.push(&slot(&[5, 6, 7], 2, SamplingParams::default(), 1), 3, 100);
        assert!(inputs.edits.is_empty(), "{:?}", inputs.edits);
    }

    #[test]
    fn masks_are_rows_of_bits_and_only_there_when_a_row_is_masked() {
        let allowed = SamplingParams { allowed_token_ids: vec![0, 33, 99, 500], ..SamplingParams::default() };
        let mut inputs = SampleInputs::default();
        inputs.push(&slot(&[1], 1, SamplingParams::default(), 0), 1, 100);
        inputs.push(&slot(&[1], 1, allowed, 0), 1, 100);
        inputs.push(&slot(&[1], 1, SamplingParams::default(), 0), 1, 100);
        assert_eq!(inputs.masks.len(), 12);
        assert_eq!(inputs.masks[4..8], [1, 2, 0, 8]);
        let masked: Vec<_> = inputs.rows.iter().map(|row| row.masked).collect();
        assert_eq!(masked, [0, 1, 0]);
    }
}
