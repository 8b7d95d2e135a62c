//! Replicas, the router, threads, and the verdict.
//!
//! Time is cut into windows. At the start of one the router learns how many requests each replica has open, and counts its
//! own dispatches until the next; inside a window replicas run on their own, shared among threads.
//!
//! Invariant: the number of threads changes nothing but the time it takes.
//! Invariant: a run is given up early only when its targets are missed for certain.

use crate::cost::{LayoutCost, Links};
use crate::engine::{Blueprint, Event};
use crate::replica::Replica;
use crate::search::PlanError;
use crate::shape::ModelShape;
use crate::workload::Request;
use clap::ValueEnum;
use gossamer_bench::layout::Layout;
use gossamer_kernels::cost::CostModel;
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;

/// How requests find a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Routing {
    /// In turn.
    RoundRobin,
    /// To the replica with the fewest open requests, by its last report and what was sent to it since.
    LeastLoaded,
}

/// What does not differ between layouts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Sequences that run at once in a scheduler.
    pub max_num_seqs: u32,
    /// Token budget of a step.
    pub max_num_batched_tokens: u32,
    /// Bytes of each GPU that may be used.
    pub usable_bytes: f64,
    /// KV blocks of each GPU, instead of what fits.
    pub blocks_override: Option<u32>,
    /// Bytes of a value in the KV cache.
    pub kv_value_bytes: f64,
    /// The links between GPUs.
    pub links: Links,
    /// The router.
    pub routing: Routing,
    /// Nanoseconds between reports of the replicas to the router.
    pub report_interval: u64,
    /// Threads.
    pub threads: usize,
}

/// What users must feel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Targets {
    /// Milliseconds to the first token.
    pub ttft_ms: f64,
    /// Milliseconds per token after the first.
    pub tpot_ms: f64,
    /// Share of the requests that must meet each, in percent.
    pub percentile: f64,
}

impl Targets {
    /// Requests of `count` that may miss a target.
    fn may_miss(&self, count: usize) -> usize {
        count - (self.percentile / 100.0 * count as f64).ceil().min(count as f64) as usize
    }
}

/// What a fleet did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The layout of each replica.
    pub layout: Layout,
    /// Replicas.
    pub replicas: u32,
    /// GPUs of all of them.
    pub gpus: u32,
    /// Whether both targets are met.
    pub met: bool,
    /// Given up: the targets were missed for certain, and the figures below are of the part that ran.
    pub given_up: bool,
    /// Requests that can never fit the KV cache.
    pub refused: usize,
    /// TTFT at the targets' percentile, in milliseconds, by nearest rank.
    pub ttft_ms: f64,
    /// TPOT at that percentile.
    pub tpot_ms: f64,
    /// Mean TTFT.
    pub mean_ttft_ms: f64,
    /// Mean TPOT.
    pub mean_tpot_ms: f64,
    /// Generated tokens per second and GPU.
    pub tokens_per_second_per_gpu: f64,
    /// Generated tokens per second that one user sees: the inverse of the mean TPOT.
    pub tokens_per_second_per_user: f64,
    /// Share of the time in which the devices worked.
    pub busy: f64,
    /// Virtual seconds from the first arrival to the last token.
    pub seconds: f64,
}

/// A model, a calibration and a workload that fleets are tried on.
pub struct Fleet<'a> {
    /// The model.
    pub shape: &'a ModelShape,
    /// What was measured.
    pub calibration: &'a CostModel,
    /// The requests, by arrival.
    pub requests: &'a [Request],
    /// The settings.
    pub settings: &'a Settings,
    /// The targets.
    pub targets: Targets,
}

/// Nanoseconds at which tokens came; 0: not yet.
struct Books {
    first: Vec<u64>,
    last: Vec<u64>,
    refused: usize,
    finished: usize,
    missed_tpot: usize,
    missed_ttft: usize,
    /// Requests before this are counted in `missed_ttft` if they missed.
    judged: usize,
}

impl Fleet<'_> {
    /// Simulates `replicas` replicas of `layout`; `progress` hears how many requests are finished.
    pub fn run(
        &self,
        layout: &Layout,
        replicas: u32,
        mut progress: impl FnMut(usize),
    ) -> Result<Outcome, PlanError> {
        let settings = self.settings;
        let blocks = match settings.blocks_override {
            Some(blocks) => blocks,
            None => self.shape.kv_blocks(layout, settings.usable_bytes, settings.kv_value_bytes)?,
        };
        let blueprint = Blueprint {
            shape: self.shape,
            settings,
            cost: Arc::new(LayoutCost::new(self.calibration, self.shape, layout, settings.links)),
            blocks,
            stages: layout.pipeline,
            lanes: if layout.expert { layout.data } else { 1 },
            longest: self.requests.iter().map(|request| request.input + request.output).max().unwrap_or(1),
        };
        let mut fleet: Vec<Replica> =
            (0..replicas).map(|_| Replica::new(&blueprint, layout.split)).collect::<Result<_, _>>()?;
        let mut books = Books {
            first: vec![0; self.requests.len()],
            last: vec![0; self.requests.len()],
            refused: 0,
            finished: 0,
            missed_tpot: 0,
            missed_ttft: 0,
            judged: 0,
        };
        let may_miss = self.targets.may_miss(self.requests.len());
        let mut router = Router::new(settings.routing, replicas);
        let start = self.requests.first().map_or(0, |request| request.arrival);
        let (mut sent, mut window_end, mut given_up) = (0, start, false);
        while books.finished + books.refused < self.requests.len() {
            // Nothing happens before the next arrival when nobody works.
            if let Some(request) = self.requests.get(sent)
                && books.finished + books.refused == sent
            {
                window_end = window_end.max(request.arrival);
            }
            window_end += settings.report_interval.max(1);
            router.learn(&fleet);
            while let Some(request) = self.requests.get(sent).filter(|request| request.arrival < window_end) {
                fleet[router.choose()].deliver(request.arrival, sent as u32);
                sent += 1;
            }
            self.run_window(&mut fleet, window_end)?;
            for replica in &mut fleet {
                replica.news.drain(..).for_each(|news| books.enter(news.serial, news.event, news.at, self));
            }
            books.judge(window_end, self);
            progress(books.finished);
            if books.missed_ttft > may_miss || books.missed_tpot + books.refused > may_miss {
                given_up = books.finished + books.refused < self.requests.len();
                break;
            }
        }
        Ok(self.outcome(layout, &fleet, &books, start, given_up))
    }

    fn run_window(&self, fleet: &mut [Replica], end: u64) -> Result<(), PlanError> {
        let run = |part: &mut [Replica]| {
            part.iter_mut().try_for_each(|replica| replica.run_until(end, self.requests, self.shape))
        };
        let threads = self.settings.threads.clamp(1, fleet.len().max(1));
        if threads == 1 {
            return run(fleet);
        }
        let share = fleet.len().div_ceil(threads);
        std::thread::scope(|scope| {
            let parts: Vec<_> = fleet.chunks_mut(share).map(|part| scope.spawn(move || run(part))).collect();
            parts.into_iter().try_for_each(|part| part.join().unwrap_or(Err(PlanError::Thread)))
        })
    }

    fn outcome(
        &self,
        layout: &Layout,
        fleet: &[Replica],
        books: &Books,
        start: u64,
        given_up: bool,
    ) -> Outcome {
        let (mut ttft, mut tpot, mut tokens) = (Vec::new(), Vec::new(), 0u64);
        for (index, request) in self.requests.iter().enumerate() {
            if books.first[index] > 0 {
                ttft.push(books.ttft(index, request));
            }
            if books.last[index] > 0 {
                tokens += u64::from(request.output);
                tpot.extend(books.tpot(index, request));
            }
        }
        let may_miss = self.targets.may_miss(self.requests.len());
        let met = !given_up && books.missed_ttft <= may_miss && books.missed_tpot + books.refused <= may_miss;
        let end = fleet.iter().map(|replica| replica.now).max().unwrap_or(start);
        let nanoseconds = end.saturating_sub(start).max(1);
        let gpus = layout.gpus() * fleet.len() as u32;
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let (mean_ttft, mean_tpot) = (mean(&ttft), mean(&tpot));
        let busy: f64 = fleet.iter().map(|replica| replica.busy() as f64).sum();
        Outcome {
            layout: *layout,
            replicas: fleet.len() as u32,
            gpus,
            met,
            given_up,
            refused: books.refused,
            ttft_ms: nearest_rank(&mut ttft, self.targets.percentile),
            tpot_ms: nearest_rank(&mut tpot, self.targets.percentile),
            mean_ttft_ms: mean_ttft,
            mean_tpot_ms: mean_tpot,
            tokens_per_second_per_gpu: tokens as f64 * 1e9 / nanoseconds as f64 / f64::from(gpus),
            tokens_per_second_per_user: if mean_tpot > 0.0 { 1e3 / mean_tpot } else { 0.0 },
            busy: busy / (nanoseconds as f64 * fleet.len() as f64),
            seconds: nanoseconds as f64 * 1e-9,
        }
    }
}

impl Books {
    fn enter(&mut self, serial: u32, event: Event, at: u64, fleet: &Fleet<'_>) {
        let index = serial as usize;
        // Time 0 is the mark of "not yet".
        let at = at.max(1);
        match event {
            Event::First => self.first[index] = at,
            Event::Finished => {
                self.last[index] = at;
                self.finished += 1;
                let tpot = self.tpot(index, &fleet.requests[index]);
                self.missed_tpot += usize::from(tpot.is_some_and(|tpot| tpot > fleet.targets.tpot_ms));
            }
            Event::Refused => self.refused += 1,
        }
    }

    /// Counts the requests whose time to the first token has run out by `now`.
    fn judge(&mut self, now: u64, fleet: &Fleet<'_>) {
        let patience = (fleet.targets.ttft_ms * 1e6).min(1e18) as u64;
        while let Some(request) = fleet.requests.get(self.judged) {
            let known = self.first[self.judged] > 0;
            if !known && request.arrival.saturating_add(patience) >= now {
                return;
            }
            let late = !known || self.ttft(self.judged, request) > fleet.targets.ttft_ms;
            self.missed_ttft += usize::from(late);
            self.judged += 1;
        }
    }

    fn ttft(&self, index: usize, request: &Request) -> f64 {
        self.first[index].saturating_sub(request.arrival) as f64 * 1e-6
    }

    /// `None` for requests of one token.
    fn tpot(&self, index: usize, request: &Request) -> Option<f64> {
        let nanoseconds = self.last[index].saturating_sub(self.first[index]) as f64;
        (request.output > 1).then(|| nanoseconds * 1e-6 / f64::from(request.output - 1))
    }
}

/// The smallest value that `percentile` percent of the values do not exceed.
fn nearest_rank(values: &mut [f64], percentile: f64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let rank = (percentile / 100.0 * values.len() as f64).ceil() as usize;
    let index = rank.clamp(1, values.len()) - 1;
    *values.select_nth_unstable_by(index, f64::total_cmp).1
}

/// Chooses replicas.
struct Router {
    routing: Routing,
    turn: u64,
    /// Per replica: open requests, and when it was last chosen.
    known: Vec<(u32, u64)>,
    order: BTreeSet<(u32, u64, usize)>,
}

impl Router {
    fn new(routing: Routing, replicas: u32) -> Self {
        let known = vec![(0, 0); replicas as usize];
        let order = known.iter().enumerate().map(|(index, (open, turn))| (*open, *turn, index)).collect();
        Self { routing, turn: 0, known, order }
    }

    fn learn(&mut self, fleet: &[Replica]) {
        if self.routing == Routing::RoundRobin {
            return;
        }
        for (index, replica) in fleet.iter().enumerate() {
            self.set(index, replica.open(), self.known[index].1);
        }
    }

    fn set(&mut self, index: usize, open: u32, turn: u64) {
        let (old_open, old_turn) = std::mem::replace(&mut self.known[index], (open, turn));
        if (old_open, old_turn) != (open, turn) {
            self.order.remove(&(old_open, old_turn, index));
            self.order.insert((open, turn, index));
        }
    }

    fn choose(&mut self) -> usize {
        self.turn += 1;
        if self.routing == Routing::RoundRobin {
            return (self.turn - 1) as usize % self.known.len().max(1);
        }
        // Among equals the one that was chosen longest ago.
        let index = self.order.first().map_or(0, |(_, _, index)| *index);
        let open = self.known[index].0;
        self.set(index, open + 1, self.turn);
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_rank_is_met_by_its_share() {
        let mut values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(nearest_rank(&mut values, 99.0), 198.0);
        assert_eq!(nearest_rank(&mut values, 100.0), 200.0);
        assert_eq!(nearest_rank(&mut [7.0], 50.0), 7.0);
        let targets = Targets { ttft_ms: 1.0, tpot_ms: 1.0, percentile: 99.0 };
        assert_eq!([targets.may_miss(200), targets.may_miss(99), targets.may_miss(1)], [2, 0, 0]);
    }
}
