//! From samples to figures.

use super::{Outcome, PromptSet, Sample, ServeBenchArgs};
use serde_json::{Map, Value, json};

/// Mean, median, deviation and percentiles of one metric, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub median: f64,
    /// Standard deviation.
    pub std: f64,
    /// The asked-for percentiles.
    pub percentiles: Vec<(f64, f64)>,
}

impl Distribution {
    /// Of values in seconds.
    pub fn of(seconds: impl Iterator<Item = f64>, percentiles: &[f64]) -> Self {
        let mut values: Vec<f64> = seconds.map(|value| value * 1e3).collect();
        if values.is_empty() {
            return Self { percentiles: percentiles.iter().map(|p| (*p, 0.0)).collect(), ..Self::default() };
        }
        values.sort_by(f64::total_cmp);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
        Self {
            mean,
            median: quantile(&values, 0.5),
            std: variance.sqrt(),
            percentiles: percentiles.iter().map(|p| (*p, quantile(&values, p / 100.0))).collect(),
        }
    }
}

/// Linear interpolation between the closest ranks of sorted values.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = q.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

/// Figures of a run.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Model that was driven.
    pub model: String,
    /// Requests that ended well.
    pub completed: usize,
    /// Requests that did not.
    pub failed: usize,
    /// Seconds.
    pub duration: f64,
    /// Sum of `usage.prompt_tokens`.
    pub total_input: u64,
    /// Sum of `usage.completion_tokens`.
    pub total_output: u64,
    /// Requests per second.
    pub request_throughput: f64,
    /// Requests per second that met every target.
    pub goodput: Option<f64>,
    /// Generated tokens per second.
    pub output_throughput: f64,
    /// Prompt and generated tokens per second.
    pub total_throughput: f64,
    /// Most tokens generated within one second.
    pub peak_output_throughput: f64,
    /// Most requests in flight.
    pub peak_concurrency: usize,
    /// Time to first token.
    pub ttft: Distribution,
    /// Time per output token after the first; requests of one token are left out.
    pub tpot: Distribution,
    /// Gap between tokens: between chunks, where the server does not tell a chunk's tokens.
    pub itl: Distribution,
    /// End-to-end latency.
    pub e2el: Distribution,
    /// Tokens per second of a request, from sending it to its last token: the median request, and the slowest. A stream
    /// that is starved shows in the second and not in the first.
    pub stream_throughput: (f64, f64),
    /// What a reader must know of the data set.
    pub notes: Vec<String>,
}

/// Seconds per output token after the first.
fn tpot(sample: &Sample) -> Option<f64> {
    (sample.completion_tokens > 1)
        .then(|| (sample.latency - sample.ttft) / (sample.completion_tokens - 1) as f64)
}

/// Tokens per second as the user of a stream sees them: the wait for the first is part of it.
fn per_second(sample: &Sample) -> f64 {
    sample.completion_tokens as f64 / sample.latency.max(1e-9)
}

fn median_and_least(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.first().map_or((0.0, 0.0), |least| (quantile(&values, 0.5), *least))
}

/// Computes the figures.
pub fn summarize(args: &ServeBenchArgs, model: &str, prompts: &PromptSet, outcome: &Outcome) -> Summary {
    let good: Vec<&Sample> = outcome.samples.iter().filter(|sample| sample.error.is_none()).collect();
    let duration = outcome.duration.max(f64::MIN_POSITIVE);
    let total_input = good.iter().map(|sample| sample.prompt_tokens).sum();
    let total_output = good.iter().map(|sample| sample.completion_tokens).sum();
    let percentiles = &args.metric_percentiles;
    let targets = args.goodput_targets().unwrap_or_default();
    let meets = |sample: &Sample| {
        targets.iter().all(|(metric, limit)| {
            let seconds = match *metric {
                "ttft" => sample.ttft,
                "tpot" => tpot(sample).unwrap_or(0.0),
                _ => sample.latency,
            };
            seconds * 1e3 <= *limit
        })
    };
    Summary {
        model: model.to_owned(),
        completed: good.len(),
        failed: outcome.samples.len() - good.len(),
        duration: outcome.duration,
        total_input,
        total_output,
        request_throughput: good.len() as f64 / duration,
        goodput: (!targets.is_empty())
            .then(|| good.iter().filter(|sample| meets(sample)).count() as f64 / duration),
        output_throughput: total_output as f64 / duration,
        total_throughput: (total_input + total_output) as f64 / duration,
        peak_output_throughput: peak(&good),
        peak_concurrency: outcome.peak_concurrency,
        ttft: Distribution::of(good.iter().map(|sample| sample.ttft), percentiles),
        tpot: Distribution::of(good.iter().filter_map(|sample| tpot(sample)), percentiles),
        itl: Distribution::of(good.iter().flat_map(|sample| sample.itl.iter().copied()), percentiles),
        e2el: Distribution::of(good.iter().map(|sample| sample.latency), percentiles),
        stream_throughput: median_and_least(good.iter().map(|sample| per_second(sample))),
        notes: prompts.notes.clone(),
    }
}

/// Most tokens in one second of the run. A request's tokens after the first are spread evenly over its decoding time.
fn peak(samples: &[&Sample]) -> f64 {
    let mut seconds: Vec<f64> = Vec::new();
    let mut add = |at: f64, tokens: f64| {
        let bucket = at.max(0.0) as usize;
        if seconds.len() <= bucket {
            seconds.resize(bucket + 1, 0.0);
        }
        seconds[bucket] += tokens;
    };
    for sample in samples.iter().filter(|sample| sample.completion_tokens > 0) {
        let step = tpot(sample).unwrap_or(0.0);
        for token in 0..sample.completion_tokens {
            add(sample.sent + sample.ttft + step * token as f64, 1.0);
        }
    }
    seconds.into_iter().fold(0.0, f64::max)
}

impl Summary {
    /// The four distributions with their short names and titles.
    pub fn distributions(&self) -> [(&'static str, &'static str, &'static str, &Distribution); 4] {
        [
            ("ttft", "TTFT", "Time to First Token", &self.ttft),
            ("tpot", "TPOT", "Time per Output Token (excl. 1st token)", &self.tpot),
            ("itl", "ITL", "Inter-token Latency", &self.itl),
            ("e2el", "E2EL", "End-to-end Latency", &self.e2el),
        ]
    }

    /// The keys of `vllm bench serve`'s result file.
    pub fn to_json(&self, args: &ServeBenchArgs) -> Map<String, Value> {
        let rate = if args.request_rate.is_finite() { json!(args.request_rate) } else { json!("inf") };
        let endpoint = if args.path().contains("chat") { "openai-chat" } else { "openai" };
        let mut map = Map::new();
        let pairs = [
            ("endpoint_type", json!(endpoint)),
            ("backend", json!(endpoint)),
            ("label", json!(args.label)),
            ("model_id", json!(self.model)),
            ("num_prompts", json!(args.num_prompts)),
            ("request_rate", rate),
            ("burstiness", json!(args.burstiness)),
            ("max_concurrency", json!(args.max_concurrency)),
            ("duration", json!(self.duration)),
            ("completed", json!(self.completed)),
            ("failed", json!(self.failed)),
            ("total_input_tokens", json!(self.total_input)),
            ("total_output_tokens", json!(self.total_output)),
            ("request_throughput", json!(self.request_throughput)),
            ("request_goodput", json!(self.goodput)),
            ("output_throughput", json!(self.output_throughput)),
            ("total_token_throughput", json!(self.total_throughput)),
            ("max_output_tokens_per_s", json!(self.peak_output_throughput)),
            ("max_concurrent_requests", json!(self.peak_concurrency)),
            ("median_stream_tokens_per_s", json!(self.stream_throughput.0)),
            ("min_stream_tokens_per_s", json!(self.stream_throughput.1)),
            ("notes", json!(self.notes)),
        ];
        for (key, value) in pairs {
            map.insert(key.to_owned(), value);
        }
        for (short, _, _, values) in self.distributions() {
            map.insert(format!("mean_{short}_ms"), json!(values.mean));
            map.insert(format!("median_{short}_ms"), json!(values.median));
            map.insert(format!("std_{short}_ms"), json!(values.std));
            for (percentile, value) in &values.percentiles {
                map.insert(format!("p{percentile}_{short}_ms"), json!(value));
            }
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        let values = Distribution::of([0.001, 0.002, 0.003, 0.004].into_iter(), &[0.0, 75.0, 100.0]);
        assert_eq!(values.median, 2.5);
        assert_eq!(values.percentiles, [(0.0, 1.0), (75.0, 3.25), (100.0, 4.0)]);
    }

    #[test]
    fn a_starved_stream_shows_beside_the_median() {
        let stream =
            |tokens, latency| per_second(&Sample { completion_tokens: tokens, latency, ..Sample::default() });
        let values = [stream(100, 1.0), stream(100, 2.0), stream(100, 10.0)];
        assert_eq!(median_and_least(values.into_iter()), (50.0, 10.0));
        assert_eq!(median_and_least(std::iter::empty()), (0.0, 0.0));
    }

    #[test]
    fn tpot_leaves_out_requests_of_one_token() {
        let one = Sample { completion_tokens: 1, ttft: 1.0, latency: 1.0, ..Sample::default() };
        let ten = Sample { completion_tokens: 10, ttft: 1.0, latency: 10.0, ..Sample::default() };
        assert_eq!((tpot(&one), tpot(&ten)), (None, Some(1.0)));
    }
}
