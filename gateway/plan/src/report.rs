//! The printed table and the JSON.

use crate::args::PlanArgs;
use crate::search::Answer;
use crate::shape::ModelShape;
use crate::workload::Request;
use gossamer_kernels::cost::CostModel;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, Write as _};

/// The answers as one JSON object.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    /// The model.
    pub model: &'a str,
    /// What was calibrated.
    pub calibrated_on: &'a str,
    /// Requests simulated.
    pub requests: usize,
    /// The targets: TTFT and TPOT in milliseconds, and the percentile.
    pub targets: [f64; 3],
    /// One per layout.
    pub answers: &'a [Answer],
}

pub(crate) fn print(
    args: &PlanArgs,
    shape: &ModelShape,
    calibration: &CostModel,
    requests: &[Request],
    answers: &[Answer],
) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if args.json {
        let report = Report {
            model: &shape.name,
            calibrated_on: &calibration.device,
            requests: requests.len(),
            targets: [args.ttft_ms, args.tpot_ms, args.percentile],
            answers,
        };
        return writeln!(out, "{}", serde_json::to_string_pretty(&report)?);
    }
    let count = requests.len() as f64;
    let seconds = requests.last().map_or(0.0, |request| request.arrival as f64 * 1e-9);
    let mean = |what: fn(&Request) -> u32| requests.iter().map(|r| f64::from(what(r))).sum::<f64>() / count;
    writeln!(
        out,
        "{} on {}: {} requests in {seconds:.1} s, {:.0} prompt and {:.0} output tokens on average",
        shape.name,
        calibration.device,
        requests.len(),
        mean(|request| request.input),
        mean(|request| request.output)
    )?;
    writeln!(
        out,
        "targets: {} % of requests with TTFT up to {} ms and TPOT up to {} ms\n",
        args.percentile, args.ttft_ms, args.tpot_ms
    )?;
    write!(out, "{}", text(args.percentile, answers))?;
    if answers.iter().any(|answer| answer.layout_gpus() > 1) {
        writeln!(
            out,
            "\nLayouts of several GPUs are factors of the one-GPU calibration, with links of {} GB/s and {} us.",
            args.link_gb_per_s, args.link_latency_us
        )?;
    }
    Ok(())
}

/// The table, and the best answer.
pub fn text(percentile: f64, answers: &[Answer]) -> String {
    let mut out = String::new();
    let (ttft, tpot) = (format!("TTFT p{percentile}"), format!("TPOT p{percentile}"));
    let _ = writeln!(
        out,
        "{:<24} {:>6} {:>9} {ttft:>12} {tpot:>12} {:>10} {:>11} {:>6}",
        "layout of a replica", "GPUs", "replicas", "tok/s/GPU", "tok/s/user", "busy"
    );
    for answer in answers {
        let (outcome, note) = match answer {
            Answer::Met(outcome) => (outcome, String::new()),
            Answer::Missed(outcome) => (outcome, missed(outcome)),
            Answer::Impossible { layout, reason } => {
                let _ = writeln!(out, "{:<24} {reason}", layout.to_string());
                continue;
            }
        };
        let _ = writeln!(
            out,
            "{:<24} {:>6} {:>9} {:>9.1} ms {:>9.2} ms {:>10.1} {:>11.1} {:>4.0} %{note}",
            outcome.layout.to_string(),
            outcome.gpus,
            outcome.replicas,
            outcome.ttft_ms,
            outcome.tpot_ms,
            outcome.tokens_per_second_per_gpu,
            outcome.tokens_per_second_per_user,
            outcome.busy * 100.0
        );
    }
    let met = answers.iter().filter_map(|answer| match answer {
        Answer::Met(outcome) => Some(outcome),
        _ => None,
    });
    // Of equally many GPUs, those whose users see more tokens a second.
    let best = met.min_by(|a, b| {
        let speed = |outcome: &&crate::Outcome| outcome.tokens_per_second_per_user;
        a.gpus.cmp(&b.gpus).then(speed(b).total_cmp(&speed(a)))
    });
    if let Some(best) = best {
        let _ = writeln!(out, "\nfewest: {} GPUs, {} x {}", best.gpus, best.replicas, best.layout);
    }
    out
}

fn missed(outcome: &crate::Outcome) -> String {
    let refused = match outcome.refused {
        0 => String::new(),
        count => format!(", {count} requests never fit the KV cache"),
    };
    let early = if outcome.given_up { ", given up" } else { "" };
    format!("  missed{early}{refused}")
}

impl Answer {
    fn layout_gpus(&self) -> u32 {
        match self {
            Self::Met(outcome) | Self::Missed(outcome) => outcome.layout.gpus(),
            Self::Impossible { .. } => 1,
        }
    }
}
