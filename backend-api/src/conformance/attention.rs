//! Rotary embedding with cache writes, and attention.

use super::dense::{Matrices, Product};
use super::{Bench, GemmShape, Memory, Outcome, Output, Random, bound, encode, round};
use crate::ops::{
    AttentionArgs, AttentionDesc, GemmArgs, GemmDesc, KvWriteArgs, KvWriteDesc, QkvRopeArgs, QkvRopeDesc,
    RopeArgs, RopeDesc, RopeKvWriteArgs, RopeKvWriteDesc,
};
use crate::{DType, OpArgs, OpDesc, Support};

/// Half of the largest step between neighbouring E4M3 codes, relative, and a little for the rotation's own rounding.
const E4M3_BOUND: f64 = 0.0645;

/// Attention with queries and probabilities rounded to E4M3: largest error, not a typical one (0.03 in the L2 norm). A half step
/// is 1/16 of a probability, and a score of standard deviation 1.5 moves by about as much; 0.26 is seen.
const FP8_PRODUCTS_BOUND: f64 = 0.35;

/// Scales of an E4M3 cache, `[2, kv_heads]`, for odd seeds; else none, which is 1.
fn scales_for(kv: DType, kv_heads: usize, seed: u64, middle: f64) -> Option<Vec<f64>> {
    let scale = |i: usize| round(middle * (1.0 + 0.3 * i as f64), DType::F32);
    (kv == DType::F8E4M3 && seed % 2 == 1).then(|| (0..2 * kv_heads).map(scale).collect())
}

/// Heads of the rotary cases: queries, keys (and as many values), width, tokens of a block.
const ROTARY: (usize, usize, usize, usize) = (6, 2, 64, 64);

/// Rotates queries and keys of rows.
fn rotate(values: &mut [f64], positions: &[u32], frequencies: &[f64], magnitude: f64) {
    let (heads, kv_heads, dim, _) = ROTARY;
    for (row, position) in values.chunks_mut((heads + 2 * kv_heads) * dim).zip(positions) {
        for head in row[..(heads + kv_heads) * dim].chunks_mut(dim) {
            for i in 0..dim / 2 {
                // Models are trained with angles that were rounded to float32.
                let angle = round(f64::from(*position) * frequencies[i], DType::F32);
                let (sin, cos) = angle.sin_cos();
                let (a, b) = (head[i], head[i + dim / 2]);
                head[i] = (a * cos - b * sin) * magnitude;
                head[i + dim / 2] = (b * cos + a * sin) * magnitude;
            }
        }
    }
}

/// Writes keys and values of rows to their slots.
fn keep(cache: &mut [f64], values: &[f64], slots: &[u64], scales: Option<&[f64]>, kv: DType) {
    let (heads, kv_heads, dim, size) = ROTARY;
    for (row, slot) in values.chunks((heads + 2 * kv_heads) * dim).zip(slots) {
        let (block, offset) = (*slot as usize / size, *slot as usize % size);
        for part in 0..2 {
            for head in 0..kv_heads {
                let from = (heads + part * kv_heads + head) * dim;
                let to = (((block * 2 + part) * kv_heads + head) * size + offset) * dim;
                let scale = scales.map_or(1.0, |scales| scales[part * kv_heads + head]);
                for (to, from) in cache[to..to + dim].iter_mut().zip(&row[from..from + dim]) {
                    *to = if kv == DType::F8E4M3 { (from / scale).clamp(-448.0, 448.0) } else { *from };
                }
            }
        }
    }
}

fn scattered_slots(random: &mut Random, tokens: u32, blocks: usize) -> Vec<u64> {
    let mut free: Vec<u64> = (0..(blocks * ROTARY.3) as u64).collect();
    (0..tokens).map(|_| free.swap_remove(random.below(free.len() as u32) as usize)).collect()
}

fn rotary_frequencies() -> Vec<f64> {
    (0..ROTARY.2 / 2).map(|i| round(150000f64.powf(-(i as f64) / 32.0), DType::F32)).collect()
}

/// Rotation and cache writes, each alone.
pub fn check_rope_parts<M: Memory>(
    bench: &mut Bench<M>,
    tokens: u32,
    activation: DType,
    kv: DType,
    seed: u64,
) -> Vec<Outcome> {
    let (heads, kv_heads, dim, size) = ROTARY;
    let columns = (heads + 2 * kv_heads) * dim;
    let rope = RopeDesc { heads: 6, kv_heads: 2, head_dim: 64, activation, magnitude: 1.3465735 };
    let case = format!("rope tokens={tokens} {activation} seed={seed}");
    let mut outcomes = bench.run(&case, OpDesc::Rope(rope), tokens, bound(activation), |bench| {
        let mut random = Random::new(seed);
        let (qkv, mut values) = bench.put_values(&random.normals(tokens as usize * columns, 1.0), activation);
        let positions: Vec<u32> = (0..tokens).map(|_| random.below(5000)).collect();
        let frequencies = rotary_frequencies();
        rotate(&mut values, &positions, &frequencies, f64::from(rope.magnitude));
        let args = RopeArgs {
            qkv,
            positions: bench.put_u32(&positions),
            inverse_frequencies: bench.put_values(&frequencies, DType::F32).0,
            tokens,
        };
        (OpArgs::Rope(args), vec![Output::new(qkv, activation, values)])
    });
    let write = KvWriteDesc { heads: 6, kv_heads: 2, head_dim: 64, block_size: 64, activation, kv };
    let (bound, spread) = match kv {
        DType::F8E4M3 => (E4M3_BOUND, if seed % 2 == 1 { 1.0 } else { 200.0 }),
        _ => (bound(activation), 1.0),
    };
    let case = format!("kv-write tokens={tokens} {activation} cache={kv} seed={seed}");
    outcomes.extend(bench.run(&case, OpDesc::KvWrite(write), tokens, bound, |bench| {
        let mut random = Random::new(seed);
        let (qkv, values) = bench.put_values(&random.normals(tokens as usize * columns, spread), activation);
        let blocks = tokens as usize / 16 + 2;
        let slots = scattered_slots(&mut random, tokens, blocks);
        let (plane, mut cache) = bench.put_values(&vec![0.5; blocks * 2 * kv_heads * size * dim], kv);
        let scales = scales_for(kv, kv_heads, seed, 0.006);
        keep(&mut cache, &values, &slots, scales.as_deref(), kv);
        let slot_bytes: Vec<u8> = slots.iter().flat_map(|slot| slot.to_ne_bytes()).collect();
        let args = KvWriteArgs {
            qkv,
            slots: bench.memory.put(&slot_bytes),
            kv: plane,
            kv_scales: scales.map_or(0, |scales| bench.put_values(&scales, DType::F32).0),
            tokens,
        };
        (OpArgs::KvWrite(args), vec![Output::new(plane, kv, cache)])
    }));
    outcomes
}

/// Of the rotary cases.
fn rope_desc(activation: DType, kv: DType) -> RopeKvWriteDesc {
    let (heads, kv_heads, head_dim, block_size) = ROTARY;
    RopeKvWriteDesc {
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        head_dim: head_dim as u32,
        block_size: block_size as u32,
        activation,
        kv,
        magnitude: 1.3465735,
    }
}

/// Rotary embedding and cache writes at scattered slots. With E4M3 some values are beyond what fits.
pub fn check_rope<M: Memory>(
    bench: &mut Bench<M>,
    tokens: u32,
    activation: DType,
    kv: DType,
    seed: u64,
) -> Vec<Outcome> {
    let case = format!("rope-kv-write tokens={tokens} {activation} cache={kv} seed={seed}");
    let desc = rope_desc(activation, kv);
    let (bound, spread) = match kv {
        // Without scales the values themselves must reach beyond 448.
        DType::F8E4M3 => (E4M3_BOUND, if seed % 2 == 1 { 1.0 } else { 200.0 }),
        _ => (bound(activation), 1.0),
    };
    bench.run(&case, OpDesc::RopeKvWrite(desc), tokens, bound, |bench| {
        let mut random = Random::new(seed);
        let (heads, kv_heads, dim, _) = ROTARY;
        let columns = (heads + 2 * kv_heads) * dim;
        let (qkv, values) = bench.put_values(&random.normals(tokens as usize * columns, spread), activation);
        let (args, outputs) = bench.put_rope(&mut random, &desc, qkv, (values, None), seed);
        (OpArgs::RopeKvWrite(args), outputs)
    })
}

impl<M: Memory> Bench<'_, M> {
    /// Operands of a rotation with cache write at scattered slots, and what it leaves of `values`, which stand or will stand at `qkv`;
    /// `rounded`: the same as an implementation may have them.
    fn put_rope(
        &mut self,
        random: &mut Random,
        desc: &RopeKvWriteDesc,
        qkv: u64,
        (mut values, rounded): (Vec<f64>, Option<Vec<f64>>),
        seed: u64,
    ) -> (RopeKvWriteArgs, Vec<Output>) {
        let (heads, kv_heads, dim, size) = ROTARY;
        let columns = (heads + 2 * kv_heads) * dim;
        let tokens = (values.len() / columns) as u32;
        let positions: Vec<u32> = (0..tokens).map(|_| random.below(5000)).collect();
        let blocks = tokens as usize / 16 + 2;
        let slots = scattered_slots(random, tokens, blocks);
        let frequencies = rotary_frequencies();
        let (kv, mut cache) = self.put_values(&vec![0.5; blocks * 2 * kv_heads * size * dim], desc.kv);
        let scales = scales_for(desc.kv, kv_heads, seed, 0.006);
        let untouched = cache.clone();
        rotate(&mut values, &positions, &frequencies, f64::from(desc.magnitude));
        keep(&mut cache, &values, &slots, scales.as_deref(), desc.kv);
        let slot_bytes: Vec<u8> = slots.iter().flat_map(|slot| slot.to_ne_bytes()).collect();
        let args = RopeKvWriteArgs {
            qkv,
            positions: self.put_u32(&positions),
            slots: self.memory.put(&slot_bytes),
            inverse_frequencies: self.put_values(&frequencies, DType::F32).0,
            kv,
            kv_scales: scales.as_ref().map_or(0, |scales| self.put_values(scales, DType::F32).0),
            tokens,
        };
        let mut outputs = vec![Output::new(kv, desc.kv, cache)];
        let row_bytes = desc.activation.bytes(columns as u64);
        outputs.extend(values.chunks(columns).enumerate().map(|(t, row)| {
            Output::new(qkv + t as u64 * row_bytes, desc.activation, row[..heads * dim].to_vec())
        }));
        if let Some(mut rounded) = rounded {
            rotate(&mut rounded, &positions, &frequencies, f64::from(desc.magnitude));
            let mut kept = untouched;
            keep(&mut kept, &rounded, &slots, scales.as_deref(), desc.kv);
            let narrow = |values: &[f64], dtype| values.iter().map(|value| round(*value, dtype)).collect();
            outputs[0].rounded = narrow(&kept, desc.kv);
            for (output, row) in outputs[1..].iter_mut().zip(rounded.chunks(columns)) {
                output.rounded = narrow(&row[..heads * dim], desc.activation);
            }
        }
        (args, outputs)
    }
}

/// The qkv product with rotary embedding and cache writes, its matrices apart and side by side.
pub fn check_qkv_rope<M: Memory>(
    bench: &mut Bench<M>,
    tokens: u32,
    activation: DType,
    kv: DType,
    seed: u64,
) -> Vec<Outcome> {
    let rope = rope_desc(activation, kv);
    let (queries, keys) = (rope.heads * rope.head_dim, rope.kv_heads * rope.head_dim);
    let product = GemmDesc {
        in_features: 160,
        out_features: [queries, keys, keys],
        activation,
        out: activation,
        weight: DType::BF16,
        norm: (!seed.is_multiple_of(3)).into(),
        eps: 1e-5,
        residual: 0,
        gather: 0,
    };
    let desc = QkvRopeDesc { product, rope };
    let case = format!("qkv-rope {desc:?} tokens={tokens} seed={seed}");
    // A backend need not have the fused form: the graph does without.
    if bench.backend.supports(&OpDesc::QkvRope(desc)) != Support::Yes {
        return Vec::new();
    }
    let mut outcomes = Vec::new();
    for matrices in [Matrices::Apart, Matrices::SideBySide] {
        let case = format!("{case} {matrices:?}");
        outcomes.extend(bench.run(&case, OpDesc::QkvRope(desc), tokens, bound(activation), |bench| {
            let mut random = Random::new(seed);
            let shape = GemmShape { desc: product, tokens, bias: true };
            let Product { args, expected, rounded } = bench.put_product(&mut random, &shape, matrices, true);
            let qkv = bench.put_poison(expected.len(), activation);
            let (rope, outputs) = bench.put_rope(&mut random, &rope, qkv, (expected, rounded), seed);
            (OpArgs::QkvRope(QkvRopeArgs { product: GemmArgs { out: qkv, ..args }, rope }), outputs)
        }));
    }
    outcomes
}

/// What stands in rows that a launch must leave alone; exact in every type.
const UNTOUCHED: f64 = 0.25;

/// A batch of sequences.
#[derive(Clone, Debug)]
pub struct AttentionShape {
    /// The description.
    pub desc: AttentionDesc,
    /// New queries and cached tokens (the queries' own included) of each sequence.
    pub sequences: Vec<(u32, u32)>,
    /// How many of the first sequences are in the batch and not in the launch: their rows must stay as they are.
    pub apart: usize,
}

impl AttentionShape {
    /// Decode, prefill and mixed batches; with and without window and sinks.
    pub fn awkward(activation: DType) -> Vec<Self> {
        let mut shapes = Vec::new();
        for kv in [DType::F32, DType::BF16, DType::F8E4M3] {
            for (heads, kv_heads) in [(8, 2), (3, 1), (16, 2)] {
                for (window, sinks) in [(0, 1), (128, 1), (0, 0), (37, 0)] {
                    let desc = AttentionDesc {
                        heads,
                        kv_heads,
                        head_dim: 64,
                        block_size: 64,
                        window,
                        sinks,
                        activation,
                        kv,
                        scale: 0.125,
                        single: 0,
                        allow_fp8: 0,
                    };
                    let sequences = vec![(1, 1), (1, 64), (1, 65), (3, 200), (17, 17), (64, 130), (129, 129)];
                    shapes.push(Self { desc, sequences, apart: if sinks == 1 { 0 } else { 3 } });
                    let single = AttentionDesc { single: 1, ..desc };
                    // The last is long enough for several splits, where there are some.
                    let lens = [1, 2, 64, 65, 128, 129, 200, 300, 2113];
                    let few = if heads == 16 { 0 } else { 1 };
                    let sequences: Vec<_> = lens[..lens.len() - few].iter().map(|len| (1, *len)).collect();
                    shapes.push(Self { desc: single, sequences, apart: 0 });
                    if sinks == 1 {
                        shapes.push(Self { desc: single, sequences: vec![(3, 7), (1, 777)], apart: 1 });
                    }
                    // Rounded queries and probabilities, where a backend has tactics of them.
                    if kv == DType::F8E4M3 && activation == DType::BF16 && sinks == 1 {
                        let desc = AttentionDesc { allow_fp8: 1, ..single };
                        let sequences = lens.iter().map(|len| (1, *len)).collect();
                        shapes.push(Self { desc, sequences, apart: 0 });
                    }
                    // Rows enough that a kernel may give each to one warp.
                    if (heads, sinks) == (16, 1) && activation == DType::BF16 && kv != DType::F32 {
                        let count = if window == 0 { 515 } else { 131 };
                        let sequences = (0..count).map(|i| (1, 1 + i * 7 % 150)).collect();
                        shapes.push(Self { desc: single, sequences, apart: 0 });
                    }
                }
            }
        }
        shapes
    }
}

/// Attention over a cache with shuffled blocks; window tables begin at the first block that is still needed.
pub fn check_attention<M: Memory>(bench: &mut Bench<M>, shape: &AttentionShape, seed: u64) -> Vec<Outcome> {
    let AttentionShape { desc, sequences, apart } = shape.clone();
    let case = format!("attention {desc:?} sequences={sequences:?} apart={apart} seed={seed}");
    let tokens: u32 = sequences.iter().map(|(queries, _)| queries).sum();
    let bound = match (desc.kv, desc.activation) {
        // Keys and values times their scales are rounded too, in some kernels.
        (DType::F8E4M3, DType::BF16) => 2.0 * bound(desc.activation),
        _ => bound(desc.activation),
    };
    let mut outcomes = bench.run(&case, OpDesc::Attention(desc), tokens, bound, |bench| {
        let mut random = Random::new(seed);
        let (heads, kv_heads) = (desc.heads as usize, desc.kv_heads as usize);
        let (dim, size) = (desc.head_dim as usize, desc.block_size as usize);
        let columns = (heads + 2 * kv_heads) * dim;
        let (q, queries) = bench.put_values(&random.normals(tokens as usize * columns, 1.5), desc.activation);
        let mut sinks = random.normals(heads, 2.0);
        // One above all scores, and one below.
        sinks[..2].copy_from_slice(&[30.0, -40.0]);
        let (sinks, sink_values) = bench.put_values(&sinks, DType::BF16);
        let stride = sequences.iter().map(|(_, len)| len.div_ceil(desc.block_size)).max().unwrap_or(1) + 1;
        let mut ids: Vec<u32> = (0..stride * sequences.len() as u32).collect();
        for i in (1..ids.len()).rev() {
            ids.swap(i, random.below(i as u32 + 1) as usize);
        }
        let plane = ids.len() * 2 * kv_heads * size * dim;
        let scales = scales_for(desc.kv, kv_heads, seed + u64::from(desc.heads), 0.4);
        // What no sequence owns is NaN: freed and never-written memory must have no influence.
        let mut cache = vec![f64::NAN; plane];
        let (mut table, mut first_blocks, mut starts) = (Vec::new(), Vec::new(), vec![0u32]);
        let mut expected = Vec::new();
        for (s, (new, len)) in sequences.iter().enumerate() {
            let oldest = match desc.window {
                0 => 0,
                window => (len - new + 1).saturating_sub(window),
            };
            let first_block = oldest / desc.block_size;
            let blocks = &ids[s * stride as usize..][..stride as usize];
            let mut row = vec![u32::MAX; stride as usize];
            for b in first_block..len.div_ceil(desc.block_size) {
                row[(b - first_block) as usize] = blocks[b as usize];
            }
            table.extend(row);
            first_blocks.push(first_block);
            let mut keys: Vec<Vec<f64>> = (0..2)
                .map(|_| {
                    let values = random.normals(*len as usize * kv_heads * dim, 1.0);
                    values.into_iter().map(|value| round(value, desc.kv)).collect()
                })
                .collect();
            for token in (first_block * desc.block_size) as usize..*len as usize {
                let block = blocks[token / size] as usize;
                for (part, values) in keys.iter().enumerate() {
                    for head in 0..kv_heads {
                        let from = (token * kv_heads + head) * dim;
                        let to = (((block * 2 + part) * kv_heads + head) * size + token % size) * dim;
                        cache[to..to + dim].copy_from_slice(&values[from..from + dim]);
                    }
                }
            }
            if let Some(scales) = &scales {
                for (part, values) in keys.iter_mut().enumerate() {
                    for (head, values) in values.chunks_mut(dim).enumerate() {
                        let scale = scales[part * kv_heads + head % kv_heads];
                        values.iter_mut().for_each(|value| *value *= scale);
                    }
                }
            }
            if s < apart {
                expected.extend(std::iter::repeat_n(UNTOUCHED, *new as usize * heads * dim));
            }
            for j in (0..*new as usize).take(if s < apart { 0 } else { usize::MAX }) {
                let position = (len - new) as usize + j;
                let from = match desc.window {
                    0 => 0,
                    window => (position + 1).saturating_sub(window as usize),
                };
                let row = (starts[s] as usize + j) * columns;
                for head in 0..heads {
                    let query = &queries[row + head * dim..][..dim];
                    let kv_head = head / (heads / kv_heads);
                    let at = |token: usize| (token * kv_heads + kv_head) * dim;
                    let dot = |token: usize| {
                        query.iter().zip(&keys[0][at(token)..]).map(|(a, b)| a * b).sum::<f64>()
                            * f64::from(desc.scale)
                    };
                    let scores: Vec<f64> = (from..=position).map(dot).collect();
                    let sink = if desc.sinks == 1 { sink_values[head] } else { f64::NEG_INFINITY };
                    let most = scores.iter().copied().fold(sink, f64::max);
                    let total: f64 =
                        scores.iter().map(|s| (s - most).exp()).sum::<f64>() + (sink - most).exp();
                    for d in 0..dim {
                        let sum: f64 = scores
                            .iter()
                            .zip(from..)
                            .map(|(score, token)| (score - most).exp() * keys[1][at(token) + d])
                            .sum();
                        expected.push(sum / total);
                    }
                }
            }
            starts.push(starts[s] + new);
        }
        let before = starts[apart] as usize * heads * dim;
        let mut out = encode(&vec![UNTOUCHED; before], desc.activation);
        out.resize(desc.activation.bytes(expected.len() as u64) as usize, 0xff);
        let out = bench.memory.put(&out);
        // Lists of four-byte elements, without those of the sequences that are not in the launch.
        let past = |address: u64, each: u32| address + apart as u64 * u64::from(each) * 4;
        let lens: Vec<u32> = sequences.iter().map(|(_, len)| *len).collect();
        let args = AttentionArgs {
            q,
            q_stride: columns as u32,
            sequences: (sequences.len() - apart) as u32,
            query_starts: past(bench.put_u32(&starts), 1),
            kv_lens: past(bench.put_u32(&lens), 1),
            block_tables: past(bench.put_u32(&table), stride),
            table_stride: stride,
            max_query: sequences[apart..].iter().map(|(new, _)| *new).max().unwrap_or(0),
            max_kv: lens.iter().copied().max().unwrap_or(0),
            tokens,
            first_blocks: past(bench.put_u32(&first_blocks), 1),
            sinks: if desc.sinks == 1 { sinks } else { 0 },
            kv: bench.put_values(&cache, desc.kv).0,
            kv_scales: scales.map_or(0, |scales| bench.put_values(&scales, DType::F32).0),
            out,
        };
        (OpArgs::Attention(args), vec![Output::new(out, desc.activation, expected)])
    });
    for outcome in outcomes.iter_mut().filter(|outcome| outcome.case.ends_with("-fp8")) {
        outcome.bound = FP8_PRODUCTS_BOUND;
    }
    outcomes
}
