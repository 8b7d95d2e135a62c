//! From nodes of the graph to launches.

use super::Model;
use super::program::Choice;
use crate::executor::ExecutorError;
use gossamer_backend_api::ops::{
    AddArgs, AllReduceArgs, AllReduceNormArgs, AttentionArgs, CombineArgs, EmbedArgs, ExpertProductArgs,
    ExpertWeights, ExpertsArgs, FinalizeArgs, FusedMoeArgs, GemmArgs, KvWriteArgs, MOST_RANKS, QkvRopeArgs,
    QuantiseArgs, ResizeArgs, RmsNormArgs, RopeArgs, RopeKvWriteArgs, RouteArgs, SampleArgs, ScaleArgs,
    Segment, SwigluArgs,
};
use gossamer_backend_api::{BackendError, Launch, OpArgs, OpDesc};
use gossamer_kernels::graph::{ExpertWeightIds, KvPlace, Op, SegmentIds, TensorId};

/// Addresses of one KV group's inputs.
#[derive(Clone, Copy, Debug, Default)]
pub struct GroupPlaces {
    pub slots: u64,
    pub tables: u64,
    pub stride: u32,
    pub first_blocks: u64,
}

/// Where the inputs and outputs of a step are, on the device that computes; 0 where there are none.
#[derive(Clone, Debug, Default)]
pub struct Places {
    pub token_ids: u64,
    /// The last token of each slot, for ids that name one.
    pub slot_tokens: u64,
    pub positions: u64,
    pub query_starts: u64,
    pub kv_lens: u64,
    pub sampled_rows: u64,
    pub sequences: u32,
    /// How many of the first sequences have one query each; 0 where that was not told.
    pub singles: u32,
    pub max_query: u32,
    pub max_kv: u32,
    pub groups: Vec<GroupPlaces>,
    pub rows: u64,
    pub edits: u64,
    pub masks: u64,
    pub drawn: u64,
    pub logprobs: u64,
    pub top_ids: u64,
    pub top_logprobs: u64,
}

/// Attention without the first `count` sequences. Rows keep their numbers.
fn without(args: AttentionArgs, count: u32) -> AttentionArgs {
    let past = |address: u64, each: u32| address + u64::from(count) * u64::from(each) * 4;
    AttentionArgs {
        sequences: args.sequences - count,
        query_starts: past(args.query_starts, 1),
        kv_lens: past(args.kv_lens, 1),
        block_tables: past(args.block_tables, args.table_stride),
        first_blocks: past(args.first_blocks, 1),
        ..args
    }
}

impl Model {
    /// Launches one node's operation.
    ///
    /// # Safety
    /// `places` hold inputs and outputs of `tokens` rows, as the operation documents.
    pub(super) unsafe fn launch(
        &self,
        node: usize,
        tokens: u32,
        places: &Places,
        choice: Choice,
        stream: u64,
    ) -> Result<(), BackendError> {
        let desc = self.program.graph.nodes[node].op.desc();
        let args = self.args(node, tokens, places);
        // SAFETY: handed on.
        unsafe { self.launch_as(&desc, args, choice, stream) }
    }

    /// Launches an operation under a description of it.
    ///
    /// # Safety
    /// As [`Self::launch`].
    pub(super) unsafe fn launch_as(
        &self,
        desc: &OpDesc,
        args: OpArgs,
        choice: Choice,
        stream: u64,
    ) -> Result<(), BackendError> {
        let launch = Launch {
            args,
            tactic: choice.tactic,
            workspace: self.workspace.address() + choice.workspace,
            workspace_bytes: choice.workspace_bytes,
            stream,
        };
        let backend = &self.backends.list()[choice.backend as usize];
        // SAFETY: beside `places`, arguments point into weights, arena and KV pool, which live in `self` and have the extents
        // of the descriptions: shapes of weights were checked at load, the arena was planned for more tokens than
        // the slot table lets through, and block ids and token ids were checked by it too.
        unsafe { backend.launch(desc, &launch) }
    }

    /// Launches attention, sequences with one query apart from the others.
    ///
    /// Invariant: the two launches write different rows, and together those of every sequence.
    ///
    /// # Safety
    /// As [`Self::launch`].
    unsafe fn launch_attention(
        &self,
        node: usize,
        tokens: u32,
        places: &Places,
        stream: u64,
    ) -> Result<(), BackendError> {
        let OpArgs::Attention(args) = self.args(node, tokens, places) else { return Ok(()) };
        let singles = places.singles;
        if let (1.., Some((desc, choice))) = (singles, self.program.single_choice(node, singles)) {
            let args = AttentionArgs { sequences: singles, max_query: 1, ..args };
            // SAFETY: handed on.
            unsafe { self.launch_as(desc, OpArgs::Attention(args), choice, stream) }?;
        }
        if singles < places.sequences {
            let (desc, choice) = self.program.choice(node, tokens - singles);
            // SAFETY: handed on.
            unsafe { self.launch_as(desc, OpArgs::Attention(without(args, singles)), choice, stream) }?;
        }
        Ok(())
    }

    /// Launches every operation of a step of `tokens` tokens and `samples` draws.
    ///
    /// # Safety
    /// As [`Self::launch`].
    pub(super) unsafe fn launch_all(
        &self,
        step: u64,
        (tokens, samples): (u32, u32),
        places: &Places,
        stream: u64,
        mut before: impl FnMut(&Op),
    ) -> Result<(), ExecutorError> {
        for (index, node) in self.program.graph.nodes.iter().enumerate() {
            let rows = if node.op.runs_on_samples() { samples } else { tokens };
            if rows == 0 {
                continue;
            }
            before(&node.op);
            if matches!(node.op, Op::Attention { .. }) {
                // SAFETY: handed on.
                unsafe { self.launch_attention(index, rows, places, stream) }
                    .map_err(|source| ExecutorError::Backend { step, operation: node.label(), source })?;
                continue;
            }
            let (_, choice) = self.program.choice(index, rows);
            // SAFETY: handed on.
            unsafe { self.launch(index, rows, places, choice, stream) }
                .map_err(|source| ExecutorError::Backend { step, operation: node.label(), source })?;
        }
        Ok(())
    }

    pub(super) fn tensor(&self, id: TensorId) -> u64 {
        // Every tensor that an operation names has a place.
        self.program.buffers.offset(id).map_or(0, |offset| self.arena.address() + offset)
    }

    fn experts(&self, ids: &ExpertWeightIds) -> ExpertWeights {
        ExpertWeights {
            data: self.weights.address(ids.blocks),
            scales: self.weights.address(ids.scales),
            bias: self.weights.address(ids.bias),
        }
    }

    fn segments(&self, ids: &[SegmentIds]) -> [Segment; 3] {
        let mut segments = [Segment::default(); 3];
        for (segment, ids) in segments.iter_mut().zip(ids) {
            segment.weight = self.weights.address(ids.weight);
            segment.bias = ids.bias.map_or(0, |bias| self.weights.address(bias));
        }
        segments
    }

    fn rope_args(&self, qkv: u64, kv: KvPlace, tokens: u32, places: &Places) -> RopeKvWriteArgs {
        RopeKvWriteArgs {
            qkv,
            positions: places.positions,
            slots: places.groups[kv.group as usize].slots,
            inverse_frequencies: self.inverse_frequencies.address(),
            kv: self.kv.plane(kv.plane),
            kv_scales: 0,
            tokens,
        }
    }

    pub(super) fn args(&self, node: usize, tokens: u32, places: &Places) -> OpArgs {
        let weight = |id| self.weights.address(id);
        match &self.program.graph.nodes[node].op {
            Op::Embed { table, out, .. } => OpArgs::Embed(EmbedArgs {
                token_ids: places.token_ids,
                drawn: places.slot_tokens,
                table: weight(*table),
                out: self.tensor(*out),
                tokens,
            }),
            Op::RmsNorm { x, weight: scale, out, .. } => OpArgs::RmsNorm(RmsNormArgs {
                x: self.tensor(*x),
                weight: weight(*scale),
                out: self.tensor(*out),
                tokens,
            }),
            Op::Gemm { desc, x, norm_weight, segments, residual, out } => OpArgs::Gemm(GemmArgs {
                x: self.tensor(*x),
                rows: if desc.gather == 1 { places.sampled_rows } else { 0 },
                norm_weight: norm_weight.map_or(0, weight),
                segments: self.segments(segments),
                residual: residual.map_or(0, |residual| self.tensor(residual)),
                out: self.tensor(*out),
                tokens,
            }),
            Op::RopeKvWrite { qkv, kv, .. } => {
                OpArgs::RopeKvWrite(self.rope_args(self.tensor(*qkv), *kv, tokens, places))
            }
            Op::QkvRope { x, norm_weight, segments, qkv, kv, .. } => OpArgs::QkvRope(QkvRopeArgs {
                product: GemmArgs {
                    x: self.tensor(*x),
                    rows: 0,
                    norm_weight: norm_weight.map_or(0, weight),
                    segments: self.segments(segments),
                    residual: 0,
                    out: self.tensor(*qkv),
                    tokens,
                },
                rope: self.rope_args(self.tensor(*qkv), *kv, tokens, places),
            }),
            Op::Attention { desc, qkv, sinks, kv, out } => {
                let group = places.groups[kv.group as usize];
                OpArgs::Attention(AttentionArgs {
                    q: self.tensor(*qkv),
                    q_stride: (desc.heads + 2 * desc.kv_heads) * desc.head_dim,
                    sequences: places.sequences,
                    query_starts: places.query_starts,
                    kv_lens: places.kv_lens,
                    block_tables: group.tables,
                    table_stride: group.stride,
                    max_query: places.max_query,
                    max_kv: places.max_kv,
                    tokens,
                    first_blocks: group.first_blocks,
                    sinks: weight(*sinks),
                    kv: self.kv.plane(kv.plane),
                    kv_scales: 0,
                    out: self.tensor(*out),
                })
            }
            Op::Route { x, weight: matrix, bias, ids, weights, .. } => OpArgs::Route(RouteArgs {
                x: self.tensor(*x),
                weight: weight(*matrix),
                bias: weight(*bias),
                expert_ids: self.tensor(*ids),
                expert_weights: self.tensor(*weights),
                tokens,
            }),
            Op::Experts { x, ids, gate_up, down, out, .. } => OpArgs::Experts(ExpertsArgs {
                x: self.tensor(*x),
                expert_ids: self.tensor(*ids),
                gate_up: self.experts(gate_up),
                down: self.experts(down),
                out: self.tensor(*out),
                tokens,
            }),
            Op::Finalize { experts_out, weights, residual, .. } => OpArgs::Finalize(FinalizeArgs {
                experts_out: self.tensor(*experts_out),
                expert_weights: self.tensor(*weights),
                residual: self.tensor(*residual),
                tokens,
            }),
            Op::FusedMoe { norm_weight, router_weight, router_bias, gate_up, down, residual, .. } => {
                OpArgs::FusedMoe(FusedMoeArgs {
                    norm_weight: weight(*norm_weight),
                    router_weight: weight(*router_weight),
                    router_bias: weight(*router_bias),
                    gate_up: self.experts(gate_up),
                    down: self.experts(down),
                    residual: self.tensor(*residual),
                    tokens,
                })
            }
            Op::Sample { logits, .. } => OpArgs::Sample(SampleArgs {
                logits: self.tensor(*logits),
                rows: places.rows,
                edits: places.edits,
                masks: places.masks,
                tokens: places.drawn,
                logprobs: places.logprobs,
                top_ids: places.top_ids,
                top_logprobs: places.top_logprobs,
                row_count: tokens,
            }),
            op => self.part_args(op, tokens, places),
        }
    }

    /// Arguments of the operations that a graph before fusion consists of, and of those that sum over ranks.
    fn part_args(&self, op: &Op, tokens: u32, places: &Places) -> OpArgs {
        let tensor = |id: &TensorId| self.tensor(*id);
        let optional = |id: &Option<TensorId>| id.map_or(0, |id| self.tensor(id));
        match op {
            Op::Rope { qkv, .. } => OpArgs::Rope(RopeArgs {
                qkv: tensor(qkv),
                positions: places.positions,
                inverse_frequencies: self.inverse_frequencies.address(),
                tokens,
            }),
            Op::Scale { x, .. } => OpArgs::Scale(ScaleArgs { x: tensor(x), tokens }),
            Op::KvWrite { qkv, kv, .. } => OpArgs::KvWrite(KvWriteArgs {
                qkv: tensor(qkv),
                slots: places.groups[kv.group as usize].slots,
                kv: self.kv.plane(kv.plane),
                kv_scales: 0,
                tokens,
            }),
            Op::Resize { x, out, .. } => {
                OpArgs::Resize(ResizeArgs { x: tensor(x), out: tensor(out), tokens })
            }
            Op::Quantise { x, codes, scales, .. } => OpArgs::Quantise(QuantiseArgs {
                x: tensor(x),
                codes: tensor(codes),
                scales: tensor(scales),
                tokens,
            }),
            Op::Swiglu { x, out, scales, .. } => OpArgs::Swiglu(SwigluArgs {
                x: tensor(x),
                out: tensor(out),
                scales: optional(scales),
                tokens,
            }),
            Op::ExpertProduct { x, scales, ids, weights, out, .. } => {
                OpArgs::ExpertProduct(ExpertProductArgs {
                    x: tensor(x),
                    scales: optional(scales),
                    expert_ids: tensor(ids),
                    weights: self.experts(weights),
                    out: tensor(out),
                    tokens,
                })
            }
            Op::Combine { experts_out, weights, out, .. } => OpArgs::Combine(CombineArgs {
                experts_out: tensor(experts_out),
                expert_weights: tensor(weights),
                out: tensor(out),
                tokens,
            }),
            Op::AllReduce { x, .. } => OpArgs::AllReduce(alone(tensor(x), tokens)),
            Op::AllReduceNorm { x, residual, weight, out, .. } => OpArgs::AllReduceNorm(AllReduceNormArgs {
                reduce: alone(tensor(x), tokens),
                residual: tensor(residual),
                weight: self.weights.address(*weight),
                out: tensor(out),
            }),
            Op::Add { x, residual, .. } => {
                OpArgs::Add(AddArgs { x: tensor(x), residual: tensor(residual), tokens })
            }
            // `args` has taken the others.
            _ => OpArgs::Add(AddArgs { x: 0, residual: 0, tokens: 0 }),
        }
    }
}

/// A sum over the ranks of a group that this process is not in: no region is mapped, which every backend refuses. Models of several ranks are
/// refused before they are opened.
fn alone(x: u64, tokens: u32) -> AllReduceArgs {
    AllReduceArgs { x, regions: [0; MOST_RANKS], region_bytes: 0, rank: 0, tokens }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_launch_keeps_its_rows_and_begins_at_the_next_sequence() {
        let args = AttentionArgs {
            q: 1,
            q_stride: 384,
            sequences: 5,
            query_starts: 1000,
            kv_lens: 2000,
            block_tables: 3000,
            table_stride: 16,
            max_query: 9,
            max_kv: 100,
            tokens: 40,
            first_blocks: 4000,
            sinks: 2,
            kv: 3,
            kv_scales: 0,
            out: 4,
        };
        let rest = without(args, 3);
        assert_eq!((rest.sequences, rest.tokens, rest.q, rest.out), (2, 40, 1, 4));
        assert_eq!(
            [rest.query_starts, rest.kv_lens, rest.block_tables, rest.first_blocks],
            [1012, 2012, 3000 + 3 * 64, 4012]
        );
    }
}
