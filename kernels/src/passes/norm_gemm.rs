//! A norm that one product alone reads becomes the product's prologue. Before the head this also spares the norm of
//! all rows that are not drawn.

use super::{Can, readers, replace};
use crate::graph::{Graph, Op};
use gossamer_backend_api::OpDesc;
use gossamer_backend_api::ops::GemmDesc;

pub(super) fn apply(graph: &mut Graph, can: Can<'_>) -> usize {
    replace(graph, |graph, at| matched(graph, at, can).map(|op| (2, [op])))
}

fn matched(graph: &Graph, at: usize, can: Can<'_>) -> Option<Op> {
    let [norm, gemm] = graph.nodes.get(at..at + 2)? else { return None };
    let Op::RmsNorm { desc: norm_desc, x, weight, out: normed } = &norm.op else { return None };
    let Op::Gemm { desc, x: input, norm_weight: None, segments, residual, out } = &gemm.op else {
        return None;
    };
    if input != normed || readers(graph, *normed) != 1 || residual == &Some(*normed) {
        return None;
    }
    let desc = GemmDesc { norm: 1, eps: norm_desc.eps, ..*desc };
    can(&OpDesc::Gemm(desc)).then(|| Op::Gemm {
        desc,
        x: *x,
        norm_weight: Some(*weight),
        segments: segments.clone(),
        residual: *residual,
        out: *out,
    })
}
