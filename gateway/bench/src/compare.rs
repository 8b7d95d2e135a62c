//! `gossamer bench compare A B`: what B does to each figure of A.
//!
//! Invariant: only points that were measured alike are set against each other; those without a partner are counted and said.

use crate::output;
use crate::results::{self, Record, ResultsError, Settings};
use clap::Args;
use std::fmt::Write;
use std::path::PathBuf;
use thiserror::Error;

/// Print the ratios of two results, or of the matching points of two result sets.
#[derive(Clone, Debug, Args)]
pub struct CompareArgs {
    /// What is compared with: a folder of results, or one result file
    #[arg(value_name = "A")]
    pub base: PathBuf,
    /// What is compared
    #[arg(value_name = "B")]
    pub other: PathBuf,
    /// GPUs of results that do not say how many they had
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub gpus: u32,
}

/// Why nothing is compared.
#[derive(Debug, Error)]
pub enum CompareError {
    /// Results cannot be read.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// Nothing was measured alike.
    #[error(
        "expected points measured with the same {by}, got none among {base} in A and {other} in B; give two single files to \
         compare them whatever their settings"
    )]
    NoMatch {
        /// The settings that must agree.
        by: &'static str,
        /// Points in A.
        base: usize,
        /// Points in B.
        other: usize,
    },
}

/// A figure: its title, its key, and whether more of it is better.
const FIGURES: [(&str, &str, bool); 9] = [
    ("tok/s", "output_throughput", true),
    ("tok/s/GPU", PER_GPU, true),
    ("tok/s/user", PER_USER, true),
    ("req/s", "request_throughput", true),
    ("TTFT", "mean_ttft_ms", false),
    ("TTFT p99", "p99_ttft_ms", false),
    ("TPOT", "mean_tpot_ms", false),
    ("TPOT p99", "p99_tpot_ms", false),
    ("E2EL", "mean_e2el_ms", false),
];
const PER_GPU: &str = "per gpu";
const PER_USER: &str = "per user";

/// Two points that were measured alike.
type Pair<'a> = (&'a Record, &'a Record);

/// Runs `gossamer bench compare`.
pub fn run(args: &CompareArgs) -> Result<(), CompareError> {
    let base = results::read_set(&args.base, args.gpus)?;
    let other = results::read_set(&args.other, args.gpus)?;
    let files = args.base.is_file() && args.other.is_file();
    let names = [&args.base, &args.other].map(|path| path.display().to_string());
    let table = table(&base, &other, files)?;
    let text = format!("A: {}\nB: {}\n\n{table}", names[0], names[1]);
    Ok(output::result(text).map_err(ResultsError::from)?)
}

/// The ratios of matching points, or of the two only ones.
pub fn table(base: &[Record], other: &[Record], files: bool) -> Result<String, CompareError> {
    if let ([a], [b]) = (base, other)
        && files
    {
        return Ok(single(a, b));
    }
    let (pairs, by) = matching(base, other);
    if pairs.is_empty() {
        return Err(CompareError::NoMatch { by, base: base.len(), other: other.len() });
    }
    let settings: Vec<&Settings> = pairs.iter().map(|(a, _)| &a.settings).collect();
    let varying = Settings::varying(&settings);
    let name = |record: &Record| {
        let parts = varying.iter().filter(|name| **name != "num-prompts");
        let parts: Vec<String> =
            parts.filter_map(|name| Some(format!("{name} {}", record.settings.value(name)?))).collect();
        if parts.is_empty() { "all".to_owned() } else { parts.join(", ") }
    };
    let names: Vec<String> = pairs.iter().map(|(a, _)| name(a)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(14);
    let mut out = format!("B / A, {} points measured with the same {by}\n{:<width$}", pairs.len(), "");
    for (title, ..) in FIGURES {
        let _ = write!(out, " {title:>10}");
    }
    out.push('\n');
    let mut logs = vec![(0.0, 0u32); FIGURES.len()];
    for (name, (a, b)) in names.iter().zip(&pairs) {
        let _ = write!(out, "{name:<width$}");
        for ((_, key, _), (sum, count)) in FIGURES.iter().zip(&mut logs) {
            let ratio = ratio(a, b, key);
            let _ = write!(out, " {:>10}", ratio.map_or("-".to_owned(), times));
            if let Some(ratio) = ratio {
                (*sum, *count) = (*sum + ratio.ln(), *count + 1);
            }
        }
        out.push('\n');
    }
    let _ = write!(out, "{:<width$}", "geometric mean");
    for (sum, count) in logs {
        let mean = (count > 0).then(|| (sum / f64::from(count)).exp());
        let _ = write!(out, " {:>10}", mean.map_or("-".to_owned(), times));
    }
    let alone = base.len() + other.len() - 2 * pairs.len();
    out.push('\n');
    if alone > 0 {
        let _ = writeln!(out, "\n{alone} points have no partner");
    }
    Ok(out)
}

/// Pairs by all settings; if there are none, by what the client did, where that names one point in each set.
fn matching<'a>(base: &'a [Record], other: &'a [Record]) -> (Vec<Pair<'a>>, &'static str) {
    let pairs =
        pairs_by(base, other, |record| (record.settings.client.clone(), record.settings.server.clone()));
    if !pairs.is_empty() {
        return (pairs, "settings");
    }
    let pairs = pairs_by(base, other, |record| {
        let mut client = record.settings.client.clone();
        client.remove("base-url");
        client
    });
    if !pairs.is_empty() {
        return (pairs, "load");
    }
    (pairs_by(base, other, |record| record.concurrency().map(str::to_owned)), "concurrency")
}

fn pairs_by<'a, K: PartialEq>(
    base: &'a [Record],
    other: &'a [Record],
    key: impl Fn(&Record) -> K,
) -> Vec<Pair<'a>> {
    let alone = |set: &[Record], wanted: &K| set.iter().filter(|record| key(record) == *wanted).count() == 1;
    let mut pairs = Vec::new();
    for a in base {
        let wanted = key(a);
        if alone(base, &wanted)
            && alone(other, &wanted)
            && let Some(b) = other.iter().find(|record| key(record) == wanted)
        {
            pairs.push((a, b));
        }
    }
    let number = |pair: &Pair<'_>| pair.0.concurrency().and_then(|text| text.parse::<u64>().ok());
    pairs.sort_by(|a, b| number(a).cmp(&number(b)).then_with(|| a.0.settings.cmp(&b.0.settings)));
    pairs
}

fn figure(record: &Record, key: &str) -> Option<f64> {
    match key {
        PER_GPU => record.per_gpu(),
        PER_USER => record.per_user(),
        key => record.figure(key),
    }
}

fn ratio(a: &Record, b: &Record, key: &str) -> Option<f64> {
    let (a, b) = (figure(a, key)?, figure(b, key)?);
    (a > 0.0 && b > 0.0).then(|| b / a)
}

fn times(ratio: f64) -> String {
    format!("{ratio:.3}x")
}

fn single(a: &Record, b: &Record) -> String {
    let mut out = format!("{:<12} {:>12} {:>12} {:>10}\n", "", "A", "B", "B / A");
    for (title, key, more_is_better) in FIGURES {
        let (Some(left), Some(right)) = (figure(a, key), figure(b, key)) else { continue };
        let verdict = match ratio(a, b, key) {
            Some(ratio) if (ratio - 1.0).abs() >= 0.005 => {
                if (ratio > 1.0) == more_is_better {
                    "  better"
                } else {
                    "  worse"
                }
            }
            _ => "",
        };
        let ratio = ratio(a, b, key).map_or("-".to_owned(), times);
        let _ = writeln!(out, "{title:<12} {left:>12.2} {right:>12.2} {ratio:>10}{verdict}");
    }
    out
}
