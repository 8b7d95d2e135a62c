//! Sends the prompts: arrival times, the concurrency limit, the progress bar.

use super::client::{Client, Outcome, Sample, Server};
use super::{Prompt, ServeBenchArgs};
use crate::workload::arrivals;
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// A bar for `count` requests.
pub fn progress_bar(count: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(count);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {elapsed} (eta {eta})") {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

/// Sends `count` requests, taking prompts in turn, and waits for all of them.
pub async fn drive(
    args: &ServeBenchArgs,
    client: &Client,
    server: &Server,
    prompts: &[Prompt],
    count: usize,
    bar: &ProgressBar,
) -> Outcome {
    let limit = Arc::new(Semaphore::new(args.max_concurrency.unwrap_or(Semaphore::MAX_PERMITS)));
    let (in_flight, peak) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let began = Instant::now();
    let mut samples = vec![Sample::default(); count];
    {
        let one = |index: usize, at: f64| {
            let (limit, in_flight, peak) = (limit.clone(), &in_flight, &peak);
            async move {
                tokio::time::sleep_until((began + Duration::from_secs_f64(at)).into()).await;
                let _permit = limit.acquire().await;
                peak.fetch_max(in_flight.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                let sample = client.generate(&server.model, &prompts[index % prompts.len()], began).await;
                in_flight.fetch_sub(1, Ordering::Relaxed);
                bar.inc(1);
                (index, sample)
            }
        };
        let all = arrivals(args.request_rate, args.burstiness, args.seed, count)
            .into_iter()
            .enumerate()
            .map(|(index, at)| one(index, at));
        for (index, sample) in futures::future::join_all(all).await {
            samples[index] = sample;
        }
    }
    let duration = began.elapsed().as_secs_f64();
    bar.finish_and_clear();
    Outcome { samples, duration, peak_concurrency: peak.into_inner() }
}
