//! The experts' weighted sum over padded columns, the slice of what is real, and the residual become one: the product before writes
//! only real columns, and the sum goes onto the residual stream where nothing comes between.

use super::{Can, readers};
use crate::graph::{Graph, Op};
use gossamer_backend_api::OpDesc;
use gossamer_backend_api::ops::{CombineDesc, ExpertProductDesc, FinalizeDesc};

pub(super) fn apply(graph: &mut Graph, can: Can<'_>) -> usize {
    let mut times = 0;
    for at in 0..graph.nodes.len() {
        let sliced = slice(graph, at, can);
        let added = finalize(graph, at, can);
        times += usize::from(sliced || added);
    }
    times
}

/// Sum and slice: the product and the sum lose the padding.
fn slice(graph: &mut Graph, at: usize, can: Can<'_>) -> bool {
    let Some([product, combine, slice]) = graph.nodes.get(at.wrapping_sub(1)..at.wrapping_add(2)) else {
        return false;
    };
    let Op::ExpertProduct { desc: product, out: made, .. } = &product.op else { return false };
    let Op::Combine { desc, experts_out, weights, out } = &combine.op else { return false };
    let Op::Resize { desc: slice, x, out: real } = &slice.op else { return false };
    let narrow = ExpertProductDesc { out_columns: slice.to, ..*product };
    let fused = CombineDesc { columns: slice.to, ..*desc };
    let connected = made == experts_out && out == x && product.out_columns == desc.columns;
    let cuts = slice.to < slice.from && slice.to >= product.out_features;
    let private = readers(graph, *made) == 1 && readers(graph, *out) == 1;
    if !(connected && cuts && private && can(&OpDesc::ExpertProduct(narrow)) && can(&OpDesc::Combine(fused)))
    {
        return false;
    }
    let (made, weights, real) = (*made, *weights, *real);
    graph.nodes[at].op = Op::Combine { desc: fused, experts_out: made, weights, out: real };
    graph.nodes.remove(at + 1);
    if let Op::ExpertProduct { desc, .. } = &mut graph.nodes[at - 1].op {
        *desc = narrow;
    }
    graph.tensors[made.0 as usize].columns = fused.top_k * fused.columns;
    true
}

/// Sum and residual.
fn finalize(graph: &mut Graph, at: usize, can: Can<'_>) -> bool {
    let Some([combine, add]) = graph.nodes.get(at..at + 2) else { return false };
    let Op::Combine { desc, experts_out, weights, out } = &combine.op else { return false };
    let Op::Add { desc: add, x, residual } = &add.op else { return false };
    let fused = FinalizeDesc { hidden: desc.columns, top_k: desc.top_k, activation: desc.activation };
    let fits = x == out && add.columns == desc.columns && readers(graph, *out) == 1;
    if !(fits && can(&OpDesc::Finalize(fused))) {
        return false;
    }
    let op = Op::Finalize { desc: fused, experts_out: *experts_out, weights: *weights, residual: *residual };
    graph.nodes[at].op = op;
    graph.nodes.remove(at + 1);
    true
}
