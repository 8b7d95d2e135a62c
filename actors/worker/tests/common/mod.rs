//! Runs a model the way a scheduler would, without one: blocks, chunks, and tokens that feed the next step.
#![allow(dead_code, clippy::unwrap_used)]

use gossamer_backend_api::{DType, Exported, KernelBackend};
use gossamer_config::LoadFormat;
use gossamer_fallback::Fallback;
use gossamer_kernels::Backends;
use gossamer_kernels::graph::Shard;
use gossamer_wire::{
    BlockGrant, InputTokens, RankPlan, Run, SampledToken, SamplingParams, SlotJoin, StepPlan,
};
use gossamer_worker::{Executor, Model, ModelOptions, pool};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

pub fn options(activation: DType, max_num_batched_tokens: u32) -> ModelOptions {
    ModelOptions {
        rank: 0,
        activation,
        kv: activation,
        block_size: 64,
        max_num_seqs: 8,
        max_num_batched_tokens,
        max_model_len: Some(8192),
        max_logprobs: 5,
        num_blocks: Some(256),
        memory_share: 0.5,
        load_format: LoadFormat::Auto,
        seed: 0,
        shard: Shard::WHOLE,
        disabled_passes: BTreeSet::new(),
        allow_fp8_experts: false,
        allow_fp8_attention: false,
        kernel_cache: None,
    }
}

pub fn open(directory: &Path, options: &ModelOptions, threads: usize) -> Model {
    let host = pool::start(threads, false).unwrap();
    let backend: Arc<dyn KernelBackend> = Arc::new(Fallback::open(*host).unwrap());
    Model::open(directory, options, Backends::new(vec![backend], None, None).unwrap()).unwrap()
}

/// A sequence to run.
#[derive(Clone)]
pub struct Request {
    pub prompt: Vec<u32>,
    pub generate: usize,
    pub sampling: SamplingParams,
    pub choice: u32,
    pub min_tokens: u32,
    pub stop_token_ids: Vec<u32>,
}

impl Request {
    pub fn greedy(prompt: &[u32], generate: usize) -> Self {
        Self {
            prompt: prompt.to_vec(),
            generate,
            sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            choice: 0,
            min_tokens: 0,
            stop_token_ids: vec![],
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Logits after the prompt.
    pub logits: Vec<f32>,
    pub tokens: Vec<u32>,
    pub sampled: Vec<SampledToken>,
}

struct Sequence {
    slot: u32,
    request: Request,
    computed: usize,
    /// Per group: first live column and blocks.
    tables: Vec<(u32, Vec<u32>)>,
    columns: u32,
    joined: bool,
    answer: Answer,
}

/// Drives one model.
pub struct Driver {
    pub model: Model,
    step: u64,
    free: Vec<u32>,
}

impl Driver {
    pub fn new(mut model: Model) -> Self {
        model.keep_logits();
        let free = (0..model.info().num_blocks).rev().collect();
        Self { model, step: 0, free }
    }

    /// Runs the requests together. A step takes up to `budget` tokens, at most `chunk` of one prompt; sequences that
    /// generate come first.
    pub fn run(&mut self, requests: &[Request], chunk: usize, budget: usize) -> Vec<Answer> {
        let groups = self.model.info().groups.len();
        let mut sequences: Vec<_> = requests
            .iter()
            .enumerate()
            .map(|(index, request)| Sequence {
                slot: index as u32,
                request: request.clone(),
                computed: 0,
                tables: vec![(0, Vec::new()); groups],
                columns: 0,
                joined: false,
                answer: Answer::default(),
            })
            .collect();
        let mut snapshot = true;
        while sequences.iter().any(|sequence| sequence.answer.tokens.len() < sequence.request.generate) {
            self.step += 1;
            let mut section = RankPlan::default();
            let mut left = budget;
            let mut ran = Vec::new();
            let decoding = |sequence: &Sequence| sequence.computed >= sequence.request.prompt.len();
            let mut order: Vec<usize> = (0..sequences.len()).collect();
            order.sort_by_key(|index| !decoding(&sequences[*index]));
            for index in order {
                let sequence = &mut sequences[index];
                if sequence.answer.tokens.len() >= sequence.request.generate || left == 0 {
                    continue;
                }
                let prompt_len = sequence.request.prompt.len();
                let decode = decoding(sequence);
                let count = if decode { 1 } else { (prompt_len - sequence.computed).min(chunk).min(left) };
                left -= count;
                self.plan(sequence, count, decode, &mut section);
                ran.push(index);
            }
            let mut plan =
                StepPlan { step: self.step, snapshot, ranks: vec![section], ..StepPlan::default() };
            plan.choose_graph(u32::MAX);
            snapshot = false;
            let result = self.model.step(&plan).unwrap();
            assert_eq!(result.step, self.step);
            let vocab = self.model.info().vocab_size as usize;
            for (row, sampled) in result.sampled.iter().enumerate() {
                let sequence = &mut sequences[sampled.slot as usize];
                if sequence.answer.tokens.is_empty() {
                    sequence.answer.logits = self.model.logits()[row * vocab..(row + 1) * vocab].to_vec();
                }
                assert_eq!(sampled.position as usize, sequence.computed);
                sequence.answer.tokens.push(sampled.token);
                sequence.answer.sampled.push(sampled.clone());
            }
        }
        for sequence in &mut sequences {
            for (_, blocks) in &mut sequence.tables {
                self.free.append(blocks);
            }
        }
        sequences.into_iter().map(|sequence| sequence.answer).collect()
    }

    fn plan(&mut self, sequence: &mut Sequence, count: usize, decode: bool, section: &mut RankPlan) {
        let info = self.model.info().clone();
        let slot = sequence.slot;
        if !sequence.joined {
            sequence.joined = true;
            section.join.push(SlotJoin {
                slot,
                tokens: sequence.request.prompt.clone(),
                prompt_len: sequence.request.prompt.len() as u32,
                choice: sequence.request.choice,
                sampling: sequence.request.sampling.clone(),
                min_tokens: sequence.request.min_tokens,
                stop_token_ids: sequence.request.stop_token_ids.clone(),
            });
        }
        let (start, end) = (sequence.computed as u32, (sequence.computed + count) as u32);
        let columns = end.div_ceil(info.block_size);
        for (group, (first, blocks)) in sequence.tables.iter_mut().enumerate() {
            let live = info.groups[group]
                .window
                .map_or(0, |window| (start + 1).saturating_sub(window) / info.block_size);
            let dropped = live.saturating_sub(*first).min(blocks.len() as u32);
            self.free.extend(blocks.drain(..dropped as usize));
            *first += dropped;
            let fresh: Vec<u32> = (sequence.columns..columns).map(|_| self.free.pop().unwrap()).collect();
            blocks.extend(&fresh);
            if !fresh.is_empty() || dropped > 0 {
                let grant = BlockGrant {
                    slot,
                    group: group as u32,
                    first: sequence.columns,
                    first_live: *first,
                    blocks: fresh,
                };
                section.grants.push(grant);
            }
        }
        sequence.columns = sequence.columns.max(columns);
        let sample = decode || end as usize == sequence.request.prompt.len();
        let input = if decode { InputTokens::LastSampled } else { InputTokens::Known };
        section.runs.push(Run { slot, start, count: count as u32, input, sample });
        sequence.computed += count;
    }
}
