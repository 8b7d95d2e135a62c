//! Times prefill and decoding in this process, with the executor that serves: what `gossamer bench latency` prints.
//!
//! Shares are of the roofs that the caller measured in the same minutes on the same machine; a bound that was measured
//! elsewhere says nothing about a shared machine.

use crate::executor::{Executor, ExecutorError};
use crate::model::Model;
use gossamer_config::ModelConfig;
use gossamer_kernels::graph::KvShape;
use gossamer_wire::{BlockGrant, InputTokens, RankPlan, Run, SamplingParams, SlotJoin, StepPlan};
use serde::{Deserialize, Serialize};
use std::time::Instant;
use thiserror::Error;

/// What the machine could do at best.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Roofs {
    /// Bytes a second from memory.
    pub bytes_per_second: f64,
    /// Operations a second in float32 (a multiply-add is two); `None` where that was not measured.
    pub float32_flops: Option<f64>,
    /// Operations a second in bfloat16 dot products; `None` where the processor has none, or that was not measured.
    pub bfloat16_flops: Option<f64>,
}

/// Tokens before the first timed one that are run for a decoding sequence.
pub const PREFILLED: u32 = 512;

/// Steps of one kind until the device replays them: one loads the kernels and is captured, one is replayed.
const CAPTURING_STEPS: usize = 2;
/// Tokens that the sequences of those steps have before.
const CAPTURED_CONTEXT: u32 = 60;

/// What to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Case {
    /// One prompt in one step.
    Prefill {
        /// Its length.
        tokens: u32,
    },
    /// Steps of one token for each of several sequences. Of what each has before, the last [`PREFILLED`] tokens are run; the
    /// cache holds whatever it does before them, which costs the same.
    Decode {
        /// Sequences.
        batch: u32,
        /// Tokens that each has before.
        context: u32,
    },
}

impl Case {
    /// Tokens in a step.
    pub fn tokens(&self) -> u32 {
        match self {
            Self::Prefill { tokens } => *tokens,
            Self::Decode { batch, .. } => *batch,
        }
    }
}

/// What came out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The case.
    pub case: Case,
    /// Steps timed.
    pub steps: usize,
    /// Median time of a step, in seconds.
    pub median_seconds: f64,
    /// The shortest.
    pub best_seconds: f64,
    /// Tokens a second, by the median.
    pub tokens_per_second: f64,
    /// Bytes that a step must read at least: weights of the experts that are expected to be chosen, all other weights,
    /// and the KV cache.
    pub bytes: f64,
    /// Operations of a step (a multiply-add is two).
    pub flops: f64,
    /// Share of the memory roof.
    pub memory_share: f64,
    /// Share of the float32 roof.
    pub float32_share: Option<f64>,
    /// Share of the bfloat16 roof.
    pub bfloat16_share: Option<f64>,
}

/// Why nothing was measured.
#[derive(Debug, Error)]
pub enum LatencyError {
    /// A step failed.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    /// The model was opened for smaller steps or a smaller cache.
    #[error("{case:?} needs {needs} {what}, the model was opened with {has}")]
    TooLarge {
        /// The case.
        case: Case,
        /// What is too small.
        what: &'static str,
        /// What it needs.
        needs: u64,
        /// What there is.
        has: u64,
    },
}

/// Bytes and operations of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Bytes read.
    pub bytes: f64,
    /// Operations.
    pub flops: f64,
}

impl Work {
    /// The least work of a step of `tokens` tokens of which `drawn` are followed by a draw, each token with `context`
    /// tokens before it on average.
    pub fn of(config: &ModelConfig, kv: &KvShape, tokens: u32, drawn: u32, context: f64) -> Self {
        let wide = |value: u32| f64::from(value);
        let (hidden, inner) = (wide(config.hidden_size), wide(config.intermediate_size));
        let layers = config.layers.len() as f64;
        let heads = wide(config.num_attention_heads) * wide(config.head_dim);
        let attention =
            hidden * wide(config.qkv_columns()) + heads * hidden + hidden * wide(config.num_experts);
        let expert = 3.0 * hidden * inner;
        let head = hidden * wide(config.vocab_size);
        let (experts, top_k) = (wide(config.num_experts), wide(config.experts_per_token));
        // Experts chosen by at least one token, were they chosen evenly.
        let chosen = experts * (1.0 - (1.0 - top_k / experts).powi(tokens as i32));
        // Codes of half a byte, a scale for 32 of them, and a bias of two bytes a row.
        let expert_bytes = expert * (0.5 + 1.0 / 32.0) + 2.0 * (2.0 * inner + hidden);
        let window = wide(config.sliding_window);
        let seen: f64 = config
            .layers
            .iter()
            .map(|layer| match layer {
                gossamer_config::LayerKind::Full => context + 1.0,
                gossamer_config::LayerKind::Sliding => (context + 1.0).min(window),
            })
            .sum();
        let kv_row = kv.block_bytes() as f64 / wide(kv.block_size);
        let bytes = layers * (2.0 * attention + chosen * expert_bytes)
            + if drawn > 0 { 2.0 * head } else { 0.0 }
            + wide(tokens) * 2.0 * hidden
            + wide(drawn) * seen * kv_row;
        let flops = 2.0
            * (wide(tokens) * (layers * (attention + top_k * expert) + seen * 2.0 * heads)
                + wide(drawn) * head);
        Self { bytes, flops }
    }
}

/// Times one case: `warmup` steps, then `steps` that count.
pub fn measure(
    model: &mut Model,
    config: &ModelConfig,
    roofs: &Roofs,
    case: Case,
    warmup: usize,
    steps: usize,
) -> Result<Measured, LatencyError> {
    let mut bench = Bench { model, case, next_step: 1 };
    let steps = steps.max(1);
    bench.check(warmup + steps)?;
    let mut times = match case {
        Case::Prefill { tokens } => bench.prefill(tokens, warmup + steps)?,
        Case::Decode { batch, context } => bench.decode(batch, context, warmup + steps)?,
    };
    times.drain(..warmup);
    times.sort_by(f64::total_cmp);
    let (median, best) = (times[times.len() / 2], times[0]);
    let (drawn, context) = match case {
        Case::Prefill { tokens } => (1, f64::from(tokens) / 2.0),
        Case::Decode { batch, context } => (batch, f64::from(context) + (warmup + steps) as f64 / 2.0),
    };
    let work = Work::of(config, &bench.model.program().graph.kv, case.tokens(), drawn, context);
    Ok(Measured {
        case,
        steps,
        median_seconds: median,
        best_seconds: best,
        tokens_per_second: f64::from(case.tokens()) / median,
        bytes: work.bytes,
        flops: work.flops,
        memory_share: work.bytes / median / roofs.bytes_per_second,
        float32_share: roofs.float32_flops.map(|roof| work.flops / median / roof),
        bfloat16_share: roofs.bfloat16_flops.map(|roof| work.flops / median / roof),
    })
}

/// Runs steps of every size that kernels are chosen for, and the smallest decode steps until they are captured. A driver loads a
/// kernel at its first launch: without this, the first requests would wait for that.
pub(crate) fn warm_up(model: &mut Model) -> Result<(), LatencyError> {
    let start = Instant::now();
    let longest = model.info().max_model_len.min(model.limits().tokens as u32);
    let sizes = model.program().buckets().to_vec();
    let prefills =
        sizes.into_iter().filter(|tokens| *tokens <= longest).map(|tokens| Case::Prefill { tokens });
    let decodes = [1, 2, 4, 8, 16].map(|batch| Case::Decode { batch, context: CAPTURED_CONTEXT });
    let mut bench = Bench { model, case: Case::Prefill { tokens: 1 }, next_step: 1 };
    for case in prefills.chain(decodes) {
        bench.case = case;
        // What the cache or the step has no room for is not met later either.
        let fits =
            case.tokens() as usize <= bench.model.limits().runs || matches!(case, Case::Prefill { .. });
        if !fits || bench.check(CAPTURING_STEPS).is_err() {
            continue;
        }
        match case {
            Case::Prefill { tokens } => bench.prefill(tokens, 1)?,
            Case::Decode { batch, context } => bench.decode(batch, context, CAPTURING_STEPS)?,
        };
    }
    tracing::info!(seconds = start.elapsed().as_secs_f64(), "ran a step of every size");
    Ok(())
}

struct Bench<'a> {
    model: &'a mut Model,
    case: Case,
    next_step: u64,
}

impl Bench<'_> {
    fn check(&self, steps: usize) -> Result<(), LatencyError> {
        let info = self.model.info();
        let (sequences, length) = match self.case {
            Case::Prefill { tokens } => (1, u64::from(tokens)),
            Case::Decode { batch, context } => (u64::from(batch), u64::from(context) + steps as u64 + 1),
        };
        let blocks = sequences * length.div_ceil(info.block_size.into()) * info.groups.len() as u64;
        let limits = [
            ("KV blocks", blocks, u64::from(info.num_blocks)),
            ("tokens in a sequence", length, u64::from(info.max_model_len)),
        ];
        for (what, needs, has) in limits {
            if needs > has {
                return Err(LatencyError::TooLarge { case: self.case, what, needs, has });
            }
        }
        Ok(())
    }

    /// Runs one plan and returns its time.
    fn step(&mut self, section: RankPlan, snapshot: bool) -> Result<f64, LatencyError> {
        let mut plan =
            StepPlan { step: self.next_step, snapshot, ranks: vec![section], ..StepPlan::default() };
        plan.choose_graph(u32::MAX);
        self.next_step += 1;
        let start = Instant::now();
        self.model.step(&plan)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// A sequence of `length` tokens in `slot`, with blocks for `most`.
    fn join(&self, section: &mut RankPlan, slot: u32, length: u32, most: u32) {
        let info = self.model.info();
        let columns = most.div_ceil(info.block_size);
        let groups = info.groups.len() as u32;
        // Any spread of ids does; neighbours must not route alike.
        let token = |at: u32| (slot * 7919 + at * 104_729 + 17) % info.vocab_size;
        section.join.push(SlotJoin {
            slot,
            tokens: (0..length).map(token).collect(),
            prompt_len: length,
            choice: 0,
            sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            min_tokens: 0,
            stop_token_ids: Vec::new(),
        });
        for group in 0..groups {
            let first = (slot * groups + group) * columns;
            let blocks = (first..first + columns).collect();
            section.grants.push(BlockGrant { slot, group, first: 0, first_live: 0, blocks });
        }
    }

    fn prefill(&mut self, tokens: u32, times: usize) -> Result<Vec<f64>, LatencyError> {
        (0..times)
            .map(|_| {
                let mut section = RankPlan::default();
                self.join(&mut section, 0, tokens, tokens);
                section.runs.push(Run {
                    slot: 0,
                    start: 0,
                    count: tokens,
                    input: InputTokens::Known,
                    sample: true,
                });
                self.step(section, true)
            })
            .collect()
    }

    fn decode(&mut self, batch: u32, context: u32, times: usize) -> Result<Vec<f64>, LatencyError> {
        let most = context + times as u32 + 1;
        let count = context.min(PREFILLED);
        // One prompt a step, so that many of them do not ask for large steps.
        for slot in 0..batch {
            let mut section = RankPlan::default();
            self.join(&mut section, slot, context, most);
            section.runs.push(Run {
                slot,
                start: context - count,
                count,
                input: InputTokens::Known,
                sample: true,
            });
            self.step(section, slot == 0)?;
        }
        (0..times as u32)
            .map(|at| {
                let run = |slot| Run {
                    slot,
                    start: context + at,
                    count: 1,
                    input: InputTokens::LastSampled,
                    sample: true,
                };
                self.step(RankPlan { runs: (0..batch).map(run).collect(), ..RankPlan::default() }, false)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gossamer_backend_api::DType;
    use std::path::Path;

    #[test]
    fn the_work_of_a_token_of_the_20b_shape_is_that_of_its_published_sizes() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/golden-a");
        let config = ModelConfig {
            hidden_size: 2880,
            intermediate_size: 2880,
            num_attention_heads: 64,
            num_key_value_heads: 8,
            head_dim: 64,
            num_experts: 32,
            experts_per_token: 4,
            vocab_size: 201_088,
            sliding_window: 128,
            layers: vec![gossamer_config::LayerKind::Full; 6],
            ..ModelConfig::load(&fixture).unwrap()
        };
        let kv = KvShape { planes: 6, kv_heads: 8, head_dim: 64, block_size: 64, dtype: DType::BF16 };
        let work = Work::of(&config, &kv, 1, 1, 0.0);
        // 106.5 MB a layer and 1158 MB for the head; 126.2 M multiply-adds a layer and 579 M for the head.
        assert!((work.bytes / (6.0 * 106.5e6 + 1158e6) - 1.0).abs() < 0.01, "{}", work.bytes);
        assert!((work.flops / 2.0 / (6.0 * 126.2e6 + 579e6) - 1.0).abs() < 0.01, "{}", work.flops);
    }
}
