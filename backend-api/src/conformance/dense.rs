//! Embedding, norm and dense products.

use super::{Bench, Memory, Outcome, Output, Random, bound, round};
use crate::ops::{EmbedArgs, EmbedDesc, GemmArgs, GemmDesc, RmsNormArgs, RmsNormDesc, SampleRow, Segment};
use crate::{DType, OpArgs, OpDesc};

/// Embedding of `tokens` ids, one of them outside the table, others behind places of drawn ones, of which one is none.
pub fn check_embed<M: Memory>(
    bench: &mut Bench<M>,
    hidden: u32,
    vocab: u32,
    tokens: u32,
    activation: DType,
    seed: u64,
) -> Vec<Outcome> {
    let case = format!("embed hidden={hidden} tokens={tokens} {activation} seed={seed}");
    let desc = EmbedDesc { hidden, vocab, activation };
    bench.run(&case, OpDesc::Embed(desc), tokens, 0.0, |bench| {
        let mut random = Random::new(seed);
        let mut ids: Vec<u32> = (0..tokens).map(|_| random.below(vocab)).collect();
        ids[tokens as usize - 1] = vocab + 7;
        let mut drawn: Vec<u32> = (0..7).map(|_| random.below(vocab)).collect();
        drawn[3] = SampleRow::NO_TOKEN;
        let named: Vec<u32> = (0..tokens)
            .map(|token| match random.below(14) {
                place if place < 7 && (token + 1 < tokens || tokens == 1) => {
                    ids[token as usize] = drawn[place as usize];
                    EmbedArgs::DRAWN + place
                }
                _ => ids[token as usize],
            })
            .collect();
        let (table, values) = bench.put_values(&random.normals((vocab * hidden) as usize, 1.0), DType::BF16);
        let rows = ids.iter().map(|id| if *id < vocab { *id } else { 0 } as usize);
        let width = hidden as usize;
        let expected = rows.flat_map(|row| values[row * width..][..width].to_vec()).collect::<Vec<_>>();
        let out = bench.put_poison(expected.len(), activation);
        let args =
            EmbedArgs { token_ids: bench.put_u32(&named), drawn: bench.put_u32(&drawn), table, out, tokens };
        (OpArgs::Embed(args), vec![Output::new(out, activation, expected)])
    })
}

fn norm_factor(row: &[f64], eps: f32) -> f64 {
    let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
    1.0 / (mean + f64::from(eps)).sqrt()
}

pub(super) fn norm_reference(row: &[f64], weight: &[f64], eps: f32) -> Vec<f64> {
    let scale = norm_factor(row, eps);
    row.iter().zip(weight).map(|(x, w)| x * scale * w).collect()
}

/// RMSNorm, in place for odd seeds.
pub fn check_rms_norm<M: Memory>(
    bench: &mut Bench<M>,
    hidden: u32,
    tokens: u32,
    activation: DType,
    seed: u64,
) -> Vec<Outcome> {
    let case = format!("rms-norm hidden={hidden} tokens={tokens} {activation} seed={seed}");
    let desc = RmsNormDesc { hidden, eps: 1e-5, activation };
    bench.run(&case, OpDesc::RmsNorm(desc), tokens, bound(activation), |bench| {
        let mut random = Random::new(seed);
        let (x, values) = bench.put_values(&random.normals((tokens * hidden) as usize, 3.0), activation);
        let (weight, weights) = bench.put_values(&random.normals(hidden as usize, 1.0), DType::BF16);
        let expected: Vec<f64> =
            values.chunks(hidden as usize).flat_map(|row| norm_reference(row, &weights, desc.eps)).collect();
        let out = if seed % 2 == 1 { x } else { bench.put_poison(expected.len(), activation) };
        let args = RmsNormArgs { x, weight, out, tokens };
        (OpArgs::RmsNorm(args), vec![Output::new(out, activation, expected)])
    })
}

/// Sizes and options of a dense product.
#[derive(Clone, Debug)]
pub struct GemmShape {
    /// The description.
    pub desc: GemmDesc,
    /// Output rows.
    pub tokens: u32,
    /// Whether segments have a bias.
    pub bias: bool,
}

impl GemmShape {
    /// Sizes that no tile divides, and every option.
    pub fn awkward(tokens: u32, activation: DType) -> Vec<Self> {
        let base = GemmDesc {
            in_features: 96,
            out_features: [40, 0, 0],
            activation,
            out: activation,
            weight: DType::BF16,
            norm: 0,
            eps: 1e-5,
            residual: 0,
            gather: 0,
        };
        let shapes = [
            GemmDesc { out_features: [61, 3, 1], norm: 1, ..base },
            GemmDesc { in_features: 2880, out_features: [70, 8, 8], norm: 1, ..base },
            GemmDesc { in_features: 100, residual: 1, ..base },
            GemmDesc {
                in_features: 321,
                out_features: [129, 0, 0],
                gather: 1,
                out: DType::F32,
                norm: 1,
                ..base
            },
        ];
        shapes.into_iter().enumerate().map(|(i, desc)| Self { desc, tokens, bias: i != 3 }).collect()
    }
}

/// Operands of a product, `out` not among them, and what it gives, in float64.
pub(super) struct Product {
    pub args: GemmArgs,
    pub expected: Vec<f64>,
    /// As expected, but with the norm's factor applied to the sums, and rounded to the type of the outputs; where it was asked for.
    pub rounded: Option<Vec<f64>>,
}

/// Where a product's matrices lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Matrices {
    Apart,
    /// As one matrix with one bias.
    SideBySide,
}

impl<M: Memory> Bench<'_, M> {
    pub(super) fn put_product(
        &mut self,
        random: &mut Random,
        shape: &GemmShape,
        matrices: Matrices,
        rounds: bool,
    ) -> Product {
        let GemmShape { desc, tokens, bias } = shape.clone();
        let (k, columns) = (desc.in_features as usize, desc.columns() as usize);
        let rows_of_x = if desc.gather == 1 { tokens + 3 } else { tokens };
        let (x, values) = self.put_values(&random.normals(rows_of_x as usize * k, 2.0), desc.activation);
        let rows: Vec<u32> =
            (0..tokens).map(|t| if desc.gather == 1 { random.below(rows_of_x) } else { t }).collect();
        let (norm_weight, norm_weights) = self.put_values(&random.normals(k, 1.0), DType::BF16);
        let (whole_weight, weights) = self.put_values(&random.normals(columns * k, 0.1), DType::BF16);
        let (whole_bias, biases) = self.put_values(&random.normals(columns, 1.0), DType::BF16);
        let mut segments = [Segment::default(); 3];
        let mut first = 0;
        for (segment, features) in segments.iter_mut().zip(desc.out_features) {
            let features = features as usize;
            if features == 0 {
                continue;
            }
            let of = first..first + features;
            *segment = match matrices {
                Matrices::SideBySide => Segment {
                    weight: whole_weight + (first * k * 2) as u64,
                    bias: whole_bias + (first * 2) as u64,
                },
                Matrices::Apart => Segment {
                    weight: self.put_values(&weights[of.start * k..of.end * k], DType::BF16).0,
                    bias: self.put_values(&biases[of], DType::BF16).0,
                },
            };
            if !bias {
                segment.bias = 0;
            }
            first += features;
        }
        let (residual, residuals) =
            self.put_values(&random.normals(tokens as usize * columns, 1.0), desc.out);
        let products = |t: usize, row: Vec<f64>, factor: f64| -> Vec<f64> {
            let row: Vec<f64> = row.into_iter().map(|value| round(value, desc.activation)).collect();
            let product = |j: usize| {
                let dot: f64 = row.iter().zip(&weights[j * k..][..k]).map(|(a, b)| a * b).sum();
                let bias = if bias { biases[j] } else { 0.0 };
                let residual = if desc.residual == 1 { residuals[t * columns + j] } else { 0.0 };
                dot * factor + bias + residual
            };
            (0..columns).map(product).collect()
        };
        let (mut expected, mut rounded) = (Vec::new(), Vec::new());
        for (t, row) in rows.iter().enumerate() {
            let row = &values[*row as usize * k..][..k];
            let (normed, factor) = match desc.norm {
                1 => (norm_reference(row, &norm_weights, desc.eps), norm_factor(row, desc.eps)),
                _ => (row.to_vec(), 1.0),
            };
            expected.extend(products(t, normed, 1.0));
            if rounds {
                let gained = match desc.norm {
                    1 => row.iter().zip(&norm_weights).map(|(x, weight)| x * weight).collect(),
                    _ => row.to_vec(),
                };
                rounded.extend(products(t, gained, factor).into_iter().map(|value| round(value, desc.out)));
            }
        }
        let args = GemmArgs {
            x,
            rows: if desc.gather == 1 { self.put_u32(&rows) } else { 0 },
            norm_weight: if desc.norm == 1 { norm_weight } else { 0 },
            segments,
            residual: if desc.residual == 1 { residual } else { 0 },
            out: 0,
            tokens,
        };
        Product { args, expected, rounded: rounds.then_some(rounded) }
    }
}

/// A dense product.
pub fn check_gemm<M: Memory>(bench: &mut Bench<M>, shape: &GemmShape, seed: u64) -> Vec<Outcome> {
    let GemmShape { desc, tokens, bias } = shape.clone();
    let case = format!("gemm {desc:?} tokens={tokens} bias={bias} seed={seed}");
    let bound = bound(desc.out).max(if desc.norm == 1 { bound(desc.activation) } else { 0.0 });
    bench.run(&case, OpDesc::Gemm(desc), tokens, bound, |bench| {
        let mut random = Random::new(seed);
        let matrices = if seed.is_multiple_of(3) { Matrices::SideBySide } else { Matrices::Apart };
        let Product { args, expected, .. } = bench.put_product(&mut random, shape, matrices, false);
        let in_place = desc.residual == 1 && seed % 2 == 1;
        let out = if in_place { args.residual } else { bench.put_poison(expected.len(), desc.out) };
        (OpArgs::Gemm(GemmArgs { out, ..args }), vec![Output::new(out, desc.out, expected)])
    })
}
