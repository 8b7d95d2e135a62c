//! Norm, route, experts and finalize as one operation.

use super::{Can, readers, replace};
use crate::graph::{Graph, Op};
use gossamer_backend_api::OpDesc;
use gossamer_backend_api::ops::FusedMoeDesc;

pub(super) fn apply(graph: &mut Graph, can: Can<'_>) -> usize {
    replace(graph, |graph, at| matched(graph, at, can).map(|op| (4, [op])))
}

fn matched(graph: &Graph, at: usize, can: Can<'_>) -> Option<Op> {
    let [norm, route, experts, finalize] = graph.nodes.get(at..at + 4)? else { return None };
    let Op::RmsNorm { desc: norm_desc, x, weight: norm_weight, out: normed } = &norm.op else { return None };
    let Op::Route { desc: route, x: routed, weight, bias, ids, weights } = &route.op else { return None };
    let Op::Experts { desc: experts, x: input, ids: chosen, gate_up, down, out } = &experts.op else {
        return None;
    };
    let Op::Finalize { experts_out, weights: used, residual, .. } = &finalize.op else { return None };
    let connected = routed == normed
        && input == normed
        && chosen == ids
        && experts_out == out
        && used == weights
        && residual == x;
    let private = readers(graph, *normed) == 2
        && [*ids, *weights, *out].iter().all(|tensor| readers(graph, *tensor) == 1);
    // A shard of the experts needs an exchange between the three operations.
    let whole = experts.local_experts == experts.experts;
    let desc = FusedMoeDesc { route: *route, experts: *experts, eps: norm_desc.eps };
    (connected && private && whole && can(&OpDesc::FusedMoe(desc))).then_some(Op::FusedMoe {
        desc,
        norm_weight: *norm_weight,
        router_weight: *weight,
        router_bias: *bias,
        gate_up: *gate_up,
        down: *down,
        residual: *residual,
    })
}
