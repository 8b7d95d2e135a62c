//! Rotary embedding with cache writes, and attention.

use super::{Bench, Memory, Outcome, Output, Random, bound, round};
use crate::ops::{AttentionArgs, AttentionDesc, RopeKvWriteArgs, RopeKvWriteDesc};
use crate::{DType, OpArgs, OpDesc};

/// Rotary embedding and cache writes at scattered slots.
pub fn check_rope<M: Memory>(
    bench: &mut Bench<M>,
    tokens: u32,
    activation: DType,
    seed: u64,
) -> Vec<Outcome> {
    let case = format!("rope-kv-write tokens={tokens} {activation} seed={seed}");
    let desc = RopeKvWriteDesc {
        heads: 6,
        kv_heads: 2,
        head_dim: 64,
        block_size: 64,
        activation,
        kv: activation,
        magnitude: 1.3465735,
    };
    bench.run(&case, OpDesc::RopeKvWrite(desc), tokens, bound(activation), |bench| {
        let mut random = Random::new(seed);
        let (heads, kv_heads, dim, size) = (6usize, 2usize, 64usize, 64usize);
        let columns = (heads + 2 * kv_heads) * dim;
        let (qkv, mut values) = bench.put_values(&random.normals(tokens as usize * columns, 1.0), activation);
        let positions: Vec<u32> = (0..tokens).map(|_| random.below(5000)).collect();
        let blocks = tokens as usize / 16 + 2;
        let mut free: Vec<u64> = (0..(blocks * size) as u64).collect();
        let slots: Vec<u64> =
            (0..tokens).map(|_| free.swap_remove(random.below(free.len() as u32) as usize)).collect();
        let frequencies: Vec<f64> =
            (0..dim / 2).map(|i| round(150000f64.powf(-(i as f64) / 32.0), DType::F32)).collect();
        let plane = blocks * 2 * kv_heads * size * dim;
        let (kv, mut cache) = bench.put_values(&vec![0.5; plane], activation);
        for (t, row) in values.chunks_mut(columns).enumerate() {
            for head in row[..(heads + kv_heads) * dim].chunks_mut(dim) {
                for i in 0..dim / 2 {
                    // Models are trained with angles that were rounded to float32.
                    let angle = round(f64::from(positions[t]) * frequencies[i], DType::F32);
                    let (sin, cos) = angle.sin_cos();
                    let m = f64::from(desc.magnitude);
                    let (a, b) = (head[i], head[i + dim / 2]);
                    head[i] = (a * cos - b * sin) * m;
                    head[i + dim / 2] = (b * cos + a * sin) * m;
                }
            }
            let (block, offset) = (slots[t] as usize / size, slots[t] as usize % size);
            for part in 0..2 {
                for head in 0..kv_heads {
                    let from = (heads + part * kv_heads + head) * dim;
                    let to = (((block * 2 + part) * kv_heads + head) * size + offset) * dim;
                    cache[to..to + dim].copy_from_slice(&row[from..from + dim]);
                }
            }
        }
        let slot_bytes: Vec<u8> = slots.iter().flat_map(|slot| slot.to_ne_bytes()).collect();
        let args = RopeKvWriteArgs {
            qkv,
            positions: bench.put_u32(&positions),
            slots: bench.memory.put(&slot_bytes),
            inverse_frequencies: bench.put_values(&frequencies, DType::F32).0,
            kv,
            kv_scales: 0,
            tokens,
        };
        let outputs = vec![
            Output { address: qkv, dtype: activation, expected: values },
            Output { address: kv, dtype: activation, expected: cache },
        ];
        (OpArgs::RopeKvWrite(args), outputs)
    })
}

/// A batch of sequences.
#[derive(Clone, Debug)]
pub struct AttentionShape {
    /// The description.
    pub desc: AttentionDesc,
    /// New queries and cached tokens (the queries' own included) of each sequence.
    pub sequences: Vec<(u32, u32)>,
}

impl AttentionShape {
    /// Decode, prefill and mixed batches; with and without window and sinks.
    pub fn awkward(activation: DType) -> Vec<Self> {
        let mut shapes = Vec::new();
        for kv in [DType::F32, DType::BF16] {
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
                    };
                    let sequences = vec![(1, 1), (1, 64), (1, 65), (3, 200), (17, 17), (64, 130), (129, 129)];
                    shapes.push(Self { desc, sequences });
                }
            }
        }
        shapes
    }
}

/// Attention over a cache with shuffled blocks; window tables begin at the first block that is still needed.
pub fn check_attention<M: Memory>(bench: &mut Bench<M>, shape: &AttentionShape, seed: u64) -> Vec<Outcome> {
    let AttentionShape { desc, sequences } = shape.clone();
    let case = format!("attention {desc:?} sequences={sequences:?} seed={seed}");
    let tokens: u32 = sequences.iter().map(|(queries, _)| queries).sum();
    bench.run(&case, OpDesc::Attention(desc), tokens, bound(desc.activation), |bench| {
        let mut random = Random::new(seed);
        let (heads, kv_heads) = (desc.heads as usize, desc.kv_heads as usize);
        let (dim, size) = (desc.head_dim as usize, desc.block_size as usize);
        let columns = (heads + 2 * kv_heads) * dim;
        let (q, queries) = bench.put_values(&random.normals(tokens as usize * columns, 1.5), desc.activation);
        let (sinks, sink_values) = bench.put_values(&random.normals(heads, 2.0), DType::BF16);
        let stride = sequences.iter().map(|(_, len)| len.div_ceil(desc.block_size)).max().unwrap_or(1) + 1;
        let mut ids: Vec<u32> = (0..stride * sequences.len() as u32).collect();
        for i in (1..ids.len()).rev() {
            ids.swap(i, random.below(i as u32 + 1) as usize);
        }
        let plane = ids.len() * 2 * kv_heads * size * dim;
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
            let keys: Vec<Vec<f64>> = (0..2)
                .map(|_| {
                    let values = random.normals(*len as usize * kv_heads * dim, 1.0);
                    values.into_iter().map(|value| round(value, desc.kv)).collect()
                })
                .collect();
            for token in oldest as usize..*len as usize {
                let block = blocks[token / size] as usize;
                for (part, values) in keys.iter().enumerate() {
                    for head in 0..kv_heads {
                        let from = (token * kv_heads + head) * dim;
                        let to = (((block * 2 + part) * kv_heads + head) * size + token % size) * dim;
                        cache[to..to + dim].copy_from_slice(&values[from..from + dim]);
                    }
                }
            }
            for j in 0..*new as usize {
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
        let out = bench.put_poison(expected.len(), desc.activation);
        let lens: Vec<u32> = sequences.iter().map(|(_, len)| *len).collect();
        let args = AttentionArgs {
            q,
            q_stride: columns as u32,
            sequences: sequences.len() as u32,
            query_starts: bench.put_u32(&starts),
            kv_lens: bench.put_u32(&lens),
            block_tables: bench.put_u32(&table),
            table_stride: stride,
            max_query: sequences.iter().map(|(new, _)| *new).max().unwrap_or(0),
            max_kv: lens.iter().copied().max().unwrap_or(0),
            tokens,
            first_blocks: bench.put_u32(&first_blocks),
            sinks: if desc.sinks == 1 { sinks } else { 0 },
            kv: bench.put_values(&cache, desc.kv).0,
            kv_scales: 0,
            out,
        };
        (OpArgs::Attention(args), vec![Output { address: out, dtype: desc.activation, expected }])
    })
}
