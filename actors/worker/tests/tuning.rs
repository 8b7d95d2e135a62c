//! Tuning a model: what is measured, kept and found again, and that it changes no result.

mod common;

use common::{Driver, Request, fixture, open, options};
use gossamer_backend_api::DType;
use gossamer_kernels::tuner::{CacheKey, KernelCache, SCHEMA};
use gossamer_worker::TuneLimits;
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
fn without_budget_nothing_is_measured() {
    let mut model = open(&fixture("golden-a"), &options(DType::F32, 8), 1);
    let none = TuneLimits { budget: Duration::ZERO, single: true };
    assert_eq!(model.tune(&mut cache(), none, &mut |_, _| {}).unwrap(), 0);
}
