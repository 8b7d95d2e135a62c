//! The model against reference logits: small random checkpoints with the float32 logits and greedy tokens of another
//! implementation, and the error that its plain bfloat16 run makes.
//!
//! `golden-a` is a fixture. A second checkpoint is used where it can be found: at `GOSSAMER_GOLDEN_B`, or beside the
//! repository.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Answer, Driver, Request, fixture, open, options};
use gossamer_backend_api::DType;
use gossamer_kernels::passes::{PASSES, parse_disabled};
use gossamer_worker::ModelOptions;
use serde::Deserialize;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    greedy_margin: Vec<f32>,
    last_logits: Vec<f32>,
    bf16_last_rel_error: f64,
}

/// Float32 results may differ by this much, relative in the L2 norm.
const BOUND: f64 = 1e-4;
/// Tokens are compared where the two best logits are further apart.
const MARGIN: f32 = 1e-3;
/// A bfloat16 run may err this much more than the reference's.
const BF16_FACTOR: f64 = 1.5;
/// Logits with an E4M3 cache may differ from those with a bfloat16 one by this many times the error that a bfloat16 run of the
/// reference makes, medians over the cases: a code has a sixteenth of bfloat16's steps, and only keys and values are codes.
const FP8_CACHE_FACTOR: f64 = 10.0;

/// Logits with experts' activations rounded to E4M3 may differ from those without by this many times the error that a bfloat16 run of the
/// reference makes, medians over the cases: codes have a sixteenth of bfloat16's steps, and not all that such a run rounds becomes codes.
const FP8_EXPERTS_FACTOR: f64 = 10.0;

fn checkpoints() -> Vec<(PathBuf, Golden)> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden/b");
    let second = std::env::var_os("GOSSAMER_GOLDEN_B").map(PathBuf::from);
    let second = second.or_else(|| beside.is_dir().then_some(beside));
    if second.is_none() {
        // Written past the capture of a passing test's output, so that it is seen.
        let line = "skipped: the second checkpoint: GOSSAMER_GOLDEN_B is not set, and none is beside the repository\n";
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    std::iter::once(fixture("golden-a"))
        .chain(second)
        .map(|directory| {
            let text = std::fs::read_to_string(directory.join("golden.json")).unwrap();
            let golden = serde_json::from_str(&text).unwrap();
            (directory, golden)
        })
        .collect()
}

fn relative_error(got: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let square = |value: f64| value * value;
    let difference: f64 = got.iter().zip(expected).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let norm: f64 = expected.iter().map(|value| square(f64::from(*value))).sum();
    (difference / norm).sqrt()
}

fn requests(golden: &Golden) -> Vec<Request> {
    golden.cases.iter().map(|case| Request::greedy(&case.prompt, case.greedy.len())).collect()
}

fn check_float32(name: &str, golden: &Golden, answers: &[Answer]) {
    for (case, answer) in golden.cases.iter().zip(answers) {
        let error = relative_error(&answer.logits, &case.last_logits);
        let label = format!("{name}, prompt of {}", case.prompt.len());
        println!("{label}: relative error {error:.2e}");
        assert!(error <= BOUND, "{label}: relative error {error:.2e} is above {BOUND:.0e}");
        for (at, (got, expected)) in answer.tokens.iter().zip(&case.greedy).enumerate() {
            if got != expected {
                let margin = case.greedy_margin[at];
                assert!(
                    margin <= MARGIN,
                    "{label}: token {at} is {got}, expected {expected} (margin {margin})"
                );
                break;
            }
        }
    }
}

fn bits(answers: &[Answer]) -> Vec<(Vec<u32>, Vec<u32>)> {
    let bits = |answer: &Answer| answer.logits.iter().map(|logit| logit.to_bits()).collect();
    answers.iter().map(|answer| (bits(answer), answer.tokens.clone())).collect()
}

#[test]
fn float32_agrees_whole_and_chunked_alone_and_together_bit_for_bit() {
    for (directory, golden) in checkpoints() {
        let name = directory.file_name().unwrap().to_string_lossy().into_owned();
        let mut driver = Driver::new(open(&directory, &options(DType::F32, 8192), 2));
        let requests = requests(&golden);
        let alone: Vec<Answer> = requests
            .iter()
            .flat_map(|request| driver.run(std::slice::from_ref(request), 8192, 8192))
            .collect();
        check_float32(&format!("{name} alone"), &golden, &alone);
        let together = driver.run(&requests, 8192, 8192);
        check_float32(&format!("{name} together"), &golden, &together);
        assert!(bits(&alone) == bits(&together), "{name}: a batch changes results");
        // Prompts in pieces of odd sizes, among others that generate already.
        let chunked = driver.run(&requests, 53, 160);
        assert!(bits(&alone) == bits(&chunked), "{name}: chunks change results");
        let mut driver = Driver::new(open(&directory, &options(DType::F32, 512), 1));
        let one_thread = driver.run(&requests, 512, 512);
        assert!(bits(&alone) == bits(&one_thread), "{name}: the number of threads changes results");
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] }
}

#[test]
fn an_fp8_cache_errs_within_its_bound_and_takes_half_the_memory() {
    for (directory, golden) in checkpoints() {
        let wide = ModelOptions { kv: DType::BF16, ..options(DType::F32, 8192) };
        let narrow = ModelOptions { kv: DType::F8E4M3, ..wide.clone() };
        let mut wide = Driver::new(open(&directory, &wide, 2));
        let mut narrow = Driver::new(open(&directory, &narrow, 2));
        assert_eq!(wide.model.kv_bytes(), 2 * narrow.model.kv_bytes());
        let requests = requests(&golden);
        let expected = wide.run(&requests, 8192, 8192);
        let answers = narrow.run(&requests, 8192, 8192);
        let errors: Vec<f64> =
            answers.iter().zip(&expected).map(|(a, b)| relative_error(&a.logits, &b.logits)).collect();
        println!("{}: against a bfloat16 cache {errors:.4?}", directory.display());
        let reference = median(golden.cases.iter().map(|case| case.bf16_last_rel_error).collect());
        let (error, bound) = (median(errors), FP8_CACHE_FACTOR * reference);
        println!("median {error:.4}, {:.1} times the reference's bfloat16 error", error / reference);
        assert!(error <= bound, "median error {error:.4}, expected at most {bound:.4}");
        assert!(error > 1e-4, "the caches hold the same: {error:.2e}");
        // Blocks that others used before hold codes of theirs, and chunks read what earlier ones wrote.
        let again = narrow.run(&requests, 53, 160);
        assert!(bits(&answers) == bits(&again), "what a block held before, or chunks, change results");
    }
}

#[test]
fn bfloat16_errs_no_more_than_the_reference_does() {
    for (directory, golden) in checkpoints() {
        let mut driver = Driver::new(open(&directory, &options(DType::BF16, 8192), 2));
        let answers = driver.run(&requests(&golden), 8192, 8192);
        let errors: Vec<f64> = golden
            .cases
            .iter()
            .zip(&answers)
            .map(|(case, answer)| relative_error(&answer.logits, &case.last_logits))
            .collect();
        println!("{}: {errors:.4?}", directory.display());
        let (got, reference) =
            (median(errors), median(golden.cases.iter().map(|case| case.bf16_last_rel_error).collect()));
        println!("median {got:.5}, the reference's {reference:.5}");
        assert!(
            got <= BF16_FACTOR * reference,
            "{}: median error {got:.5}, expected at most {BF16_FACTOR} x {reference:.5}",
            directory.display()
        );
    }
}

/// Logits with every pass, and with one switched off (all, where none is named).
fn toggled(directory: &Path, golden: &Golden, base: &ModelOptions) -> Vec<(&'static str, Vec<Answer>)> {
    let requests = requests(golden);
    let all: Vec<&str> = PASSES.iter().map(|pass| pass.name).collect();
    let run = |disabled: &[&str]| {
        let disabled_passes = parse_disabled(disabled.iter().copied()).unwrap();
        let model = open(directory, &ModelOptions { disabled_passes, ..base.clone() }, 2);
        let operations = model.program().graph.nodes.len();
        (operations, Driver::new(model).run(&requests, 512, 512))
    };
    let (fewest, fused) = run(&[]);
    let (most, parts) = run(&all);
    assert!(fewest < most, "no pass fired: {fewest} operations, {most} without passes");
    let mut made = vec![("none", fused), ("all", parts)];
    for pass in all {
        let (operations, answers) = run(&[pass]);
        // Over ranks there is nothing to sum here, and the mixture of experts and the qkv product as one are nothing for CPUs.
        let fires = !["all-reduce-norm", "fused-moe", "qkv-rope"].contains(&pass)
            && (base.allow_fp8_experts || !["pad-quantise", "swiglu-quantise"].contains(&pass));
        assert_eq!(operations > fewest, fires, "{pass}: {operations} operations, {fewest} with it");
        made.push((pass, answers));
    }
    made
}

#[test]
fn fused_and_unfused_graphs_agree_pass_by_pass() {
    for (directory, golden) in checkpoints() {
        let made = toggled(&directory, &golden, &options(DType::F32, 512));
        for (pass, answers) in &made {
            check_float32(&format!("{} without {pass}", directory.display()), &golden, answers);
            for (one, fused) in answers.iter().zip(&made[0].1) {
                let error = relative_error(&one.logits, &fused.logits);
                assert!(error <= BOUND, "without {pass}: differs by {error:.2e}");
            }
        }
    }
}

/// Rounding to E4M3 is in the parts alone on CPUs: their whole operation computes in the activations' type, which is what it may do. So the
/// two differ by what rounding changes.
#[test]
fn parts_that_round_to_e4m3_stay_within_its_step_and_agree_among_themselves() {
    for (directory, golden) in checkpoints() {
        let base = ModelOptions { allow_fp8_experts: true, ..options(DType::F32, 512) };
        let made = toggled(&directory, &golden, &base);
        let errors = |answers: &[Answer], reference: &[Answer]| {
            let pairs = answers.iter().zip(reference);
            median(pairs.map(|(a, b)| relative_error(&a.logits, &b.logits)).collect())
        };
        let parts = &made[1].1;
        let reference = median(golden.cases.iter().map(|case| case.bf16_last_rel_error).collect());
        let bound = FP8_EXPERTS_FACTOR * reference;
        for (pass, answers) in &made {
            let (far, near) = (errors(answers, &made[0].1), errors(answers, parts));
            println!(
                "{} without {pass}: {far:.2e} from the whole, {:.1} x the reference's bfloat16 error; {near:.2e} from the parts",
                directory.display(),
                far / reference
            );
            assert!(far <= bound, "without {pass}: median {far:.2e}");
            // Who rounds, rounds alike; who does not, is away from them all.
            let rounds =
                ["all", "pad-quantise", "swiglu-quantise", "finalize-slice", "experts"].contains(pass);
            match rounds {
                true => assert!(near <= BOUND, "without {pass}: median {near:.2e} from the parts"),
                false => assert!(near > BOUND, "without {pass}: nothing was rounded anywhere"),
            }
        }
    }
}
