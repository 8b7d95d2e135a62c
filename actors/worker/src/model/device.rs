//! Steps on a CUDA device: inputs over in one copy, kernels or a captured graph, results back in one copy.
//!
//! Several steps are in flight; the device runs them one after the other. A token that a step draws stays on the device,
//! in the place of its slot, and feeds the next step from there, penalties included; on the host its place in the slot is filled
//! when the result comes back.
//!
//! Copies have streams of their own, so that nothing but kernels lies between the kernels of two steps: a copy to the device, or
//! from it, between kernels costs 5 to 8 us. Hence inputs and results have two areas on the device, which steps use in turn;
//! host-side staging exists per step in flight.
//!
//! Decode steps up to a size are captured in graphs, one per padded batch size, table stride and area: the first step of a kind
//! runs kernel by kernel, which loads them, and while the device is busy with it its graph is captured behind it. Padding uses a
//! KV block that no sequence owns.
//!
//! Invariant: an area's inputs are replaced when the step that read them has been computed, its results when they have been copied.
//! Invariant: an input's address depends only on the area and the sizes that are part of a graph's key.
//! Invariant: a result has its tokens in the order of the plan's runs, whatever order the device computed them in.

mod inputs;
mod outputs;

use self::inputs::{Inputs, in_plan_order, places_in_plan, singles_first};
use self::outputs::{OutputLayout, word};
use super::launch::{GroupPlaces, Places};
use super::{Drawn, Model, sampled_token};
use crate::cuda::{Buffer, Cuda, CudaError, Event, Executable, Pinned, Stream, download};
use crate::executor::{ExecutorError, Progress};
use crate::slots::SlotTable;
use gossamer_backend_api::ops::SampleRow;
use gossamer_kernels::graph::Op;
use gossamer_wire::{Run, StepPlan, StepResult, WorkerInfo};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

const ALIGN: usize = 256;
/// Room for inputs at the start; it grows.
const INPUT_BYTES: usize = 8 << 20;
/// Areas of inputs and results, which steps use in turn.
const AREAS: usize = 2;

impl From<CudaError> for ExecutorError {
    fn from(error: CudaError) -> Self {
        Self::Device(error.to_string())
    }
}

/// Host memory and events of one step in flight.
struct Staging {
    input: Pinned,
    output: Pinned,
    /// Inputs are on the device.
    uploaded: Event,
    /// The kernels begin; not recorded where a step follows another, for it would cost the device a microsecond.
    begun: Event,
    /// The kernels have ended.
    computed: Event,
    /// Results are on the host.
    done: Event,
}

/// A token that a step draws.
struct Drawing {
    slot: u32,
    position: u32,
    logprobs: u32,
    /// Step in which the slot was filled: a slot may be another sequence's by the time the token is known.
    joined: u64,
}

/// A step in flight.
struct Flight {
    step: u64,
    area: usize,
    staging: Staging,
    drawings: Vec<Drawing>,
    /// Per drawing: its place among the plan's; empty where that is the same order.
    places: Vec<u32>,
    /// The step before was still being computed, so this one begins where that ends.
    follows: bool,
}

/// What makes two decode steps the same graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    area: usize,
    sequences: u32,
    strides: [u32; 2],
    max_kv: u32,
}

enum Captured {
    /// It can be replayed.
    Graph(Executable),
    /// The device refused to capture it.
    Refused,
}

fn refused(key: Key, error: &dyn std::error::Error) -> Captured {
    tracing::warn!(%error, ?key, "decode steps of this size run without a graph");
    Captured::Refused
}

/// The steps under way.
pub struct Steps {
    cuda: Arc<Cuda>,
    /// Of the kernels.
    stream: Stream,
    /// Of the copies to the device, and from it.
    inward: Stream,
    outward: Stream,
    /// First the last drawn token of each slot, then the areas' inputs.
    inputs: Buffer,
    /// Bytes of the first part.
    last_bytes: usize,
    /// The areas' results.
    outputs: Buffer,
    output_layout: OutputLayout,
    /// The area of the next step.
    area: usize,
    flights: VecDeque<Flight>,
    /// When the kernels of the last settled step had ended.
    settled: Event,
    spare: Vec<Staging>,
    /// Per slot: step in which it was filled.
    joined: Vec<u64>,
    graphs: HashMap<Key, Captured>,
    capture_size: u32,
}

impl Steps {
    /// Nothing under way yet.
    pub fn new(
        cuda: Arc<Cuda>,
        slots: u32,
        rows: u32,
        alternatives: u32,
        capture_size: u32,
    ) -> Result<Self, CudaError> {
        let last_bytes = (slots as usize * 4).next_multiple_of(ALIGN);
        let output_layout = OutputLayout::new(rows as usize, alternatives as usize);
        Ok(Self {
            stream: Stream::new()?,
            inward: Stream::new()?,
            outward: Stream::new()?,
            inputs: Buffer::zeroed((last_bytes + AREAS * INPUT_BYTES) as u64)?,
            last_bytes,
            outputs: Buffer::zeroed((AREAS * output_layout.bytes) as u64)?,
            output_layout,
            area: 0,
            flights: VecDeque::new(),
            settled: Event::new()?,
            spare: Vec::new(),
            joined: vec![0; slots as usize],
            graphs: HashMap::new(),
            // Rows beyond the largest step have no place in the arena.
            capture_size: capture_size.min(rows),
            cuda,
        })
    }

    /// The stream of the kernels.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Places whose row numbers and positions count up, and whose slots are those of the pool's first block; nothing may be in flight.
    pub fn tuning_places(&self, rows: u32, info: &WorkerInfo) -> Result<Places, CudaError> {
        let room = self.area_bytes();
        // An even number, so that slots stand on eight bytes.
        let rows = (rows as usize).next_multiple_of(2);
        assert!(rows * 12 <= room, "the room for inputs holds the places of a step");
        let mut staging = Pinned::new(rows * 12)?;
        let (words, slots) = staging.bytes_mut().split_at_mut(rows * 4);
        for (row, word) in words.chunks_exact_mut(4).enumerate() {
            word.copy_from_slice(&(row as u32).to_ne_bytes());
        }
        for (row, slot) in slots.chunks_exact_mut(8).enumerate() {
            slot.copy_from_slice(&(row as u64 % u64::from(info.block_size)).to_ne_bytes());
        }
        let base = self.inputs_of(0);
        // SAFETY: the part lies in the buffer; the staging lives until the stream was waited for.
        unsafe { self.stream.upload(base, &staging, rows * 12) }?;
        self.stream.synchronize()?;
        let group = GroupPlaces { slots: base + rows as u64 * 4, ..GroupPlaces::default() };
        Ok(Places {
            sampled_rows: base,
            positions: base,
            groups: vec![group; info.groups.len()],
            ..Places::default()
        })
    }

    /// Bytes of an area's inputs.
    fn area_bytes(&self) -> usize {
        (self.inputs.bytes() as usize - self.last_bytes) / AREAS
    }

    /// Address of an area's inputs.
    fn inputs_of(&self, area: usize) -> u64 {
        self.inputs.address() + (self.last_bytes + area * self.area_bytes()) as u64
    }

    /// Address of an area's results.
    fn outputs_of(&self, area: usize) -> u64 {
        self.outputs.address() + (area * self.output_layout.bytes) as u64
    }

    /// Lets neither copies nor kernels into an area before the step that had it last is through with it.
    fn wait_for_area(&self, area: usize) -> Result<(), CudaError> {
        let Some(before) = self.flights.iter().rev().find(|flight| flight.area == area) else {
            return Ok(());
        };
        self.inward.wait_for(&before.staging.computed)?;
        self.stream.wait_for(&before.staging.done)
    }

    /// Address of the last token that a slot drew.
    fn last_drawn(&self, slot: u32) -> u64 {
        self.inputs.address() + u64::from(slot) * 4
    }

    fn staging(&mut self, input_bytes: usize) -> Result<Staging, CudaError> {
        if let Some(at) = self.spare.iter().position(|staging| staging.input.bytes().len() >= input_bytes) {
            return Ok(self.spare.swap_remove(at));
        }
        self.spare.pop();
        Ok(Staging {
            input: Pinned::new(input_bytes.next_multiple_of(1 << 20))?,
            output: Pinned::new(self.output_layout.bytes)?,
            uploaded: Event::untimed()?,
            begun: Event::new()?,
            computed: Event::new()?,
            done: Event::untimed()?,
        })
    }

    /// Makes room for larger inputs; nothing may be in flight. Graphs know the old addresses and go.
    fn grow(&mut self, input_bytes: usize) -> Result<(), CudaError> {
        let bytes = self.last_bytes + AREAS * input_bytes.next_multiple_of(INPUT_BYTES);
        let mut last = vec![0; self.last_bytes];
        // SAFETY: the buffer holds that many bytes.
        unsafe { download(self.inputs.address(), &mut last) }?;
        self.graphs.clear();
        self.inputs = Buffer::zeroed(bytes as u64)?;
        self.inputs.upload(0, &last)
    }
}

impl Model {
    /// Places of sequences to measure attention on; nothing may be in flight. `None`: they do not fit.
    pub(super) fn attention_places(
        &mut self,
        steps: &Steps,
        tokens: u32,
        single: u32,
    ) -> Result<Option<Places>, CudaError> {
        self.batch.fill_attention(tokens, single == 1, &self.info);
        let inputs = self.input_layout();
        if inputs.bytes > steps.area_bytes() {
            return Ok(None);
        }
        let mut staging = Pinned::new(inputs.bytes)?;
        self.write_inputs(&inputs, staging.bytes_mut());
        // SAFETY: the inputs fit the area; the staging lives until the stream was waited for.
        unsafe { steps.stream.upload(steps.inputs_of(0), &staging, inputs.bytes) }?;
        steps.stream.synchronize()?;
        Ok(Some(self.device_places(steps, 0, &inputs)))
    }

    fn device_places(&self, steps: &Steps, area: usize, inputs: &Inputs) -> Places {
        let at = |offset: usize| steps.inputs_of(area) + offset as u64;
        let (out, layout) = (steps.outputs_of(area), &steps.output_layout);
        let batch = &self.batch;
        let group = |(group, at_group): (&super::batch::GroupInputs, &[usize; 3])| GroupPlaces {
            slots: at(at_group[0]),
            tables: at(at_group[1]),
            stride: group.stride,
            first_blocks: at(at_group[2]),
        };
        Places {
            token_ids: at(inputs.token_ids),
            slot_tokens: steps.last_drawn(0),
            positions: at(inputs.positions),
            query_starts: at(inputs.query_starts),
            kv_lens: at(inputs.kv_lens),
            sampled_rows: at(inputs.sampled_rows),
            sequences: batch.kv_lens.len() as u32,
            singles: batch.singles,
            max_query: batch.max_query,
            max_kv: batch.max_kv,
            groups: batch.groups.iter().zip(&inputs.groups).map(group).collect(),
            rows: at(inputs.rows),
            edits: at(inputs.edits),
            masks: if batch.sample.masks.is_empty() { 0 } else { at(inputs.masks) },
            drawn: out,
            logprobs: out + layout.logprobs as u64,
            top_ids: out + layout.top_ids as u64,
            top_logprobs: out + layout.top_logprobs as u64,
        }
    }

    /// Starts a step on the device.
    pub(super) fn enqueue_on_device(&mut self, plan: &StepPlan) -> Result<(), ExecutorError> {
        let Some(mut steps) = self.steps.take() else { return Err(ExecutorError::Idle) };
        let result = self.enqueue_with(&mut steps, plan);
        self.steps = Some(steps);
        result
    }

    fn enqueue_with(&mut self, steps: &mut Steps, plan: &StepPlan) -> Result<(), ExecutorError> {
        let step = plan.step;
        let section = self.slots.apply(plan).map_err(|source| ExecutorError::Plan { step, source })?;
        for join in &section.join {
            steps.joined[join.slot as usize] = step;
        }
        self.settle_to_one_undrawn(steps, &section.runs)?;
        let runs = singles_first(&section.runs);
        self.batch.fill(&self.slots, &runs, &self.info);
        let key = self.graph_key(steps, plan.graph_bucket, &runs);
        if let Some(key) = key {
            self.batch.pad(key.sequences as usize, self.info.num_blocks, self.info.block_size);
            self.batch.max_kv = key.max_kv;
        }
        let places = places_in_plan(&section.runs, &runs);
        self.launch_step(steps, step, (&runs, places), key)?;
        for run in runs.iter().filter(|run| run.sample) {
            if let Some(slot) = self.slots.get_mut(run.slot) {
                slot.push_undrawn();
            }
        }
        Ok(())
    }

    /// The graph that a step may be replayed from, of the size that the plan names for all ranks.
    fn graph_key(&self, steps: &Steps, graph_bucket: u32, runs: &[Run]) -> Option<Key> {
        let decode = runs.iter().all(|run| run.count == 1 && run.sample);
        let batch = &self.batch;
        if runs.is_empty() || !decode || !batch.sample.masks.is_empty() || batch.groups.len() > 2 {
            return None;
        }
        let sequences = graph_bucket.min(steps.capture_size);
        if sequences < runs.len() as u32 || !self.program.is_capturable(sequences) {
            return None;
        }
        let mut strides = [0; 2];
        for (stride, group) in strides.iter_mut().zip(&batch.groups) {
            *stride = group.stride;
        }
        let block = self.info.block_size;
        Some(Key {
            area: steps.area,
            sequences,
            strides,
            max_kv: batch.max_kv.div_ceil(block).next_power_of_two() * block,
        })
    }

    fn launch_step(
        &mut self,
        steps: &mut Steps,
        step: u64,
        (runs, in_plan): (&[Run], Vec<u32>),
        key: Option<Key>,
    ) -> Result<(), ExecutorError> {
        let (tokens, samples) = (self.batch.tokens(), self.batch.samples());
        let inputs = self.input_layout();
        if inputs.bytes > steps.area_bytes() {
            self.settle_all(steps)?;
            steps.grow(inputs.bytes)?;
        }
        // Only now is the buffer the one that the step reads; its rows still lack the tokens that they lacked when they were made.
        let drawing = runs.iter().filter(|run| run.sample);
        self.batch.sample.locate(drawing.map(|run| steps.last_drawn(run.slot)));
        let area = steps.area;
        self.name_drawn(runs);
        let mut staging = steps.staging(inputs.bytes)?;
        self.write_inputs(&inputs, staging.input.bytes_mut());
        let follows = match steps.flights.back() {
            Some(before) => !before.staging.computed.is_done()?,
            None => false,
        };
        if !follows {
            staging.begun.record(&steps.stream)?;
        }
        if tokens > 0 {
            let places = self.device_places(steps, area, &inputs);
            let base = steps.inputs_of(area);
            steps.wait_for_area(area)?;
            // SAFETY: the inputs fit the area, and the staging is not touched before its event is done.
            unsafe { steps.inward.upload(base, &staging.input, inputs.bytes) }?;
            staging.uploaded.record(&steps.inward)?;
            steps.stream.wait_for(&staging.uploaded)?;
            self.launch_or_replay(steps, step, key, (tokens, samples), &places)?;
            if self.keep_logits {
                self.keep_device_logits(samples, &in_plan)?;
            }
        }
        staging.computed.record(&steps.stream)?;
        steps.outward.wait_for(&staging.computed)?;
        if tokens > 0 {
            // Most of the results are alternatives that nobody asked for.
            let wanted = |row: &SampleRow| row.logprobs != SampleRow::NO_LOGPROBS;
            let all = self.batch.sample.rows.iter().any(wanted);
            let bytes = if all { steps.output_layout.bytes } else { samples as usize * 4 };
            // SAFETY: the outputs hold that much; the staging is not read before its event is done.
            unsafe { steps.outward.download(&mut staging.output, steps.outputs_of(area), bytes) }?;
        }
        staging.done.record(&steps.outward)?;
        let sampling = runs.iter().filter(|run| run.sample);
        let drawings = sampling.zip(&self.batch.sample.rows).map(|(run, row)| Drawing {
            slot: run.slot,
            position: row.position,
            logprobs: row.logprobs,
            joined: steps.joined[run.slot as usize],
        });
        let drawings = drawings.collect();
        steps.flights.push_back(Flight { step, area, staging, drawings, places: in_plan, follows });
        steps.area = (area + 1) % AREAS;
        Ok(())
    }

    fn launch_or_replay(
        &self,
        steps: &mut Steps,
        step: u64,
        key: Option<Key>,
        sizes: (u32, u32),
        places: &Places,
    ) -> Result<(), ExecutorError> {
        // SAFETY: inputs and places were laid out for this step by the caller; slots are below the number of places.
        let launch =
            |steps: &Steps| unsafe { self.launch_all(step, sizes, places, steps.stream.raw(), |_| ()) };
        let Some(key) = key else { return launch(steps) };
        match steps.graphs.get(&key) {
            Some(Captured::Graph(graph)) => return Ok(steps.stream.launch(graph)?),
            Some(Captured::Refused) => return launch(steps),
            None => launch(steps)?,
        }
        let captured = match steps.stream.capture(|| launch(steps)) {
            Ok(Ok(graph)) => Captured::Graph(graph),
            Ok(Err(error)) => refused(key, &error),
            Err(error) => refused(key, &error),
        };
        steps.graphs.insert(key, captured);
        Ok(())
    }

    /// In the plan's order, like the tokens.
    fn keep_device_logits(&mut self, samples: u32, places: &[u32]) -> Result<(), ExecutorError> {
        let sample = self.program.graph.nodes.iter().find_map(|node| match node.op {
            Op::Sample { logits, .. } => Some(logits),
            _ => None,
        });
        let Some(logits) = sample else { return Ok(()) };
        let mut bytes = vec![0; samples as usize * self.info.vocab_size as usize * 4];
        // SAFETY: the logits tensor holds that many float32 elements.
        unsafe { download(self.tensor(logits), &mut bytes) }?;
        let float = |word: &[u8]| f32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
        let rows = bytes.chunks_exact(self.info.vocab_size as usize * 4);
        let rows = rows.map(|row| row.chunks_exact(4).map(float).collect::<Vec<f32>>()).collect();
        self.kept_logits = in_plan_order(rows, places).concat();
        Ok(())
    }

    /// Waits for all steps in flight and keeps their results for later polls.
    fn settle_all(&mut self, steps: &mut Steps) -> Result<(), ExecutorError> {
        while let Some(flight) = steps.flights.pop_front() {
            self.wait_for(steps, flight)?;
        }
        Ok(())
    }

    /// Waits until penalties lack no more than the last token of each sequence, which is all that the device keeps. With two steps
    /// in flight that is so at once: of those before a step, one is under way.
    fn settle_to_one_undrawn(&mut self, steps: &mut Steps, runs: &[Run]) -> Result<(), ExecutorError> {
        let lacks_more = |slots: &SlotTable, run: &Run| {
            run.sample && slots.get(run.slot).is_some_and(|slot| slot.counts() && slot.undrawn() > 1)
        };
        while runs.iter().any(|run| lacks_more(&self.slots, run))
            && let Some(flight) = steps.flights.pop_front()
        {
            self.wait_for(steps, flight)?;
        }
        Ok(())
    }

    /// Waits for a step and keeps its result for a later poll.
    fn wait_for(&mut self, steps: &mut Steps, flight: Flight) -> Result<(), ExecutorError> {
        flight.staging.done.wait()?;
        let result = self.settle(steps, flight)?;
        self.done.push_back(result);
        Ok(())
    }

    /// Takes the results of a step that is done.
    fn settle(&mut self, steps: &mut Steps, flight: Flight) -> Result<StepResult, ExecutorError> {
        let Flight { step, mut staging, drawings, places, follows, .. } = flight;
        let layout = steps.output_layout;
        let bytes = staging.output.bytes();
        let mut sampled = Vec::with_capacity(drawings.len());
        for (row, drawing) in drawings.iter().enumerate() {
            let token = self.checked(word(bytes, row * 4))?;
            if steps.joined[drawing.slot as usize] == drawing.joined
                && let Some(slot) = self.slots.get_mut(drawing.slot)
            {
                slot.resolve(drawing.position, token.unwrap_or(0));
            }
            let logprobs = (drawing.logprobs != SampleRow::NO_LOGPROBS).then(|| {
                let places = row * layout.alternatives..(row + 1) * layout.alternatives;
                let float = |at: usize| f32::from_bits(word(bytes, at));
                let drawn = Drawn {
                    tokens: vec![token.unwrap_or(0)],
                    logprobs: vec![float(layout.logprobs + row * 4)],
                    top_ids: places.clone().map(|at| word(bytes, layout.top_ids + at * 4)).collect(),
                    top_logprobs: places.map(|at| float(layout.top_logprobs + at * 4)).collect(),
                };
                drawn.logprobs(0, drawing.logprobs)
            });
            sampled.push(sampled_token(drawing.slot, drawing.position, token, logprobs));
        }
        let begun = if follows { &steps.settled } else { &staging.begun };
        let busy = staging.computed.milliseconds_since(begun)?;
        std::mem::swap(&mut steps.settled, &mut staging.computed);
        steps.spare.push(staging);
        let sampled = in_plan_order(sampled, &places);
        Ok(StepResult { step, sampled, busy_ns: (f64::from(busy) * 1e6) as u64 })
    }

    /// Looks after the oldest step in flight.
    pub(super) fn poll_device(&mut self) -> Result<Progress, ExecutorError> {
        let Some(mut steps) = self.steps.take() else { return Ok(Progress::Idle) };
        let result = self.poll_with(&mut steps);
        self.steps = Some(steps);
        result
    }

    fn poll_with(&mut self, steps: &mut Steps) -> Result<Progress, ExecutorError> {
        let Some(flight) = steps.flights.front() else { return Ok(Progress::Idle) };
        if !flight.staging.done.is_done()? {
            return Ok(Progress::Busy { ask_again: Duration::ZERO });
        }
        match steps.flights.pop_front() {
            Some(flight) => self.settle(steps, flight).map(Progress::Done),
            None => Ok(Progress::Idle),
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        // Kernels in flight use memory that is freed next.
        if let Err(error) =
            self.inward.synchronize().and(self.stream.synchronize()).and(self.outward.synchronize())
        {
            tracing::debug!(%error, device = self.cuda.name(), "the device did not finish");
        }
    }
}
