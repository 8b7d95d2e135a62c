//! Times tactics where they will be used: inside a step, on the step's own tensors.
//!
//! Each token count is run once through the graph; the first operation of every kind stops there and tries its
//! candidates. What is measured includes everything that a launch costs on this machine.

use super::Model;
use crate::executor::ExecutorError;
use crate::model::open::ModelError;
use gossamer_backend_api::OpDesc;
use gossamer_kernels::tuner::{self, CacheEntry, Candidate, KernelCache};
use std::time::{Duration, Instant};

/// Launches per candidate; the quickest counts. One more comes before, to warm up.
const LAUNCHES: usize = 5;

/// How far tuning should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TuneLimits {
    /// No token count is begun after this time.
    pub budget: Duration,
    /// Also time operations that only one tactic can do, for the record.
    pub single: bool,
}

impl Model {
    /// Measures what `cache` does not hold yet, uses the best from now on, and adds it to the cache. Returns the number of
    /// choices measured. Nothing may be in flight; KV blocks and slots lose what they hold.
    ///
    /// `progress` hears each token count before it is run, with the number of counts.
    pub fn tune(
        &mut self,
        cache: &mut KernelCache,
        limits: TuneLimits,
        progress: &mut dyn FnMut(u32, usize),
    ) -> Result<usize, ModelError> {
        if self.steps.is_some() {
            return self.tune_on_device(cache, limits, progress);
        }
        let start = Instant::now();
        let buckets = self.program.buckets().to_vec();
        let most = self.slots.limits().tokens as u32;
        let mut measured = 0;
        for tokens in &buckets {
            if start.elapsed() >= limits.budget {
                break;
            }
            progress(*tokens, buckets.len());
            // The last count may lie beyond the largest step.
            let rows = (*tokens).min(most);
            let samples = rows.min(self.slots.limits().runs as u32);
            self.batch.fill_alike(rows, samples, &self.info);
            self.drawn.resize(samples as usize, self.max_logprobs as usize);
            measured += self.tune_at(*tokens, cache, limits)?;
        }
        Ok(measured)
    }

    fn tune_at(
        &mut self,
        bucket: u32,
        cache: &mut KernelCache,
        limits: TuneLimits,
    ) -> Result<usize, ModelError> {
        let mut measured = 0;
        let mut seen: Vec<OpDesc> = Vec::new();
        for node in 0..self.program.graph.nodes.len() {
            let op = &self.program.graph.nodes[node].op;
            let (desc, rows) =
                (op.desc(), if op.runs_on_samples() { self.batch.samples() } else { self.batch.tokens() });
            // Fewer tokens are drawn than run: beyond the most that can be, there is nothing to choose.
            if !seen.contains(&desc) && tuner::bucket(rows) == bucket {
                let operation = format!("{desc:?}");
                let candidates = self.program.candidates_of(&self.backends, node, bucket)?;
                let known = cache.get(&operation, bucket);
                let known =
                    known.and_then(|entry| tuner::cached(entry, &candidates, &self.backends)).is_some();
                if !known && (limits.single || candidates.len() > 1) {
                    cache.insert(self.compare(node, bucket, operation, &candidates)?);
                    measured += 1;
                }
                seen.push(desc);
            }
            self.launch_on_host(node).map_err(ModelError::Tune)?;
        }
        Ok(measured)
    }

    /// Times the candidates of one node, and uses the best.
    fn compare(
        &mut self,
        node: usize,
        bucket: u32,
        operation: String,
        candidates: &[Candidate],
    ) -> Result<CacheEntry, ModelError> {
        let mut costs = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let cost = self.time(node, bucket, candidate);
            if let Err(error) = &cost {
                let tactic = &candidate.tactic.name;
                tracing::warn!(%error, tactic, operation, "a tactic could not be measured");
            }
            costs.push(cost.ok());
        }
        let order = tuner::rank(&costs);
        let best = &candidates[order[0]];
        self.use_candidate(node, bucket, best);
        let name = |index: usize| {
            let candidate: &Candidate = &candidates[index];
            (self.backends.list()[candidate.backend].name().to_owned(), candidate.tactic.name.clone())
        };
        let (backend, tactic) = name(order[0]);
        let runner_up = |index: &usize| {
            let (backend, tactic) = name(*index);
            costs[*index].map(|cost| (backend, tactic, cost))
        };
        Ok(CacheEntry {
            operation,
            tokens: bucket,
            backend,
            tactic,
            micros: costs[order[0]]
                .ok_or(ModelError::NothingMeasured { node: self.program.graph.nodes[node].label() })?,
            runners_up: order[1..].iter().filter_map(runner_up).collect(),
        })
    }

    fn use_candidate(&mut self, node: usize, bucket: u32, candidate: &Candidate) {
        if let Some(at) = self.program.buckets().iter().position(|other| *other == bucket) {
            self.program.choose(node, at, candidate);
        }
    }

    /// Microseconds of one candidate.
    fn time(&mut self, node: usize, bucket: u32, candidate: &Candidate) -> Result<f64, ExecutorError> {
        self.use_candidate(node, bucket, candidate);
        let mut best = f64::INFINITY;
        for launch in 0..=LAUNCHES {
            let start = Instant::now();
            self.launch_on_host(node)?;
            if launch > 0 {
                best = best.min(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        Ok(best)
    }
}
