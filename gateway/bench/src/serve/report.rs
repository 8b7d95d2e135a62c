//! The printed block and the result file.

use super::{BenchError, Measured, ServeBenchArgs, Summary};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

const WIDTH: usize = 50;

fn title(text: &str, fill: char) -> String {
    let text = if fill == '=' { format!(" {text} ") } else { text.to_owned() };
    let pad = WIDTH.saturating_sub(text.len());
    let side = |n: usize| fill.to_string().repeat(n);
    format!("{}{text}{}\n", side(pad / 2), side(pad - pad / 2))
}

/// The result block of `vllm bench serve`.
pub fn block(args: &ServeBenchArgs, summary: &Summary) -> String {
    let mut out = title("Serving Benchmark Result", '=');
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<40} {value:<10}");
    };
    line("Successful requests:", summary.completed.to_string());
    line("Failed requests:", summary.failed.to_string());
    if let Some(limit) = args.max_concurrency {
        line("Maximum request concurrency:", limit.to_string());
    }
    if args.request_rate.is_finite() {
        line("Request rate configured (RPS):", format!("{:.2}", args.request_rate));
    }
    line("Benchmark duration (s):", format!("{:.2}", summary.duration));
    line("Total input tokens:", summary.total_input.to_string());
    line("Total generated tokens:", summary.total_output.to_string());
    line("Request throughput (req/s):", format!("{:.2}", summary.request_throughput));
    if let Some(goodput) = summary.goodput {
        line("Request goodput (req/s):", format!("{goodput:.2}"));
    }
    line("Output token throughput (tok/s):", format!("{:.2}", summary.output_throughput));
    line("Peak output token throughput (tok/s):", format!("{:.2}", summary.peak_output_throughput));
    line("Peak concurrent requests:", format!("{:.2}", summary.peak_concurrency as f64));
    line("Total token throughput (tok/s):", format!("{:.2}", summary.total_throughput));
    let (median, least) = summary.stream_throughput;
    line("Median tokens per stream (tok/s):", format!("{median:.2}"));
    let share = if median > 0.0 { 100.0 * least / median } else { 0.0 };
    line("Slowest stream (tok/s):", format!("{least:.2} ({share:.0} % of the median)"));
    for (short, name, heading, values) in summary.distributions() {
        if !args.percentile_metrics.iter().any(|metric| metric == short) {
            continue;
        }
        out.push_str(&title(heading, '-'));
        let mut line = |name: String, value: f64| {
            let _ = writeln!(out, "{name:<40} {value:<10.2}");
        };
        line(format!("Mean {name} (ms):"), values.mean);
        line(format!("Median {name} (ms):"), values.median);
        for (percentile, value) in &values.percentiles {
            line(format!("P{percentile} {name} (ms):"), *value);
        }
    }
    out.push_str(&"=".repeat(WIDTH));
    out.push('\n');
    out
}

/// Seconds since the Unix epoch.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs())
}

/// The content of a result file.
pub fn result(args: &ServeBenchArgs, measured: &Measured) -> Map<String, Value> {
    let mut map = measured.summary.to_json(args);
    map.insert("date".to_owned(), json!(now()));
    if !args.result_summary_only {
        let samples = &measured.outcome.samples;
        let list = |value: fn(&super::Sample) -> Value| Value::Array(samples.iter().map(value).collect());
        map.insert("input_lens".to_owned(), list(|sample| json!(sample.prompt_tokens)));
        map.insert("output_lens".to_owned(), list(|sample| json!(sample.completion_tokens)));
        map.insert("ttfts".to_owned(), list(|sample| json!(sample.ttft)));
        map.insert("itls".to_owned(), list(|sample| json!(sample.itl)));
        map.insert("start_times".to_owned(), list(|sample| json!(sample.sent)));
        map.insert("generated_texts".to_owned(), list(|sample| json!(sample.text)));
        map.insert("errors".to_owned(), list(|sample| json!(sample.error.as_deref().unwrap_or(""))));
    }
    map
}

/// Writes the result file and returns its path.
pub fn save(args: &ServeBenchArgs, measured: &Measured) -> Result<PathBuf, BenchError> {
    let name = args.result_filename.clone().unwrap_or_else(|| format!("gossamer-{}.json", now()));
    let path = args.result_dir.join(name);
    let failed = |source| BenchError::Save { path: path.clone(), source };
    std::fs::create_dir_all(&args.result_dir).map_err(failed)?;
    std::fs::write(&path, Value::Object(result(args, measured)).to_string()).map_err(failed)?;
    Ok(path)
}
