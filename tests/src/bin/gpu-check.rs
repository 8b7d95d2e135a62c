//! Checks and times a CUDA device without a Rust toolchain on it: carry this program and the backends there.
//!
//!     gpu-check golden BACKEND_DIR CHECKPOINT...      logits and tokens against the reference's, eager and captured
//!     gpu-check conformance BACKEND_DIR [TOKENS...] [OPERATION...] [BACKEND...]
//!                                                     every operation, or those named, and tactic against float64
//!     gpu-check fusion BACKEND_DIR [--out FILE] CHECKPOINT...
//!                                                     logits with every pass, with each switched off, and with none
//!     gpu-check latency BACKEND_DIR MODEL_DIR [OUT] [--kv fp8] [--attention NAME] [decode:BATCH:CONTEXT | prefill:TOKENS]...
//!                                                     times prefill and decoding with made-up or stored weights
//!
//! Exits with 1 where something is off.
#![allow(clippy::unwrap_used)]

#[path = "../../../actors/worker/tests/common/mod.rs"]
mod common;
#[path = "gpu-check/fusion.rs"]
mod fusion;

use common::{Answer, Driver, Request, options};
use gossamer_backend_api::conformance::{Bench, Memory, check_at};
use gossamer_backend_api::loader;
use gossamer_backend_api::{DType, HostServices, KernelBackend, OpKind};
use gossamer_config::{LoadFormat, ModelConfig};
use gossamer_kernels::Backends;
use gossamer_kernels::tuner::{CacheKey, KernelCache, SCHEMA};
use gossamer_wire::{
    BlockGrant, InputTokens, RankPlan, Run, SampledToken, SamplingParams, SlotJoin, StepPlan,
};
use gossamer_worker::cuda::{Buffer, Cuda, Stream, download};
use gossamer_worker::latency::{self, Case, Roofs};
use gossamer_worker::{CudaOptions, Executor, Model, ModelOptions, TuneLimits, pool};
use serde::Deserialize;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Deserialize)]
struct Golden {
    cases: Vec<GoldenCase>,
}

#[derive(Clone, Deserialize)]
struct GoldenCase {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    greedy_margin: Vec<f32>,
    last_logits: Vec<f32>,
    bf16_last_rel_error: f64,
    /// Over all positions, those where rounding makes the router choose otherwise included.
    bf16_rel_error: f64,
}

/// Tokens of the largest step.
const STEP_TOKENS: usize = 8192;
/// Largest captured step of the runs beside its size, and how many sequences these have: around the sizes that are captured, padded
/// ones included, and twice the largest.
const CAPTURE_SIZE: u32 = 20;
const TOGETHER: [usize; 7] = [15, 16, 17, 19, 20, 21, 40];
/// Longest prompt of these.
const SHORT: usize = 300;
/// Most that a bfloat16 run may err relative to the reference's own.
const BF16_FACTOR: f64 = 1.5;
/// Logits with an E4M3 cache may differ from those with a bfloat16 one by this many times the error that a bfloat16 run of the
/// reference makes, medians over the cases: a code has a sixteenth of bfloat16's steps, and only keys and values are codes.
const FP8_CACHE_FACTOR: f64 = 10.0;
/// Tokens are compared where the two best logits are further apart than this many times the noise of a logit.
const NOISES: f64 = 4.0;

impl GoldenCase {
    /// Margin below which a bfloat16 run may choose either: from the reference's own error, which is relative to the norm, and
    /// at least `common`: a case of few positions says little about those that are generated after it.
    fn noise(&self, common: f64) -> f32 {
        let square = |logit: &f32| f64::from(*logit) * f64::from(*logit);
        let mean = self.last_logits.iter().map(square).sum::<f64>() / self.last_logits.len() as f64;
        (NOISES * self.bf16_last_rel_error.max(self.bf16_rel_error).max(common) * mean.sqrt()) as f32
    }
}

struct Device {
    cuda: Arc<Cuda>,
    list: Vec<Arc<dyn KernelBackend>>,
}

impl Device {
    fn open(directory: &str) -> Result<Self, Box<dyn Error>> {
        let cuda = Cuda::open(0)?;
        println!("{}, {}", cuda.name(), cuda.driver());
        let host: &'static HostServices = pool::start_for(1, false, Some(0))?;
        let mut list: Vec<Arc<dyn KernelBackend>> = Vec::new();
        for file in loader::discover(Path::new(directory))? {
            let backend = loader::open(&file?, host)?;
            println!("backend {} {}", backend.name(), backend.version());
            list.push(Arc::new(backend));
        }
        Ok(Self { cuda, list })
    }

    fn model(&self, directory: &Path, options: &ModelOptions, capture_size: u32) -> Model {
        self.model_of(self.list.clone(), directory, options, capture_size)
    }

    fn model_of(
        &self,
        list: Vec<Arc<dyn KernelBackend>>,
        directory: &Path,
        options: &ModelOptions,
        capture_size: u32,
    ) -> Model {
        self.model_with(list, None, directory, options, capture_size)
    }

    fn model_with(
        &self,
        list: Vec<Arc<dyn KernelBackend>>,
        attention: Option<&str>,
        directory: &Path,
        options: &ModelOptions,
        capture_size: u32,
    ) -> Model {
        let backends = Backends::new(list, None, attention).unwrap();
        let on_device = CudaOptions { capture_size };
        Model::open_cuda(&self.cuda, directory, options, &on_device, backends).unwrap()
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] }
}

fn relative_error(got: &[f32], expected: &[f32]) -> f64 {
    let square = |value: f64| value * value;
    let difference: f64 = got.iter().zip(expected).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let norm: f64 = expected.iter().map(|value| square(f64::from(*value))).sum();
    if got.len() == expected.len() { (difference / norm).sqrt() } else { f64::NAN }
}

/// Compares with the reference; returns whether all is well.
fn check_answers(label: &str, golden: &Golden, answers: &[Answer]) -> bool {
    let errors: Vec<f64> = golden
        .cases
        .iter()
        .zip(answers)
        .map(|(case, answer)| relative_error(&answer.logits, &case.last_logits))
        .collect();
    let reference = median(golden.cases.iter().map(|case| case.bf16_last_rel_error).collect());
    let got = median(errors.clone());
    let common = median(golden.cases.iter().map(|case| case.bf16_rel_error).collect());
    let mut clear_misses = Vec::new();
    let mut same = 0;
    for (case, answer) in golden.cases.iter().zip(answers) {
        let first = answer.tokens.iter().zip(&case.greedy).position(|(got, expected)| got != expected);
        same += first.unwrap_or(case.greedy.len());
        if let Some(at) = first.filter(|at| case.greedy_margin[*at] > case.noise(common)) {
            clear_misses.push((case.prompt.len(), at, case.greedy_margin[at], case.noise(common)));
        }
    }
    let fine = got <= BF16_FACTOR * reference && clear_misses.is_empty();
    println!(
        "{} {label}: median error {got:.5} (reference {reference:.5}, ratio {:.2}), errors {:.4?}, {same} tokens \
         before the first difference, clear misses (prompt, at, margin, noise): {clear_misses:.3?}",
        if fine { "ok  " } else { "FAIL" },
        got / reference,
        &errors[..errors.len().min(12)]
    );
    fine
}

/// Decodes with two steps in flight: the second is enqueued before the first was asked for.
fn pipelined(model: &mut Model, request: &Request, first_step: u64) -> Vec<u32> {
    let (prompt, generate) = (&request.prompt, request.generate as u32);
    let info = model.info().clone();
    let columns = (prompt.len() as u32 + generate).div_ceil(info.block_size);
    let mut section = RankPlan::default();
    section.join.push(SlotJoin {
        slot: 0,
        tokens: prompt.clone(),
        prompt_len: prompt.len() as u32,
        choice: 0,
        sampling: request.sampling.clone(),
        min_tokens: 0,
        stop_token_ids: vec![],
    });
    for group in 0..info.groups.len() as u32 {
        let blocks = (group * columns..(group + 1) * columns).collect();
        section.grants.push(BlockGrant { slot: 0, group, first: 0, first_live: 0, blocks });
    }
    let len = prompt.len() as u32;
    let run = |start, count, input| Run { slot: 0, start, count, input, sample: true };
    section.runs.push(run(0, len, InputTokens::Known));
    let mut tokens = Vec::new();
    let mut in_flight = 0;
    for at in 0..generate {
        let mut plan = StepPlan {
            step: first_step + u64::from(at),
            snapshot: at == 0,
            ranks: vec![std::mem::take(&mut section)],
            ..StepPlan::default()
        };
        plan.choose_graph(u32::MAX);
        model.enqueue(&plan).unwrap();
        in_flight += 1;
        section.runs.push(run(len + at, 1, InputTokens::LastSampled));
        if in_flight == 2 {
            tokens.push(model.collect().unwrap().sampled[0].token);
            in_flight -= 1;
        }
    }
    while in_flight > 0 {
        tokens.push(model.collect().unwrap().sampled[0].token);
        in_flight -= 1;
    }
    tokens
}

/// Decodes as many sequences at once as captured steps have, one fewer, one more, and twice as many.
fn beside_captured_sizes(device: &Device, directory: &Path, golden: &Golden, base: &ModelOptions) -> bool {
    let most = TOGETHER.iter().copied().max().unwrap_or(1);
    let options = ModelOptions { max_num_seqs: most as u32, ..base.clone() };
    let mut driver = Driver::new(device.model(directory, &options, CAPTURE_SIZE));
    let short = || golden.cases.iter().filter(|case| case.prompt.len() <= SHORT);
    if short().next().is_none() {
        println!("FAIL {}: no prompt has at most {SHORT} tokens", directory.display());
        return false;
    }
    let mut fine = true;
    for count in TOGETHER {
        let cases: Vec<GoldenCase> = short().cycle().take(count).cloned().collect();
        let requests: Vec<_> =
            cases.iter().map(|case| Request::greedy(&case.prompt, case.greedy.len())).collect();
        let answers = driver.run(&requests, STEP_TOKENS, STEP_TOKENS);
        let label = format!("{} {count} together, captured up to {CAPTURE_SIZE}", directory.display());
        fine &= check_answers(&label, &Golden { cases }, &answers);
    }
    fine
}

fn golden(device: &Device, directories: &[String]) -> bool {
    let mut fine = true;
    for directory in directories {
        let directory = Path::new(directory);
        let name = directory.display();
        let text = std::fs::read_to_string(directory.join("golden.json")).unwrap();
        let golden: Golden = serde_json::from_str(&text).unwrap();
        let requests: Vec<Request> =
            golden.cases.iter().map(|case| Request::greedy(&case.prompt, case.greedy.len())).collect();
        // Room for prompts that are longer than a step.
        let options = ModelOptions {
            max_model_len: Some(16_384),
            max_num_seqs: golden.cases.len() as u32,
            // Every case has its blocks in both groups at once.
            num_blocks: Some(
                2048.max(golden.cases.iter().map(|case| 2 * (case.prompt.len() as u32 / 64 + 2)).sum()),
            ),
            ..options(DType::BF16, STEP_TOKENS as u32)
        };
        let fallback: Vec<_> =
            device.list.iter().filter(|backend| backend.name() == "fallback").cloned().collect();
        let mut plain = Driver::new(device.model_of(fallback, directory, &options, 0));
        let answers = plain.run(&requests, 8192, 8192);
        fine &= check_answers(&format!("{name} fallback alone"), &golden, &answers);
        drop(plain);

        let model = device.model(directory, &options, 0);
        println!("     {}", model.tactics());
        let mut eager = Driver::new(model);
        let answers = eager.run(&requests, 8192, 8192);
        fine &= check_answers(&format!("{name} eager"), &golden, &answers);
        let chunked = eager.run(&requests, 53, 160);
        fine &= check_answers(&format!("{name} chunked"), &golden, &chunked);
        fine &= ends_without_a_token(&mut eager, &requests[0]);
        drop(eager);

        let mut captured = Driver::new(device.model(directory, &options, 8));
        let replayed = captured.run(&requests, 8192, 8192);
        let again = captured.run(&requests, 8192, 8192);
        let tokens = |answers: &[Answer]| answers.iter().map(|a| a.tokens.clone()).collect::<Vec<_>>();
        let same = tokens(&answers) == tokens(&replayed) && tokens(&replayed) == tokens(&again);
        println!("{} {name} captured = eager", if same { "ok  " } else { "FAIL" });

        let narrow = ModelOptions { kv: DType::F8E4M3, ..options.clone() };
        let narrow = device.model(directory, &narrow, 8);
        let halves = 2 * narrow.kv_bytes() == captured.model.kv_bytes();
        let narrow = Driver::new(narrow).run(&requests, 8192, 8192);
        let apart: Vec<f64> =
            narrow.iter().zip(&answers).map(|(a, b)| relative_error(&a.logits, &b.logits)).collect();
        let reference = median(golden.cases.iter().map(|case| case.bf16_last_rel_error).collect());
        let error = median(apart.clone());
        let within = error <= FP8_CACHE_FACTOR * reference && halves;
        println!(
            "{} {name} E4M3 cache: median {error:.4} from the bfloat16 one's logits, {:.1} x the reference's bfloat16 error (at most \
             {FP8_CACHE_FACTOR}), {apart:.3?}; half the memory: {halves}",
            if within { "ok  " } else { "FAIL" },
            error / reference
        );
        fine &= within;
        drop(captured);

        // Alone, one step at a time: the same batches, hence the same numbers to the bit.
        let mut alone = Driver::new(device.model(directory, &options, 8));
        let mut model = device.model(directory, &options, 8);
        let mut in_order = true;
        let mut step = 1;
        for (request, case) in requests.iter().zip(&golden.cases) {
            if case.prompt.len() > STEP_TOKENS {
                continue;
            }
            // Penalties count a token that the host has not seen; they are strong, for greedy tokens to change.
            let counting = SamplingParams {
                repetition_penalty: 1.3,
                presence_penalty: 0.7,
                frequency_penalty: 0.4,
                ..request.sampling.clone()
            };
            let drawn = SamplingParams { temperature: 1.0, seed: step, ..counting.clone() };
            for sampling in [request.sampling.clone(), counting, drawn] {
                let request = Request { sampling, ..request.clone() };
                let expected = alone.run(std::slice::from_ref(&request), 8192, 8192).swap_remove(0).tokens;
                in_order &= pipelined(&mut model, &request, step) == expected;
                step += request.generate as u64;
            }
        }
        println!(
            "{} {name} two steps in flight = one, penalties included",
            if in_order { "ok  " } else { "FAIL" }
        );
        fine &= same && in_order;
        drop((alone, model));
        fine &= beside_captured_sizes(device, directory, &golden, &options);
    }
    fine
}

/// A sequence that may draw no token gets none, also when the next step is made of it, and its neighbour what it gets alone.
fn ends_without_a_token(driver: &mut Driver, request: &Request) -> bool {
    let mut broken = request.clone();
    broken.sampling.allowed_token_ids = vec![driver.model.info().vocab_size];
    let none = |answer: &Answer| answer.tokens.iter().all(|token| *token == SampledToken::NOT_A_NUMBER);
    let answers = driver.run(&[request.clone(), broken.clone(), request.clone()], 8192, 8192);
    let fine = none(&answers[1])
        && !answers[1].tokens.is_empty()
        && answers[0].tokens == answers[2].tokens
        && !none(&answers[0]);
    println!("{} a sequence with nothing to draw, among others", if fine { "ok  " } else { "FAIL" });
    fine
}

/// A device's memory.
struct DeviceMemory {
    buffers: Vec<Buffer>,
    streams: Vec<Stream>,
    fallback: Arc<dyn KernelBackend>,
}

impl Memory for DeviceMemory {
    fn put(&mut self, bytes: &[u8]) -> u64 {
        let mut buffer = Buffer::new(bytes.len() as u64).unwrap();
        buffer.upload(0, bytes).unwrap();
        let address = buffer.address();
        self.buffers.push(buffer);
        address
    }

    fn get(&self, address: u64, bytes: &mut [u8]) {
        // SAFETY: the suite reads what it put.
        unsafe { download(address, bytes) }.unwrap();
    }

    fn clear(&mut self) {
        self.buffers.clear();
    }

    fn streams(&mut self, count: usize) -> Vec<u64> {
        while self.streams.len() < count {
            self.streams.push(Stream::new().unwrap());
        }
        self.streams[..count].iter().map(Stream::raw).collect()
    }

    fn wait(&self) {
        // A download waits for the whole device.
        let Some(buffer) = self.buffers.first() else { return };
        // SAFETY: every buffer has a byte.
        unsafe { download(buffer.address(), &mut [0]) }.unwrap();
    }

    fn repacker(&self) -> Option<&dyn KernelBackend> {
        Some(&*self.fallback)
    }
}

fn conformance(device: &Device, words: &[String]) -> bool {
    let kind = |name: &String| {
        OpKind::ALL.iter().copied().find(|kind| kind.label() == name).unwrap_or_else(|| {
            let known: Vec<_> = OpKind::ALL.iter().map(|kind| kind.label()).collect();
            panic!("expected an operation ({}), got {name}", known.join(", "))
        })
    };
    let (backends, words): (Vec<&String>, Vec<&String>) =
        words.iter().partition(|word| device.list.iter().any(|backend| backend.name() == word.as_str()));
    let (counts, names): (Vec<&String>, Vec<&String>) =
        words.into_iter().partition(|word| word.parse::<u32>().is_ok());
    let counts: Vec<u32> = counts.iter().filter_map(|count| count.parse().ok()).collect();
    let tokens: &[u32] =
        if counts.is_empty() { &[1, 2, 3, 5, 8, 17, 64, 127, 128, 129, 300, 1000] } else { &counts };
    let only: Vec<OpKind> = names.into_iter().map(kind).collect();
    let Some(fallback) = device.list.iter().find(|backend| backend.name() == "fallback") else {
        println!(
            "FAIL expected the fallback backend among the plugins, which repacks weights for the others"
        );
        return false;
    };
    let mut fine = true;
    // A backend alone may do none of the operations that were named; somebody must.
    let mut ran = 0;
    let wanted = |backend: &str| backends.is_empty() || backends.iter().any(|name| name.as_str() == backend);
    for backend in device.list.iter().filter(|backend| wanted(backend.name())) {
        let start = Instant::now();
        let memory = DeviceMemory { buffers: Vec::new(), streams: Vec::new(), fallback: fallback.clone() };
        let mut bench = Bench { backend: &**backend, memory, only: only.clone() };
        let (mut passed, mut refused) = (0, 0);
        let mut worst = std::collections::BTreeMap::<String, f64>::new();
        let mut failures = Vec::new();
        for outcome in check_at(&mut bench, 20_261_130, tokens, &[DType::BF16]) {
            let name = outcome.case.split(' ').next().unwrap_or_default().to_owned();
            if outcome.case.contains(": refused: ") {
                refused += 1;
            } else if outcome.passes() {
                passed += 1;
                let share = worst.entry(name).or_default();
                *share = share.max(outcome.error / outcome.bound.max(1e-30));
            } else {
                failures.push(format!("{}: error {} of {}", outcome.case, outcome.error, outcome.bound));
            }
        }
        println!(
            "{} {}: {passed} passed, {} failed, {refused} refused, {:.1} s; worst share of the bound {worst:.2?}",
            if failures.is_empty() { "ok  " } else { "FAIL" },
            backend.name(),
            failures.len(),
            start.elapsed().as_secs_f64()
        );
        failures.iter().take(40).for_each(|failure| println!("     {failure}"));
        fine &= failures.is_empty();
        ran += passed;
    }
    if ran == 0 {
        println!("FAIL nothing was run: every backend refused every case");
    }
    fine && ran > 0
}

/// What to time, and how.
#[derive(Default)]
struct Timing {
    out: Option<String>,
    kv: Option<DType>,
    attention: Option<String>,
    cases: Vec<Case>,
}

impl Timing {
    fn parse(arguments: &[String]) -> Self {
        let mut timing = Self::default();
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let parts: Vec<&str> = word.split(':').collect();
            match parts[..] {
                ["--kv"] => timing.kv = words.next().filter(|kv| *kv == "fp8").map(|_| DType::F8E4M3),
                ["--attention"] => timing.attention = words.next().cloned(),
                ["decode", batch, context] => timing
                    .cases
                    .push(Case::Decode { batch: batch.parse().unwrap(), context: context.parse().unwrap() }),
                ["prefill", tokens] => timing.cases.push(Case::Prefill { tokens: tokens.parse().unwrap() }),
                _ => timing.out = Some(word.clone()),
            }
        }
        if timing.cases.is_empty() {
            timing.cases = vec![
                Case::Decode { batch: 1, context: 200 },
                Case::Decode { batch: 4, context: 200 },
                Case::Decode { batch: 16, context: 400 },
                Case::Decode { batch: 64, context: 1500 },
                Case::Decode { batch: 256, context: 300 },
                Case::Prefill { tokens: 200 },
                Case::Prefill { tokens: 2048 },
                Case::Prefill { tokens: 8192 },
            ];
        }
        timing
    }
}

fn latency(device: &Device, directory: &Path, timing: &Timing) -> bool {
    let out = timing.out.as_ref();
    let has_weights = std::fs::read_dir(directory)
        .unwrap()
        .any(|entry| entry.unwrap().path().extension().is_some_and(|e| e == "safetensors"));
    let options = ModelOptions {
        load_format: if has_weights { LoadFormat::Auto } else { LoadFormat::Dummy },
        max_num_seqs: 1024,
        max_num_batched_tokens: 8192,
        max_model_len: Some(32768),
        num_blocks: None,
        memory_share: 0.9,
        kv: timing.kv.unwrap_or(DType::BF16),
        ..options(DType::BF16, 8192)
    };
    let start = Instant::now();
    let mut model =
        device.model_with(device.list.clone(), timing.attention.as_deref(), directory, &options, 512);
    let seconds = start.elapsed().as_secs_f64();
    println!("opened in {seconds:.2} s, {} KV blocks", model.info().num_blocks);
    let key = CacheKey {
        schema: SCHEMA,
        device: device.cuda.name().to_owned(),
        driver: device.cuda.driver().to_owned(),
        plugins: vec![],
        model: directory.display().to_string(),
        layout: "tp1".into(),
    };
    let mut cache = KernelCache::new(key);
    let limits = TuneLimits { budget: Duration::from_secs(8), single: false };
    let tuned = model.tune(&mut cache, limits, &mut |_, _| ()).unwrap();
    println!("measured {tuned} choices: {}", model.tactics());
    if let Some(out) = out {
        std::fs::write(format!("{out}.cache"), serde_json::to_vec_pretty(&cache).unwrap()).unwrap();
    }
    let roofs = Roofs { bytes_per_second: 4.63e12, float32_flops: None, bfloat16_flops: Some(690e12) };
    let config = ModelConfig::load(directory).unwrap();
    let cases = &timing.cases;
    let mut measured = Vec::new();
    for case in cases.iter().copied() {
        let steps = if matches!(case, Case::Prefill { .. }) { 3 } else { 20 };
        match latency::measure(&mut model, &config, &roofs, case, 4, steps) {
            Ok(result) => {
                println!(
                    "{case:?}: {:.3} ms median, {:.3} best, {:.0} tokens/s, {:.1} % of memory, {:.1} % of bf16",
                    result.median_seconds * 1e3,
                    result.best_seconds * 1e3,
                    result.tokens_per_second,
                    result.memory_share * 100.0,
                    result.bfloat16_share.unwrap_or(0.0) * 100.0
                );
                measured.push(result);
            }
            Err(error) => println!("{case:?}: {error}"),
        }
    }
    if let Some(out) = out {
        std::fs::write(out, serde_json::to_vec_pretty(&measured).unwrap()).unwrap();
    }
    measured.len() == cases.len()
}

fn run(arguments: &[String]) -> Result<ExitCode, Box<dyn Error>> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let fine = match words[..] {
        ["golden", backends, _, ..] => golden(&Device::open(backends)?, &arguments[2..]),
        ["conformance", backends, ..] => conformance(&Device::open(backends)?, &arguments[2..]),
        ["fusion", backends, _, ..] => fusion::run(&Device::open(backends)?, &arguments[2..]),
        ["latency", backends, model, ..] => {
            latency(&Device::open(backends)?, Path::new(model), &Timing::parse(&arguments[3..]))
        }
        _ => {
            eprintln!("usage: gpu-check golden|conformance|fusion|latency BACKEND_DIR [CHECKPOINT...]");
            return Ok(ExitCode::from(2));
        }
    };
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    run(&arguments).unwrap_or_else(|error| {
        eprintln!("gpu-check: {error}");
        ExitCode::FAILURE
    })
}
