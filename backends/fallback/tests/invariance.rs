//! Results must not depend, to the bit, on what else is in the batch, on how a prompt is cut into chunks, or on how many
//! threads compute: for each instruction set and activation type.

#[path = "common/threads.rs"]
mod threads;

use gossamer_backend_api::conformance::{HostMemory, Memory, Random};
use gossamer_backend_api::ops::*;
use gossamer_backend_api::{DType, HostServices, KernelBackend, Launch, OpArgs, OpDesc};
use gossamer_fallback::{Fallback, Isa};
use proptest::prelude::*;
use std::sync::OnceLock;

/// One backend per instruction set and number of threads, made once: threads live as long as the process.
fn backends() -> &'static [(String, Vec<Fallback>)] {
    static BACKENDS: OnceLock<Vec<(String, Vec<Fallback>)>> = OnceLock::new();
    BACKENDS.get_or_init(|| {
        let hosts: Vec<HostServices> = (1..=4).map(threads::host).collect();
        let with =
            |isa| hosts.iter().map(|host| Fallback::with_isa(*host, isa).expect("available")).collect();
        Isa::available().map(|isa| (isa.label().to_owned(), with(isa))).collect()
    })
}

fn values(random: &mut Random, count: usize, dtype: DType) -> Vec<u8> {
    let values = random.normals(count, 1.0);
    match dtype {
        DType::BF16 => {
            values.iter().flat_map(|v| (((*v as f32).to_bits() >> 16) as u16).to_ne_bytes()).collect()
        }
        _ => values.iter().flat_map(|v| (*v as f32).to_ne_bytes()).collect(),
    }
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn launch(backend: &Fallback, memory: &mut HostMemory, desc: OpDesc, args: OpArgs, tokens: u32) {
    let workspace_bytes = backend.workspace(&desc, 0, tokens);
    let workspace = memory.put(&vec![0xff; workspace_bytes as usize]);
    let launch = Launch { args, tactic: 0, workspace, workspace_bytes, stream: 0 };
    // SAFETY: the callers put every buffer with the extent that the operation documents.
    unsafe { backend.launch(&desc, &launch) }.expect("the launch succeeds");
}

fn read(memory: &HostMemory, address: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    memory.get(address, &mut out);
    out
}

/// Cuts `0..total` at the given marks (taken modulo the total).
fn cuts(total: u32, marks: &[u32]) -> Vec<u32> {
    let mut cuts: Vec<u32> = marks.iter().map(|mark| mark % total).chain([0, total]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

/// Runs rows `first..end` of a dense product and returns their bytes.
fn gemm(backend: &Fallback, desc: GemmDesc, x: &[u8], rows: std::ops::Range<u32>, seed: u64) -> Vec<u8> {
    let mut memory = HostMemory::default();
    let mut random = Random::new(seed);
    let k = desc.in_features as usize;
    let segments = desc.out_features.map(|features| Segment {
        weight: memory.put(&values(&mut random, features as usize * k, DType::BF16)),
        bias: memory.put(&values(&mut random, features as usize, DType::BF16)),
    });
    let norm_weight = memory.put(&values(&mut random, k, DType::BF16));
    let row_bytes = desc.activation.bytes(k as u64) as usize;
    let tokens = rows.len() as u32;
    let bytes = desc.out.bytes(u64::from(tokens * desc.columns())) as usize;
    let out = memory.put(&vec![0xff; bytes]);
    let x = memory.put(&x[rows.start as usize * row_bytes..rows.end as usize * row_bytes]);
    let args = GemmArgs { x, rows: 0, norm_weight, segments, residual: 0, out, tokens };
    launch(backend, &mut memory, OpDesc::Gemm(desc), OpArgs::Gemm(args), tokens);
    read(&memory, out, bytes)
}

fn experts(
    backend: &Fallback,
    desc: ExpertsDesc,
    x: &[u8],
    ids: &[u32],
    rows: std::ops::Range<u32>,
    seed: u64,
) -> Vec<u8> {
    let mut memory = HostMemory::default();
    let mut random = Random::new(seed);
    let (h, i, e) = (desc.hidden as usize, desc.intermediate as usize, desc.experts as usize);
    let mut weights = |rows: usize, columns: usize, memory: &mut HostMemory| ExpertWeights {
        data: memory.put(&random.bytes(e * rows * columns / 2)),
        scales: memory
            .put(&random.bytes(e * rows * columns / 32).iter().map(|b| 120 + b % 6).collect::<Vec<_>>()),
        bias: memory.put(&values(&mut random, e * rows, DType::BF16)),
    };
    let gate_up = weights(2 * i, h, &mut memory);
    let down = weights(h, i, &mut memory);
    let row_bytes = desc.activation.bytes(h as u64) as usize;
    let (first, end) = (rows.start as usize, rows.end as usize);
    let top = desc.top_k as usize;
    let tokens = rows.len() as u32;
    let bytes = (end - first) * top * row_bytes;
    let out = memory.put(&vec![0xff; bytes]);
    let args = ExpertsArgs {
        x: memory.put(&x[first * row_bytes..end * row_bytes]),
        expert_ids: memory.put(&words(&ids[first * top..end * top])),
        gate_up,
        down,
        out,
        tokens,
    };
    launch(backend, &mut memory, OpDesc::Experts(desc), OpArgs::Experts(args), tokens);
    read(&memory, out, bytes)
}

/// One sequence of `len` tokens in a shuffled cache, and neighbours that fill the batch.
struct Sequence {
    desc: AttentionDesc,
    q: Vec<u8>,
    kv: Vec<u8>,
    blocks: Vec<u32>,
    sinks: Vec<u8>,
}

impl Sequence {
    fn new(desc: AttentionDesc, len: u32, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let count = len.div_ceil(desc.block_size);
        let mut blocks: Vec<u32> = (0..count + 3).collect();
        for i in (1..blocks.len()).rev() {
            blocks.swap(i, random.below(i as u32 + 1) as usize);
        }
        let plane = blocks.len() * 2 * (desc.kv_heads * desc.block_size * desc.head_dim) as usize;
        Self {
            desc,
            q: values(&mut random, (len * desc.heads * desc.head_dim) as usize, desc.activation),
            kv: values(&mut random, plane, desc.kv),
            blocks,
            sinks: values(&mut random, desc.heads as usize, DType::BF16),
        }
    }

    /// Output of queries `queries`, in a batch where `neighbours` (new, length) of the same cache come first.
    fn run(&self, backend: &Fallback, queries: std::ops::Range<u32>, neighbours: &[(u32, u32)]) -> Vec<u8> {
        let mut memory = HostMemory::default();
        let desc = self.desc;
        let row = desc.activation.bytes(u64::from(desc.heads * desc.head_dim)) as usize;
        let mut batch = neighbours.to_vec();
        batch.push((queries.len() as u32, queries.end));
        let (mut q, mut starts) = (Vec::new(), vec![0u32]);
        let (mut table, mut first_blocks, mut lens) = (Vec::new(), Vec::new(), Vec::new());
        for (new, len) in &batch {
            q.extend_from_slice(&self.q[(len - new) as usize * row..*len as usize * row]);
            starts.push(starts[starts.len() - 1] + new);
            // Window layers may have dropped what no query sees any more.
            let oldest = if desc.window == 0 { 0 } else { (len - new + 1).saturating_sub(desc.window) };
            let first = oldest / desc.block_size;
            let mut blocks = self.blocks[first as usize..].to_vec();
            blocks.resize(self.blocks.len(), u32::MAX);
            table.extend(blocks);
            first_blocks.push(first);
            lens.push(*len);
        }
        let tokens = starts[starts.len() - 1];
        let out = memory.put(&vec![0xff; tokens as usize * row]);
        let args = AttentionArgs {
            q: memory.put(&q),
            q_stride: desc.heads * desc.head_dim,
            sequences: batch.len() as u32,
            query_starts: memory.put(&words(&starts)),
            kv_lens: memory.put(&words(&lens)),
            block_tables: memory.put(&words(&table)),
            table_stride: self.blocks.len() as u32,
            max_query: batch.iter().map(|(new, _)| *new).max().unwrap_or(0),
            max_kv: lens.iter().copied().max().unwrap_or(0),
            tokens,
            first_blocks: memory.put(&words(&first_blocks)),
            sinks: memory.put(&self.sinks),
            kv: memory.put(&self.kv),
            kv_scales: 0,
            out,
        };
        launch(backend, &mut memory, OpDesc::Attention(desc), OpArgs::Attention(args), tokens);
        let mut bytes = read(&memory, out, tokens as usize * row);
        bytes.split_off((tokens as usize - queries.len()) * row)
    }
}

fn dtype() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::F32), Just(DType::BF16)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_dense_row_is_the_same_in_any_batch_and_on_any_threads(
        seed: u64,
        activation in dtype(),
        tokens in 1u32..150,
        // Enough rows that one thread takes several chunks at once.
        features in prop_oneof![3 => 1u32..150, 1 => Just(1203u32)],
        k in prop_oneof![Just(96u32), Just(160), Just(192), Just(1100), 3u32..400],
        marks in prop::collection::vec(any::<u32>(), 0..5),
    ) {
        let desc = GemmDesc {
            in_features: k,
            out_features: [features, 5, 0],
            activation,
            out: DType::F32,
            weight: DType::BF16,
            norm: (seed % 2) as u32,
            eps: 1e-5,
            residual: 0,
            gather: 0,
        };
        let x = values(&mut Random::new(seed), (tokens * k) as usize, activation);
        for (isa, backends) in backends() {
            let whole = gemm(&backends[0], desc, &x, 0..tokens, seed);
            let mut parts = Vec::new();
            for (i, cut) in cuts(tokens, &marks).windows(2).enumerate() {
                parts.extend(gemm(&backends[i % backends.len()], desc, &x, cut[0]..cut[1], seed));
            }
            prop_assert!(whole == parts, "{isa}: a row depends on its batch: {desc:?}, {tokens} tokens, cuts {marks:?}");
            let single = gemm(&backends[3], desc, &x, tokens - 1..tokens, seed);
            prop_assert!(whole.ends_with(&single), "{isa}: the last row alone differs: {desc:?}, {tokens} tokens");
        }
    }

    #[test]
    fn a_token_gets_the_same_from_its_experts_in_any_batch_and_on_any_threads(
        seed: u64,
        activation in dtype(),
        tokens in 1u32..100,
        spread in 1u32..8,
        hidden in 1u32..12,
        inner in prop_oneof![3 => 1u32..6, 1 => Just(36u32)],
        marks in prop::collection::vec(any::<u32>(), 0..4),
    ) {
        let desc = ExpertsDesc {
            hidden: 32 * hidden,
            intermediate: 32 * inner,
            experts: spread + 1,
            first_expert: 0,
            local_experts: spread + 1,
            top_k: 2,
            limit: 7.0,
            alpha: 1.702,
            activation,
            weight: DType::MXFP4,
            allow_fp8: 0,
        };
        let mut random = Random::new(seed);
        let x = values(&mut random, (tokens * desc.hidden) as usize, activation);
        let ids: Vec<u32> = (0..tokens)
            .flat_map(|_| {
                let first = random.below(spread + 1);
                [first, (first + 1 + random.below(spread)) % (spread + 1)]
            })
            .collect();
        for (isa, backends) in backends() {
            let whole = experts(&backends[2], desc, &x, &ids, 0..tokens, seed);
            let mut parts = Vec::new();
            for (i, cut) in cuts(tokens, &marks).windows(2).enumerate() {
                parts.extend(experts(&backends[i % backends.len()], desc, &x, &ids, cut[0]..cut[1], seed));
            }
            prop_assert!(whole == parts, "{isa}: a token depends on its batch: {desc:?}, {tokens} tokens, cuts {marks:?}");
        }
    }

    #[test]
    fn a_query_attends_alike_whole_in_chunks_and_beside_others(
        seed: u64,
        activation in dtype(),
        kv in dtype(),
        len in 1u32..400,
        window in prop_oneof![Just(0u32), Just(128), 1u32..200],
        marks in prop::collection::vec(any::<u32>(), 0..5),
        others in prop::collection::vec((1u32..40, 0u32..400), 0..3),
    ) {
        let desc = AttentionDesc {
            heads: 6,
            kv_heads: 2,
            head_dim: 64,
            block_size: 64,
            window,
            sinks: (seed % 2) as u32,
            activation,
            kv,
            scale: 0.125,
            single: 0,
            allow_fp8: 0,
        };
        let sequence = Sequence::new(desc, len, seed);
        let others: Vec<(u32, u32)> =
            others.iter().map(|(new, l)| (1 + new % len, (1 + new % len).max(1 + l % len))).collect();
        for (isa, backends) in backends() {
            let whole = sequence.run(&backends[0], 0..len, &[]);
            let mut parts = Vec::new();
            for (i, cut) in cuts(len, &marks).windows(2).enumerate() {
                parts.extend(sequence.run(&backends[i % backends.len()], cut[0]..cut[1], &others));
            }
            prop_assert!(whole == parts, "{isa}: a query depends on its batch: {desc:?}, {len} tokens, cuts {marks:?}");
            let last = sequence.run(&backends[3], len - 1..len, &others);
            prop_assert!(whole.ends_with(&last), "{isa}: decoding the last token differs: {desc:?}, {len} tokens");
        }
    }
}
