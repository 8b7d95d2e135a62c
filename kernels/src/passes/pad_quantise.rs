//! Padding before rounding to E4M3 becomes part of the rounding.

use super::{Can, readers, replace};
use crate::graph::{Graph, Op};
use gossamer_backend_api::OpDesc;
use gossamer_backend_api::ops::QuantiseDesc;

pub(super) fn apply(graph: &mut Graph, can: Can<'_>) -> usize {
    replace(graph, |graph, at| matched(graph, at, can).map(|op| (2, [op])))
}

fn matched(graph: &Graph, at: usize, can: Can<'_>) -> Option<Op> {
    let [pad, quantise] = graph.nodes.get(at..at + 2)? else { return None };
    let Op::Resize { desc: pad, x, out } = &pad.op else { return None };
    let Op::Quantise { desc, x: input, codes, scales } = &quantise.op else { return None };
    let widens = pad.to > pad.from && pad.to == desc.columns && pad.rows == desc.rows;
    let fused = QuantiseDesc { columns: pad.from, ..*desc };
    let fits = input == out && widens && readers(graph, *out) == 1;
    (fits && can(&OpDesc::Quantise(fused))).then_some(Op::Quantise {
        desc: fused,
        x: *x,
        codes: *codes,
        scales: *scales,
    })
}
