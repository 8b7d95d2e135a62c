//! The per-token path of a streamed chat reply, and rendering.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput};
use gossamer_harmony::{
    ChatOutput, ChatOutputOptions, ControlIds, Conversation, Ending, Message, SystemBlock, render,
};
use gossamer_tokenizer::{StopStrings, Tokenizer};

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let Ok(tokenizer) = Tokenizer::o200k_harmony().map(Arc::new) else { return eprintln!("no vocabulary") };
    let Ok(control) = ControlIds::find(&tokenizer) else { return eprintln!("no control tokens") };
    let sentence = "The quick brown fox jumps over the lazy dog, and 한국어 too. ";
    let ids = tokenizer.encode_with_special(&format!(
        "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>{}<|return|>",
        sentence.repeat(30),
        sentence.repeat(30)
    ));

    let mut group = criterion.benchmark_group("chat_output");
    group.throughput(Throughput::Elements(ids.len() as u64));
    for (name, stops, interval) in [
        ("interval_1", vec![], 1),
        ("interval_20", vec![], 20),
        ("interval_1_two_stops", vec!["\n\nUser:", "<end>"], 1),
    ] {
        let options = ChatOutputOptions {
            tokenizer: tokenizer.clone(),
            control,
            stops: StopStrings::new(stops),
            tools: Arc::new([]),
            turns_end_after: Some(0),
        };
        group.bench_function(name, |b| {
            b.iter(|| {
                let mut output = ChatOutput::new(options.clone());
                let mut deltas = Vec::new();
                for group in ids.chunks(interval) {
                    output.push(group, &mut deltas);
                    black_box(&deltas);
                    deltas.clear();
                }
                output.finish(Ending::Stop, &mut deltas)
            });
        });
    }
    group.finish();

    let conversation = Conversation {
        system: SystemBlock { date: Some("2026-11-29".into()), ..SystemBlock::default() },
        messages: vec![Message::User("hi".into())],
        ..Conversation::default()
    };
    criterion.bench_function("render", |b| b.iter(|| black_box(render(black_box(&conversation)))));
    criterion.final_summary();
}
