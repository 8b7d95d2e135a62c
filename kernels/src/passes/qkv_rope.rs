//! Rotation and cache write go into the product before them: between two kernels of a step of few tokens lies more time than either
//! of them takes for it.

use super::{Can, replace};
use crate::graph::{Graph, Op};
use gossamer_backend_api::OpDesc;
use gossamer_backend_api::ops::QkvRopeDesc;

pub(super) fn apply(graph: &mut Graph, can: Can<'_>) -> usize {
    replace(graph, |graph, at| matched(graph, at, can).map(|op| (2, [op])))
}

fn matched(graph: &Graph, at: usize, can: Can<'_>) -> Option<Op> {
    let [product, rope] = graph.nodes.get(at..at + 2)? else { return None };
    let Op::Gemm { desc: product, x, norm_weight, segments, residual: None, out } = &product.op else {
        return None;
    };
    let Op::RopeKvWrite { desc: rope, qkv, kv } = &rope.op else { return None };
    let whole = product.columns() == (rope.heads + 2 * rope.kv_heads) * rope.head_dim
        && product.out == rope.activation
        && product.gather == 0;
    let desc = QkvRopeDesc { product: *product, rope: *rope };
    (qkv == out && whole && can(&OpDesc::QkvRope(desc))).then(|| Op::QkvRope {
        desc,
        x: *x,
        norm_weight: *norm_weight,
        segments: segments.clone(),
        qkv: *qkv,
        kv: *kv,
    })
}
