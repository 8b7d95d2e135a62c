//! Time of one plan, and of taking in one result, with many streams in the steady state.

#[path = "../tests/common/steady.rs"]
mod steady;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::time::{Duration, Instant};
use steady::Steady;

fn plan(criterion: &mut Criterion) {
    for (name, whole) in [("plan", false), ("plan_and_complete", true)] {
        let mut group = criterion.benchmark_group(name);
        for streams in [64, 1024, 4096, 16_384] {
            let mut steady = Steady::new(streams, 2);
            group.throughput(Throughput::Elements(u64::from(streams)));
            group.bench_function(BenchmarkId::from_parameter(streams), |bencher| {
                bencher.iter_custom(|iterations| {
                    let mut total = Duration::ZERO;
                    for _ in 0..iterations {
                        if steady.steps > 4000 {
                            steady = Steady::new(streams, 2); // the sequences have an end, after all
                        }
                        let start = Instant::now();
                        let mut planned = Duration::ZERO;
                        steady.step(|_| planned = start.elapsed());
                        total += if whole { start.elapsed() } else { planned };
                    }
                    total
                });
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(30).measurement_time(Duration::from_secs(2));
    targets = plan
}
criterion_main!(benches);
