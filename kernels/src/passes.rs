//! Fusion passes: each rewrites a pattern of operations into one that does the same in fewer.
//!
//! Invariant: a pass fires only where a backend that may be chosen says yes to the fused description, and leaves the
//! graph as it was elsewhere. Every pass can be switched off by name, and the graph then still runs.

mod all_reduce_norm;
mod experts;
mod finalize_slice;
mod fused_moe;
mod norm_gemm;
mod pad_quantise;
mod qkv_rope;
mod rope_kv_write;
mod swiglu_quantise;

use crate::graph::{Graph, Node, Op, TensorId};
use gossamer_backend_api::OpDesc;
use std::collections::BTreeSet;
use thiserror::Error;

/// Says whether a backend can do an operation.
pub type Can<'a> = &'a dyn Fn(&OpDesc) -> bool;

/// A rewriting rule.
pub struct Pass {
    /// Name that switches it off.
    pub name: &'static str,
    /// What it does, for people.
    pub about: &'static str,
    /// Rewrites wherever the pattern is found, and says how often it did.
    apply: fn(&mut Graph, Can<'_>) -> usize,
}

/// All passes, in the order in which they run.
pub const PASSES: &[Pass] = &[
    Pass {
        name: "rope-kv-write",
        about: "rotation + scale of queries + KV-cache write become one operation",
        apply: rope_kv_write::apply,
    },
    Pass {
        name: "pad-quantise",
        about: "padding + rounding to E4M3 become one operation",
        apply: pad_quantise::apply,
    },
    Pass {
        name: "swiglu-quantise",
        about: "SwiGLU with clamp + rounding to E4M3 become one operation",
        apply: swiglu_quantise::apply,
    },
    Pass {
        name: "finalize-slice",
        about: "the experts' sum + slice + residual become one operation",
        apply: finalize_slice::apply,
    },
    Pass {
        name: "experts",
        about: "quantise + product + SwiGLU + product become one operation",
        apply: experts::apply,
    },
    Pass {
        name: "fused-moe",
        about: "norm + route + experts + finalize become one operation",
        apply: fused_moe::apply,
    },
    Pass {
        name: "all-reduce-norm",
        about: "sum over ranks + residual + norm become one operation",
        apply: all_reduce_norm::apply,
    },
    Pass {
        name: "norm-gemm",
        about: "a norm read by one product alone becomes the product's prologue",
        apply: norm_gemm::apply,
    },
    Pass {
        name: "qkv-rope",
        about: "the qkv product + rotation + KV-cache write become one operation",
        apply: qkv_rope::apply,
    },
];

/// A pass was named that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no fusion pass '{name}'; expected one of {}", PASSES.iter().map(|pass| pass.name).collect::<Vec<_>>().join(", "))]
pub struct UnknownPass {
    /// The name.
    pub name: String,
}

/// What one pass did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The pass.
    pub name: &'static str,
    /// How often it fired.
    pub times: usize,
}

/// Checks names of passes that are to stay off.
pub fn parse_disabled<'a>(
    names: impl IntoIterator<Item = &'a str>,
) -> Result<BTreeSet<&'static str>, UnknownPass> {
    let find = |name: &str| {
        let pass = PASSES.iter().find(|pass| pass.name == name);
        pass.map(|pass| pass.name).ok_or_else(|| UnknownPass { name: name.to_owned() })
    };
    names.into_iter().map(find).collect()
}

/// Runs all passes that are not disabled.
pub fn run(graph: &mut Graph, disabled: &BTreeSet<&'static str>, can: Can<'_>) -> Vec<Applied> {
    PASSES
        .iter()
        .filter(|pass| !disabled.contains(pass.name))
        .map(|pass| Applied { name: pass.name, times: (pass.apply)(graph, can) })
        .collect()
}

/// Puts what `matched` returns in the place of so many operations, wherever it finds its pattern, and says how often.
fn replace<const N: usize>(
    graph: &mut Graph,
    matched: impl Fn(&Graph, usize) -> Option<(usize, [Op; N])>,
) -> usize {
    let (mut times, mut at) = (0, 0);
    while at < graph.nodes.len() {
        if let Some((count, ops)) = matched(graph, at) {
            let layer = graph.nodes[at].layer;
            graph.nodes.splice(at..at + count, ops.map(|op| Node { layer, op }));
            times += 1;
        }
        at += 1;
    }
    times
}

/// How many operations read a tensor.
fn readers(graph: &Graph, id: TensorId) -> usize {
    graph.nodes.iter().filter(|node| node.op.reads().contains(&id)).count()
}

#[cfg(test)]
mod tests;
