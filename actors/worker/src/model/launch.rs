//! From nodes of the graph to launches.

use super::Model;
use crate::executor::ExecutorError;
use gossamer_backend_api::ops::{
    AttentionArgs, EmbedArgs, ExpertWeights, ExpertsArgs, FinalizeArgs, FusedMoeArgs, GemmArgs, RmsNormArgs,
    RopeKvWriteArgs, RouteArgs, SampleArgs, Segment,
};
use gossamer_backend_api::{Launch, OpArgs};
use gossamer_kernels::graph::{ExpertWeightIds, Op, SegmentIds, TensorId};

/// Address of a vector's elements; 0, which means absent, for an empty one.
fn address<T>(values: &[T]) -> u64 {
    if values.is_empty() { 0 } else { values.as_ptr() as u64 }
}

fn address_mut<T>(values: &mut [T]) -> u64 {
    if values.is_empty() { 0 } else { values.as_mut_ptr() as u64 }
}

impl Model {
    /// Launches every operation of the step in the batch.
    pub(super) fn launch_all(&mut self, step: u64) -> Result<(), ExecutorError> {
        for index in 0..self.program.graph.nodes.len() {
            self.launch(index, step)?;
        }
        Ok(())
    }

    /// Launches one operation of the step in the batch.
    pub(super) fn launch(&mut self, index: usize, step: u64) -> Result<(), ExecutorError> {
        let op = &self.program.graph.nodes[index].op;
        let tokens = if op.runs_on_samples() { self.batch.samples() } else { self.batch.tokens() };
        if tokens == 0 {
            return Ok(());
        }
        if self.keep_logits
            && let Op::Sample { logits, .. } = *op
        {
            self.copy_logits(logits);
        }
        (self.heartbeat)();
        let args = self.args(index, tokens);
        let (desc, choice) = self.program.choice(index, tokens);
        let launch = Launch {
            args,
            tactic: choice.tactic,
            workspace: self.workspace.address(),
            workspace_bytes: self.program.workspace,
            stream: 0,
        };
        let backend = &self.backends.list()[choice.backend as usize];
        // SAFETY: `args` points into weights, arena, KV pool and batch arrays, which live in `self` and have the extents of
        // the descriptions: shapes of weights were checked at load, the arena was planned for as many tokens as a batch
        // has at most, and block ids and token ids were checked by the slot table (or made up within their ranges).
        unsafe { backend.launch(desc, &launch) }.map_err(|source| ExecutorError::Backend {
            step,
            operation: self.program.graph.nodes[index].label(),
            source,
        })
    }

    fn tensor(&self, id: TensorId) -> u64 {
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

    fn args(&mut self, node: usize, tokens: u32) -> OpArgs {
        if let Op::Sample { logits, .. } = self.program.graph.nodes[node].op {
            return OpArgs::Sample(self.sample_args(logits, tokens));
        }
        let weight = |id| self.weights.address(id);
        let batch = &self.batch;
        match &self.program.graph.nodes[node].op {
            Op::Embed { table, out, .. } => OpArgs::Embed(EmbedArgs {
                token_ids: address(&batch.token_ids),
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
                rows: if desc.gather == 1 { address(&batch.sampled_rows) } else { 0 },
                norm_weight: norm_weight.map_or(0, weight),
                segments: self.segments(segments),
                residual: residual.map_or(0, |residual| self.tensor(residual)),
                out: self.tensor(*out),
                tokens,
            }),
            Op::RopeKvWrite { qkv, kv, .. } => OpArgs::RopeKvWrite(RopeKvWriteArgs {
                qkv: self.tensor(*qkv),
                positions: address(&batch.positions),
                slots: address(&batch.groups[kv.group as usize].slots),
                inverse_frequencies: address(&self.inverse_frequencies),
                kv: self.kv.plane(kv.plane),
                kv_scales: 0,
                tokens,
            }),
            Op::Attention { desc, qkv, sinks, kv, out } => {
                let group = &batch.groups[kv.group as usize];
                OpArgs::Attention(AttentionArgs {
                    q: self.tensor(*qkv),
                    q_stride: (desc.heads + 2 * desc.kv_heads) * desc.head_dim,
                    sequences: batch.kv_lens.len() as u32,
                    query_starts: address(&batch.query_starts),
                    kv_lens: address(&batch.kv_lens),
                    block_tables: address(&group.tables),
                    table_stride: group.stride,
                    max_query: batch.max_query,
                    max_kv: batch.max_kv,
                    tokens,
                    first_blocks: address(&group.first_blocks),
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
                rows: 0,
                edits: 0,
                masks: 0,
                tokens: 0,
                logprobs: 0,
                top_ids: 0,
                top_logprobs: 0,
                row_count: 0,
            }),
        }
    }

    fn sample_args(&mut self, logits: TensorId, rows: u32) -> SampleArgs {
        SampleArgs {
            logits: self.tensor(logits),
            rows: address(&self.batch.sample.rows),
            edits: address(&self.batch.sample.edits),
            masks: address(&self.batch.sample.masks),
            tokens: address_mut(&mut self.drawn.tokens),
            logprobs: address_mut(&mut self.drawn.logprobs),
            top_ids: address_mut(&mut self.drawn.top_ids),
            top_logprobs: address_mut(&mut self.drawn.top_logprobs),
            row_count: rows,
        }
    }

    fn copy_logits(&mut self, logits: TensorId) {
        let count = self.batch.samples() as usize * self.info.vocab_size as usize;
        let from = self.tensor(logits) as *const f32;
        self.kept_logits.clear();
        // SAFETY: the logits tensor is float32 and holds `samples * vocab` elements in the arena, which no kernel is writing
        // now; any bits are a valid float.
        self.kept_logits.extend_from_slice(unsafe { std::slice::from_raw_parts(from, count) });
    }
}
