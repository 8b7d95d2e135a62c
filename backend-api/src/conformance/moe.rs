//! Router, experts and finalize.

use super::{Bench, Memory, Outcome, Output, Random, bound, round};
use crate::ops::{
    ExpertWeights, ExpertsArgs, ExpertsDesc, FinalizeArgs, FinalizeDesc, FusedMoeArgs, FusedMoeDesc,
    RouteArgs, RouteDesc,
};
use crate::{DType, Layout, OpArgs, OpDesc, OpKind, RepackSource, Support};

/// Router. Ids must be those of the reference wherever no two logits are close.
pub fn check_route<M: Memory>(
    bench: &mut Bench<M>,
    hidden: u32,
    experts: u32,
    tokens: u32,
    activation: DType,
    seed: u64,
) -> Vec<Outcome> {
    if !bench.wants(OpKind::Route) {
        return Vec::new();
    }
    let top_k = 4.min(experts);
    let desc = OpDesc::Route(RouteDesc { hidden, experts, top_k, activation });
    let case =
        format!("moe-route hidden={hidden} experts={experts} tokens={tokens} {activation} seed={seed}");
    let bound = 1e-4;
    if let Support::No(reason) = bench.backend.supports(&desc) {
        return vec![Outcome { case: format!("{case}: refused: {reason}"), error: f64::NAN, bound }];
    }
    let mut outcomes = Vec::new();
    for tactic in bench.backend.tactics(&desc, tokens) {
        let mut random = Random::new(seed);
        let (k, count) = (hidden as usize, (tokens * top_k) as usize);
        let (x, values) = bench.put_values(&random.normals(tokens as usize * k, 1.0), activation);
        let (weight, weights) = bench.put_values(&random.normals(experts as usize * k, 0.1), DType::BF16);
        let (bias, biases) = bench.put_values(&random.normals(experts as usize, 1.0), DType::BF16);
        let expert_ids = bench.put_u32(&vec![u32::MAX; count]);
        let expert_weights = bench.put_poison(count, DType::F32);
        let args = RouteArgs { x, weight, bias, expert_ids, expert_weights, tokens };
        let case = format!("{case} tactic={}", tactic.name);
        if let Err(message) = bench.launch(&desc, OpArgs::Route(args), tactic.id, tokens) {
            outcomes.push(Outcome { case: format!("{case}: {message}"), error: f64::NAN, bound });
            continue;
        }
        let ids = bench.read_u32(expert_ids, count);
        let got = bench.read_values(expert_weights, count, DType::F32);
        let mut error = 0f64;
        for t in 0..tokens as usize {
            let row = &values[t * k..][..k];
            let logits: Vec<f64> = (0..experts as usize)
                .map(|e| row.iter().zip(&weights[e * k..][..k]).map(|(a, b)| a * b).sum::<f64>() + biases[e])
                .collect();
            let mut order: Vec<usize> = (0..experts as usize).collect();
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
            let close = order.windows(2).take(top_k as usize).any(|w| logits[w[0]] - logits[w[1]] < 1e-4);
            if close {
                continue;
            }
            let total: f64 = order[..top_k as usize].iter().map(|e| logits[*e].exp()).sum();
            for (j, expert) in order[..top_k as usize].iter().enumerate() {
                let at = t * top_k as usize + j;
                let wrong = ids[at] != *expert as u32;
                let off = (got[at] - logits[*expert].exp() / total).abs();
                error = if wrong || off.is_nan() { f64::NAN } else { error.max(off) };
            }
            if error.is_nan() {
                break;
            }
        }
        outcomes.push(Outcome { case, error, bound });
        bench.memory.clear();
    }
    outcomes
}

/// Sizes of an experts case.
#[derive(Clone, Debug)]
pub struct ExpertsShape {
    /// The description.
    pub desc: ExpertsDesc,
    /// Tokens.
    pub tokens: u32,
}

impl ExpertsShape {
    /// Intermediate sizes that are no multiple of 64, shards, few and many experts.
    pub fn awkward(tokens: u32, activation: DType) -> Vec<Self> {
        let desc = |hidden, intermediate, experts, first_expert, local_experts| ExpertsDesc {
            hidden,
            intermediate,
            experts,
            first_expert,
            local_experts,
            top_k: 4,
            limit: 7.0,
            alpha: 1.702,
            activation,
            weight: DType::MXFP4,
            allow_fp8: 0,
        };
        [desc(96, 160, 4, 0, 4), desc(160, 96, 32, 0, 32), desc(64, 32, 128, 32, 64)]
            .into_iter()
            .map(|desc| Self { desc, tokens })
            .collect()
    }
}

/// Values of MXFP4 codes and scales (OCP Microscaling Formats 1.0).
fn expand(codes: &[u8], scales: &[u8]) -> Vec<f64> {
    const MAGNITUDES: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let value = |code: u8, scale: u8| {
        let magnitude = MAGNITUDES[usize::from(code & 7)] * (f64::from(scale) - 127.0).exp2();
        if code & 8 == 0 { magnitude } else { -magnitude }
    };
    codes
        .iter()
        .enumerate()
        .flat_map(|(i, byte)| [value(byte & 15, scales[i / 16]), value(byte >> 4, scales[i / 16])])
        .collect()
}

pub(super) fn put_experts<M: Memory>(
    bench: &mut Bench<M>,
    random: &mut Random,
    experts: usize,
    rows: usize,
    columns: usize,
) -> (ExpertWeights, Vec<f64>, Vec<f64>) {
    let codes = random.bytes(experts * rows * columns / 2);
    let scales: Vec<u8> = (0..codes.len() / 16).map(|_| 121 + random.below(5) as u8).collect();
    let (bias, biases) = bench.put_values(&random.normals(experts * rows, 0.5), DType::BF16);
    let weights = ExpertWeights { data: bench.memory.put(&codes), scales: bench.memory.put(&scales), bias };
    (weights, expand(&codes, &scales), biases)
}

pub(super) fn product(x: &[f64], weights: &[f64], biases: &[f64]) -> Vec<f64> {
    weights
        .chunks(x.len())
        .zip(biases)
        .map(|(row, bias)| row.iter().zip(x).map(|(a, b)| a * b).sum::<f64>() + bias)
        .collect()
}

/// What one expert makes of one token, exactly and with the hidden activations rounded; matrices are values and biases of all
/// experts.
fn expert_row(
    desc: &ExpertsDesc,
    expert: usize,
    row: &[f64],
    gate_up: (&[f64], &[f64]),
    down: (&[f64], &[f64]),
) -> [Vec<f64>; 2] {
    let (hidden, inner) = (desc.hidden as usize, desc.intermediate as usize);
    let of = |values: &[f64], count: usize| values[expert * count..(expert + 1) * count].to_vec();
    let sums = product(row, &of(gate_up.0, 2 * inner * hidden), &of(gate_up.1, 2 * inner));
    let limit = f64::from(desc.limit);
    let units: Vec<f64> = sums
        .chunks(2)
        .map(|pair| {
            let (gate, up) = (pair[0].min(limit), pair[1].clamp(-limit, limit));
            (up + 1.0) * gate / (1.0 + (-f64::from(desc.alpha) * gate).exp())
        })
        .collect();
    let (weights, biases) = (of(down.0, hidden * inner), of(down.1, hidden));
    let rounded: Vec<f64> = units.iter().map(|unit| round(*unit, desc.activation)).collect();
    [product(&units, &weights, &biases), product(&rounded, &weights, &biases)]
}

/// Arguments with the experts' weights in another layout than the checkpoint's.
pub(super) fn repacked<M: Memory>(
    bench: &mut Bench<M>,
    desc: &OpDesc,
    args: OpArgs,
    layout: &Layout,
) -> Result<OpArgs, String> {
    if layout.0 == Layout::CHECKPOINT {
        return Ok(args);
    }
    let mut pack = |(experts, rows, columns): (u32, u32, u32), weights: &ExpertWeights, interleaved: bool| {
        let source = RepackSource {
            data: weights.data,
            scales: weights.scales,
            dtype: DType::MXFP4,
            interleaved,
            experts,
            rows,
            columns,
            row_range: (0, rows),
            column_range: (0, columns),
        };
        let unknown = || format!("nobody makes layout '{}'", layout.0);
        let size = {
            let packer = bench.memory.repacker().unwrap_or(bench.backend);
            packer.packed_size(layout, &source).ok_or_else(unknown)?
        };
        let data = bench.memory.put(&vec![0xff; size as usize]);
        let packer = bench.memory.repacker().unwrap_or(bench.backend);
        // SAFETY: the case put the tensor whole, and room for the packed one.
        unsafe { packer.repack(layout, &source, data, bench.memory.stream()) }
            .map_err(|error| error.to_string())?;
        Ok::<_, String>(ExpertWeights { data, scales: 0, bias: weights.bias })
    };
    let gate_up = |desc: &ExpertsDesc| (desc.local_experts, 2 * desc.intermediate, desc.hidden);
    let down = |desc: &ExpertsDesc| (desc.local_experts, desc.hidden, desc.intermediate);
    match (desc, args) {
        (OpDesc::Experts(desc), OpArgs::Experts(mut args)) => {
            args.gate_up = pack(gate_up(desc), &args.gate_up, true)?;
            args.down = pack(down(desc), &args.down, false)?;
            Ok(OpArgs::Experts(args))
        }
        (OpDesc::FusedMoe(desc), OpArgs::FusedMoe(mut args)) => {
            args.gate_up = pack(gate_up(&desc.experts), &args.gate_up, true)?;
            args.down = pack(down(&desc.experts), &args.down, false)?;
            Ok(OpArgs::FusedMoe(args))
        }
        (OpDesc::ExpertProduct(desc), OpArgs::ExpertProduct(mut args)) => {
            let shape = (desc.local_experts, desc.out_features, desc.in_features);
            args.weights = pack(shape, &args.weights, desc.interleaved == 1)?;
            Ok(OpArgs::ExpertProduct(args))
        }
        (_, args) => Ok(args),
    }
}

/// Norm, router, experts and sum as one. Tokens are drawn until their choice of experts is clear. As the graph without fusion does,
/// an implementation may round the normed tokens, the hidden activations and what an expert makes; the router's weights are
/// exponentials, so the first of these counts most.
pub fn check_fused_moe<M: Memory>(bench: &mut Bench<M>, shape: &ExpertsShape, seed: u64) -> Vec<Outcome> {
    let ExpertsShape { desc: experts, tokens } = shape.clone();
    let (hidden, inner) = (experts.hidden as usize, experts.intermediate as usize);
    let (count, k) = (experts.experts as usize, experts.top_k as usize);
    let ExpertsDesc { top_k, activation, .. } = experts;
    let route = RouteDesc { hidden: experts.hidden, experts: experts.experts, top_k, activation };
    let desc = FusedMoeDesc { route, experts, eps: 1e-5 };
    let case = format!("moe-fused {desc:?} tokens={tokens} seed={seed}");
    // A backend need not have the fused form: the graph does without.
    if bench.backend.supports(&OpDesc::FusedMoe(desc)) != Support::Yes {
        return Vec::new();
    }
    bench.run(&case, OpDesc::FusedMoe(desc), tokens, 2.0 * bound(activation), |bench| {
        let mut random = Random::new(seed);
        let (norm_weight, gains) = bench.put_values(&random.normals(hidden, 1.0), DType::BF16);
        let (router_weight, routing) = bench.put_values(&random.normals(count * hidden, 0.5), DType::BF16);
        let (router_bias, biases) = bench.put_values(&random.normals(count, 1.0), DType::BF16);
        let (gate_up, gate_up_values, gate_up_bias) =
            put_experts(bench, &mut random, count, 2 * inner, hidden);
        let (down, down_values, down_bias) = put_experts(bench, &mut random, count, hidden, inner);
        let (mut rows, mut expected, mut rounded) = (Vec::new(), Vec::new(), Vec::new());
        while rows.len() < tokens as usize * hidden {
            let row: Vec<f64> =
                random.normals(hidden, 2.0).into_iter().map(|value| round(value, activation)).collect();
            let mean = row.iter().map(|x| x * x).sum::<f64>() / hidden as f64;
            let scale = 1.0 / (mean + f64::from(desc.eps)).sqrt();
            let normed: Vec<f64> = row.iter().zip(&gains).map(|(x, gain)| x * scale * gain).collect();
            let logits = product(&normed, &routing, &biases);
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
            if order.get(k).is_some_and(|next| logits[order[k - 1]] - logits[*next] < 0.1) {
                continue;
            }
            let near: Vec<f64> = normed.iter().map(|value| round(*value, activation)).collect();
            for (into, normed, which) in [(&mut expected, &normed, 0), (&mut rounded, &near, 1)] {
                let logits = product(normed, &routing, &biases);
                let total: f64 = order[..k].iter().map(|e| logits[*e].exp()).sum();
                let mut out = row.clone();
                for expert in &order[..k] {
                    let gate_up = (&gate_up_values[..], &gate_up_bias[..]);
                    let made =
                        &expert_row(&experts, *expert, normed, gate_up, (&down_values, &down_bias))[which];
                    let weight = logits[*expert].exp() / total;
                    let rounds = |value: f64| if which == 1 { round(value, activation) } else { value };
                    out.iter_mut().zip(made).for_each(|(out, made)| *out += weight * rounds(*made));
                }
                into.extend(out);
            }
            rows.extend(row);
        }
        let (residual, _) = bench.put_values(&rows, activation);
        let args = FusedMoeArgs { norm_weight, router_weight, router_bias, gate_up, down, residual, tokens };
        (OpArgs::FusedMoe(args), vec![Output { rounded, ..Output::new(residual, activation, expected) }])
    })
}

/// The experts. Weights are put in checkpoint layout; other layouts go through the backend's repacking.
pub fn check_experts<M: Memory>(bench: &mut Bench<M>, shape: &ExpertsShape, seed: u64) -> Vec<Outcome> {
    let ExpertsShape { desc, tokens } = shape.clone();
    let case = format!("moe-experts {desc:?} tokens={tokens} seed={seed}");
    let (hidden, inner) = (desc.hidden as usize, desc.intermediate as usize);
    let local = desc.local_experts as usize;
    bench.run(&case, OpDesc::Experts(desc), tokens, bound(desc.activation), |bench| {
        let mut random = Random::new(seed);
        let (x, values) = bench.put_values(&random.normals(tokens as usize * hidden, 1.0), desc.activation);
        let mut ids = Vec::new();
        for _ in 0..tokens {
            let mut chosen: Vec<u32> = Vec::new();
            while chosen.len() < desc.top_k as usize {
                let id = random.below(desc.experts);
                if !chosen.contains(&id) {
                    chosen.push(id);
                }
            }
            ids.extend(chosen);
        }
        let (gate_up, gate_up_values, gate_up_bias) =
            put_experts(bench, &mut random, local, 2 * inner, hidden);
        let (down, down_values, down_bias) = put_experts(bench, &mut random, local, hidden, inner);
        let (mut expected, mut rounded) = (Vec::new(), Vec::new());
        for (pair, id) in ids.iter().enumerate() {
            let expert = id.wrapping_sub(desc.first_expert) as usize;
            if expert >= local {
                expected.extend(std::iter::repeat_n(0.0, hidden));
                rounded.extend(std::iter::repeat_n(0.0, hidden));
                continue;
            }
            let row = &values[pair / desc.top_k as usize * hidden..][..hidden];
            let gate_up = (&gate_up_values[..], &gate_up_bias[..]);
            let [exact, near] = expert_row(&desc, expert, row, gate_up, (&down_values, &down_bias));
            expected.extend(exact);
            rounded.extend(near);
        }
        let out = bench.put_poison(expected.len(), desc.activation);
        let args = ExpertsArgs { x, expert_ids: bench.put_u32(&ids), gate_up, down, out, tokens };
        (OpArgs::Experts(args), vec![Output { rounded, ..Output::new(out, desc.activation, expected) }])
    })
}

/// Finalize.
pub fn check_finalize<M: Memory>(
    bench: &mut Bench<M>,
    hidden: u32,
    top_k: u32,
    tokens: u32,
    activation: DType,
    seed: u64,
) -> Vec<Outcome> {
    let case = format!("moe-finalize hidden={hidden} top_k={top_k} tokens={tokens} {activation} seed={seed}");
    let desc = FinalizeDesc { hidden, top_k, activation };
    bench.run(&case, OpDesc::Finalize(desc), tokens, bound(activation), |bench| {
        let mut random = Random::new(seed);
        let (t, k, h) = (tokens as usize, top_k as usize, hidden as usize);
        let (experts_out, outs) = bench.put_values(&random.normals(t * k * h, 1.0), activation);
        let (expert_weights, weights) = bench.put_values(&random.normals(t * k, 0.5), DType::F32);
        let (residual, residuals) = bench.put_values(&random.normals(t * h, 1.0), activation);
        let expected = (0..t * h)
            .map(|at| {
                let (token, column) = (at / h, at % h);
                let sum: f64 =
                    (0..k).map(|j| weights[token * k + j] * outs[(token * k + j) * h + column]).sum();
                residuals[at] + sum
            })
            .collect();
        let args = FinalizeArgs { experts_out, expert_weights, residual, tokens };
        (OpArgs::Finalize(args), vec![Output::new(residual, activation, expected)])
    })
}
