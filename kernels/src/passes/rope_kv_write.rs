//! Rotation, the queries' scale and the cache write become one operation. The scale goes into attention, where it is a factor of the
//! logits in float32: one rounding less.

use super::{Can, replace};
use crate::graph::{Graph, Op};
use gossamer_backend_api::OpDesc;
use gossamer_backend_api::ops::{AttentionDesc, RopeKvWriteDesc};

pub(super) fn apply(graph: &mut Graph, can: Can<'_>) -> usize {
    replace(graph, |graph, at| matched(graph, at, can).map(|ops| (4, ops)))
}

fn matched(graph: &Graph, at: usize, can: Can<'_>) -> Option<[Op; 2]> {
    let [rope, scale, write, attention] = graph.nodes.get(at..at + 4)? else { return None };
    let Op::Rope { desc: rope, qkv } = &rope.op else { return None };
    let Op::Scale { desc: scale, x: scaled } = &scale.op else { return None };
    let Op::KvWrite { desc: write, qkv: written, kv } = &write.op else { return None };
    let Op::Attention { desc, qkv: read, sinks, kv: place, out } = &attention.op else { return None };
    let connected = [scaled, written, read].iter().all(|tensor| *tensor == qkv) && kv == place;
    // The scale must be that of all queries and of nothing else.
    let queries = scale.columns == rope.heads * rope.head_dim && desc.scale == 1.0;
    let fused = RopeKvWriteDesc {
        heads: rope.heads,
        kv_heads: rope.kv_heads,
        head_dim: rope.head_dim,
        block_size: write.block_size,
        activation: rope.activation,
        kv: write.kv,
        magnitude: rope.magnitude,
    };
    let scaled = AttentionDesc { scale: scale.factor, ..*desc };
    let able = || can(&OpDesc::RopeKvWrite(fused)) && can(&OpDesc::Attention(scaled));
    (connected && queries && able()).then_some([
        Op::RopeKvWrite { desc: fused, qkv: *qkv, kv: *kv },
        Op::Attention { desc: scaled, qkv: *qkv, sinks: *sinks, kv: *kv, out: *out },
    ])
}
