//! The planner against sums that can be done by hand, and against what every planner must keep.

#![allow(clippy::unwrap_used)]

use gossamer_bench::layout::Layout;
use gossamer_kernels::cost::{CostModel, StepLoad};
use gossamer_plan::cost::{LayoutCost, Links};
use gossamer_plan::{Answer, Fleet, ModelShape, Outcome, Request, Routing, Settings, Synthetic, Targets};
use indicatif::ProgressBar;

const LINKS: Links = Links { bytes_per_second: 450e9, latency: 8e-6 };

fn calibration() -> CostModel {
    CostModel {
        fixed_us: 300.0,
        dense_us: 700.0,
        experts_us: 12_800.0,
        num_experts: 128,
        experts_per_token: 4,
        token_us: 14.0,
        context_us: 0.001,
        pair_us: 0.00002,
        ..CostModel::instant()
    }
}

fn settings() -> Settings {
    Settings {
        max_num_seqs: 64,
        max_num_batched_tokens: 8192,
        usable_bytes: 126.0 * f64::from(1 << 30),
        blocks_override: None,
        kv_value_bytes: 2.0,
        links: LINKS,
        routing: Routing::LeastLoaded,
        report_interval: 50_000_000,
        threads: 2,
    }
}

struct Case {
    settings: Settings,
    targets: Targets,
    requests: Vec<Request>,
}

impl Case {
    fn new(requests: Vec<Request>) -> Self {
        Self {
            settings: settings(),
            targets: Targets { ttft_ms: 1e6, tpot_ms: 1e6, percentile: 95.0 },
            requests,
        }
    }

    fn drawn(rate: f64, count: usize, seed: u64) -> Self {
        let workload =
            Synthetic { rate, burstiness: 0.5, count, input: 512, output: 64, range_ratio: 0.9, seed };
        let mut case = Self::new(workload.draw().unwrap());
        case.targets = Targets { ttft_ms: 150.0, tpot_ms: 14.0, percentile: 95.0 };
        case
    }

    fn with<T>(&self, then: impl FnOnce(&Fleet<'_>) -> T) -> T {
        let (shape, calibration) = (ModelShape::named("gpt-oss-120b").unwrap(), calibration());
        then(&Fleet {
            shape: &shape,
            calibration: &calibration,
            requests: &self.requests,
            settings: &self.settings,
            targets: self.targets,
        })
    }

    fn run(&self, layout: &str, replicas: u32) -> Outcome {
        self.with(|fleet| fleet.run(&layout.parse().unwrap(), replicas, |_| {}).unwrap())
    }
}

/// Milliseconds of a stage's step with one run.
fn stage_ms(cost: &LayoutCost, start: u32, count: u32) -> (f64, f64) {
    let mut load = StepLoad::default();
    load.add_run(start, count);
    (cost.stage(&[load]) as f64 * 1e-6, cost.send(&[load]) as f64 * 1e-6)
}

#[test]
fn one_request_takes_the_sum_of_its_steps() {
    let shape = ModelShape::named("gpt-oss-120b").unwrap();
    for layout in
        ["tp=1", "tp=4", "pp=2", "tp=2,pp=3", "dp=4,ep", "prefill=1,decode=2", "tp=2,prefill=1,decode=1"]
    {
        let parsed: Layout = layout.parse().unwrap();
        let cost = LayoutCost::new(&calibration(), &shape, &parsed, LINKS);
        for (input, output) in [(1u32, 1u32), (100, 2), (5000, 10), (20_000, 70)] {
            let stages = f64::from(parsed.pipeline);
            let step = |start: u32, count: u32| {
                let (work, send) = stage_ms(&cost, start, count);
                stages * work + (stages - 1.0) * send
            };
            // The prompt runs in chunks of the token budget. In a pipeline the next chunk starts when the last has left it.
            let chunks = (0..input).step_by(8192).map(|start| step(start, (input - start).min(8192)));
            let ttft: f64 = chunks.sum();
            let mut decode: f64 = (0..output - 1).map(|token| step(input + token, 1)).sum();
            if parsed.split.is_some() && output > 1 {
                // 18 full layers keep the prompt, 18 window layers its end; keys and values of 8 heads of 64 in bf16.
                let bytes = f64::from(input + input.min(128)) * 18.0 * 2.0 * 8.0 * 64.0 * 2.0;
                decode += cost.handoff(bytes) as f64 * 1e-6;
            }
            let case = Case::new(vec![Request { arrival: 123_456_789, input, output }]);
            let got = case.run(layout, 1);
            let close = |got: f64, expected: f64| (got - expected).abs() <= 1e-9 * expected + 2e-5;
            assert!(
                close(got.ttft_ms, ttft),
                "{layout} {input}+{output}: TTFT {} ms, by hand {ttft}",
                got.ttft_ms
            );
            let tpot = decode / f64::from((output - 1).max(1));
            assert!(
                close(got.tpot_ms, tpot),
                "{layout} {input}+{output}: TPOT {} ms, by hand {tpot}",
                got.tpot_ms
            );
        }
    }
}

#[test]
fn requests_that_decode_together_share_their_steps() {
    // Both arrive at once, and the second plan of the engine takes the second in: see `engine`.
    let one = Request { arrival: 0, input: 64, output: 200 };
    let alone = Case::new(vec![one]).run("tp=1", 1);
    let together = Case::new(vec![one; 2]).run("tp=1", 1);
    let apart = Case::new(vec![one; 2]).run("tp=1", 2);
    assert_eq!(apart.tpot_ms, alone.tpot_ms);
    // Two tokens touch nearly twice the experts of one: 400 us a token in the calibration.
    let expected = alone.tpot_ms + 0.4;
    assert!((together.tpot_ms - expected).abs() < 0.05, "{} ms, about {expected}", together.tpot_ms);
    assert!(together.tokens_per_second_per_gpu > 1.2 * alone.tokens_per_second_per_gpu);
}

#[test]
fn more_gpus_never_miss_what_fewer_met() {
    let (mut met, mut missed) = (0, 0);
    for seed in 0..6 {
        let mut case = Case::drawn(200.0, 600, seed);
        for routing in [Routing::LeastLoaded, Routing::RoundRobin] {
            case.settings.routing = routing;
            for layout in ["tp=1", "tp=2", "dp=2,ep"] {
                let verdicts: Vec<bool> =
                    [1, 2, 3, 4, 8].map(|replicas| case.run(layout, replicas).met).to_vec();
                assert!(verdicts.is_sorted(), "{layout}, seed {seed}, {routing:?}: {verdicts:?}");
                met += verdicts.iter().filter(|met| **met).count();
                missed += verdicts.iter().filter(|met| !**met).count();
            }
        }
    }
    assert!(met > 20 && missed > 20, "the targets separate: {met} met, {missed} missed");
}

#[test]
fn the_seed_decides_and_threads_do_not() {
    let mut case = Case::drawn(60.0, 500, 3);
    case.targets.tpot_ms = 1e6;
    case.targets.ttft_ms = 1e6;
    for layout in ["tp=1", "tp=2,pp=2", "prefill=1,decode=2"] {
        let first = case.run(layout, 5);
        for threads in [1, 3, 8] {
            case.settings.threads = threads;
            assert_eq!(case.run(layout, 5), first, "{layout} on {threads} threads");
        }
        let other = Case { requests: Case::drawn(60.0, 500, 4).requests, ..Case::drawn(60.0, 500, 4) };
        let mut other = other;
        other.targets = case.targets;
        assert_ne!(other.run(layout, 5).ttft_ms, first.ttft_ms, "another seed is another workload");
    }
}

#[test]
fn the_least_number_of_replicas_meets_and_one_fewer_does_not() {
    let case = Case::drawn(80.0, 500, 1);
    case.with(|fleet| {
        let layout: Layout = "tp=1".parse().unwrap();
        let answer = fleet.least(&layout, 64, &ProgressBar::hidden()).unwrap();
        let Answer::Met(best) = answer else { panic!("{answer:?}") };
        assert!(best.met && best.replicas > 1, "{best:?}");
        assert!(!fleet.run(&layout, best.replicas - 1, |_| {}).unwrap().met);
        let answer = fleet.least(&layout, best.replicas - 1, &ProgressBar::hidden()).unwrap();
        assert!(matches!(answer, Answer::Missed(_)), "{answer:?}");
    });
}

#[test]
fn what_cannot_be_is_said() {
    let case = Case::new(vec![Request { arrival: 0, input: 100, output: 10 }]);
    case.with(|fleet| {
        for (layout, max_gpus, part) in [
            ("tp=8", 4, "more than the 4 allowed"),
            ("dp=2", 8, "leave dp out"),
            ("pp=40", 64, "40 stages for 36 layers"),
            ("tp=128", 128, "128 ranks for 64 query heads"),
        ] {
            let layout = layout.parse().unwrap();
            let answer = fleet.least(&layout, max_gpus, &ProgressBar::hidden()).unwrap();
            let Answer::Impossible { reason, .. } = answer else { panic!("{answer:?}") };
            assert!(reason.contains(part), "{reason}");
            let answer = fleet.exactly(&layout, layout.gpus(), &ProgressBar::hidden()).unwrap();
            let named = matches!(&answer, Answer::Impossible { reason, .. } if reason.contains(part));
            assert_eq!(
                named,
                max_gpus >= layout.gpus(),
                "the layout itself is checked for --gpus too: {answer:?}"
            );
        }
    });
    let mut small = Case::new(vec![Request { arrival: 0, input: 10_000, output: 10 }]);
    small.settings.blocks_override = Some(20);
    let outcome = small.run("tp=1", 1);
    assert_eq!((outcome.refused, outcome.met), (1, false), "a prompt that can never fit is a miss");
}

#[test]
fn a_full_cache_preempts_and_still_serves_everybody() {
    let mut case = Case::new(vec![Request { arrival: 0, input: 1000, output: 500 }; 40]);
    let roomy = case.run("tp=1", 1);
    case.settings.blocks_override = Some(400);
    let tight = case.run("tp=1", 1);
    assert_eq!(tight.refused, 0);
    assert!(tight.seconds > 1.2 * roomy.seconds, "{} s after {} s", tight.seconds, roomy.seconds);
    let split = case.run("prefill=1,decode=1", 1);
    assert!(split.met && split.refused == 0);
}
