//! Tuning a model: what is measured, kept and found again, and that it changes no result.

mod common;

use common::{Driver, Request, fixture, open, options};
use gossamer_backend_api::{DType, Exported, KernelBackend, OpDesc};
use gossamer_fallback::Fallback;
use gossamer_kernels::Backends;
use gossamer_kernels::tuner::{CacheKey, KernelCache, SCHEMA};
use gossamer_worker::{Model, TuneLimits, pool};
use std::sync::Arc;
use std::time::Duration;

fn cache() -> KernelCache {
    KernelCache::new(CacheKey {
        schema: SCHEMA,
        device: "test".into(),
        driver: String::new(),
        plugins: vec![],
        model: "golden-a".into(),
        layout: "tp1".into(),
    })
}

#[test]
fn every_operation_is_measured_once_per_token_count_and_results_stay() {
    let mut model = open(&fixture("golden-a"), &options(DType::F32, 40), 2);
    let mut cache = cache();
    let all = TuneLimits { budget: Duration::MAX, single: true };
    let mut counts = Vec::new();
    let measured = model.tune(&mut cache, all, &mut |tokens, _| counts.push(tokens)).unwrap();
    assert_eq!(counts, (1..=16).chain([32, 64]).collect::<Vec<_>>());
    let (mut distinct, mut expected) = (Vec::new(), 0);
    for node in &model.program().graph.nodes {
        let desc = node.op.desc();
        if !distinct.contains(&desc) {
            let entry = cache.get(&format!("{desc:?}"), 4).expect("an entry for every operation");
            assert!(entry.micros > 0.0, "{entry:?}");
            // At most eight sequences draw.
            let most = if node.op.runs_on_samples() { 8 } else { u32::MAX };
            expected += counts.iter().filter(|count| **count <= most).count();
            distinct.push(desc);
        }
    }
    assert_eq!(measured, expected);
    assert_eq!(model.tune(&mut cache, all, &mut |_, _| {}).unwrap(), 0, "nothing is measured twice");

    let request = [Request::greedy(&[5, 6, 7, 8], 8)];
    let tuned = Driver::new(model).run(&request, 40, 40);
    let plain = Driver::new(open(&fixture("golden-a"), &options(DType::F32, 40), 2)).run(&request, 40, 40);
    assert_eq!(tuned[0].tokens, plain[0].tokens);
    assert_eq!(tuned[0].logits, plain[0].logits);
}

#[test]
fn what_a_launch_never_reaches_is_no_choice() {
    let host = pool::start(1, false).unwrap();
    let twice = || Arc::new(Fallback::open(*host).unwrap()) as Arc<dyn KernelBackend>;
    let backends = Backends::new(vec![twice(), twice()], None, None).unwrap();
    // At most eight sequences in steps of at most 40 tokens.
    let options = options(DType::F32, 40);
    let model = Model::open(&fixture("golden-a"), &options, backends.clone()).unwrap();
    let program = model.program();
    let (mut of_sequences, mut of_tokens) = (0, 0);
    for open in program.open_choices(&backends).unwrap() {
        let count = program.buckets()[open.bucket];
        let single = matches!(open.desc, OpDesc::Attention(desc) if desc.single == 1);
        if single || program.graph.nodes[open.node].op.runs_on_samples() {
            assert!(count <= 8 && open.tokens == count, "{count}: {open:?}");
            of_sequences = of_sequences.max(count);
        } else {
            assert_eq!(open.tokens, count.min(40), "{open:?}");
            of_tokens = of_tokens.max(count);
        }
    }
    assert_eq!((of_sequences, of_tokens), (8, 64));
}

#[test]
fn without_budget_nothing_is_measured() {
    let mut model = open(&fixture("golden-a"), &options(DType::F32, 8), 1);
    let none = TuneLimits { budget: Duration::ZERO, single: true };
    assert_eq!(model.tune(&mut cache(), none, &mut |_, _| {}).unwrap(), 0);
}
