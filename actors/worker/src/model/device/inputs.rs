//! What a step takes in, laid out in one copy: tokens, positions, sequences and sampling; and the order of its runs.
//!
//! Invariant: places and sizes depend on counts alone, and what has no fixed size comes last, so that a graph finds its inputs again.

use super::ALIGN;
use crate::model::Model;
use gossamer_backend_api::ops::{EmbedArgs, LogitEdit, SampleRow};
use gossamer_wire::{InputTokens, Run};
use std::borrow::Cow;
use std::collections::HashMap;

/// Lays arrays out one after the other, each aligned.
#[derive(Default)]
struct Layout {
    bytes: usize,
}

impl Layout {
    fn place<T>(&mut self, count: usize) -> usize {
        let at = self.bytes;
        self.bytes = (at + count * size_of::<T>()).next_multiple_of(ALIGN);
        at
    }
}

/// Plain data that is copied to the device as it is in memory.
trait Plain: Copy {}
impl Plain for u32 {}
impl Plain for u64 {}
impl Plain for SampleRow {}
impl Plain for LogitEdit {}

fn put<T: Plain>(bytes: &mut [u8], at: usize, values: &[T]) {
    let size = size_of_val(values);
    let to = &mut bytes[at..at + size];
    // SAFETY: `to` has `size` bytes; `Plain` types have no padding and may be read as bytes.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), to.as_mut_ptr(), size) };
}

const _: () = assert!(size_of::<SampleRow>() == 72 && size_of::<LogitEdit>() == 16);

/// Offsets of a step's inputs behind the slots' last tokens.
pub(super) struct Inputs {
    pub(super) token_ids: usize,
    pub(super) positions: usize,
    pub(super) query_starts: usize,
    pub(super) kv_lens: usize,
    pub(super) sampled_rows: usize,
    pub(super) rows: usize,
    pub(super) groups: Vec<[usize; 3]>,
    pub(super) edits: usize,
    pub(super) masks: usize,
    pub(super) bytes: usize,
}

/// Runs with one token first, else in order: attention takes those in a launch of their own.
pub(super) fn singles_first(runs: &[Run]) -> Cow<'_, [Run]> {
    if runs.is_sorted_by_key(|run| run.count > 1) {
        return Cow::Borrowed(runs);
    }
    let mut runs = runs.to_vec();
    runs.sort_by_key(|run| run.count > 1);
    Cow::Owned(runs)
}

/// Places among the plan's draws of the draws in `runs`, which are the same in another order; empty where it is the same order.
pub(super) fn places_in_plan(plan: &[Run], runs: &[Run]) -> Vec<u32> {
    if std::ptr::eq(plan, runs) {
        return Vec::new();
    }
    let draws = plan.iter().filter(|run| run.sample);
    let place: HashMap<u32, u32> = draws.zip(0..).map(|(run, place)| (run.slot, place)).collect();
    runs.iter().filter_map(|run| run.sample.then(|| place.get(&run.slot).copied()).flatten()).collect()
}

/// Puts what was computed in another order into the plan's.
pub(super) fn in_plan_order<T>(items: Vec<T>, places: &[u32]) -> Vec<T> {
    if places.is_empty() {
        return items;
    }
    let mut placed: Vec<(u32, T)> = places.iter().copied().zip(items).collect();
    placed.sort_by_key(|(place, _)| *place);
    placed.into_iter().map(|(_, item)| item).collect()
}

impl Model {
    pub(super) fn input_layout(&self) -> Inputs {
        let batch = &self.batch;
        let (tokens, sequences, samples) =
            (batch.token_ids.len(), batch.kv_lens.len(), batch.sampled_rows.len());
        let mut layout = Layout::default();
        Inputs {
            token_ids: layout.place::<u32>(tokens),
            positions: layout.place::<u32>(tokens),
            query_starts: layout.place::<u32>(sequences + 1),
            kv_lens: layout.place::<u32>(sequences),
            sampled_rows: layout.place::<u32>(samples),
            rows: layout.place::<SampleRow>(samples),
            groups: batch
                .groups
                .iter()
                .map(|group| {
                    [
                        layout.place::<u64>(tokens),
                        layout.place::<u32>(sequences * group.stride as usize),
                        layout.place::<u32>(sequences),
                    ]
                })
                .collect(),
            // What has no fixed size comes last.
            edits: layout.place::<LogitEdit>(batch.sample.edits.len()),
            masks: layout.place::<u32>(batch.sample.masks.len()),
            bytes: layout.bytes,
        }
    }

    pub(super) fn write_inputs(&self, inputs: &Inputs, bytes: &mut [u8]) {
        let batch = &self.batch;
        put(bytes, inputs.token_ids, &batch.token_ids);
        put(bytes, inputs.positions, &batch.positions);
        put(bytes, inputs.query_starts, &batch.query_starts);
        put(bytes, inputs.kv_lens, &batch.kv_lens);
        put(bytes, inputs.sampled_rows, &batch.sampled_rows);
        put(bytes, inputs.rows, &batch.sample.rows);
        for (group, at) in batch.groups.iter().zip(&inputs.groups) {
            put(bytes, at[0], &group.slots);
            put(bytes, at[1], &group.tables);
            put(bytes, at[2], &group.first_blocks);
        }
        put(bytes, inputs.edits, &batch.sample.edits);
        put(bytes, inputs.masks, &batch.sample.masks);
    }

    /// Names by their slots the tokens that the host does not know.
    pub(super) fn name_drawn(&mut self, runs: &[Run]) {
        let mut token = 0;
        for run in runs {
            if run.input == InputTokens::LastSampled {
                self.batch.token_ids[token] = EmbedArgs::DRAWN | run.slot;
            }
            token += run.count as usize;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_token_come_first_and_else_nothing_moves() {
        let run = |slot, count| Run { slot, start: 0, count, input: InputTokens::Known, sample: true };
        let mixed = [run(0, 5), run(1, 1), run(2, 7), run(3, 1)];
        let order: Vec<u32> = singles_first(&mixed).iter().map(|run| run.slot).collect();
        assert_eq!(order, [1, 3, 0, 2]);
        assert!(matches!(singles_first(&mixed[1..3]), Cow::Borrowed(_)));
    }

    #[test]
    fn results_come_in_the_order_of_the_plan() {
        let run = |slot, count, sample| Run { slot, start: 0, count, input: InputTokens::Known, sample };
        // The last token of a prompt, alone in its chunk, behind prompts that go on and end.
        let plan = [run(4, 1, true), run(7, 6, false), run(2, 9, true), run(5, 1, true)];
        let runs = singles_first(&plan);
        let slots: Vec<u32> = runs.iter().filter(|run| run.sample).map(|run| run.slot).collect();
        assert_eq!(slots, [4, 5, 2]);
        let places = places_in_plan(&plan, &runs);
        assert_eq!(in_plan_order(slots, &places), [4, 2, 5]);
        let in_order = singles_first(&plan[..1]);
        assert_eq!(in_plan_order(vec![4], &places_in_plan(&plan[..1], &in_order)), [4]);
    }
}
