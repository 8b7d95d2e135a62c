//! Messages between the scheduler and the workers: the step plan and its result.
//!
//! A worker keeps *slots*: the tokens, sampling state and block tables of the sequences that run. A plan is a delta
//! against them. A worker applies and runs plans strictly in the order of their numbers, and a plan in this order:
//!
//! 1. **`snapshot`**: if set, forget every slot, and take the plan's number as it is. If not set, the number must be one
//!    more than that of the plan before. The first plan after a (re)attachment is a snapshot, and so is the first after
//!    *any* worker of a lock-step group was replaced: those that lived on forget their slots too. What the KV pool holds
//!    may be kept or lost; a snapshot's sequences run from their first token on.
//! 2. **`leave`**: empty each slot named; each is filled. A slot may be named long after its sequence ended (plans are
//!    made only when something runs), and the same plan may fill it again. A slot that leaves may still be named by
//!    results of earlier plans, never by this plan or a later one unless it is joined again.
//! 3. **`join`**: fill each slot named; each is empty. The slot's tokens are `tokens`, its block tables are empty.
//! 4. **`grants`**: append `blocks` to the table of (slot, group) as columns `first`, `first + 1`, ...; `first` is the
//!    column after the table's last one, or, for an empty table, where the table starts. Then drop the columns before
//!    `first_live`. Blocks of a sequence that joins may hold a cached prefix: they are read, never written. A block that
//!    a window group drops, or that a slot which leaves held, may be granted to anybody by the same plan.
//! 5. **`runs`**: for each run, put keys and values of positions `start .. start + count` into their blocks (column
//!    `position / block_size`), attend, and, where `sample` is set, draw the token after the last one and append it to the
//!    slot's tokens, before the next plan is applied. No run reads what another run of the same plan writes.
//!
//! A run of a sequence that has just drawn a stop token may come nevertheless, because it was planned before the token
//! was known: it is run like any other, and its result is dropped by the scheduler.

use crate::{SamplingParams, TokenLogprobs};
use serde::{Deserialize, Serialize};

/// One kind of KV cache: the layers that keep everything, or those that keep a window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvGroup {
    /// `None`: full attention. `Some(w)`: a token sees itself and the `w - 1` tokens before it.
    pub window: Option<u32>,
}

/// What a worker reports when its weights are loaded and its KV pool is allocated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// Index of the worker.
    pub rank: u32,
    /// KV blocks in the pool. Groups share it: a block id serves any one group at a time, because every group has a
    /// layer for each storage plane (gpt-oss alternates window and full layers).
    pub num_blocks: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// The groups, in the order that [`BlockGrant::group`] counts.
    pub groups: Vec<KvGroup>,
    /// Longest sequence that the model allows.
    pub max_model_len: u32,
    /// Width of the logits.
    pub vocab_size: u32,
}

/// A sequence enters a slot. Its blocks come as [`BlockGrant`]s of the same plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlotJoin {
    /// The slot; it must be empty.
    pub slot: u32,
    /// Prompt and already generated tokens.
    pub tokens: Vec<u32>,
    /// How many of `tokens` are the prompt (penalties count the output apart).
    pub prompt_len: u32,
    /// Index of the choice: part of the sampling counter.
    pub choice: u32,
    /// How to draw tokens.
    pub sampling: SamplingParams,
    /// Stop tokens must not be drawn before this many tokens were generated.
    pub min_tokens: u32,
    /// The stop tokens that `min_tokens` holds back.
    pub stop_token_ids: Vec<u32>,
}

/// New KV blocks for a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockGrant {
    /// The slot.
    pub slot: u32,
    /// Index into [`WorkerInfo::groups`].
    pub group: u32,
    /// Logical index (position / block size) of the first block granted here. Blocks of a window group that lie before
    /// `first_live` are dropped from the table.
    pub first: u32,
    /// Logical index of the first block that is still live (0 for full groups).
    pub first_live: u32,
    /// Block ids.
    pub blocks: Vec<u32>,
}

/// Where a run's tokens come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InputTokens {
    /// From the slot's token list: they are known.
    Known,
    /// The token this slot sampled last, which may still be on the device: it was planned before it was known.
    LastSampled,
}

/// Tokens of one slot to run in a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The slot.
    pub slot: u32,
    /// Position of the first token.
    pub start: u32,
    /// Number of tokens, at least 1.
    pub count: u32,
    /// Where they come from.
    pub input: InputTokens,
    /// Whether to draw a token after the last one. The token is appended to the slot's token list.
    pub sample: bool,
}

/// The part of a plan for one data-parallel rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankPlan {
    /// Slots that become empty, before anything else.
    pub leave: Vec<u32>,
    /// Slots that are filled.
    pub join: Vec<SlotJoin>,
    /// New blocks.
    pub grants: Vec<BlockGrant>,
    /// What to run. Order is the batch order.
    pub runs: Vec<Run>,
}

/// One step of the engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepPlan {
    /// Number of the step; each is one more than the last.
    pub step: u64,
    /// All slots are forgotten before this plan is applied.
    pub snapshot: bool,
    /// Micro-batch of a pipeline; 0 without one.
    pub micro_batch: u32,
    /// Token count of the captured graph to use; 0: run without one. See [`Self::choose_graph`].
    pub graph_bucket: u32,
    /// One section per data-parallel rank.
    pub ranks: Vec<RankPlan>,
}

impl StepPlan {
    /// Chooses the captured graph, the same for all ranks: where every sequence runs one token, the smallest size up to
    /// `largest` that has room for the most sequences of a rank.
    pub fn choose_graph(&mut self, largest: u32) {
        let single = |rank: &RankPlan| rank.runs.iter().all(|run| run.count == 1);
        let most = self.ranks.iter().map(|rank| rank.runs.len()).max().unwrap_or(0);
        self.graph_bucket = match u32::try_from(most) {
            Ok(most) if self.ranks.iter().all(single) => graph_bucket(most, largest),
            _ => 0,
        };
    }
}

/// The size that `sequences` are padded to: each of 1 to 16, then some that grow with them, and `largest` itself. 0 above it.
fn graph_bucket(sequences: u32, largest: u32) -> u32 {
    let step = match sequences {
        0..=16 => 1,
        17..=64 => 8,
        65..=256 => 32,
        257..=512 => 64,
        _ => 256,
    };
    match sequences {
        fitting if fitting <= largest => fitting.next_multiple_of(step).min(largest),
        _ => 0,
    }
}

/// A drawn token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampledToken {
    /// The slot.
    pub slot: u32,
    /// Position that the token takes in the sequence (prompt and output counted).
    pub position: u32,
    /// The token, or [`Self::NOT_A_NUMBER`].
    pub token: u32,
    /// Where asked for.
    pub logprobs: Option<TokenLogprobs>,
}

impl SampledToken {
    /// In place of a token: the logits are not numbers, and none was drawn. The sequence has to end.
    pub const NOT_A_NUMBER: u32 = u32::MAX;
}

/// Result of one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepResult {
    /// The step.
    pub step: u64,
    /// One entry per run with `sample`, in batch order.
    pub sampled: Vec<SampledToken>,
    /// Time the device was busy with the step, in nanoseconds.
    pub busy_ns: u64,
}

/// Worker to scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromWorker {
    /// Ready for a snapshot.
    Ready(WorkerInfo),
    /// A step is done.
    Done(StepResult),
    /// A plan could not be applied or run; the worker exits after this.
    Fault {
        /// What happened.
        message: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_sequences_up_to_the_largest_is_padded_a_little_and_none_beyond() {
        for (sequences, expected) in [(1, 1), (16, 16), (17, 24), (64, 64), (65, 96), (300, 320), (512, 512)]
        {
            assert_eq!(graph_bucket(sequences, 512), expected, "{sequences}");
        }
        assert_eq!(graph_bucket(513, 512), 0);
        // The largest need not be a whole step.
        assert_eq!(graph_bucket(99, 100), 100);
        assert_eq!(graph_bucket(1, 0), 0);
        for largest in 1..700 {
            let sizes: Vec<u32> = (1..=largest).map(|sequences| graph_bucket(sequences, largest)).collect();
            assert!(sizes.is_sorted() && sizes.last() == Some(&largest), "{largest}: {sizes:?}");
            assert!(
                sizes.iter().zip(1..).all(|(size, sequences)| *size >= sequences),
                "{largest}: {sizes:?}"
            );
        }
    }

    #[test]
    fn all_ranks_run_the_graph_that_the_fullest_one_needs() {
        let run = |count| Run { slot: 0, start: 0, count, input: InputTokens::Known, sample: true };
        let rank =
            |runs: &[u32]| RankPlan { runs: runs.iter().copied().map(run).collect(), ..Default::default() };
        let bucket = |ranks: &[&[u32]], largest| {
            let mut plan =
                StepPlan { ranks: ranks.iter().map(|runs| rank(runs)).collect(), ..Default::default() };
            plan.choose_graph(largest);
            plan.graph_bucket
        };
        assert_eq!(bucket(&[&[1, 1], &[1; 18]], 64), 24);
        assert_eq!(bucket(&[&[1, 1], &[1; 18]], 17), 0);
        assert_eq!(bucket(&[&[1, 1], &[1, 5]], 64), 0);
        assert_eq!(bucket(&[&[], &[]], 64), 0);
    }
}
