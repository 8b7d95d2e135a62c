//! Encoding, and the per-token path of completions.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput};
use gossamer_tokenizer::{StopStrings, TextOutput, Tokenizer};

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let started = std::time::Instant::now();
    let tokenizer = match Tokenizer::o200k_harmony() {
        Ok(tokenizer) => Arc::new(tokenizer),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    };
    println!("built-in vocabulary loaded in {:.0} ms", started.elapsed().as_secs_f64() * 1e3);

    let text =
        "The quick brown fox jumps over the lazy dog; it was 3.14 o'clock, and nobody minded.\n".repeat(1000);
    let ids = tokenizer.encode_ordinary(&text);
    let mut group = criterion.benchmark_group("encode");
    group.throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("o200k_harmony", |b| {
        b.iter(|| black_box(tokenizer.encode_ordinary(black_box(&text))))
    });
    group.finish();

    let mut group = criterion.benchmark_group("text_output");
    group.throughput(Throughput::Elements(ids.len() as u64));
    for (name, stops) in [("no_stop", vec![]), ("two_stops", vec!["\n\nUser:", "<end>"])] {
        let stops = StopStrings::new(stops);
        group.bench_function(name, |b| {
            b.iter(|| {
                let mut output = TextOutput::new(tokenizer.clone(), stops.clone(), true);
                for token in &ids {
                    black_box(output.push(std::slice::from_ref(token)));
                }
                black_box(output.finish())
            });
        });
    }
    group.finish();
    criterion.final_summary();
}
