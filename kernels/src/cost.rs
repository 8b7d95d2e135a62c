//! How long a step takes, by a few coefficients: what the simulated device and the capacity planner go by.
//!
//! ```text
//! step = fixed + max(weights read, arithmetic) + keys and values read + attention of prompts
//!
//! weights read    = dense + experts * (1 - (1 - k/E)^tokens)     k of E experts per token, chosen evenly
//! arithmetic      = token * tokens
//! keys and values = context * sum over runs of the positions seen
//! prompts         = pair * sum over runs of (new tokens * positions seen before each)
//! ```
//!
//! Coefficients come from a calibration file, which is measured on real hardware; without one a step takes no time.
//! It does not know parallel layouts: a file describes one device in one layout.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// Version of the calibration file.
pub const CALIBRATION_SCHEMA: u32 = 1;

/// A calibration file cannot be used.
#[derive(Debug, Error)]
pub enum CalibrationError {
    /// It cannot be read.
    #[error("cannot read the calibration file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is no calibration file.
    #[error(
        "expected a calibration file, got {path}: {source}; write one with `gossamer bench latency --calibrate`"
    )]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// It is of another version.
    #[error("expected calibration schema {CALIBRATION_SCHEMA}, got {got} in {path}; calibrate again")]
    Schema {
        /// The file.
        path: PathBuf,
        /// Its version.
        got: u32,
    },
    /// A coefficient is no time.
    #[error("expected {key} of at least 0, got {got} in {path}")]
    Coefficient {
        /// The file.
        path: PathBuf,
        /// The coefficient.
        key: &'static str,
        /// Its value.
        got: f64,
    },
}

/// The coefficients; see the module. Times are in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostModel {
    /// [`CALIBRATION_SCHEMA`].
    pub schema: u32,
    /// What was measured: device, model, layout. For people.
    pub device: String,
    /// Whatever every step costs.
    pub fixed_us: f64,
    /// Reading the weights that every token needs.
    pub dense_us: f64,
    /// Reading all experts of all layers.
    pub experts_us: f64,
    /// Experts in a layer.
    pub num_experts: u32,
    /// Experts that a token uses.
    pub experts_per_token: u32,
    /// Arithmetic of a token.
    pub token_us: f64,
    /// Reading the keys and values of a position once, in all full layers.
    pub context_us: f64,
    /// Attention of one new token to one earlier position, in a prompt.
    pub pair_us: f64,
}

impl CostModel {
    /// Steps that take no time.
    pub fn instant() -> Self {
        Self {
            schema: CALIBRATION_SCHEMA,
            device: "none".into(),
            fixed_us: 0.0,
            dense_us: 0.0,
            experts_us: 0.0,
            num_experts: 1,
            experts_per_token: 1,
            token_us: 0.0,
            context_us: 0.0,
            pair_us: 0.0,
        }
    }

    /// Reads and checks a calibration file.
    pub fn load(path: &Path) -> Result<Self, CalibrationError> {
        let owned = || path.to_owned();
        let text = std::fs::read_to_string(path)
            .map_err(|source| CalibrationError::Read { path: owned(), source })?;
        let model: Self = serde_json::from_str(&text)
            .map_err(|source| CalibrationError::Parse { path: owned(), source })?;
        if model.schema != CALIBRATION_SCHEMA {
            return Err(CalibrationError::Schema { path: owned(), got: model.schema });
        }
        for (key, got) in [
            ("fixed_us", model.fixed_us),
            ("dense_us", model.dense_us),
            ("experts_us", model.experts_us),
            ("token_us", model.token_us),
            ("context_us", model.context_us),
            ("pair_us", model.pair_us),
        ] {
            if !(0.0..1e12).contains(&got) {
                return Err(CalibrationError::Coefficient { path: owned(), key, got });
            }
        }
        Ok(model)
    }

    /// Time of a step.
    pub fn step(&self, load: &StepLoad) -> Duration {
        if load.tokens == 0 {
            return Duration::ZERO;
        }
        let weights = self.dense_us + self.experts_us * self.touched(load);
        let arithmetic = self.token_us * load.tokens as f64;
        let attention = self.context_us * load.context as f64 + self.pair_us * load.pairs as f64;
        Duration::from_secs_f64((self.fixed_us + weights.max(arithmetic) + attention) * 1e-6)
    }
}

impl CostModel {
    /// Fits the coefficients to measured steps, in two parts: steps of single tokens are bound by reading, and tell what
    /// weights and context cost; the others tell what arithmetic and the attention of prompts cost. Relative errors count.
    /// A coefficient that no step depends on is 0. `fixed_us` cannot be told from `dense_us` and is part of it.
    pub fn fit(
        device: &str,
        num_experts: u32,
        experts_per_token: u32,
        steps: &[(StepLoad, Duration)],
    ) -> Self {
        let mut model = Self { device: device.into(), num_experts, experts_per_token, ..Self::instant() };
        let (prompts, singles): (Vec<_>, Vec<_>) = steps.iter().partition(|(load, _)| load.pairs > 0);
        let rows: Vec<_> = singles
            .iter()
            .map(|(load, time)| ([1.0, model.touched(load), load.context as f64], time.as_secs_f64() * 1e6))
            .collect();
        [model.dense_us, model.experts_us, model.context_us] = least_squares(&rows);
        let rows: Vec<_> = prompts
            .iter()
            .filter_map(|(load, time)| {
                let rest = time.as_secs_f64() * 1e6 - model.context_us * load.context as f64;
                // Short prompts are bound by reading as well, and say nothing about arithmetic.
                let bound = 1.2 * (model.dense_us + model.experts_us * model.touched(load));
                (rest > bound).then_some(([load.tokens as f64, load.pairs as f64], rest))
            })
            .collect();
        [model.token_us, model.pair_us] = least_squares(&rows);
        model
    }

    /// Share of the experts that a step reads.
    fn touched(&self, load: &StepLoad) -> f64 {
        let share = f64::from(self.experts_per_token) / f64::from(self.num_experts.max(1));
        1.0 - (1.0 - share).max(0.0).powf(load.tokens as f64)
    }
}

/// Coefficients of at least 0 whose sums come closest to the times, by relative error: coordinate descent.
fn least_squares<const N: usize>(rows: &[([f64; N], f64)]) -> [f64; N] {
    let mut coefficients = [0.0; N];
    let rows: Vec<[f64; N]> = rows
        .iter()
        .filter(|(_, time)| *time > 0.0)
        .map(|(terms, time)| terms.map(|term| term / time))
        .collect();
    for _ in 0..20_000 {
        for k in 0..N {
            let (mut above, mut below) = (0.0, 0.0);
            for terms in &rows {
                let others: f64 = (0..N).filter(|j| *j != k).map(|j| terms[j] * coefficients[j]).sum();
                above += terms[k] * (1.0 - others);
                below += terms[k] * terms[k];
            }
            coefficients[k] = if below > 0.0 { f64::max(0.0, above / below) } else { 0.0 };
        }
    }
    coefficients
}

/// What a step has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepLoad {
    /// Tokens that run.
    pub tokens: u64,
    /// Positions that runs see, each counted once per run.
    pub context: u64,
    /// New tokens of runs of several, times the positions before each.
    pub pairs: u64,
}

impl StepLoad {
    /// Adds a run of `count` tokens that starts at position `start`.
    pub fn add_run(&mut self, start: u32, count: u32) {
        let (start, count) = (u64::from(start), u64::from(count));
        self.tokens += count;
        self.context += start + count;
        if count > 1 {
            self.pairs += count * start + count * (count - 1) / 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> CostModel {
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

    fn micros(runs: &[(u32, u32)]) -> f64 {
        let mut load = StepLoad::default();
        runs.iter().for_each(|(start, count)| load.add_run(*start, *count));
        model().step(&load).as_secs_f64() * 1e6
    }

    #[test]
    fn a_step_costs_what_the_formula_says() {
        assert_eq!(micros(&[]), 0.0);
        let close = |got: f64, expected: f64| assert!((got - expected).abs() < 0.1, "{got} and {expected}");
        close(micros(&[(0, 1)]), 100.0 + 700.0 + 12_800.0 * 4.0 / 128.0);
        close(micros(&[(100_000, 1)]), 100.0 + 700.0 + 400.0 + 100.0);
        // A long prompt is bound by arithmetic, and its attention grows with what is there.
        close(micros(&[(0, 2000)]), 100.0 + 28_000.0 + 2.0 + 0.00002 * 2000.0 * 1999.0 / 2.0);
        assert!(micros(&[(50_000, 2000)]) > micros(&[(0, 2000)]) + 1900.0);
        assert_eq!(CostModel::instant().step(&StepLoad { tokens: 5, context: 5, pairs: 5 }), Duration::ZERO);
    }

    #[test]
    fn a_fit_predicts_the_steps_that_it_was_made_from() {
        let mut steps = Vec::new();
        for batch in [1, 2, 4, 8, 16, 64, 256] {
            for start in [10, 1000, 30_000] {
                let mut load = StepLoad::default();
                (0..batch).for_each(|_| load.add_run(start, 1));
                steps.push((load, model().step(&load)));
            }
        }
        for count in [16, 512, 2048, 8192] {
            for start in [0, 8192, 65_536] {
                let mut load = StepLoad::default();
                load.add_run(start, count);
                steps.push((load, model().step(&load)));
            }
        }
        let fitted = CostModel::fit("test", 128, 4, &steps);
        for (load, time) in &steps {
            let ratio = fitted.step(load).as_secs_f64() / time.as_secs_f64();
            assert!((0.9..1.1).contains(&ratio), "{load:?}: {ratio} by {fitted:?}");
        }
        let nothing = CostModel::fit("test", 1, 1, &[]);
        assert_eq!(nothing, CostModel { device: "test".into(), ..CostModel::instant() });
    }

    #[test]
    fn files_are_checked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("calibration.json");
        let load = |text: &str| {
            std::fs::write(&path, text).unwrap();
            CostModel::load(&path)
        };
        let good = serde_json::to_string(&model()).unwrap();
        assert_eq!(load(&good).unwrap(), model());
        let message = |text: &str| load(text).unwrap_err().to_string();
        assert!(message("{}").contains("bench latency --calibrate"));
        assert!(message(&good.replace("\"schema\":1", "\"schema\":9")).contains("got 9"));
        assert!(
            message(&good.replace("\"fixed_us\":100.0", "\"fixed_us\":-1"))
                .contains("fixed_us of at least 0")
        );
        assert!(message(&good.replace("fixed_us", "fixd_us")).contains("fixd_us"));
        assert!(
            CostModel::load(&directory.path().join("none")).unwrap_err().to_string().contains("cannot read")
        );
    }
}
