//! The experts' two products with the gated unit between become one operation; where rows are rounded to E4M3 before each product, one
//! that may do so inside.
//!
//! It does not look through padding that is an operation of its own: switching off `pad-quantise`, `swiglu-quantise` or `finalize-slice`
//! leaves the parts.

use super::{Can, readers, replace};
use crate::graph::{Graph, Op};
use gossamer_backend_api::ops::ExpertsDesc;
use gossamer_backend_api::{DType, OpDesc};

pub(super) fn apply(graph: &mut Graph, can: Can<'_>) -> usize {
    replace(graph, |graph, at| matched(graph, at, can).map(|(count, op)| (count, [op])))
}

/// How many operations become which.
fn matched(graph: &Graph, at: usize, can: Can<'_>) -> Option<(usize, Op)> {
    // What the products read: rows, or their codes.
    let (quantised, first) = match &graph.nodes.get(at)?.op {
        Op::Quantise { desc, x, codes, scales } => (Some((desc, x, codes, scales)), at + 1),
        _ => (None, at),
    };
    let [gate_up, swiglu, down] = graph.nodes.get(first..first + 3)? else { return None };
    let Op::ExpertProduct { desc, x, scales, ids, weights: gate_up, out: raw } = &gate_up.op else {
        return None;
    };
    let Op::Swiglu { desc: unit, x: read, out: made, scales: made_scales } = &swiglu.op else { return None };
    let Op::ExpertProduct { desc: last, x: input, scales: input_scales, ids: chosen, weights: down, out } =
        &down.op
    else {
        return None;
    };
    let mut private = vec![*raw, *made];
    private.extend(*made_scales);
    let rows = match quantised {
        Some((quantise, rows, codes, row_scales)) => {
            private.extend([*codes, *row_scales]);
            let connected = x == codes && *scales == Some(*row_scales) && unit.out == DType::F8E4M3;
            (connected && quantise.columns == desc.in_features).then_some(rows)?
        }
        None => (scales.is_none() && unit.out == unit.activation && desc.in_columns == desc.in_features)
            .then_some(x)?,
    };
    let connected = read == raw && input == made && input_scales == made_scales && chosen == ids;
    let shapes = desc.interleaved == 1
        && desc.per_pair == 0
        && last.per_pair == 1
        && desc.out_columns == desc.out_features
        && last.out_columns == last.out_features
        && 2 * unit.columns == desc.out_features
        && unit.columns == last.in_features
        && last.out_features == desc.in_features;
    let fused = ExpertsDesc {
        hidden: desc.in_features,
        intermediate: unit.columns,
        experts: desc.experts,
        first_expert: desc.first_expert,
        local_experts: desc.local_experts,
        top_k: desc.top_k,
        limit: unit.limit,
        alpha: unit.alpha,
        activation: desc.out,
        weight: desc.weight,
        allow_fp8: u32::from(quantised.is_some()),
    };
    let private = private.iter().all(|tensor| readers(graph, *tensor) == 1);
    (connected && shapes && private && can(&OpDesc::Experts(fused))).then_some((
        first + 3 - at,
        Op::Experts { desc: fused, x: *rows, ids: *ids, gate_up: *gate_up, down: *down, out: *out },
    ))
}
