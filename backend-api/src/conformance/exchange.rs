//! Sums over ranks. All ranks of a case run here, at once: on threads where a launch returns when the work is done, on streams of their own
//! where it is enqueued.

use super::{Bench, Memory, Outcome, Random, bound, distance, round};
use crate::ops::{
    AllReduceArgs, AllReduceDesc, AllReduceNormArgs, AllReduceNormDesc, MOST_RANKS, REGION_HEADER,
};
use crate::{DType, Launch, OpArgs, OpDesc, Support};

/// Launches of a case, one after the other on the same regions: counters go on, halves alternate.
const ROUNDS: usize = 3;

/// One rank's buffers.
struct Rank {
    x: u64,
    residual: u64,
    out: u64,
    values: Vec<f64>,
}

/// A sum over `ranks` ranks, alone or with residual and norm. `tokens` are those of the largest launch; one in the middle has fewer.
pub fn check_all_reduce<M: Memory>(
    bench: &mut Bench<M>,
    ranks: u32,
    hidden: u32,
    tokens: u32,
    activation: DType,
    normed: bool,
    seed: u64,
) -> Vec<Outcome> {
    let reduce = AllReduceDesc { ranks, hidden, activation };
    let fused = AllReduceNormDesc { reduce, eps: 1e-5 };
    let desc = if normed { OpDesc::AllReduceNorm(fused) } else { OpDesc::AllReduce(reduce) };
    let name = desc.kind().label();
    let case = format!("{name} ranks={ranks} hidden={hidden} tokens={tokens} {activation} seed={seed}");
    let bound = bound(activation);
    let outcome = |case: String, error: f64| Outcome { case, error, bound };
    if !bench.wants(desc.kind()) {
        return Vec::new();
    }
    if let Support::No(reason) = bench.backend.supports(&desc) {
        return vec![outcome(format!("{case}: refused: {reason}"), f64::NAN)];
    }
    let mut outcomes = Vec::new();
    for tactic in bench.backend.tactics(&desc, tokens) {
        let region_bytes = reduce.region_bytes(tokens);
        // Zero where the operation says so, and NaNs behind.
        let mut image = vec![0xff; region_bytes as usize];
        image[..REGION_HEADER as usize].fill(0);
        let mut regions = [0; MOST_RANKS];
        for region in &mut regions[..ranks as usize] {
            *region = bench.memory.put(&image);
        }
        let workspaces: Vec<(u64, u64)> = (0..ranks)
            .map(|_| {
                let bytes = bench.backend.workspace(&desc, tactic.id, tokens);
                (if bytes == 0 { 0 } else { bench.memory.put(&vec![0; bytes as usize]) }, bytes)
            })
            .collect();
        let mut worst = 0f64;
        let mut failed = None;
        for round_of in 0..ROUNDS {
            let tokens = if round_of == 1 { tokens.div_ceil(3) } else { tokens };
            let case = Case { reduce, eps: normed.then_some(fused.eps), tokens, regions, region_bytes };
            match case.run(bench, &desc, tactic.id, &workspaces, seed + round_of as u64) {
                Ok(error) => {
                    worst = if error.is_nan() || worst.is_nan() { f64::NAN } else { worst.max(error) }
                }
                Err(message) => failed = Some(message),
            }
        }
        let case = format!("{case} tactic={}", tactic.name);
        outcomes.push(match failed {
            Some(message) => outcome(format!("{case}: {message}"), f64::NAN),
            None => outcome(case, worst),
        });
        bench.memory.clear();
    }
    outcomes
}

struct Case {
    reduce: AllReduceDesc,
    /// With residual and norm.
    eps: Option<f32>,
    tokens: u32,
    regions: [u64; MOST_RANKS],
    region_bytes: u64,
}

impl Case {
    /// One launch on every rank. Returns the largest error; NaN too where ranks differ in a bit.
    fn run<M: Memory>(
        &self,
        bench: &mut Bench<M>,
        desc: &OpDesc,
        tactic: u32,
        workspaces: &[(u64, u64)],
        seed: u64,
    ) -> Result<f64, String> {
        let AllReduceDesc { ranks, hidden, activation } = self.reduce;
        let count = (self.tokens * hidden) as usize;
        let mut random = Random::new(seed);
        let (_, residuals) = bench.put_values(&random.normals(count, 1.0), activation);
        let (weight, weights) = bench.put_values(&random.normals(hidden as usize, 1.0), DType::BF16);
        let each: Vec<Rank> = (0..ranks)
            .map(|_| {
                let (x, values) = bench.put_values(&random.normals(count, 1.0), activation);
                let (residual, _) = bench.put_values(&residuals, activation);
                Rank { x, residual, out: bench.put_poison(count, activation), values }
            })
            .collect();
        let args = |rank: usize| {
            let reduce = AllReduceArgs {
                x: each[rank].x,
                regions: self.regions,
                region_bytes: self.region_bytes,
                rank: rank as u32,
                tokens: self.tokens,
            };
            match self.eps {
                None => OpArgs::AllReduce(reduce),
                Some(_) => {
                    let Rank { residual, out, .. } = each[rank];
                    OpArgs::AllReduceNorm(AllReduceNormArgs { reduce, residual, weight, out })
                }
            }
        };
        bench.backend.prepare(desc, tactic).map_err(|error| error.to_string())?;
        let streams = bench.memory.streams(ranks as usize);
        // What was put is there before any of them starts.
        bench.memory.wait();
        let backend = bench.backend;
        let launch = |rank: usize| {
            let (workspace, workspace_bytes) = workspaces[rank];
            let stream = streams[rank];
            let launch = Launch { args: args(rank), tactic, workspace, workspace_bytes, stream };
            // SAFETY: every buffer was put with the extent that the operation documents.
            unsafe { backend.launch(desc, &launch) }.map_err(|error| error.to_string())
        };
        match streams.iter().all(|stream| *stream == 0) {
            true => std::thread::scope(|scope| {
                let running: Vec<_> =
                    (0..ranks as usize).map(|rank| scope.spawn(move || launch(rank))).collect();
                running.into_iter().try_for_each(|thread| {
                    thread.join().unwrap_or_else(|_| Err("a rank's thread panicked".to_owned()))
                })
            }),
            false => (0..ranks as usize).try_for_each(launch),
        }?;
        bench.memory.wait();

        let sum = |at: usize| round(each.iter().map(|rank| rank.values[at]).sum(), activation);
        let sums: Vec<f64> = (0..count).map(sum).collect();
        let mut expected = vec![(each.iter().map(|rank| rank.x).collect::<Vec<_>>(), sums.clone())];
        if let Some(eps) = self.eps {
            let added: Vec<f64> = sums
                .iter()
                .zip(&residuals)
                .map(|(sum, residual)| round(sum + residual, activation))
                .collect();
            let normed = added
                .chunks(hidden as usize)
                .flat_map(|row| super::dense::norm_reference(row, &weights, eps));
            let normed = normed.collect();
            expected = vec![
                (each.iter().map(|rank| rank.residual).collect(), added),
                (each.iter().map(|rank| rank.out).collect(), normed),
            ];
        }
        let mut worst = 0f64;
        for (addresses, expected) in expected {
            let got: Vec<Vec<f64>> =
                addresses.iter().map(|address| bench.read_values(*address, count, activation)).collect();
            if got.iter().any(|values| *values != got[0]) {
                return Ok(f64::NAN);
            }
            worst = worst.max(distance(&got[0], &expected));
            if worst.is_nan() || distance(&got[0], &expected).is_nan() {
                return Ok(f64::NAN);
            }
        }
        Ok(worst)
    }
}
