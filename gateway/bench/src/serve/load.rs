//! Sends the prompts: arrival times, the concurrency limit, the progress bar.

use super::client::{Client, Outcome, Sample, Server};
use super::{Prompt, ServeBenchArgs};
use indicatif::{ProgressBar, ProgressStyle};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Seconds after the start at which each request is sent.
fn arrivals(args: &ServeBenchArgs, count: usize) -> Vec<f64> {
    if args.request_rate.is_infinite() {
        return vec![0.0; count];
    }
    let mut rng = StdRng::seed_from_u64(args.seed ^ 0x5eed_a221);
    let mut at = 0.0;
    (0..count)
        .map(|_| {
            at += gamma(&mut rng, args.burstiness) / (args.request_rate * args.burstiness);
            at
        })
        .collect()
}

/// A gamma variate of shape `k` and scale 1 (Marsaglia and Tsang 2000).
fn gamma(rng: &mut StdRng, k: f64) -> f64 {
    if k < 1.0 {
        let u: f64 = rng.random_range(f64::MIN_POSITIVE..1.0);
        return gamma(rng, k + 1.0) * u.powf(1.0 / k);
    }
    let d = k - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let (u, v): (f64, f64) = (rng.random_range(f64::MIN_POSITIVE..1.0), rng.random());
        let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        let cube = (1.0 + c * normal).powi(3);
        let accept: f64 = rng.random_range(f64::MIN_POSITIVE..1.0);
        if cube > 0.0 && accept.ln() < 0.5 * normal * normal + d - d * cube + d * cube.ln() {
            return d * cube;
        }
    }
}

/// Sends `count` requests, taking prompts in turn, and waits for all of them.
pub async fn drive(
    args: &ServeBenchArgs,
    client: &Client,
    server: &Server,
    prompts: &[Prompt],
    count: usize,
    what: &'static str,
) -> Outcome {
    let bar = if args.disable_progress { ProgressBar::hidden() } else { ProgressBar::new(count as u64) };
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {elapsed} (eta {eta})") {
        bar.set_style(style);
    }
    bar.set_message(what);
    let limit = Arc::new(Semaphore::new(args.max_concurrency.unwrap_or(Semaphore::MAX_PERMITS)));
    let (in_flight, peak) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let began = Instant::now();
    let mut samples = vec![Sample::default(); count];
    {
        let one = |index: usize, at: f64| {
            let (limit, in_flight, peak, bar) = (limit.clone(), &in_flight, &peak, &bar);
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
        let all = arrivals(args, count).into_iter().enumerate().map(|(index, at)| one(index, at));
        for (index, sample) in futures::future::join_all(all).await {
            samples[index] = sample;
        }
    }
    let duration = began.elapsed().as_secs_f64();
    bar.finish_and_clear();
    Outcome { samples, duration, peak_concurrency: peak.into_inner() }
}
