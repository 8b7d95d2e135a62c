//! Measures the tactics of products, experts and attention on the device, with the model's own weights, and takes the fastest.
//!
//! Launches walk over the layers, so that weights come from memory as they do in a step. What is not measured before the
//! budget ends keeps its first guess. Attention is measured over contexts of a length that requests have.

use super::device::Steps;
use super::launch::Places;
use super::open::ModelError;
use super::program::{Choice, Open};
use super::{Model, TuneLimits};
use crate::cuda::{CudaError, Event, Pinned};
use gossamer_backend_api::{OpDesc, OpKind};
use gossamer_kernels::tuner::{self, CacheEntry, KernelCache};
use std::time::Instant;

/// Launches that are timed together.
const ROUNDS: usize = 12;
/// Launches before them.
const WARM_UP: usize = 3;
/// Values in the pattern that activations are filled with.
const PATTERN: usize = 1 << 20;

impl Model {
    /// As [`Model::tune`], on a device.
    pub(super) fn tune_on_device(
        &mut self,
        cache: &mut KernelCache,
        limits: TuneLimits,
        progress: &mut dyn FnMut(u32, usize),
    ) -> Result<usize, ModelError> {
        let Some(steps) = self.steps.take() else { return Ok(0) };
        let result = self.tune_with(&steps, cache, limits, progress);
        self.steps = Some(steps);
        result
    }

    fn tune_with(
        &mut self,
        steps: &Steps,
        cache: &mut KernelCache,
        limits: TuneLimits,
        progress: &mut dyn FnMut(u32, usize),
    ) -> Result<usize, ModelError> {
        let start = Instant::now();
        if limits.budget.is_zero() {
            return Ok(0);
        }
        self.fill_arena(steps)?;
        let mut open = self.program.open_choices(&self.backends).map_err(super::ProgramError::from)?;
        let timed = [OpKind::Gemm, OpKind::QkvRope, OpKind::FusedMoe, OpKind::Attention];
        open.retain(|open| timed.contains(&open.desc.kind()));
        // From both ends: the smallest steps are run most often, the largest take the longest, and the budget may end between.
        let count = self.program.buckets().len();
        open.sort_by_key(|open| {
            if open.bucket < count / 2 { 2 * open.bucket } else { 2 * (count - 1 - open.bucket) + 1 }
        });
        let (begun, done) = (Event::new()?, Event::new()?);
        let mut measured = 0;
        let (mut last, counts) = (0, self.program.buckets().len());
        for open in open {
            if start.elapsed() >= limits.budget {
                break;
            }
            let tokens = self.program.buckets()[open.bucket];
            if tokens != last {
                progress(tokens, counts);
                last = tokens;
            }
            let known = cache.get(&open.operation, tokens);
            if known.and_then(|entry| tuner::cached(entry, &open.candidates, &self.backends)).is_some() {
                continue;
            }
            // For every operation anew: both kinds of places lie in the same memory.
            let places = match open.desc {
                OpDesc::Attention(desc) => match self.attention_places(steps, open.tokens, desc.single)? {
                    Some(places) => places,
                    None => continue,
                },
                _ => steps.tuning_places(open.tokens, &self.info)?,
            };
            let mut costs = Vec::with_capacity(open.candidates.len());
            for candidate in &open.candidates {
                let choice = self.program.choice_for(&open, candidate);
                costs.push(self.time_on_device(steps, &open, choice, &places, (&begun, &done))?);
                (self.heartbeat)();
            }
            let order = tuner::rank(&costs);
            let Some(best) = order.first().filter(|best| costs[**best].is_some()) else { continue };
            self.program.choose_for(&open, &open.candidates[*best]);
            let named = |index: &usize| {
                let candidate = &open.candidates[*index];
                let backend = self.backends.list()[candidate.backend].name().to_owned();
                (backend, candidate.tactic.name.clone(), costs[*index].unwrap_or(f64::NAN))
            };
            let (backend, tactic, micros) = named(best);
            let runners_up = order[1..].iter().filter(|index| costs[**index].is_some()).map(named).collect();
            let operation = open.operation;
            cache.insert(CacheEntry { operation, tokens, backend, tactic, micros, runners_up });
            measured += 1;
        }
        tracing::info!(measured, seconds = start.elapsed().as_secs_f64(), tactics = self.tactics(), "tuned");
        Ok(measured)
    }

    /// Microseconds of one launch; `None` where the backend refuses.
    fn time_on_device(
        &self,
        steps: &Steps,
        open: &Open,
        choice: Choice,
        places: &Places,
        (begun, done): (&Event, &Event),
    ) -> Result<Option<f64>, CudaError> {
        let nodes = self.program.nodes_of(open);
        for round in 0..WARM_UP + ROUNDS {
            if round == WARM_UP {
                begun.record(steps.stream())?;
            }
            let node = nodes[round % nodes.len()];
            let args = self.args(node, open.tokens, places);
            // SAFETY: activations lie in the arena; `places` hold row numbers below the token count, and slots of the pool's first block
            // for as many; or sequences whose rows are, with blocks of the pool. Nobody's tokens are in the pool yet.
            let launched = unsafe { self.launch_as(&open.desc, args, choice, steps.stream().raw()) };
            if let Err(error) = launched {
                tracing::debug!(%error, operation = open.operation, "a tactic cannot be measured");
                // Earlier rounds may still read the places, which the next copy replaces.
                steps.stream().synchronize()?;
                return Ok(None);
            }
        }
        done.record(steps.stream())?;
        done.wait()?;
        Ok(Some(f64::from(done.milliseconds_since(begun)?) * 1e3 / ROUNDS as f64))
    }

    /// Fills the arena with numbers of the size that activations have.
    fn fill_arena(&mut self, steps: &Steps) -> Result<(), CudaError> {
        let mut pattern = Pinned::new(PATTERN * 2)?;
        let mut state = 0x9e37_79b9u32;
        for pair in pattern.bytes_mut().chunks_exact_mut(2) {
            // A sum of bytes of a linear congruential generator is close enough to a normal distribution.
            let mut sum = 0i32;
            for _ in 0..4 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                sum += (state >> 24) as i32 - 128;
            }
            pair.copy_from_slice(&half::bf16::from_f32(sum as f32 / 148.0).to_le_bytes());
        }
        let (base, bytes) = (self.arena.address(), self.program.buffers.bytes as usize);
        for offset in (0..bytes).step_by(PATTERN * 2) {
            // SAFETY: the part lies in the arena; the pattern lives until the stream was waited for.
            unsafe {
                steps.stream().upload(base + offset as u64, &pattern, (PATTERN * 2).min(bytes - offset))
            }?;
        }
        steps.stream().synchronize()
    }
}
