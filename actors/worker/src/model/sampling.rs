//! From sampling parameters to the rows, edits and masks of the sampling operation.

use crate::slots::Slot;
use gossamer_backend_api::ops::{LogitEdit, SampleRow};
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
};

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
}

impl SampleInputs {
    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.edits.clear();
        self.masks.clear();
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
        });
    }

    /// Adds a row that is drawn greedily and that nobody asks for.
    pub fn push_greedy(&mut self) {
        self.rows.push(GREEDY);
    }

    fn push_edits(&mut self, slot: &Slot, vocab: u32) {
        let sampling = &slot.sampling;
        let edits = &mut self.edits_of_row;
        edits.clear();
        let mut edit = |token: u32, change: &dyn Fn(&mut LogitEdit)| {
            if token < vocab {
                change(edits.entry(token).or_insert(LogitEdit { token, repetition: 1.0, add: 0.0 }));
            }
        };
        for (token, seen) in &slot.occurrences {
            edit(*token, &|edit| {
                edit.repetition = sampling.repetition_penalty;
                if seen.output > 0 {
                    edit.add -= sampling.presence_penalty + sampling.frequency_penalty * seen.output as f32;
                }
            });
        }
        for (token, bias) in &sampling.logit_bias {
            edit(*token, &|edit| edit.add += bias);
        }
        if slot.generated() < slot.min_tokens {
            for token in &slot.stop_token_ids {
                edit(*token, &|edit| edit.add = f32::NEG_INFINITY);
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
    use gossamer_wire::{RankPlan, SamplingParams, SlotJoin, StepPlan, WorkerInfo};

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
        let edit = |token, repetition, add| LogitEdit { token, repetition, add };
        let expected = [
            edit(3, 1.0, f32::NEG_INFINITY),
            edit(5, 1.5, 2.0),
            edit(6, 1.5, 0.0),
            edit(7, 1.5, -0.25 - 2.0 * 0.5),
            edit(9, 1.0, f32::NEG_INFINITY),
        ];
        assert_eq!(inputs.edits, expected);
        assert_eq!((inputs.rows[0].edits, inputs.rows[0].position, inputs.rows[0].choice), (5, 4, 2));
        assert!(inputs.masks.is_empty());
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
