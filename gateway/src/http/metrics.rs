//! `/metrics` in Prometheus' text format; names follow vLLM's.
//!
//! Request counters come from the board that all API servers share, gauges from the scheduler's last report; so any
//! API server gives the whole.

use super::{
    App,
    board::{Board, Counter, HISTOGRAMS, Histogram},
};
use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use gossamer_wire::SchedulerStats;
use std::{
    fmt::{Display, Write},
    sync::Arc,
};

/// The exposition.
pub async fn handle(State(app): State<Arc<App>>) -> Response {
    let text = exposition(
        &app.board,
        &app.engine.stats(),
        app.config.model_name(),
        app.board.connections(app.config.api_server_count),
    );
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

struct Page {
    text: String,
    model: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.text, "# HELP gossamer:{name} {help}\n# TYPE gossamer:{name} {kind}\n");
    }

    fn sample(&mut self, name: &str, label: &str, value: impl Display) {
        let separator = if label.is_empty() { "" } else { "," };
        let _ =
            writeln!(self.text, "gossamer:{name}{{model_name=\"{}\"{separator}{label}}} {value}", self.model);
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.sample(name, "", value);
    }
}

fn exposition(board: &Board, stats: &SchedulerStats, model: &str, connections: u64) -> String {
    let model = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let mut page = Page { text: String::with_capacity(16 << 10), model };
    let usage = match stats.kv_blocks_total {
        0 => 0.0,
        total => f64::from(stats.kv_blocks_used) / f64::from(total),
    };
    page.single("num_requests_running", "gauge", "Sequences in the running batch.", stats.running);
    page.single("num_requests_waiting", "gauge", "Sequences that wait for admission.", stats.waiting);
    page.single("kv_cache_usage_perc", "gauge", "Share of the KV blocks in use, 0 to 1.", usage);
    page.single(
        "device_busy_ratio",
        "gauge",
        "Share of the last second the device was busy.",
        stats.device_busy,
    );
    page.single("open_connections", "gauge", "Client connections of all API servers.", connections);
    page.single("num_preemptions_total", "counter", "Sequences pre-empted.", stats.preemptions);
    page.single("prefix_cache_queries_total", "counter", "Prompt tokens looked up.", stats.prefix_queries);
    page.single("prefix_cache_hits_total", "counter", "Prompt tokens found cached.", stats.prefix_hits);
    page.single("engine_steps_total", "counter", "Steps of the engine.", stats.steps);
    let [api_servers, schedulers, workers] = board.replaced();
    page.single("worker_restarts_total", "counter", "Workers that died and were replaced.", workers);
    page.head("process_restarts_total", "counter", "Processes that died and were replaced, by kind.");
    for (kind, count) in [("api-server", api_servers), ("scheduler", schedulers), ("worker", workers)] {
        page.sample("process_restarts_total", &format!("process=\"{kind}\""), count);
    }
    let get = |counter| board.get(counter);
    page.single("prompt_tokens_total", "counter", "Prompt tokens of requests.", get(Counter::PromptTokens));
    page.single("prompt_tokens_cached_total", "counter", "Those found cached.", get(Counter::CachedTokens));
    page.single("generation_tokens_total", "counter", "Tokens generated.", get(Counter::GenerationTokens));

    page.head("request_success_total", "counter", "Choices that ended, by reason.");
    for (reason, counter) in [
        ("stop", Counter::FinishedStop),
        ("length", Counter::FinishedLength),
        ("abort", Counter::FinishedAbort),
        ("error", Counter::FinishedError),
    ] {
        page.sample("request_success_total", &format!("finished_reason=\"{reason}\""), get(counter));
    }
    page.head("http_requests_total", "counter", "Answers by status.");
    for (class, count) in board.statuses().into_iter().enumerate() {
        page.sample("http_requests_total", &format!("status=\"{}xx\"", class + 1), count);
    }
    for histogram in HISTOGRAMS {
        write_histogram(&mut page, board, histogram);
    }
    page.text
}

fn write_histogram(page: &mut Page, board: &Board, histogram: Histogram) {
    let (name, help) = match histogram {
        Histogram::TimeToFirstToken => ("time_to_first_token_seconds", "Time to the first token."),
        Histogram::InterTokenLatency => ("inter_token_latency_seconds", "Time between tokens of a choice."),
        Histogram::EndToEnd => ("e2e_request_latency_seconds", "Time from arrival to the end."),
        Histogram::PromptTokens => ("request_prompt_tokens", "Prompt tokens per request."),
        Histogram::GenerationTokens => ("request_generation_tokens", "Tokens generated per request."),
    };
    let scale = if histogram.is_time() { 1e-9 } else { 1.0 };
    page.head(name, "histogram", help);
    let (buckets, sum) = board.histogram(histogram);
    let bucket_name = format!("{name}_bucket");
    let mut total = 0;
    for (count, bound) in buckets.iter().zip(histogram.bounds()) {
        total += count;
        let bound = match histogram.is_time() {
            // Bounds are whole milliseconds, which a division keeps exact where a multiplication would not.
            true => (*bound / 1_000_000) as f64 / 1000.0,
            false => *bound as f64,
        };
        page.sample(&bucket_name, &format!("le=\"{bound}\""), total);
    }
    total += buckets.last().copied().unwrap_or(0);
    page.sample(&bucket_name, "le=\"+Inf\"", total);
    page.sample(&format!("{name}_sum"), "", sum as f64 * scale);
    page.sample(&format!("{name}_count"), "", total);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn buckets_are_cumulative_and_names_are_escaped() {
        let board = Board::private();
        board.observe_time(Histogram::TimeToFirstToken, Duration::from_millis(3), 1);
        board.observe_time(Histogram::TimeToFirstToken, Duration::from_millis(30), 2);
        board.observe(Histogram::PromptTokens, 68, 1);
        let text = exposition(&board, &SchedulerStats { running: 7, ..Default::default() }, "a\"b", 2);
        for line in [
            "gossamer:num_requests_running{model_name=\"a\\\"b\"} 7",
            "gossamer:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.001\"} 0",
            "gossamer:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.005\"} 1",
            "gossamer:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"+Inf\"} 3",
            "gossamer:time_to_first_token_seconds_count{model_name=\"a\\\"b\"} 3",
            "gossamer:request_prompt_tokens_sum{model_name=\"a\\\"b\"} 68",
        ] {
            assert!(text.lines().any(|found| found == line), "no line {line} in\n{text}");
        }
    }
}
