//! A million requests over a thousand replicas: how long the simulation takes, and what a generated token costs it.

use gossamer_bench::layout::Layout;
use gossamer_kernels::cost::CostModel;
use gossamer_plan::cost::Links;
use gossamer_plan::{Fleet, ModelShape, Routing, Settings, Synthetic, Targets};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // `cargo test --benches` passes --test: a short run shows that it works.
    let (count, replicas) =
        if std::env::args().any(|arg| arg == "--test") { (2_000, 2) } else { (1_000_000, 1000) };
    let shape = ModelShape::named("gpt-oss-120b").ok_or("gpt-oss-120b has a shape")?;
    let calibration = CostModel {
        fixed_us: 300.0,
        dense_us: 700.0,
        experts_us: 12_800.0,
        num_experts: 128,
        experts_per_token: 4,
        token_us: 14.0,
        context_us: 0.001,
        pair_us: 0.00002,
        ..CostModel::instant()
    };
    for (routing, rate_of_one) in
        [(Routing::RoundRobin, 4.0), (Routing::LeastLoaded, 4.0), (Routing::LeastLoaded, 20.0)]
    {
        let settings = Settings {
            max_num_seqs: 256,
            max_num_batched_tokens: 8192,
            usable_bytes: 126.0 * f64::from(1 << 30),
            blocks_override: None,
            kv_value_bytes: 2.0,
            links: Links { bytes_per_second: 450e9, latency: 8e-6 },
            routing,
            report_interval: 100_000_000,
            threads: std::thread::available_parallelism()?.get(),
        };
        let rate = rate_of_one * f64::from(replicas);
        let workload =
            Synthetic { rate, burstiness: 1.0, count, input: 1024, output: 256, range_ratio: 0.5, seed: 1 };
        let requests = workload.draw()?;
        let tokens: u64 = requests.iter().map(|request| u64::from(request.output)).sum();
        let targets = Targets { ttft_ms: 1e6, tpot_ms: 1e6, percentile: 99.0 };
        let fleet = Fleet {
            shape: &shape,
            calibration: &calibration,
            requests: &requests,
            settings: &settings,
            targets,
        };
        let start = Instant::now();
        let outcome = fleet.run(&Layout::SINGLE, replicas, |_| {})?;
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{count} requests, {replicas} replicas, {routing:?}, {rate}/s: {seconds:.1} s on {} threads, {:.0} ns a token \
             ({:.0} virtual s, busy {:.0} %, TTFT p99 {:.0} ms, TPOT p99 {:.1} ms)",
            settings.threads,
            seconds * 1e9 / tokens as f64,
            outcome.seconds,
            outcome.busy * 100.0,
            outcome.ttft_ms,
            outcome.tpot_ms
        );
    }
    Ok(())
}
