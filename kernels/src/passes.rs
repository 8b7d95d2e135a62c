//! Fusion passes: each rewrites a pattern of operations into one that does the same in fewer.
//!
//! Invariant: a pass fires only where a backend that may be chosen says yes to the fused description, and leaves the
//! graph as it was elsewhere. Every pass can be switched off by name, and the graph then still runs.

mod fused_moe;
mod norm_gemm;

use crate::graph::{Graph, TensorId};
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
        name: "fused-moe",
        about: "norm + route + experts + finalize become one operation",
        apply: fused_moe::apply,
    },
    Pass {
        name: "norm-gemm",
        about: "a norm read by one product alone becomes the product's prologue",
        apply: norm_gemm::apply,
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

/// How many operations read a tensor.
fn readers(graph: &Graph, id: TensorId) -> usize {
    graph.nodes.iter().filter(|node| node.op.reads().contains(&id)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Op, build};
    use crate::test_model::{config, options};

    fn kinds(graph: &Graph) -> Vec<&'static str> {
        graph.nodes.iter().map(|node| node.op.desc().kind().label()).collect()
    }

    #[test]
    fn with_every_fusion_a_layer_is_five_operations() {
        let mut graph = build(&config(), &options());
        let applied = run(&mut graph, &BTreeSet::new(), &|_| true);
        assert_eq!(
            applied,
            [Applied { name: "fused-moe", times: 4 }, Applied { name: "norm-gemm", times: 5 }]
        );
        let layer = ["gemm", "rope-kv-write", "attention", "gemm", "moe-fused"];
        let expected: Vec<_> =
            ["embed"].into_iter().chain([layer; 4].concat()).chain(["gemm", "sample"]).collect();
        assert_eq!(kinds(&graph), expected);
    }

    #[test]
    fn nothing_fires_where_no_backend_can() {
        let mut graph = build(&config(), &options());
        let before = graph.clone();
        let can = |desc: &OpDesc| match desc {
            OpDesc::FusedMoe(_) => false,
            OpDesc::Gemm(desc) => desc.norm == 0,
            _ => true,
        };
        let applied = run(&mut graph, &BTreeSet::new(), &can);
        assert!(applied.iter().all(|applied| applied.times == 0), "{applied:?}");
        assert_eq!(graph, before);
    }

    #[test]
    fn a_pass_can_be_switched_off_by_name() {
        let mut graph = build(&config(), &options());
        let disabled = parse_disabled(["fused-moe"]).unwrap();
        run(&mut graph, &disabled, &|_| true);
        assert!(graph.nodes.iter().any(|node| matches!(node.op, Op::Experts { .. })));
        assert!(!graph.nodes.iter().any(|node| matches!(node.op, Op::FusedMoe { .. })));
        let error = parse_disabled(["fuse-all"]).unwrap_err().to_string();
        assert!(error.contains("'fuse-all'") && error.contains("norm-gemm"), "{error}");
    }

    #[test]
    fn a_norm_with_two_readers_stays() {
        let mut graph = build(&config(), &options());
        // The router and the experts both read the second norm.
        run(&mut graph, &parse_disabled(["fused-moe"]).unwrap(), &|_| true);
        let norms = graph.nodes.iter().filter(|node| matches!(node.op, Op::RmsNorm { .. })).count();
        assert_eq!(norms, 4);
    }

    #[test]
    fn text_and_svg_show_alike_layers_once() {
        let mut graph = build(&config(), &options());
        let before = graph.text();
        assert_eq!(before.matches("moe-experts").count(), 2, "{before}");
        assert!(before.contains("layers 0, 2") && before.contains("layers 1, 3"), "{before}");
        run(&mut graph, &BTreeSet::new(), &|_| true);
        let after = graph.text();
        assert!(after.contains("moe-fused") && !after.contains("moe-experts"), "{after}");
        let svg = graph.svg("a < b");
        assert!(svg.contains("a &lt; b") && svg.matches("<rect").count() == 14, "{svg}");
    }
}
