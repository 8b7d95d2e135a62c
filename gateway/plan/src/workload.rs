//! The requests: read from a trace, or drawn from a rate and lengths.
//!
//! Invariant: requests are in the order of their arrival, have at least one token each way, and there is at least one.

use gossamer_bench::workload::{arrivals, length};
use rand::{SeedableRng, rngs::StdRng};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Longest prompt or output that is believed.
const MAX_TOKENS: u32 = 1 << 24;
/// Latest arrival that is believed, in seconds: about three years.
const MAX_SECONDS: f64 = 1e8;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Nanoseconds after the start.
    pub arrival: u64,
    /// Tokens of the prompt.
    pub input: u32,
    /// Tokens to generate.
    pub output: u32,
}

/// Why there are no requests.
#[derive(Debug, Error)]
pub enum WorkloadError {
    /// The trace cannot be read.
    #[error("cannot read the trace {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line is no request.
    #[error(
        "{path}, line {line}: expected {{\"arrival\": seconds, \"input\": tokens, \"output\": tokens}}, got {got}"
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        got: String,
    },
    /// No request at all.
    #[error("expected at least one request in {path}, got none")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A number makes no sense.
    #[error("expected {0}")]
    Arguments(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    arrival: f64,
    #[serde(alias = "input_tokens", alias = "input_length")]
    input: u32,
    #[serde(alias = "output_tokens", alias = "output_length")]
    output: u32,
}

/// A random workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Synthetic {
    /// Requests a second.
    pub rate: f64,
    /// Shape of the gaps.
    pub burstiness: f64,
    /// Requests.
    pub count: usize,
    /// Mean tokens of a prompt.
    pub input: u32,
    /// Mean tokens to generate.
    pub output: u32,
    /// Lengths are drawn from `[mean * (1 - r), mean * (1 + r)]`.
    pub range_ratio: f64,
    /// One seed gives one workload.
    pub seed: u64,
}

impl Synthetic {
    /// Draws the requests.
    pub fn draw(&self) -> Result<Vec<Request>, WorkloadError> {
        let fail = |text: String| Err(WorkloadError::Arguments(text));
        if !(self.rate > 0.0 && self.rate.is_finite() && self.burstiness > 0.0 && self.burstiness.is_finite())
        {
            return fail(format!(
                "--request-rate and --burstiness above 0, got {} and {}",
                self.rate, self.burstiness
            ));
        }
        if !(0.0..=1.0).contains(&self.range_ratio) {
            return fail(format!("--range-ratio in [0, 1], got {}", self.range_ratio));
        }
        if self.count == 0 || self.count >= u32::MAX as usize {
            return fail(format!("--num-requests of at least 1 and below {}, got {}", u32::MAX, self.count));
        }
        let lengths = 1..=MAX_TOKENS / 2;
        if !lengths.contains(&self.input) || !lengths.contains(&self.output) {
            return fail(format!(
                "lengths from 1 to {}, got {} and {}",
                MAX_TOKENS / 2,
                self.input,
                self.output
            ));
        }
        let mut rng = StdRng::seed_from_u64(self.seed);
        let mut draw = |mean: u32| length(&mut rng, mean as usize, self.range_ratio) as u32;
        let times = arrivals(self.rate, self.burstiness, self.seed, self.count);
        if times.last().is_some_and(|last| *last > MAX_SECONDS) {
            return fail(format!("a rate whose last request arrives within {MAX_SECONDS} s"));
        }
        Ok(times
            .into_iter()
            .map(|at| Request {
                arrival: nanoseconds(at),
                input: draw(self.input),
                output: draw(self.output),
            })
            .collect())
    }
}

/// Reads a trace: one JSON object a line, in any order of arrival.
pub fn read_trace(path: &Path) -> Result<Vec<Request>, WorkloadError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| WorkloadError::Read { path: path.to_owned(), source })?;
    let mut requests = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |got: String| WorkloadError::Line { path: path.to_owned(), line: index + 1, got };
        let row: Line = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
        if !(0.0..=MAX_SECONDS).contains(&row.arrival) {
            return Err(wrong(format!("an arrival of {} s", row.arrival)));
        }
        if row.input == 0 || row.output == 0 || row.input > MAX_TOKENS || row.output > MAX_TOKENS {
            return Err(wrong(format!("{} and {} tokens", row.input, row.output)));
        }
        requests.push(Request { arrival: nanoseconds(row.arrival), input: row.input, output: row.output });
    }
    if requests.is_empty() {
        return Err(WorkloadError::Empty { path: path.to_owned() });
    }
    requests.sort_by_key(|request| request.arrival);
    Ok(requests)
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(text: &str) -> Result<Vec<Request>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read_trace(file.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn traces_are_sorted_and_bad_lines_are_named() {
        let good = "{\"arrival\":1.5,\"input\":3,\"output\":4}\n\n{\"arrival\":0,\"input_length\":1,\"output_length\":2}\n";
        let requests = trace(good).unwrap();
        assert_eq!(requests[0], Request { arrival: 0, input: 1, output: 2 });
        assert_eq!(requests[1], Request { arrival: 1_500_000_000, input: 3, output: 4 });
        for (text, part) in [
            ("", "at least one request"),
            ("{\"arrival\":0,\"input\":1,\"output\":1}\n{\"arrival\":1}", "line 2"),
            ("{\"arrival\":-1,\"input\":1,\"output\":1}", "an arrival of -1 s"),
            ("{\"arrival\":1,\"input\":0,\"output\":1}", "0 and 1 tokens"),
            ("{\"arrival\":1,\"input\":2,\"output\":1,\"x\":1}", "unknown field `x`"),
        ] {
            let error = trace(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
