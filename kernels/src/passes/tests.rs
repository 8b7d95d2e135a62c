use super::*;
use crate::graph::{GraphOptions, Op, Shard, build, shard};
use crate::test_model::{config, options};

/// A model whose sizes are no whole tiles.
fn odd() -> gossamer_config::ModelConfig {
    gossamer_config::ModelConfig { hidden_size: 288, intermediate_size: 352, ..config() }
}

fn kinds(graph: &Graph) -> Vec<&'static str> {
    graph.nodes.iter().map(|node| node.op.desc().kind().label()).collect()
}

fn times(applied: &[Applied]) -> Vec<(&'static str, usize)> {
    applied.iter().map(|applied| (applied.name, applied.times)).collect()
}

fn fp8() -> GraphOptions {
    GraphOptions { allow_fp8_experts: true, ..options() }
}

fn part(ranks: u32) -> Graph {
    let place = Shard { rank: 0, ranks };
    build(&shard(&odd(), place).unwrap(), &GraphOptions { shard: place, ..fp8() })
}

#[test]
fn with_every_fusion_a_layer_is_four_operations() {
    for config in [config(), odd()] {
        let mut graph = build(&config, &options());
        let applied = run(&mut graph, &BTreeSet::new(), &|_| true);
        let expected = [
            ("rope-kv-write", 4),
            ("pad-quantise", 0),
            ("swiglu-quantise", 0),
            ("finalize-slice", 4),
            ("experts", 4),
            ("fused-moe", 4),
            ("all-reduce-norm", 0),
            ("norm-gemm", 5),
            ("qkv-rope", 4),
        ];
        assert_eq!(times(&applied), expected);
        let layer = ["qkv-rope", "attention", "gemm", "moe-fused"];
        let expected: Vec<_> =
            ["embed"].into_iter().chain([layer; 4].concat()).chain(["gemm", "sample"]).collect();
        assert_eq!(kinds(&graph), expected);
    }
}

#[test]
fn where_rows_are_rounded_to_e4m3_padding_and_rounding_go_into_the_experts() {
    let mut graph = build(&odd(), &fp8());
    let layer = [
        "rms-norm",
        "gemm",
        "rope",
        "scale",
        "kv-write",
        "attention",
        "gemm",
        "rms-norm",
        "moe-route",
        "resize",
        "quantise",
        "moe-product",
        "swiglu",
        "resize",
        "quantise",
        "moe-product",
        "moe-combine",
        "resize",
        "add",
    ];
    assert_eq!(kinds(&graph)[1..=layer.len()], layer);
    let applied = run(&mut graph, &BTreeSet::new(), &|_| true);
    let fired = times(&applied);
    assert_eq!(
        fired[1..5],
        [("pad-quantise", 8), ("swiglu-quantise", 4), ("finalize-slice", 4), ("experts", 4)]
    );
    let fused = graph.nodes.iter().find_map(|node| match &node.op {
        Op::FusedMoe { desc, .. } => Some(*desc),
        _ => None,
    });
    let experts = fused.unwrap().experts;
    assert_eq!((experts.hidden, experts.intermediate, experts.allow_fp8), (288, 352, 1));
}

#[test]
fn on_a_shard_sums_over_ranks_take_the_residual_and_the_norm_after_them() {
    for ranks in [2, 4] {
        // Two KV heads, so four ranks have too few.
        if ranks == 4 {
            assert!(shard(&odd(), Shard { rank: 0, ranks }).is_err());
            continue;
        }
        let mut graph = part(ranks);
        let count = |graph: &Graph, name| kinds(graph).iter().filter(|kind| **kind == name).count();
        // After attention and after the experts of each layer.
        assert_eq!((count(&graph, "all-reduce"), count(&graph, "rms-norm")), (8, 9));
        let applied = run(&mut graph, &BTreeSet::new(), &|_| true);
        assert!(times(&applied).contains(&("all-reduce-norm", 8)), "{applied:?}");
        // The first norm comes before any sum, and goes into its product.
        assert_eq!((count(&graph, "all-reduce"), count(&graph, "rms-norm")), (0, 0));
        assert_eq!((count(&graph, "all-reduce-norm"), count(&graph, "moe-fused")), (8, 0));
        assert_eq!((count(&graph, "moe-experts"), count(&graph, "moe-combine")), (4, 4));
        let text = graph.text();
        assert!(text.contains("over 2 ranks, adds the residual, norm"), "{text}");
    }
    // Biases of partial sums are rank 0's alone.
    let place = Shard { rank: 1, ranks: 2 };
    let graph = build(&shard(&odd(), place).unwrap(), &GraphOptions { shard: place, ..options() });
    let biases = |graph: &Graph| {
        let gemms = graph.nodes.iter().filter_map(|node| match &node.op {
            Op::Gemm { segments, .. } => {
                Some(segments.iter().filter(|segment| segment.bias.is_some()).count())
            }
            _ => None,
        });
        gemms.sum::<usize>()
    };
    assert_eq!((biases(&part(2)), biases(&graph)), (16, 12));
}

#[test]
fn nothing_fires_where_no_backend_can() {
    for mut graph in [build(&odd(), &options()), build(&odd(), &fp8()), part(2)] {
        let before = graph.clone();
        let can = |desc: &OpDesc| match desc {
            OpDesc::FusedMoe(_) | OpDesc::RopeKvWrite(_) | OpDesc::Experts(_) => false,
            OpDesc::AllReduceNorm(_) | OpDesc::QkvRope(_) => false,
            OpDesc::Gemm(desc) => desc.norm == 0,
            OpDesc::Quantise(desc) => desc.padded == desc.columns,
            OpDesc::Swiglu(desc) => desc.out == desc.activation,
            OpDesc::ExpertProduct(desc) => desc.out_columns > desc.out_features,
            OpDesc::Finalize(_) => false,
            _ => true,
        };
        let applied = run(&mut graph, &BTreeSet::new(), &can);
        assert!(applied.iter().all(|applied| applied.times == 0), "{applied:?}");
        assert_eq!(graph, before);
    }
}

#[test]
fn every_pass_can_be_switched_off_by_name_and_leaves_its_parts() {
    let fused = |graph: &Graph, disabled: &[&str]| {
        let mut graph = graph.clone();
        run(&mut graph, &parse_disabled(disabled.iter().copied()).unwrap(), &|_| true);
        kinds(&graph)
    };
    let (one, several) = (build(&odd(), &fp8()), part(2));
    for (pass, graph, part, whole) in [
        ("rope-kv-write", &one, "rope", "qkv-rope"),
        ("pad-quantise", &one, "quantise", "moe-experts"),
        ("swiglu-quantise", &one, "swiglu", "moe-experts"),
        ("finalize-slice", &one, "resize", "moe-finalize"),
        ("experts", &one, "moe-product", "moe-experts"),
        ("fused-moe", &one, "moe-experts", "moe-fused"),
        ("all-reduce-norm", &several, "all-reduce", "all-reduce-norm"),
        ("norm-gemm", &one, "rms-norm", "never"),
        ("qkv-rope", &one, "rope-kv-write", "qkv-rope"),
    ] {
        assert!(PASSES.iter().any(|known| known.name == pass));
        let (on, off) = (fused(graph, &[]), fused(graph, &[pass]));
        assert!(!on.contains(&part), "{pass}: {on:?}");
        assert!(off.contains(&part) && !off.contains(&whole), "{pass}: {off:?}");
    }
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
    let mut graph = build(&odd(), &fp8());
    let before = graph.text();
    assert_eq!(before.matches("moe-product").count(), 4, "{before}");
    assert!(before.contains("layers 0, 2") && before.contains("layers 1, 3"), "{before}");
    assert!(before.contains("pads 288 to 512") && before.contains("slices 512 to 288"), "{before}");
    run(&mut graph, &BTreeSet::new(), &|_| true);
    let after = graph.text();
    assert!(after.contains("moe-fused") && !after.contains("moe-product"), "{after}");
    let svg = graph.svg("a < b");
    assert!(svg.contains("a &lt; b") && svg.matches("<rect").count() == 12, "{svg}");
}
