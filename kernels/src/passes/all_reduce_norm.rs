//! The sum over ranks, the residual's addition and the norm after it become one operation: partial sums are read once, and the
//! residual stream is read and written once.

use super::{Can, readers, replace};
use crate::graph::{Graph, Op};
use gossamer_backend_api::OpDesc;
use gossamer_backend_api::ops::AllReduceNormDesc;

pub(super) fn apply(graph: &mut Graph, can: Can<'_>) -> usize {
    replace(graph, |graph, at| matched(graph, at, can).map(|op| (3, [op])))
}

/// The norm may be the next layer's.
fn matched(graph: &Graph, at: usize, can: Can<'_>) -> Option<Op> {
    let [reduce, add, norm] = graph.nodes.get(at..at + 3)? else { return None };
    let Op::AllReduce { desc: reduce, x: partial } = &reduce.op else { return None };
    let Op::Add { desc: add, x, residual } = &add.op else { return None };
    let Op::RmsNorm { desc: norm, x: normed, weight, out } = &norm.op else { return None };
    let connected = x == partial && normed == residual && out != residual;
    let shapes = add.columns == reduce.hidden && norm.hidden == reduce.hidden;
    // The sum itself reads its tensor, and the addition.
    let private = readers(graph, *partial) == 2;
    let fused = AllReduceNormDesc { reduce: *reduce, eps: norm.eps };
    (connected && shapes && private && can(&OpDesc::AllReduceNorm(fused))).then_some(Op::AllReduceNorm {
        desc: fused,
        x: *partial,
        residual: *residual,
        weight: *weight,
        out: *out,
    })
}
