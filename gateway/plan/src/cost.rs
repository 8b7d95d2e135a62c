//! Step times of a layout: a calibration that was measured on one GPU, and factors.
//!
//! With `tp`, `pp`, `dp` ranks, `W` bytes a second and a latency `l` of the links (both assumptions, until a layout is
//! calibrated of its own), per stage and step:
//!
//! | term | factor | why |
//! |---|---|---|
//! | fixed | 1 | every stage launches its kernels; nothing is won by splitting them |
//! | dense weights | largest share of layers / tp | every data-parallel rank reads its own copy |
//! | expert weights | largest share of layers x of 32-wide blocks (tp) x of experts (ep) | the slowest rank counts: 23 of 90 blocks with tp=4. Experts touched are those of all ranks' tokens together |
//! | arithmetic | largest share of layers / tp / dp, of all ranks' tokens | the all-to-all evens it out |
//! | context, pairs | largest share of layers x of KV heads (context), / tp (pairs) | attention stays on its rank: the busiest counts |
//! | all-reduce (tp) | 2 a layer: `l + 2 (tp-1)/tp * tokens * hidden * 2 B / W` | ring |
//! | all-to-all (ep) | 2 a layer: `l + (dp-1)/dp * tokens * min(k, dp) * hidden * 2 B / W` | each token goes to k experts |
//! | stage to stage (pp) | `l + tokens * hidden * 2 B / W` | |
//! | prefill to decode | `l + keys and values of the prompt / (W * tp)` | window layers send their window alone |
//!
//! Communication is not overlapped with arithmetic. Expert choices are even, as in the cost model.

use crate::shape::ModelShape;
use gossamer_bench::layout::Layout;
use gossamer_kernels::cost::{CostModel, StepLoad};

/// The links between GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Links {
    /// Bytes a second, one way.
    pub bytes_per_second: f64,
    /// Seconds that a message or a collective takes whatever its size.
    pub latency: f64,
}

/// Step times of one engine of a layout.
#[derive(Clone, Debug)]
pub struct LayoutCost {
    step: CostModel,
    /// Seconds of a step's collectives, and per token of the busiest rank.
    collectives: (f64, f64),
    /// Seconds from stage to stage, and per token.
    send: (f64, f64),
    /// Seconds of a handoff, and per byte.
    handoff: (f64, f64),
}

impl LayoutCost {
    /// Costs of `layout` by a calibration of one GPU.
    pub fn new(calibration: &CostModel, shape: &ModelShape, layout: &Layout, links: Links) -> Self {
        let (tp, dp) = (f64::from(layout.tensor), f64::from(layout.data));
        let layers = shape.layer_share(layout);
        let step = CostModel {
            dense_us: calibration.dense_us * layers / tp,
            experts_us: calibration.experts_us * layers * shape.expert_share(layout),
            token_us: calibration.token_us * layers / (tp * dp),
            context_us: calibration.context_us * layers * shape.kv_share(layout),
            pair_us: calibration.pair_us * layers / tp,
            ..calibration.clone()
        };
        let row = 2.0 * f64::from(shape.hidden) / links.bytes_per_second;
        let times = 2.0 * (f64::from(shape.layers) * layers).round();
        let (mut fixed, mut per_token) = (0.0, 0.0);
        if layout.tensor > 1 {
            fixed += times * links.latency;
            per_token += times * 2.0 * (tp - 1.0) / tp * row;
        }
        if layout.expert && layout.data > 1 {
            fixed += times * links.latency;
            let ranks = f64::from(shape.experts_per_token.min(layout.data));
            per_token += times * (dp - 1.0) / dp * ranks * row;
        }
        let send = if layout.pipeline > 1 { (links.latency, row) } else { (0.0, 0.0) };
        let handoff = (links.latency, 1.0 / (links.bytes_per_second * tp));
        Self { step, collectives: (fixed, per_token), send, handoff }
    }

    /// Nanoseconds that a stage works on a step; one load per data-parallel rank.
    pub fn stage(&self, loads: &[StepLoad]) -> u64 {
        let busiest = |what: fn(&StepLoad) -> u64| loads.iter().map(what).max().unwrap_or(0);
        let all = StepLoad {
            tokens: loads.iter().map(|load| load.tokens).sum(),
            context: busiest(|load| load.context),
            pairs: busiest(|load| load.pairs),
        };
        let (fixed, per_token) = self.collectives;
        let collectives = fixed + per_token * busiest(|load| load.tokens) as f64;
        self.step.step(&all).as_nanos() as u64 + (collectives * 1e9) as u64
    }

    /// Nanoseconds from one stage to the next.
    pub fn send(&self, loads: &[StepLoad]) -> u64 {
        let tokens: u64 = loads.iter().map(|load| load.tokens).max().unwrap_or(0);
        ((self.send.0 + self.send.1 * tokens as f64) * 1e9) as u64
    }

    /// Nanoseconds in which keys and values of a prompt go from one GPU group to another.
    pub fn handoff(&self, bytes: f64) -> u64 {
        ((self.handoff.0 + self.handoff.1 * bytes) * 1e9) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINKS: Links = Links { bytes_per_second: 450e9, latency: 8e-6 };

    fn calibration() -> CostModel {
        CostModel {
            fixed_us: 100.0,
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

    fn cost(layout: &str) -> LayoutCost {
        let shape = ModelShape::named("gpt-oss-120b").unwrap();
        LayoutCost::new(&calibration(), &shape, &layout.parse().unwrap(), LINKS)
    }

    fn load(start: u32, count: u32) -> StepLoad {
        let mut load = StepLoad::default();
        load.add_run(start, count);
        load
    }

    #[test]
    fn one_gpu_costs_what_its_calibration_says() {
        for (start, count) in [(0, 1), (1000, 1), (0, 5000), (70_000, 300)] {
            let load = load(start, count);
            assert_eq!(u128::from(cost("tp=1").stage(&[load])), calibration().step(&load).as_nanos());
        }
        assert_eq!(cost("tp=1").send(&[load(0, 9)]), 0);
    }

    #[test]
    fn factors_are_those_of_the_table() {
        let close = |got: u64, micros: f64| {
            assert!((got as f64 / 1e3 - micros).abs() < 0.01, "{got} ns, {micros} us")
        };
        // One token: 1 of 32 of the experts' weights.
        let all_reduce = 72.0 * (8.0 + 2.0 * 0.75 * 2.0 * 2880.0 / 450e3);
        close(cost("tp=4").stage(&[load(0, 1)]), 100.0 + 175.0 + 400.0 * 23.0 / 90.0 + 0.00025 + all_reduce);
        close(cost("pp=4").stage(&[load(0, 1)]), 100.0 + 175.0 + 100.0);
        close(cost("pp=4").send(&[load(0, 1)]), 8.0 + 2.0 * 2880.0 / 450e3);
        // Two ranks with a token each touch the experts of two tokens, and each reads half of those.
        let touched = 12_800.0 * (1.0 - (1.0f64 - 1.0 / 32.0).powi(2)) / 2.0;
        let all_to_all = 72.0 * (8.0 + 0.5 * 2.0 * 2.0 * 2880.0 / 450e3);
        close(cost("dp=2,ep").stage(&[load(0, 1), load(0, 1)]), 100.0 + 700.0 + touched + all_to_all);
    }
}
