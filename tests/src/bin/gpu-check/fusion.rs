//! Fused = unfused, on a device: a checkpoint's prompts with every pass, with each switched off, and with none.
//!
//! In bfloat16, medians over the prompts: two of these may differ by what a bfloat16 run may err. Where experts may round to E4M3, the parts
//! do and the whole operation may; they may differ by [`FP8_EXPERTS_FACTOR`] times the reference's bfloat16 error, and so may the grouped
//! kernel that rounds inside.

use super::{BF16_FACTOR, Device, Golden, STEP_TOKENS, median, relative_error};
use crate::common::{Driver, Request, options};
use gossamer_backend_api::{DType, OpKind};
use gossamer_kernels::passes::{PASSES, parse_disabled};
use gossamer_kernels::tuner::{CacheEntry, CacheKey, KernelCache, SCHEMA};
use gossamer_worker::ModelOptions;
use serde_json::{Value, json};
use std::path::Path;

/// As for an E4M3 cache: codes have a sixteenth of bfloat16's steps, and not all that a bfloat16 run rounds becomes codes.
const FP8_EXPERTS_FACTOR: f64 = 10.0;
/// The tactic that rounds tokens to E4M3 inside.
const ROUNDS_INSIDE: (&str, &str) = ("cutlass", "grouped-fp8");

/// Logits after each prompt, and how many operations the graph has.
struct Made {
    operations: usize,
    logits: Vec<Vec<f32>>,
}

struct Checkpoint<'a> {
    device: &'a Device,
    directory: &'a Path,
    requests: Vec<Request>,
    options: ModelOptions,
}

impl Checkpoint<'_> {
    fn made(&self, fp8: bool, disabled: &[&str], cache: Option<KernelCache>) -> Made {
        let options = ModelOptions {
            allow_fp8_experts: fp8,
            disabled_passes: parse_disabled(disabled.iter().copied()).unwrap(),
            kernel_cache: cache,
            ..self.options.clone()
        };
        let model = self.device.model(self.directory, &options, 0);
        let operations = model.program().graph.nodes.len();
        let answers = Driver::new(model).run(&self.requests, STEP_TOKENS, STEP_TOKENS);
        Made { operations, logits: answers.into_iter().map(|answer| answer.logits).collect() }
    }

    /// A cache that chooses the grouped E4M3 kernel for every count.
    fn rounding_inside(&self) -> KernelCache {
        let options = ModelOptions { allow_fp8_experts: true, ..self.options.clone() };
        let model = self.device.model(self.directory, &options, 0);
        let mut cache = KernelCache::new(CacheKey {
            schema: SCHEMA,
            device: self.device.cuda.name().to_owned(),
            driver: self.device.cuda.driver().to_owned(),
            plugins: vec![],
            model: self.directory.display().to_string(),
            layout: "tp1".into(),
        });
        let program = model.program();
        for node in &program.graph.nodes {
            let desc = node.op.desc();
            if !matches!(desc.kind(), OpKind::FusedMoe | OpKind::Experts) {
                continue;
            }
            for tokens in program.buckets() {
                cache.insert(CacheEntry {
                    operation: format!("{desc:?}"),
                    tokens: *tokens,
                    backend: ROUNDS_INSIDE.0.to_owned(),
                    tactic: ROUNDS_INSIDE.1.to_owned(),
                    micros: 1.0,
                    runners_up: vec![],
                });
            }
        }
        cache
    }
}

fn apart(one: &Made, other: &Made) -> f64 {
    let pairs = one.logits.iter().zip(&other.logits);
    median(pairs.map(|(a, b)| relative_error(a, b)).collect())
}

/// Checks one checkpoint; returns whether all is well, and the figures.
fn check(device: &Device, directory: &Path) -> (bool, Value) {
    let text = std::fs::read_to_string(directory.join("golden.json")).unwrap();
    let golden: Golden = serde_json::from_str(&text).unwrap();
    let reference = median(golden.cases.iter().map(|case| case.bf16_last_rel_error).collect());
    let expected =
        Made { operations: 0, logits: golden.cases.iter().map(|case| case.last_logits.clone()).collect() };
    let blocks = golden.cases.iter().map(|case| 2 * (case.prompt.len() as u32 / 64 + 2)).sum();
    let checkpoint = Checkpoint {
        device,
        directory,
        requests: golden.cases.iter().map(|case| Request::greedy(&case.prompt, 1)).collect(),
        options: ModelOptions {
            max_model_len: Some(16_384),
            max_num_seqs: golden.cases.len() as u32,
            num_blocks: Some(2048.max(blocks)),
            ..options(DType::BF16, STEP_TOKENS as u32)
        },
    };
    let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let all: Vec<&str> = PASSES.iter().map(|pass| pass.name).collect();
    let (mut fine, mut rows) = (true, Vec::new());
    let mut row = |what: String, factor: f64, made: &Made, other: &Made| {
        let (away, error) = (apart(made, other), apart(made, &expected));
        let ok = away <= factor * reference;
        println!(
            "{} {name} {what}: {} operations, {away:.5} apart ({:.2} x the reference's bf16 error, at most {factor}), {error:.5} from the \
             reference",
            if ok { "ok  " } else { "FAIL" },
            made.operations,
            away / reference
        );
        fine &= ok;
        rows.push(json!({"what": what, "operations": made.operations, "apart": away, "apart_over_bf16_error": away / reference,
            "bound": factor, "from_reference": error}));
    };
    for (fp8, factor) in [(false, BF16_FACTOR), (true, FP8_EXPERTS_FACTOR)] {
        let kind = if fp8 { "e4m3" } else { "bf16" };
        let fused = checkpoint.made(fp8, &[], None);
        for pass in &all {
            let without = checkpoint.made(fp8, &[pass], None);
            row(format!("{kind} without {pass}"), factor, &without, &fused);
        }
        let parts = checkpoint.made(fp8, &all, None);
        row(format!("{kind} without any"), factor, &parts, &fused);
        if fp8 {
            let inside = checkpoint.made(true, &[], Some(checkpoint.rounding_inside()));
            row(format!("{kind} rounded inside {} and in parts", ROUNDS_INSIDE.1), factor, &inside, &parts);
        }
    }
    (fine, json!({"checkpoint": name, "reference_bf16_error": reference, "rows": rows}))
}

/// Runs the checks; `arguments`: checkpoints, and `--out FILE` for the figures.
pub fn run(device: &Device, arguments: &[String]) -> bool {
    let (mut out, mut fine, mut results) = (None, true, Vec::new());
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--out" => out = words.next(),
            directory => {
                let (ok, figures) = check(device, Path::new(directory));
                fine &= ok;
                results.push(figures);
            }
        }
    }
    if let Some(out) = out {
        let cuda = &device.cuda;
        let text = json!({"device": cuda.name(), "driver": cuda.driver(), "checkpoints": results});
        std::fs::write(out, serde_json::to_vec_pretty(&text).unwrap()).unwrap();
    }
    fine
}
