//! `gossamer bench latency`: the model on this machine, step by step, beside the machine's roofs; and the coefficients of the cost
//! model that fit what was measured.

use super::model_args::ModelArgs;
use crate::process::{best_device, demo_model};
use clap::Args;
use gossamer_config::{Device, ModelConfig, ServeConfig, resolve_on};
use gossamer_fallback::roofs;
use gossamer_kernels::cost::{CostModel, StepLoad};
use gossamer_worker::cuda::{self, Cuda};
use gossamer_worker::latency::{self, Case, LatencyError, Measured, Roofs};
use gossamer_worker::process::{open_cuda, open_model};
use gossamer_worker::{Model, pool};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::{
    error::Error,
    ffi::OsString,
    io::{Write, stdout},
    path::PathBuf,
    time::Duration,
};

/// Bytes of the buffer that the memory roof is measured on: more than any cache holds.
const ROOF_BYTES: usize = 1 << 30;

/// Arguments of `gossamer bench latency`.
#[derive(Args)]
pub struct LatencyArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// A gpt-oss shape with made-up weights instead of a model: 20b or 120b, optionally cut to some layers (20b:6)
    #[arg(long, value_name = "SIZE[:LAYERS]", conflicts_with = "MODEL_DIR")]
    shape: Option<String>,
    /// Sequences that decode together
    #[arg(long, value_delimiter = ',', default_value = "1,4,16")]
    batch_size: Vec<u32>,
    /// Tokens that decoding sequences have before
    #[arg(long, value_delimiter = ',', default_value = "128")]
    context: Vec<u32>,
    /// Lengths of prompts
    #[arg(long, value_delimiter = ',', default_value = "512,2048")]
    input_len: Vec<u32>,
    /// Steps that count per case
    #[arg(long, default_value_t = 8)]
    num_iters: usize,
    /// Steps before them
    #[arg(long, default_value_t = 2)]
    num_iters_warmup: usize,
    /// Where to compute: cpu, cuda, or auto (a CUDA device where there is one)
    #[arg(long, default_value = "auto")]
    device: String,
    /// Time that a CUDA device may spend on measuring tactics first, in seconds
    #[arg(long, value_name = "SECONDS")]
    autotune_budget: Option<String>,
    /// Kernel cache files, read and written
    #[arg(long, value_name = "DIR")]
    kernel_cache_dir: Option<PathBuf>,
    /// Threads on a CPU; by default all
    #[arg(long)]
    cpu_threads: Option<u32>,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    output_json: Option<PathBuf>,
    /// Write the coefficients of the cost model, for `--device sim` and `gossamer plan`
    #[arg(long, value_name = "FILE")]
    calibrate: Option<PathBuf>,
}

/// Writes a `config.json` of a published shape into a folder that goes with the returned guard.
fn shape_folder(shape: &str) -> Result<tempfile::TempDir, Box<dyn Error>> {
    let (size, layers) = shape.split_once(':').map_or((shape, None), |(size, layers)| (size, Some(layers)));
    let (published, experts) = match size {
        "20b" => (24, 32),
        "120b" => (36, 128),
        other => {
            return Err(
                format!("expected --shape 20b or 120b, optionally with :LAYERS, got '{other}'").into()
            );
        }
    };
    let layers = match layers {
        None => published,
        Some(text) => text
            .parse::<usize>()
            .ok()
            .filter(|layers| (1..=published).contains(layers))
            .ok_or_else(|| format!("expected 1 to {published} layers in --shape, got '{text}'"))?,
    };
    let kinds = (0..layers).map(|layer| ["sliding_attention", "full_attention"][layer % 2]);
    let config = json!({
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": true,
        "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": layers, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": experts, "num_experts_per_tok": 4,
        "experts_per_token": 4, "vocab_size": 201_088, "sliding_window": 128, "swiglu_limit": 7.0,
        "max_position_embeddings": 131_072, "initial_context_length": 4096, "rms_norm_eps": 1e-5,
        "rope_theta": 150_000, "hidden_act": "silu", "tie_word_embeddings": false, "eos_token_id": 200_002,
        "pad_token_id": 199_999, "torch_dtype": "bfloat16",
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": 4096, "truncate": false},
        "layer_types": kinds.collect::<Vec<_>>(),
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
    });
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("config.json"), config.to_string())?;
    Ok(folder)
}

fn measure_roofs(threads: usize) -> Roofs {
    Roofs {
        bytes_per_second: roofs::read_bandwidth(threads, ROOF_BYTES),
        float32_flops: Some(roofs::float32_flops(threads)),
        bfloat16_flops: roofs::bfloat16_flops(threads),
    }
}

/// The higher of two measurements of a shared machine.
fn higher(a: Roofs, b: Roofs) -> Roofs {
    let most = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a.max(b));
    Roofs {
        bytes_per_second: a.bytes_per_second.max(b.bytes_per_second),
        float32_flops: most(a.float32_flops, b.float32_flops),
        bfloat16_flops: most(a.bfloat16_flops, b.bfloat16_flops),
    }
}

impl LatencyArgs {
    fn cases(&self) -> Vec<Case> {
        let decode = self.context.iter().flat_map(|context| {
            self.batch_size.iter().map(|batch| Case::Decode { batch: *batch, context: *context })
        });
        decode.chain(self.input_len.iter().map(|tokens| Case::Prefill { tokens: *tokens })).collect()
    }

    /// The server's flags under which every case fits.
    fn serve_arguments(&self, folder: Option<&std::path::Path>) -> Vec<OsString> {
        let steps = (self.num_iters + self.num_iters_warmup) as u32 + 1;
        let blocks = |case: &Case| match case {
            Case::Prefill { tokens } => 2 * tokens.div_ceil(64),
            Case::Decode { batch, context } => 2 * batch * (context + steps).div_ceil(64),
        };
        let cases = self.cases();
        let most = |value: &dyn Fn(&Case) -> u32| cases.iter().map(value).max().unwrap_or(1).to_string();
        let tokens = most(&|case| match case {
            Case::Prefill { tokens } => *tokens,
            Case::Decode { batch, context } => (*batch).max((*context).min(latency::PREFILLED)),
        });
        let sequences = most(&|case| match case {
            Case::Prefill { .. } => 1,
            Case::Decode { batch, .. } => *batch,
        });
        let mut arguments = self.model.to_arguments();
        let mut flag = |name: &str, value: String| arguments.extend([OsString::from(name), value.into()]);
        flag("--max-num-batched-tokens", tokens);
        flag("--max-num-seqs", sequences);
        flag("--num-gpu-blocks-override", most(&blocks));
        flag("--device", self.device.clone());
        if let Some(threads) = self.cpu_threads {
            flag("--cpu-threads", threads.to_string());
        }
        if let Some(budget) = &self.autotune_budget {
            flag("--autotune-budget", budget.clone());
        }
        if let Some(directory) = &self.kernel_cache_dir {
            flag("--kernel-cache-dir", directory.display().to_string());
        }
        if let Some(folder) = folder {
            flag("--load-format", "dummy".to_owned());
            arguments.push(folder.into());
        }
        arguments
    }
}

/// A machine to measure: its name, and what finds its roofs.
struct Machine {
    name: String,
    roofs: Box<dyn Fn() -> Result<Roofs, Box<dyn Error>>>,
}

impl Machine {
    fn of(config: &ServeConfig) -> Result<Self, Box<dyn Error>> {
        if on_cuda(config) {
            let device = Cuda::open(0)?;
            let name = device.name().to_owned();
            let copy = move || {
                device.make_current()?;
                let bytes_per_second = cuda::copy_bandwidth()?;
                Ok(Roofs { bytes_per_second, float32_flops: None, bfloat16_flops: None })
            };
            return Ok(Self { name, roofs: Box::new(copy) });
        }
        let threads = config.cpu_threads.map_or_else(pool::default_threads, |threads| threads as usize);
        let name = format!("cpu, {threads} threads");
        Ok(Self { name, roofs: Box::new(move || Ok(measure_roofs(threads))) })
    }
}

fn on_cuda(config: &ServeConfig) -> bool {
    config.device == Device::Cuda
}

/// Measures and prints.
pub fn run(args: &LatencyArgs) -> Result<(), Box<dyn Error>> {
    let folder = args.shape.as_deref().map(shape_folder).transpose()?;
    let arguments = args.serve_arguments(folder.as_ref().map(tempfile::TempDir::path));
    let config = resolve_on(arguments, [], &demo_model(), best_device)?.config;
    if config.device == Device::Sim {
        return Err("expected --device cpu, cuda or auto, got sim, which has no times of its own".into());
    }
    // A backend that is left out, a kernel cache that is ignored.
    crate::log::start("warn", None);
    let cases = args.cases();
    let bar = ProgressBar::new(cases.len() as u64 + 3);
    if let Ok(style) = ProgressStyle::with_template("{msg:<28} {wide_bar} {pos}/{len} {elapsed}") {
        bar.set_style(style);
    }
    let progress = |text: String| {
        bar.set_message(text);
        bar.inc(1);
    };
    progress("roofs of the machine".to_owned());
    let machine = Machine::of(&config)?;
    let before = (machine.roofs)()?;
    progress("opening the model".to_owned());
    let shape = ModelConfig::load(&config.model)?;
    let measure_on = |model: &mut Model| {
        let mut measured = Vec::new();
        for case in cases {
            progress(describe(&case));
            let (warmup, steps) = (args.num_iters_warmup, args.num_iters);
            measured.push(latency::measure(model, &shape, &before, case, warmup, steps)?);
        }
        Ok::<_, LatencyError>(measured)
    };
    let measured = if on_cuda(&config) {
        // The device's context belongs to this thread.
        measure_on(&mut open_cuda(&config, 0)?)?
    } else {
        let mut model = open_model(&config, 0)?;
        // On a thread of its own: the launcher is bound to a CPU, which the threads of the roofs must not inherit.
        let measure = || {
            pool::pin_launcher();
            measure_on(&mut model)
        };
        std::thread::scope(|scope| scope.spawn(measure).join()).map_err(|_| "the measurement panicked")??
    };
    progress("roofs of the machine".to_owned());
    let roofs = higher(before, (machine.roofs)()?);
    bar.finish_and_clear();
    // The files first: they are kept whatever becomes of the output.
    let mut written = Vec::new();
    if let Some(path) = &args.output_json {
        let document =
            json!({"device": machine.name, "roofs": roofs, "cases": measured, "shape": args.shape});
        written.push(write(path, &serde_json::to_string_pretty(&document)?)?);
    }
    let steps: Vec<_> = measured.iter().map(step).collect();
    let cost = CostModel::fit(&machine.name, shape.num_experts, shape.experts_per_token, &steps);
    if let Some(path) = &args.calibrate {
        written.push(write(path, &serde_json::to_string_pretty(&cost)?)?);
    }
    print(&roofs, &machine.name, &measured)?;
    if args.calibrate.is_some() {
        print_fit(&cost, &measured)?;
    }
    for path in written {
        writeln!(stdout(), "written to {path}")?;
    }
    Ok(())
}

/// How far the fitted cost model is from each measured step.
fn print_fit(cost: &CostModel, measured: &[Measured]) -> std::io::Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "the cost model beside the medians:")?;
    for row in measured {
        let (load, time) = step(row);
        let (fitted, took) = (cost.step(&load).as_secs_f64() * 1e3, time.as_secs_f64() * 1e3);
        let off = 100.0 * (fitted / took - 1.0);
        writeln!(out, "{:<28} {fitted:>10.2} ms for {took:>10.2} ({off:+.0} %)", describe(&row.case))?;
    }
    Ok(())
}

/// Writes a file and gives its name.
fn write(path: &std::path::Path, text: &str) -> Result<String, String> {
    let name = path.display().to_string();
    std::fs::write(path, text).map_err(|error| format!("cannot write {name}: {error}"))?;
    Ok(name)
}

fn step(measured: &Measured) -> (StepLoad, Duration) {
    let mut load = StepLoad::default();
    match measured.case {
        Case::Prefill { tokens } => load.add_run(0, tokens),
        Case::Decode { batch, context } => (0..batch).for_each(|_| load.add_run(context, 1)),
    }
    (load, Duration::from_secs_f64(measured.median_seconds))
}

fn describe(case: &Case) -> String {
    match case {
        Case::Prefill { tokens } => format!("prefill {tokens}"),
        Case::Decode { batch, context } => format!("decode, batch {batch} after {context}"),
    }
}

fn print(roofs: &Roofs, machine: &str, measured: &[Measured]) -> std::io::Result<()> {
    let mut out = stdout().lock();
    let giga = |value: f64| value / 1e9;
    let rate = |flops: Option<f64>| {
        flops.map_or("not measured".to_owned(), |flops| format!("{:.0} GFLOP/s", giga(flops)))
    };
    writeln!(
        out,
        "roofs of {machine}, measured before and after: {:.1} GB/s, float32 {}, bfloat16 {}",
        giga(roofs.bytes_per_second),
        rate(roofs.float32_flops),
        rate(roofs.bfloat16_flops)
    )?;
    writeln!(
        out,
        "{:<28} {:>10} {:>10} {:>10} {:>8} {:>9} {:>9} {:>8} {:>8}",
        "case", "median ms", "best ms", "tok/s", "GB/s", "of memory", "GFLOP/s", "of fp32", "of bf16"
    )?;
    for row in measured {
        let (rate, flops) = (row.bytes / row.median_seconds, row.flops / row.median_seconds);
        let share =
            |roof: Option<f64>| roof.map_or("-".to_owned(), |roof| format!("{:.0} %", 100.0 * flops / roof));
        writeln!(
            out,
            "{:<28} {:>10.2} {:>10.2} {:>10.2} {:>8.1} {:>9} {:>9.1} {:>8} {:>8}",
            describe(&row.case),
            row.median_seconds * 1e3,
            row.best_seconds * 1e3,
            row.tokens_per_second,
            giga(rate),
            format!("{:.0} %", 100.0 * rate / roofs.bytes_per_second),
            giga(flops),
            share(roofs.float32_flops),
            share(roofs.bfloat16_flops)
        )?;
    }
    Ok(())
}
