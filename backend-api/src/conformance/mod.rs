//! One suite for every backend and tactic: random inputs, a straight-line float64 reference, a bound per operation.
//!
//! [`Bench`] holds a backend and the [`Memory`] it computes in; each `check_*` makes one case of given sizes, runs every
//! tactic that the backend offers, and returns an [`Outcome`] per tactic. Outputs are poisoned with NaNs beforehand, so
//! that what a kernel leaves out shows. A case is a pure function of its sizes and seed.
//!
//! A new backend's test is a loop over [`check_all`] with its own memory; a new operation adds one `check_*` and one line there.

mod attention;
mod dense;
mod e4m3;
mod exchange;
mod moe;
mod parts;
mod random;
mod sample;

pub use attention::{AttentionShape, check_attention, check_qkv_rope, check_rope, check_rope_parts};
pub use dense::{GemmShape, check_embed, check_gemm, check_rms_norm};
pub use exchange::check_all_reduce;
pub use moe::{ExpertsShape, check_experts, check_finalize, check_fused_moe, check_route};
pub use parts::{
    check_add, check_combine, check_expert_product, check_parts, check_quantise, check_resize, check_scale,
    check_swiglu,
};
pub use random::Random;
pub use sample::{SampleShape, check_sample};

use crate::{DType, KernelBackend, Launch, OpArgs, OpDesc, OpKind, Support};
use half::bf16;

/// Memory that a backend computes in.
pub trait Memory {
    /// Allocates and fills; the address is 256-byte aligned and stays valid until [`Memory::clear`].
    fn put(&mut self, bytes: &[u8]) -> u64;
    /// Waits for the work enqueued so far and reads.
    fn get(&self, address: u64, bytes: &mut [u8]);
    /// Frees everything.
    fn clear(&mut self);
    /// The stream that launches take.
    fn stream(&self) -> u64 {
        0
    }
    /// Streams for launches that run at once; all 0 where a launch returns when the work is done.
    fn streams(&mut self, count: usize) -> Vec<u64> {
        vec![self.stream(); count]
    }
    /// Waits for what was enqueued on any of them.
    fn wait(&self) {}
    /// A backend that repacks weights in this memory, where the one that is checked cannot.
    fn repacker(&self) -> Option<&dyn KernelBackend> {
        None
    }
}

/// The host's memory.
#[derive(Default)]
pub struct HostMemory {
    buffers: Vec<Vec<Line>>,
}

#[repr(align(256))]
#[derive(Clone, Copy)]
struct Line([u8; 256]);

impl Memory for HostMemory {
    fn put(&mut self, bytes: &[u8]) -> u64 {
        let mut lines = vec![Line([0xff; 256]); bytes.len().div_ceil(256).max(1)];
        for (line, chunk) in lines.iter_mut().zip(bytes.chunks(256)) {
            line.0[..chunk.len()].copy_from_slice(chunk);
        }
        let address = lines.as_mut_ptr().expose_provenance() as u64;
        self.buffers.push(lines);
        address
    }

    fn get(&self, address: u64, bytes: &mut [u8]) {
        let from = std::ptr::with_exposed_provenance::<u8>(address as usize);
        // SAFETY: the address came from `put`, with at least this length; launches on CPUs have returned.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }

    fn clear(&mut self) {
        self.buffers.clear();
    }
}

/// What one tactic made of one case.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Operation, sizes, types, seed and tactic.
    pub case: String,
    /// Largest `|got - expected| / (|expected| + rms(expected))`; NaN where the output has one.
    pub error: f64,
    /// What it may be.
    pub bound: f64,
}

impl Outcome {
    /// Whether the tactic is good enough.
    pub fn passes(&self) -> bool {
        self.error <= self.bound
    }
}

/// A backend and the memory it computes in.
pub struct Bench<'a, M> {
    /// The backend.
    pub backend: &'a dyn KernelBackend,
    /// The memory.
    pub memory: M,
    /// Operations to check; empty: all.
    pub only: Vec<OpKind>,
}

/// An output of a case.
struct Output {
    address: u64,
    dtype: DType,
    expected: Vec<f64>,
    /// What float64 arithmetic gives when it rounds to the activation's type wherever an implementation may; empty: nowhere.
    /// The bound grows by what that changes.
    rounded: Vec<f64>,
}

impl Output {
    fn new(address: u64, dtype: DType, expected: Vec<f64>) -> Self {
        Self { address, dtype, expected, rounded: Vec::new() }
    }

    fn slack(&self) -> f64 {
        if self.rounded.is_empty() { 0.0 } else { distance(&self.rounded, &self.expected) }
    }
}

impl<M: Memory> Bench<'_, M> {
    fn wants(&self, kind: OpKind) -> bool {
        self.only.is_empty() || self.only.contains(&kind)
    }

    /// Puts float64 values as `dtype` and returns the address and the values after rounding.
    fn put_values(&mut self, values: &[f64], dtype: DType) -> (u64, Vec<f64>) {
        let rounded: Vec<f64> = values.iter().map(|value| round(*value, dtype)).collect();
        (self.memory.put(&encode(&rounded, dtype)), rounded)
    }

    fn put_u32(&mut self, values: &[u32]) -> u64 {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        self.memory.put(&bytes)
    }

    /// Room for an output, full of NaNs.
    fn put_poison(&mut self, count: usize, dtype: DType) -> u64 {
        self.memory.put(&vec![0xff; dtype.bytes(count as u64) as usize])
    }

    fn read_values(&self, address: u64, count: usize, dtype: DType) -> Vec<f64> {
        let mut bytes = vec![0; dtype.bytes(count as u64) as usize];
        self.memory.get(address, &mut bytes);
        decode(&bytes, dtype)
    }

    fn read_u32(&self, address: u64, count: usize) -> Vec<u32> {
        let mut bytes = vec![0; count * 4];
        self.memory.get(address, &mut bytes);
        bytes.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect()
    }

    /// Runs one tactic. `Err` holds what the backend said.
    fn launch(&mut self, desc: &OpDesc, args: OpArgs, tactic: u32, tokens: u32) -> Result<(), String> {
        let bytes = self.backend.workspace(desc, tactic, tokens);
        // Poisoned too, but for the part that the host zeroes: a kernel must not read what it did not write.
        let mut poison = vec![0xff; bytes as usize];
        poison.iter_mut().take(Launch::ZEROED as usize).for_each(|byte| *byte = 0);
        let workspace = if bytes == 0 { 0 } else { self.memory.put(&poison) };
        self.backend.prepare(desc, tactic).map_err(|error| error.to_string())?;
        let launch = Launch { args, tactic, workspace, workspace_bytes: bytes, stream: self.memory.stream() };
        // SAFETY: the case put every buffer with the extent that the operation documents.
        unsafe { self.backend.launch(desc, &launch) }.map_err(|error| error.to_string())
    }

    /// Runs every tactic over fresh outputs and compares.
    fn run(
        &mut self,
        case: &str,
        desc: OpDesc,
        tokens: u32,
        bound: f64,
        mut build: impl FnMut(&mut Self) -> (OpArgs, Vec<Output>),
    ) -> Vec<Outcome> {
        if !self.wants(desc.kind()) {
            return Vec::new();
        }
        if let Support::No(reason) = self.backend.supports(&desc) {
            return vec![Outcome { case: format!("{case}: refused: {reason}"), error: f64::NAN, bound }];
        }
        let mut outcomes = Vec::new();
        for tactic in self.backend.tactics(&desc, tokens) {
            let (args, outputs) = build(self);
            let case = format!("{case} tactic={}", tactic.name);
            let launched = moe::repacked(self, &desc, args, &tactic.layout)
                .and_then(|args| self.launch(&desc, args, tactic.id, tokens));
            let outcome = match launched {
                Err(message) => Outcome { case: format!("{case}: {message}"), error: f64::NAN, bound },
                Ok(()) => {
                    let errors = outputs.iter().map(|output| {
                        let got = self.read_values(output.address, output.expected.len(), output.dtype);
                        distance(&got, &output.expected)
                    });
                    let error =
                        errors.fold(
                            0.0,
                            |worst: f64, error| if error >= worst || error.is_nan() { error } else { worst },
                        );
                    let slack = outputs.iter().map(Output::slack).fold(0.0, f64::max);
                    Outcome { case, error, bound: bound + slack }
                }
            };
            outcomes.push(outcome);
            self.memory.clear();
        }
        outcomes
    }
}

/// Largest error relative to the value and to the root mean square; NaN where `got` has one.
pub fn distance(got: &[f64], expected: &[f64]) -> f64 {
    let square = expected.iter().map(|value| value * value).sum::<f64>();
    let rms = (square / expected.len().max(1) as f64).sqrt();
    let mut worst = 0f64;
    for (got, expected) in got.iter().zip(expected) {
        let error = (got - expected).abs() / (expected.abs() + rms + 1e-30);
        if error.is_nan() {
            return f64::NAN;
        }
        worst = worst.max(error);
    }
    worst
}

fn round(value: f64, dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => bf16::from_f64(value).to_f64(),
        DType::F8E4M3 => e4m3::value(e4m3::code(value)),
        _ => f64::from(value as f32),
    }
}

fn encode(values: &[f64], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::BF16 => values.iter().flat_map(|value| bf16::from_f64(*value).to_ne_bytes()).collect(),
        DType::F8E4M3 => values.iter().map(|value| e4m3::code(*value)).collect(),
        _ => values.iter().flat_map(|value| (*value as f32).to_ne_bytes()).collect(),
    }
}

fn decode(bytes: &[u8], dtype: DType) -> Vec<f64> {
    match dtype {
        DType::BF16 => bytes.chunks_exact(2).map(|b| bf16::from_ne_bytes([b[0], b[1]]).to_f64()).collect(),
        DType::F8E4M3 => bytes.iter().map(|code| e4m3::value(*code)).collect(),
        _ => {
            let word = |b: &[u8]| f64::from(f32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
            bytes.chunks_exact(4).map(word).collect()
        }
    }
}

/// The bound for outputs of a type: accumulation in float32, or one or two roundings to bfloat16.
fn bound(dtype: DType) -> f64 {
    if dtype == DType::BF16 { 1.2e-2 } else { 3e-5 }
}

/// Every operation at sizes that are awkward for kernels. `scale` 1 takes seconds on a CPU; larger adds sizes.
pub fn check_all<M: Memory>(bench: &mut Bench<M>, seed: u64, scale: u32) -> Vec<Outcome> {
    let tokens: &[u32] = if scale > 1 { &[1, 2, 3, 5, 17, 64, 127, 129] } else { &[1, 2, 5, 7, 17, 65] };
    check_at(bench, seed, tokens, &[DType::F32, DType::BF16])
}

/// Every operation at given token counts and activation types.
pub fn check_at<M: Memory>(
    bench: &mut Bench<M>,
    seed: u64,
    tokens: &[u32],
    activations: &[DType],
) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for &activation in activations {
        for (i, &tokens) in tokens.iter().enumerate() {
            let seed = seed.wrapping_mul(1000).wrapping_add(i as u64);
            outcomes.extend(check_embed(bench, 97, 201, tokens, activation, seed));
            outcomes.extend(check_rms_norm(bench, 2880, tokens, activation, seed));
            for kv in [activation, DType::F8E4M3] {
                outcomes.extend(check_rope(bench, tokens, activation, kv, seed));
                outcomes.extend(check_rope_parts(bench, tokens, activation, kv, seed));
                outcomes.extend(check_qkv_rope(bench, tokens, activation, kv, seed));
                if i == 0 {
                    // A count that kernels for a handful of tokens take in two tiles.
                    outcomes.extend(check_qkv_rope(bench, 13, activation, kv, seed + 1));
                }
            }
            for shape in GemmShape::awkward(tokens, activation) {
                outcomes.extend(check_gemm(bench, &shape, seed));
            }
            for experts in [4, 32, 128] {
                outcomes.extend(check_route(bench, 160, experts, tokens, activation, seed));
            }
            for shape in ExpertsShape::awkward(tokens, activation) {
                outcomes.extend(check_experts(bench, &shape, seed));
                if shape.desc.local_experts == shape.desc.experts {
                    outcomes.extend(check_fused_moe(bench, &shape, seed));
                }
            }
            outcomes.extend(check_finalize(bench, 2880, 4, tokens, activation, seed));
            outcomes.extend(check_parts(bench, tokens, activation, seed));
            for (ranks, hidden) in [(2, 2880), (4, 64), (8, 40)] {
                for normed in [false, true] {
                    outcomes.extend(check_all_reduce(bench, ranks, hidden, tokens, activation, normed, seed));
                }
            }
        }
        for shape in AttentionShape::awkward(activation) {
            outcomes.extend(check_attention(bench, &shape, seed));
        }
    }
    for shape in SampleShape::awkward() {
        outcomes.extend(check_sample(bench, &shape, seed));
    }
    outcomes
}
