//! The fewest replicas that meet the targets.
//!
//! Doubling finds a number that suffices, halving the interval the least. A fleet that misses is given up as soon as it
//! has missed for certain, so that the many tries with too few replicas cost little.

use crate::args::PlanArgs;
use crate::fleet::{Fleet, Outcome};
use crate::shape::{MemoryError, ModelShape};
use crate::workload::{WorkloadError, read_trace};
use gossamer_bench::layout::Layout;
use gossamer_config::{ModelConfig, ModelConfigError};
use gossamer_kernels::cost::{CalibrationError, CostModel};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use thiserror::Error;

/// Why there is no plan.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The arguments contradict each other.
    #[error("{0}")]
    Arguments(String),
    /// The requests cannot be had.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The calibration cannot be used.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    /// The model cannot be read.
    #[error(transparent)]
    Model(#[from] ModelConfigError),
    /// The model does not fit.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The scheduler refuses the settings.
    #[error(transparent)]
    Scheduler(#[from] gossamer_scheduler::WorkerError),
    /// The simulated device and the scheduler disagree: a defect of this program.
    #[error("the simulation contradicts the scheduler: {0}")]
    Simulation(#[from] gossamer_scheduler::CompleteError),
    /// Nothing of what was tried suffices.
    #[error("no layout meets the targets; allow more GPUs, or relax a target")]
    NotMet,
    /// The answer cannot be printed.
    #[error("cannot print the answer: {0}")]
    Output(#[source] std::io::Error),
    /// A thread panicked: a defect of this program.
    #[error("a simulation thread panicked")]
    Thread,
}

/// What a layout came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// These replicas meet the targets, and one fewer does not.
    Met(Outcome),
    /// Even these do not: the most that may be tried.
    Missed(Outcome),
    /// The layout cannot be used.
    Impossible {
        /// The layout.
        layout: Layout,
        /// Why.
        reason: String,
    },
}

impl Fleet<'_> {
    /// The least number of replicas of `layout`, up to `max_gpus` GPUs.
    pub fn least(&self, layout: &Layout, max_gpus: u32, bar: &ProgressBar) -> Result<Answer, PlanError> {
        let impossible = |reason: String| Ok(Answer::Impossible { layout: *layout, reason });
        let most = max_gpus / layout.gpus();
        if most == 0 {
            return impossible(format!(
                "one replica has {} GPUs, more than the {max_gpus} allowed",
                layout.gpus()
            ));
        }
        if let Some(reason) = self.contradiction(layout) {
            return impossible(reason);
        }
        let attempt = |replicas: u32| {
            bar.set_length(self.requests.len() as u64);
            bar.set_message(format!("{layout} x {replicas}"));
            self.run(layout, replicas, |finished| bar.set_position(finished as u64))
        };
        let (mut fails, mut replicas) = (0, 1);
        let mut best = loop {
            let outcome = match attempt(replicas) {
                Ok(outcome) => outcome,
                Err(PlanError::Memory(error)) => return impossible(error.to_string()),
                Err(error) => return Err(error),
            };
            if outcome.met {
                break outcome;
            }
            if replicas == most {
                return Ok(Answer::Missed(outcome));
            }
            fails = replicas;
            replicas = (replicas * 2).min(most);
        };
        while best.replicas - fails > 1 {
            let outcome = attempt(fails + (best.replicas - fails) / 2)?;
            if outcome.met { best = outcome } else { fails = outcome.replicas }
        }
        Ok(Answer::Met(best))
    }
}

/// Runs `gossamer plan`: prints the answers, and fails if none of them meets the targets.
pub fn plan(args: &PlanArgs) -> Result<Vec<Answer>, PlanError> {
    args.check()?;
    let shape = match ModelShape::named(&args.model) {
        Some(shape) => shape,
        None => ModelShape::of(&args.model, &ModelConfig::load(args.model.as_ref())?),
    };
    let calibration = CostModel::load(&args.calibration)?;
    if calibration.num_experts != shape.experts || calibration.experts_per_token != shape.experts_per_token {
        return Err(PlanError::Arguments(format!(
            "{} was measured on a model that uses {} of {} experts, {} uses {} of {}: pass the model that was measured",
            args.calibration.display(),
            calibration.experts_per_token,
            calibration.num_experts,
            shape.name,
            shape.experts_per_token,
            shape.experts
        )));
    }
    let requests = match &args.trace {
        Some(path) => read_trace(path)?,
        None => args.synthetic()?.draw()?,
    };
    let settings = args.settings();
    let fleet = Fleet {
        shape: &shape,
        calibration: &calibration,
        requests: &requests,
        settings: &settings,
        targets: args.targets(),
    };
    let bar = if args.disable_progress { ProgressBar::hidden() } else { ProgressBar::new(1) };
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {elapsed}") {
        bar.set_style(style);
    }
    let mut answers = Vec::new();
    for layout in args.layouts() {
        answers.push(match args.gpus {
            None => fleet.least(&layout, args.max_gpus, &bar)?,
            Some(gpus) => fleet.exactly(&layout, gpus, &bar)?,
        });
    }
    bar.finish_and_clear();
    crate::report::print(args, &shape, &calibration, &requests, &answers).map_err(PlanError::Output)?;
    match answers.iter().any(|answer| matches!(answer, Answer::Met(_))) {
        true => Ok(answers),
        false => Err(PlanError::NotMet),
    }
}

impl Fleet<'_> {
    /// Why no server of this model has the layout, at any size.
    fn contradiction(&self, layout: &Layout) -> Option<String> {
        if layout.data > 1 && !layout.expert {
            return Some("dp without ep is the same as more replicas: leave dp out".to_owned());
        }
        if layout.pipeline > self.shape.layers {
            return Some(format!("{} stages for {} layers", layout.pipeline, self.shape.layers));
        }
        // Ranks need not have equally many heads, but one at least.
        (layout.tensor > self.shape.query_heads)
            .then(|| format!("{} ranks for {} query heads", layout.tensor, self.shape.query_heads))
    }

    /// The verdict on as many replicas as `gpus` GPUs make.
    pub fn exactly(&self, layout: &Layout, gpus: u32, bar: &ProgressBar) -> Result<Answer, PlanError> {
        if let Some(reason) = self.contradiction(layout) {
            return Ok(Answer::Impossible { layout: *layout, reason });
        }
        let replicas = gpus / layout.gpus();
        if replicas == 0 || !gpus.is_multiple_of(layout.gpus()) {
            let reason = format!("{gpus} GPUs are no whole number of replicas of {}", layout.gpus());
            return Ok(Answer::Impossible { layout: *layout, reason });
        }
        bar.set_length(self.requests.len() as u64);
        bar.set_message(format!("{layout} x {replicas}"));
        match self.run(layout, replicas, |finished| bar.set_position(finished as u64)) {
            Ok(outcome) if outcome.met => Ok(Answer::Met(outcome)),
            Ok(outcome) => Ok(Answer::Missed(outcome)),
            Err(PlanError::Memory(error)) => {
                Ok(Answer::Impossible { layout: *layout, reason: error.to_string() })
            }
            Err(error) => Err(error),
        }
    }
}
