//! `gossamer bench pareto`: tokens/s per GPU against tokens/s per user, of one or several result sets.
//!
//! Draws from stored results alone and measures nothing. The page needs no network and no other file.
//!
//! Invariant: every good result that has both figures is drawn; those that have not are counted and said.

mod page;
mod scale;
mod svg;

use crate::output;
use crate::results::{self, Record, ResultsError, Settings};
use clap::Args;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Draw the Pareto frontier of stored results.
#[derive(Clone, Debug, Args)]
pub struct ParetoArgs {
    /// Folders of `bench sweep`, or of result files of `bench serve` or vLLM
    #[arg(value_name = "RESULT_DIR", required = true)]
    pub sets: Vec<PathBuf>,
    /// The page; the picture is written beside it as .svg
    #[arg(long, value_name = "FILE.html", default_value = "pareto.html")]
    pub out: PathBuf,
    /// GPUs of results that do not say how many they had
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub gpus: u32,
}

/// Why there is no page.
#[derive(Debug, Error)]
pub enum ParetoError {
    /// Results cannot be read, or the page not written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// Nothing to draw.
    #[error(
        "expected results with output_throughput and mean_tpot_ms above 0, got {found} without; measure outputs of several tokens"
    )]
    NoPoints {
        /// Results found.
        found: usize,
    },
}

/// One measurement in the plane.
#[derive(Clone, Debug, PartialEq)]
pub struct PlotPoint {
    /// Tokens per second that a user sees.
    pub per_user: f64,
    /// Tokens per second and GPU.
    pub per_gpu: f64,
    /// Short name: the concurrency.
    pub mark: String,
    /// The settings in which the set's points differ.
    pub settings: String,
    /// Mean TTFT and TPOT, and the 99th percentile of TTFT where it is known, in milliseconds.
    pub latencies: [Option<f64>; 3],
    /// Whether no other point of the set is better in one figure and not worse in the other.
    pub frontier: bool,
}

/// One result set.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its points, by tokens per second and user.
    pub points: Vec<PlotPoint>,
}

/// Runs `gossamer bench pareto`.
pub fn run(args: &ParetoArgs) -> Result<(), ParetoError> {
    draw(&args.sets, &args.out, args.gpus)?;
    say(&args.out)
}

/// Says where a page and its picture are.
pub(crate) fn say(page: &Path) -> Result<(), ParetoError> {
    let picture = page.with_extension("svg");
    let text = format_args!("page: {}, picture: {}\n", page.display(), picture.display()).to_string();
    Ok(output::result(text).map_err(ResultsError::from)?)
}

/// Reads sets and writes the page and, beside it, the picture.
pub fn draw(sets: &[PathBuf], out: &Path, gpus: u32) -> Result<(), ParetoError> {
    let mut all = Vec::new();
    let mut found = 0;
    for set in sets {
        let records = results::read_set(set, gpus)?;
        found += records.len();
        all.extend(series(&records));
    }
    let drawn: usize = all.iter().map(|series| series.points.len()).sum();
    if drawn == 0 {
        return Err(ParetoError::NoPoints { found });
    }
    if drawn < found {
        let missing = found - drawn;
        output::note(format_args!(
            "note: {missing} of {found} results have no TPOT or throughput and are not drawn"
        ));
    }
    // Sets of one name are told apart by their number.
    for index in 1..all.len() {
        let name = all[index].name.clone();
        let same = all[..index]
            .iter()
            .filter(|other| other.name == name || other.name.starts_with(&format!("{name} #")))
            .count();
        if same > 0 {
            all[index].name = format!("{name} #{}", same + 1);
        }
    }
    results::write(&out.with_extension("svg"), &svg::standalone(&all))?;
    results::write(out, &page::html(&all))?;
    Ok(())
}

/// The series of a set: one for each label in it.
pub fn series(records: &[Record]) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    let settings: Vec<&Settings> = records.iter().map(|record| &record.settings).collect();
    let varying = Settings::varying(&settings);
    for record in records {
        let (Some(per_user), Some(per_gpu)) = (record.per_user(), record.per_gpu()) else { continue };
        // With one stream per request, its count of requests follows from the concurrency.
        let told = varying.iter().filter(|name| !["concurrency", "num-prompts"].contains(*name));
        let settings: Vec<String> =
            told.filter_map(|name| Some(format!("{name} {}", record.settings.value(name)?))).collect();
        let point = PlotPoint {
            per_user,
            per_gpu,
            mark: record.concurrency().map(|concurrency| format!("c{concurrency}")).unwrap_or_default(),
            settings: settings.join(", "),
            latencies: ["mean_ttft_ms", "mean_tpot_ms", "p99_ttft_ms"].map(|key| record.figure(key)),
            frontier: false,
        };
        match all.iter_mut().find(|series| series.name == record.label) {
            Some(series) => series.points.push(point),
            None => all.push(Series { name: record.label.clone(), points: vec![point] }),
        }
    }
    all.iter_mut().for_each(Series::find_frontier);
    all
}

impl Series {
    fn find_frontier(&mut self) {
        // From the fastest user on, a point is on the frontier when it gives more per GPU than all before it.
        self.points.sort_by(|a, b| b.per_user.total_cmp(&a.per_user).then(b.per_gpu.total_cmp(&a.per_gpu)));
        let mut best = 0.0;
        for point in &mut self.points {
            point.frontier = point.per_gpu > best;
            best = point.per_gpu.max(best);
        }
        self.points.reverse();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frontier_holds_what_nothing_beats() {
        let point = |per_user: f64, per_gpu: f64| PlotPoint {
            per_user,
            per_gpu,
            mark: String::new(),
            settings: String::new(),
            latencies: [None; 3],
            frontier: false,
        };
        let points =
            [(10.0, 900.0), (100.0, 100.0), (50.0, 500.0), (50.0, 400.0), (40.0, 450.0), (90.0, 90.0)];
        let points = points.map(|(user, gpu)| point(user, gpu)).to_vec();
        let mut series = Series { name: "a".into(), points };
        series.find_frontier();
        let on: Vec<f64> = series.points.iter().filter(|p| p.frontier).map(|p| p.per_user).collect();
        assert_eq!(on, [10.0, 50.0, 100.0]);
        assert_eq!(
            series.points.iter().filter(|p| p.frontier).map(|p| p.per_gpu).collect::<Vec<_>>(),
            [900.0, 500.0, 100.0]
        );
    }
}
