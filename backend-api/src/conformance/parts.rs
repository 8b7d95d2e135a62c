//! What fused operations are put together from.

use super::moe::{product, put_experts};
use super::{Bench, Memory, Outcome, Output, Random, bound};
use crate::ops::{
    AddArgs, AddDesc, CombineArgs, CombineDesc, ExpertProductArgs, ExpertProductDesc, QuantiseArgs,
    QuantiseDesc, ResizeArgs, ResizeDesc, ScaleArgs, ScaleDesc, SwigluArgs, SwigluDesc,
};
use crate::{DType, OpArgs, OpDesc, Support};

/// Every operation of this file at awkward sizes.
pub fn check_parts<M: Memory>(
    bench: &mut Bench<M>,
    tokens: u32,
    activation: DType,
    seed: u64,
) -> Vec<Outcome> {
    let mut outcomes = check_scale(bench, tokens, activation, seed);
    for (from, to) in [(100, 128), (704, 768), (384, 288), (7, 7)] {
        outcomes.extend(check_resize(bench, from, to, tokens, activation, seed));
    }
    for (columns, padded) in [(96, 96), (100, 256), (704, 768)] {
        outcomes.extend(check_quantise(bench, columns, padded, tokens, activation, seed));
        for out in [activation, DType::F8E4M3] {
            let padded = if out == activation { columns } else { padded };
            outcomes.extend(check_swiglu(bench, columns, padded, tokens, activation, out, seed));
        }
    }
    for desc in product_shapes(activation) {
        outcomes.extend(check_expert_product(bench, desc, tokens, seed));
    }
    outcomes.extend(check_combine(bench, 321, tokens, activation, seed));
    outcomes.extend(check_combine(bench, 768, tokens, activation, seed));
    outcomes.extend(check_add(bench, 704, tokens, activation, seed));
    outcomes
}

/// Scaling of the first columns.
pub fn check_scale<M: Memory>(
    bench: &mut Bench<M>,
    tokens: u32,
    activation: DType,
    seed: u64,
) -> Vec<Outcome> {
    let desc = ScaleDesc { columns: 192, stride: 320, activation, factor: 0.0721 };
    let case = format!("scale {desc:?} tokens={tokens} seed={seed}");
    bench.run(&case, OpDesc::Scale(desc), tokens, bound(activation), |bench| {
        let mut random = Random::new(seed);
        let (x, values) = bench.put_values(&random.normals(tokens as usize * 320, 1.0), activation);
        let factor = |at: usize| if at % 320 < 192 { f64::from(desc.factor) } else { 1.0 };
        let expected = values.iter().enumerate().map(|(at, value)| value * factor(at)).collect();
        let args = OpArgs::Scale(ScaleArgs { x, tokens });
        (args, vec![Output::new(x, activation, expected)])
    })
}

/// Padding or slicing: exact.
pub fn check_resize<M: Memory>(
    bench: &mut Bench<M>,
    from: u32,
    to: u32,
    tokens: u32,
    activation: DType,
    seed: u64,
) -> Vec<Outcome> {
    let rows = 1 + seed as u32 % 3;
    let desc = ResizeDesc { from, to, rows, activation };
    let case = format!("resize {desc:?} tokens={tokens} seed={seed}");
    bench.run(&case, OpDesc::Resize(desc), tokens, 0.0, |bench| {
        let mut random = Random::new(seed);
        let count = (tokens * rows) as usize;
        let (x, values) = bench.put_values(&random.normals(count * from as usize, 1.0), activation);
        let mut expected = Vec::with_capacity(count * to as usize);
        for row in values.chunks(from as usize) {
            expected.extend((0..to as usize).map(|at| row.get(at).copied().unwrap_or(0.0)));
        }
        let out = bench.put_poison(expected.len(), activation);
        let args = OpArgs::Resize(ResizeArgs { x, out, tokens });
        (args, vec![Output::new(out, activation, expected)])
    })
}

/// Where codes went, and what they stand for.
struct Codes {
    args: OpArgs,
    codes: u64,
    scales: u64,
    /// `[rows, columns]`.
    expected: Vec<f64>,
}

/// Checks operations that round to E4M3: a value may be off by half a step of its code, and `slack` times itself; scales by
/// `slack` too; padding must be zero. The outcome's error is in these units.
fn check_codes<M: Memory>(
    bench: &mut Bench<M>,
    case: &str,
    desc: OpDesc,
    tokens: u32,
    (columns, padded): (usize, usize),
    slack: f64,
    build: impl Fn(&mut Bench<M>) -> Codes,
) -> Vec<Outcome> {
    /// A little more than half a step: what is exactly between two codes may go either way.
    const HALF_STEP: f64 = 1.02;
    if !bench.wants(desc.kind()) {
        return Vec::new();
    }
    let outcome = |case: String, error: f64| Outcome { case, error, bound: HALF_STEP };
    if let Support::No(reason) = bench.backend.supports(&desc) {
        return vec![outcome(format!("{case}: refused: {reason}"), f64::NAN)];
    }
    let mut outcomes = Vec::new();
    for tactic in bench.backend.tactics(&desc, tokens) {
        let Codes { args, codes, scales, expected } = build(bench);
        let case = format!("{case} tactic={}", tactic.name);
        let rows = expected.len() / columns;
        let made = match bench.launch(&desc, args, tactic.id, tokens) {
            Err(message) => outcome(format!("{case}: {message}"), f64::NAN),
            Ok(()) => {
                let codes = bench.read_values(codes, rows * padded, DType::F8E4M3);
                let scales = bench.read_values(scales, rows, DType::F32);
                let mut error = 0f64;
                let mut see = |seen: f64| error = if seen.is_nan() { f64::NAN } else { error.max(seen) };
                for (row, scale) in scales.iter().enumerate() {
                    let expected = &expected[row * columns..][..columns];
                    let codes = &codes[row * padded..][..padded];
                    let top = expected.iter().fold(1e-20, |top: f64, value| top.max(value.abs()));
                    see((scale - top / 448.0).abs() / (top / 448.0) / slack);
                    for (code, value) in codes.iter().zip(expected) {
                        let step = value.abs() * (1.0 / 16.0 + slack) + scale * 2f64.powi(-10);
                        see((code * scale - value).abs() / step);
                    }
                    if codes[columns..].iter().any(|code| *code != 0.0) {
                        see(f64::NAN);
                    }
                }
                outcome(case, error)
            }
        };
        outcomes.push(made);
        bench.memory.clear();
    }
    outcomes
}

/// What the activation's own rounding may change before a value is rounded to E4M3.
fn slack(activation: DType) -> f64 {
    if activation == DType::BF16 { 1.0 / 200.0 } else { 1e-5 }
}

/// Rounding to E4M3. Odd seeds have a row of zeros.
pub fn check_quantise<M: Memory>(
    bench: &mut Bench<M>,
    columns: u32,
    padded: u32,
    tokens: u32,
    activation: DType,
    seed: u64,
) -> Vec<Outcome> {
    let rows = 1 + seed as u32 % 2;
    let desc = QuantiseDesc { columns, padded, rows, activation };
    let case = format!("quantise {desc:?} tokens={tokens} seed={seed}");
    let sizes = (columns as usize, padded as usize);
    check_codes(bench, &case, OpDesc::Quantise(desc), tokens, sizes, 1e-5, |bench| {
        let mut random = Random::new(seed);
        let count = (tokens * rows) as usize;
        let mut values = random.normals(count * sizes.0, 3.0);
        if seed % 2 == 1 {
            values[..sizes.0].fill(0.0);
        }
        let (x, expected) = bench.put_values(&values, activation);
        let codes = bench.put_poison(count * sizes.1, DType::F8E4M3);
        let scales = bench.put_poison(count, DType::F32);
        Codes { args: OpArgs::Quantise(QuantiseArgs { x, codes, scales, tokens }), codes, scales, expected }
    })
}

/// The gated unit, with or without rounding to E4M3.
pub fn check_swiglu<M: Memory>(
    bench: &mut Bench<M>,
    columns: u32,
    padded: u32,
    tokens: u32,
    activation: DType,
    out: DType,
    seed: u64,
) -> Vec<Outcome> {
    let rows = 1 + seed as u32 % 4;
    let desc = SwigluDesc { columns, padded, rows, limit: 7.0, alpha: 1.702, activation, out };
    let case = format!("swiglu {desc:?} tokens={tokens} seed={seed}");
    let count = (tokens * rows) as usize;
    let build = |bench: &mut Bench<M>| {
        let mut random = Random::new(seed);
        let (x, values) = bench.put_values(&random.normals(2 * count * columns as usize, 4.0), activation);
        let expected: Vec<f64> = values
            .chunks(2)
            .map(|pair| {
                let (gate, up) = (pair[0].min(7.0), pair[1].clamp(-7.0, 7.0));
                (up + 1.0) * gate / (1.0 + (-f64::from(desc.alpha) * gate).exp())
            })
            .collect();
        let scales = if out == DType::F8E4M3 { bench.put_poison(count, DType::F32) } else { 0 };
        let address = bench.put_poison(count * padded as usize, out);
        let args = OpArgs::Swiglu(SwigluArgs { x, out: address, scales, tokens });
        Codes { args, codes: address, scales, expected }
    };
    if out == DType::F8E4M3 {
        let sizes = (columns as usize, padded as usize);
        return check_codes(bench, &case, OpDesc::Swiglu(desc), tokens, sizes, slack(activation), build);
    }
    bench.run(&case, OpDesc::Swiglu(desc), tokens, bound(activation), |bench| {
        let made = build(bench);
        (made.args, vec![Output::new(made.codes, activation, made.expected)])
    })
}

/// Both products of the experts, narrow and wide rows, codes and values, shards.
fn product_shapes(activation: DType) -> Vec<ExpertProductDesc> {
    let base = ExpertProductDesc {
        in_features: 96,
        in_columns: 96,
        out_features: 320,
        out_columns: 320,
        experts: 8,
        first_expert: 0,
        local_experts: 8,
        top_k: 4,
        per_pair: 0,
        interleaved: 1,
        x: activation,
        out: activation,
        weight: DType::MXFP4,
    };
    let down = ExpertProductDesc {
        in_features: 160,
        in_columns: 160,
        out_features: 96,
        out_columns: 256,
        per_pair: 1,
        interleaved: 0,
        ..base
    };
    vec![
        base,
        ExpertProductDesc { in_columns: 256, x: DType::F8E4M3, experts: 32, local_experts: 32, ..base },
        ExpertProductDesc { experts: 32, first_expert: 8, local_experts: 16, ..down },
        ExpertProductDesc { in_columns: 256, x: DType::F8E4M3, out_columns: 96, ..down },
    ]
}

/// One product of the experts.
pub fn check_expert_product<M: Memory>(
    bench: &mut Bench<M>,
    desc: ExpertProductDesc,
    tokens: u32,
    seed: u64,
) -> Vec<Outcome> {
    let case = format!("moe-product {desc:?} tokens={tokens} seed={seed}");
    let (k, rows, local) =
        (desc.in_features as usize, desc.out_features as usize, desc.local_experts as usize);
    let (in_columns, out_columns) = (desc.in_columns as usize, desc.out_columns as usize);
    bench.run(&case, OpDesc::ExpertProduct(desc), tokens, bound(desc.out), |bench| {
        let mut random = Random::new(seed);
        let count = (tokens * desc.top_k) as usize;
        let rows_of_x = if desc.per_pair == 1 { count } else { tokens as usize };
        let spread = if desc.x == DType::F8E4M3 { 100.0 } else { 1.0 };
        let (x, values) = bench.put_values(&random.normals(rows_of_x * in_columns, spread), desc.x);
        let (scales, factors) = match desc.x {
            DType::F8E4M3 => {
                let factors: Vec<f64> = (0..rows_of_x).map(|_| 0.005 + 0.01 * random.unit()).collect();
                bench.put_values(&factors, DType::F32)
            }
            _ => (0, vec![1.0; rows_of_x]),
        };
        let mut ids = Vec::new();
        for _ in 0..tokens {
            let first = random.below(desc.experts);
            ids.extend((0..desc.top_k).map(|choice| (first + choice * 3) % desc.experts));
        }
        let (weights, matrix, biases) = put_experts(bench, &mut random, local, rows, k);
        let mut expected = Vec::with_capacity(count * out_columns);
        for (pair, id) in ids.iter().enumerate() {
            let expert = id.wrapping_sub(desc.first_expert) as usize;
            let row = if desc.per_pair == 1 { pair } else { pair / desc.top_k as usize };
            match expert < local {
                true => {
                    let x: Vec<f64> =
                        values[row * in_columns..][..k].iter().map(|value| value * factors[row]).collect();
                    let weights = &matrix[expert * rows * k..][..rows * k];
                    expected.extend(product(&x, weights, &biases[expert * rows..][..rows]));
                }
                false => expected.extend(std::iter::repeat_n(0.0, rows)),
            }
            expected.extend(std::iter::repeat_n(0.0, out_columns - rows));
        }
        let out = bench.put_poison(expected.len(), desc.out);
        let expert_ids = bench.put_u32(&ids);
        let args = ExpertProductArgs { x, scales, expert_ids, weights, out, tokens };
        (OpArgs::ExpertProduct(args), vec![Output::new(out, desc.out, expected)])
    })
}

/// Weighted sum of the experts' outputs.
pub fn check_combine<M: Memory>(
    bench: &mut Bench<M>,
    columns: u32,
    tokens: u32,
    activation: DType,
    seed: u64,
) -> Vec<Outcome> {
    let desc = CombineDesc { columns, top_k: 4, activation };
    let case = format!("moe-combine {desc:?} tokens={tokens} seed={seed}");
    bench.run(&case, OpDesc::Combine(desc), tokens, bound(activation), |bench| {
        let mut random = Random::new(seed);
        let (t, k, h) = (tokens as usize, 4, columns as usize);
        let (experts_out, outs) = bench.put_values(&random.normals(t * k * h, 1.0), activation);
        let (expert_weights, weights) = bench.put_values(&random.normals(t * k, 0.5), DType::F32);
        let sum = |at: usize| {
            let (token, column) = (at / h, at % h);
            (0..k).map(|j| weights[token * k + j] * outs[(token * k + j) * h + column]).sum()
        };
        let expected = (0..t * h).map(sum).collect();
        let out = bench.put_poison(t * h, activation);
        let args = CombineArgs { experts_out, expert_weights, out, tokens };
        (OpArgs::Combine(args), vec![Output::new(out, activation, expected)])
    })
}

/// The residual's addition.
pub fn check_add<M: Memory>(
    bench: &mut Bench<M>,
    columns: u32,
    tokens: u32,
    activation: DType,
    seed: u64,
) -> Vec<Outcome> {
    let desc = AddDesc { columns, activation };
    let case = format!("add {desc:?} tokens={tokens} seed={seed}");
    bench.run(&case, OpDesc::Add(desc), tokens, bound(activation), |bench| {
        let mut random = Random::new(seed);
        let count = (tokens * columns) as usize;
        let (x, values) = bench.put_values(&random.normals(count, 1.0), activation);
        let (residual, residuals) = bench.put_values(&random.normals(count, 1.0), activation);
        let expected = values.iter().zip(&residuals).map(|(a, b)| a + b).collect();
        let args = OpArgs::Add(AddArgs { x, residual, tokens });
        (args, vec![Output::new(residual, activation, expected)])
    })
}
