//! The gated unit with its clamp, and rounding of its result to E4M3, become one operation.

use super::{Can, readers, replace};
use crate::graph::{Graph, Op};
use gossamer_backend_api::OpDesc;
use gossamer_backend_api::ops::SwigluDesc;

pub(super) fn apply(graph: &mut Graph, can: Can<'_>) -> usize {
    replace(graph, |graph, at| matched(graph, at, can).map(|op| (2, [op])))
}

fn matched(graph: &Graph, at: usize, can: Can<'_>) -> Option<Op> {
    let [swiglu, quantise] = graph.nodes.get(at..at + 2)? else { return None };
    let Op::Swiglu { desc, x, out, scales: None } = &swiglu.op else { return None };
    let Op::Quantise { desc: quantise, x: input, codes, scales } = &quantise.op else { return None };
    // Padding that is still an operation of its own stands between the two.
    let fits = input == out && quantise.columns == desc.columns && quantise.rows == desc.rows;
    let out_type = gossamer_backend_api::DType::F8E4M3;
    let fused = SwigluDesc { padded: quantise.padded, out: out_type, ..*desc };
    (fits && readers(graph, *out) == 1 && can(&OpDesc::Swiglu(fused))).then_some(Op::Swiglu {
        desc: fused,
        x: *x,
        out: *codes,
        scales: Some(*scales),
    })
}
