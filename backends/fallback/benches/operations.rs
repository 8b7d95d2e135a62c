//! Each operation at the shapes of gpt-oss-20b beside its bound: bytes over the measured bandwidth, or multiply-adds over
//! the measured float32 roof, whichever takes longer.
//!
//! `cargo bench -p gossamer-backend-fallback --bench operations`. Set `GOSSAMER_BENCH_QUICK=1` for the table of shares
//! alone, `GOSSAMER_BENCH_ONLY=text` for the rows with that text, `GOSSAMER_BENCH_ALONE=1` to use one thread and count its
//! processor time, where others keep the machine busy.

#[path = "../tests/common/threads.rs"]
mod threads;

use criterion::{Criterion, Throughput};
use gossamer_backend_api::conformance::{HostMemory, Memory, Random};
use gossamer_backend_api::ops::*;
use gossamer_backend_api::{DType, KernelBackend, Launch, OpArgs, OpDesc};
use gossamer_fallback::{Fallback, Isa, roofs};
use std::time::Instant;

const HIDDEN: u32 = 2880;
const EXPERTS: u32 = 32;
const VOCAB: u32 = 201_088;

/// One launch, ready to be repeated.
struct Case {
    name: String,
    desc: OpDesc,
    launch: Launch,
    bytes: f64,
    flops: f64,
}

struct Builder<'a> {
    backend: &'a dyn KernelBackend,
    memory: HostMemory,
    random: Random,
}

impl Builder<'_> {
    /// Activations of a type with about unit size.
    fn activations(&mut self, count: usize, dtype: DType) -> u64 {
        let bytes: Vec<u8> = match dtype {
            DType::BF16 => (0..count).flat_map(|_| self.bf16().to_ne_bytes()).collect(),
            _ => (0..count).flat_map(|_| (self.random.unit() as f32 - 0.5).to_ne_bytes()).collect(),
        };
        self.memory.put(&bytes)
    }

    fn bf16(&mut self) -> u16 {
        ((self.random.unit() as f32 - 0.5).to_bits() >> 16) as u16
    }

    /// bfloat16 weights: a random page over and over, which memory cannot tell from random ones.
    fn weights(&mut self, count: usize) -> u64 {
        let page: Vec<u8> = (0..65_536).flat_map(|_| self.bf16().to_ne_bytes()).collect();
        let bytes: Vec<u8> = page.iter().copied().cycle().take(2 * count).collect();
        self.memory.put(&bytes)
    }

    fn experts(&mut self, rows: usize, columns: usize) -> ExpertWeights {
        let count = EXPERTS as usize * rows * columns;
        let page = self.random.bytes(1 << 16);
        let codes: Vec<u8> = page.iter().copied().cycle().take(count / 2).collect();
        let scales: Vec<u8> = page.iter().map(|byte| 118 + byte % 6).cycle().take(count / 32).collect();
        ExpertWeights {
            data: self.memory.put(&codes),
            scales: self.memory.put(&scales),
            bias: self.weights(EXPERTS as usize * rows),
        }
    }

    fn words(&mut self, words: &[u32]) -> u64 {
        self.memory.put(&words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>())
    }

    fn case(
        &mut self,
        name: String,
        desc: OpDesc,
        args: OpArgs,
        tokens: u32,
        bytes: f64,
        flops: f64,
    ) -> Case {
        let workspace_bytes = self.backend.workspace(&desc, 0, tokens);
        let workspace = self.memory.put(&vec![0; workspace_bytes as usize]);
        Case {
            name,
            desc,
            launch: Launch { args, tactic: 0, workspace, workspace_bytes, stream: 0 },
            bytes,
            flops,
        }
    }

    fn gemm(
        &mut self,
        name: &str,
        k: u32,
        features: [u32; 3],
        norm: u32,
        tokens: u32,
        activation: DType,
    ) -> Case {
        let columns: u32 = features.iter().sum();
        let out = if name == "head" { DType::F32 } else { activation };
        let desc = GemmDesc {
            in_features: k,
            out_features: features,
            activation,
            out,
            weight: DType::BF16,
            norm,
            eps: 1e-5,
            residual: 0,
            gather: 0,
        };
        let segments = features.map(|features| Segment {
            weight: if features == 0 { 0 } else { self.weights((features * k) as usize) },
            bias: if features == 0 { 0 } else { self.weights(features as usize) },
        });
        let args = GemmArgs {
            x: self.activations((tokens * k) as usize, activation),
            rows: 0,
            norm_weight: if norm == 1 { self.weights(k as usize) } else { 0 },
            segments,
            residual: 0,
            out: self.activations((tokens * columns) as usize, out),
            tokens,
        };
        let weights = f64::from(columns) * f64::from(k);
        let name = format!("{name} {activation} tokens={tokens}");
        let flops = 2.0 * weights * f64::from(tokens);
        self.case(name, OpDesc::Gemm(desc), OpArgs::Gemm(args), tokens, 2.0 * weights, flops)
    }

    fn experts_case(&mut self, tokens: u32, activation: DType) -> Case {
        let desc = ExpertsDesc {
            hidden: HIDDEN,
            intermediate: HIDDEN,
            experts: EXPERTS,
            first_expert: 0,
            local_experts: EXPERTS,
            top_k: 4,
            limit: 7.0,
            alpha: 1.702,
            activation,
            weight: DType::MXFP4,
            allow_fp8: 0,
        };
        let mut ids = Vec::new();
        for _ in 0..tokens {
            let mut chosen = Vec::new();
            while chosen.len() < 4 {
                let id = self.random.below(EXPERTS);
                if !chosen.contains(&id) {
                    chosen.push(id);
                }
            }
            ids.extend(chosen);
        }
        let mut distinct = ids.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let h = HIDDEN as usize;
        let args = ExpertsArgs {
            x: self.activations(tokens as usize * h, activation),
            expert_ids: self.words(&ids),
            gate_up: self.experts(2 * h, h),
            down: self.experts(h, h),
            out: self.activations(ids.len() * h, activation),
            tokens,
        };
        let weights = 3.0 * (h * h) as f64;
        let bytes = distinct.len() as f64 * weights * 17.0 / 32.0;
        let flops = 2.0 * weights * ids.len() as f64;
        let name = format!("experts {activation} tokens={tokens}");
        self.case(name, OpDesc::Experts(desc), OpArgs::Experts(args), tokens, bytes, flops)
    }

    fn attention(&mut self, queries: u32, len: u32, batch: u32, window: u32, activation: DType) -> Case {
        let (heads, kv_heads, dim, size) = (64, 8, 64, 64);
        let desc = AttentionDesc {
            heads,
            kv_heads,
            head_dim: dim,
            block_size: size,
            window,
            sinks: 1,
            activation,
            kv: activation,
            scale: 0.125,
            single: 0,
            allow_fp8: 0,
        };
        let blocks = len.div_ceil(size);
        let tokens = queries * batch;
        let columns = (heads + 2 * kv_heads) * dim;
        let starts: Vec<u32> = (0..=batch).map(|s| s * queries).collect();
        let table: Vec<u32> = (0..batch * blocks).collect();
        let plane = (batch * blocks * 2 * kv_heads * size * dim) as usize;
        let args = AttentionArgs {
            q: self.activations((tokens * columns) as usize, activation),
            q_stride: columns,
            sequences: batch,
            query_starts: self.words(&starts),
            kv_lens: self.words(&vec![len; batch as usize]),
            block_tables: self.words(&table),
            table_stride: blocks,
            max_query: queries,
            max_kv: len,
            tokens,
            first_blocks: self.words(&vec![0; batch as usize]),
            sinks: self.weights(heads as usize),
            kv: self.activations(plane, activation),
            kv_scales: 0,
            out: self.activations((tokens * heads * dim) as usize, activation),
        };
        let seen =
            |position: u32| f64::from(if window == 0 { position + 1 } else { window.min(position + 1) });
        let pairs: f64 = (len - queries..len).map(seen).sum::<f64>() * f64::from(batch);
        let keys = f64::from(batch)
            * if window == 0 { f64::from(len) } else { f64::from((window + queries).min(len)) };
        let bytes = keys * activation.bytes(u64::from(2 * kv_heads * dim)) as f64;
        let flops = 4.0 * pairs * f64::from(heads * dim);
        let name =
            format!("attention {activation} batch={batch} queries={queries} len={len} window={window}");
        self.case(name, OpDesc::Attention(desc), OpArgs::Attention(args), tokens, bytes, flops)
    }

    fn sample(&mut self, rows: u32, temperature: f32, top_p: f32) -> Case {
        let desc = SampleDesc { vocab: VOCAB, vocab_offset: 0, logits: DType::F32, max_logprobs: 0 };
        let mut bytes = Vec::new();
        for row in 0..rows {
            bytes.extend(u64::from(row).to_ne_bytes());
            bytes.extend([0u32, 0].iter().flat_map(|word| word.to_ne_bytes()));
            bytes.extend([temperature, top_p, 0.0].iter().flat_map(|value| value.to_ne_bytes()));
            // The last four: no pending token.
            let words = [0, 0, 0, SampleRow::NO_LOGPROBS, 0, 0, 0, 0, 0];
            bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        }
        let args = SampleArgs {
            logits: self.activations((rows * VOCAB) as usize, DType::F32),
            rows: self.memory.put(&bytes),
            edits: 0,
            masks: 0,
            tokens: self.words(&vec![0; rows as usize]),
            logprobs: self.activations(rows as usize, DType::F32),
            top_ids: 0,
            top_logprobs: 0,
            row_count: rows,
        };
        let name = format!("sample rows={rows} temperature={temperature} top_p={top_p}");
        let bytes = f64::from(rows) * f64::from(VOCAB) * 4.0;
        self.case(name, OpDesc::Sample(desc), OpArgs::Sample(args), rows, bytes, 0.0)
    }
}

type Make = Box<dyn Fn(&mut Builder) -> Case>;

/// Operation, type and tokens, and how to make the case.
type Named = (String, Make);

fn cases() -> Vec<Named> {
    let mut cases: Vec<Named> = Vec::new();
    let mut add = |name: String, make: Make| cases.push((name, make));
    for a in [DType::F32, DType::BF16] {
        for t in [1, 2, 4, 16, 512] {
            add(format!("qkv {a} {t}."), Box::new(move |b| b.gemm("qkv", HIDDEN, [4096, 512, 512], 1, t, a)));
            add(format!("o {a} {t}."), Box::new(move |b| b.gemm("o", 4096, [HIDDEN, 0, 0], 0, t, a)));
            add(format!("experts {a} {t}."), Box::new(move |b| b.experts_case(t, a)));
            if t < 512 {
                add(
                    format!("head {a} {t}."),
                    Box::new(move |b| b.gemm("head", HIDDEN, [VOCAB, 0, 0], 1, t, a)),
                );
            }
        }
        for (queries, len, batch, window) in
            [(512, 512, 1, 0), (512, 512, 1, 128), (1, 512, 16, 0), (1, 16384, 1, 0)]
        {
            let make = move |b: &mut Builder| b.attention(queries, len, batch, window, a);
            add(format!("attention {a} {queries}."), Box::new(make));
        }
    }
    for (rows, temperature, top_p) in [(1, 0.0, 1.0), (1, 1.0, 1.0), (16, 1.0, 0.9)] {
        add(format!("sample {rows}."), Box::new(move |b| b.sample(rows, temperature, top_p)));
    }
    cases
}

fn main() {
    let mut count = std::thread::available_parallelism().map_or(1, usize::from);
    if std::env::var_os("GOSSAMER_BENCH_ALONE").is_some() {
        roofs::count_processor_time();
        count = 1;
    }
    let isa = Isa::choose().expect("GOSSAMER_CPU_ISA names an instruction set of this machine");
    let backend = Fallback::with_isa(threads::host(count as u32), isa).expect("the set is available");
    let quick = std::env::var_os("GOSSAMER_BENCH_QUICK").is_some();
    let only = std::env::var("GOSSAMER_BENCH_ONLY").unwrap_or_default();
    let mut criterion = Criterion::default().sample_size(10).configure_from_args();
    println!("{isa}, {count} threads");
    for (name, make) in cases() {
        if !name.contains(&only) {
            continue;
        }
        let mut builder =
            Builder { backend: &backend, memory: HostMemory::default(), random: Random::new(7) };
        let case = make(&mut builder);
        // SAFETY: the builder put every buffer with the extent that the operation documents.
        let run = || unsafe { backend.launch(&case.desc, &case.launch) }.expect("the launch succeeds");
        run();
        let mut best = f64::INFINITY;
        let begin = Instant::now();
        while begin.elapsed().as_secs_f64() < 0.6 {
            best = best.min(roofs::time(run));
        }
        let bandwidth = roofs::read_bandwidth(count, 256 << 20);
        let flops = roofs::float32_flops(count);
        let bound = (case.bytes / bandwidth).max(case.flops / flops);
        println!(
            "{:58} {:9.3} ms {:7.1} GB/s ({:4.0} %) {:7.1} GFLOP/s ({:4.0} % of float32) {:5.2} of the bound",
            case.name,
            best * 1e3,
            case.bytes / best / 1e9,
            100.0 * case.bytes / best / bandwidth,
            case.flops / best / 1e9,
            100.0 * case.flops / best / flops,
            bound / best,
        );
        if !quick {
            let mut group = criterion.benchmark_group("operations");
            group.throughput(Throughput::Bytes(case.bytes as u64));
            group.bench_function(&case.name, |bencher| bencher.iter(run));
            group.finish();
        }
    }
    if let Some(flops) = roofs::bfloat16_flops(count) {
        println!("bfloat16 roof: {:.0} GFLOP/s", flops / 1e9);
    }
}
