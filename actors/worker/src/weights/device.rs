//! Streams weights to a CUDA device: threads read pieces into page-locked memory, the device copies them and brings the
//! experts' codes and scales into their kernels' layout.
//!
//! Everything lives in one device buffer. Weights of one product (q, k and v) lie side by side, and so do their biases, so
//! that a kernel can take them as one matrix.

use super::{Backing, Weights, WeightsError, checkpoint, dummy};
use crate::cuda::{Buffer, Cuda, CudaError, Event, Pinned, Stream};
use gossamer_backend_api::{DType, KernelBackend, Layout, RepackSource};
use gossamer_config::LoadFormat;
use gossamer_kernels::Backends;
use gossamer_kernels::graph::{ExpertWeightIds, Graph, Op, Weight, WeightId};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

const ALIGN: u64 = 256;
/// Bytes that one thread brings over at a time, if an expert is no larger.
const PIECE: u64 = 40 << 20;
/// Threads beyond which the bus is the limit.
const MOST_THREADS: usize = 12;

/// Layout of expert weights on a device, specified in `kernels/LAYOUTS.md`.
pub const PACKED: &str = "mxfp4-sm90-v2";
/// Layout of what goes in the place of such weights' scales, which are inside them.
const MAXIMA: &str = "mxfp4-sm90-v2-maxima";

enum Source {
    Checkpoint(checkpoint::Located),
    Dummy(u64),
}

impl Source {
    fn read(
        &self,
        weights: &[Weight],
        id: WeightId,
        offset: u64,
        out: &mut [u8],
        table: &mut dummy::Table<'_>,
    ) -> Result<(), WeightsError> {
        match self {
            Self::Checkpoint(located) => {
                let (file, start) = located.places[id.0 as usize];
                located.files[file].read_exact_at(out, start + offset).map_err(WeightsError::Read)
            }
            Self::Dummy(seed) => {
                dummy::fill_part(&weights[id.0 as usize], *seed, offset, out, table);
                Ok(())
            }
        }
    }
}

/// An expert matrix: its codes and scales, and how it is repacked.
#[derive(Clone, Copy)]
struct Matrix {
    ids: ExpertWeightIds,
    source: RepackSource,
    bytes: u64,
    /// Of the rows' largest scales; 0 where no backend makes them, and kernels find them at each launch.
    maxima_bytes: u64,
}

/// One piece of work.
enum Job {
    /// Bytes that stay as they are.
    Copy { id: WeightId, offset: u64, bytes: u64, to: u64 },
    /// Some experts of a matrix; `maxima`: where their rows' largest scales go, if anywhere.
    Repack { matrix: Matrix, first: u32, count: u32, to: u64, maxima: Option<u64> },
}

impl Job {
    fn staged_bytes(&self) -> u64 {
        match self {
            Self::Copy { bytes, .. } => *bytes,
            Self::Repack { matrix, count, .. } => {
                u64::from(*count) * (code_bytes(&matrix.source) + scale_bytes(&matrix.source)) + ALIGN
            }
        }
    }
}

fn code_bytes(source: &RepackSource) -> u64 {
    u64::from(source.rows) * u64::from(source.columns) / 2
}

fn scale_bytes(source: &RepackSource) -> u64 {
    u64::from(source.rows) * u64::from(source.columns) / 32
}

fn expert_matrices(graph: &Graph) -> Vec<(ExpertWeightIds, bool)> {
    let of_op = |op: &Op| match op {
        Op::Experts { gate_up, down, .. } | Op::FusedMoe { gate_up, down, .. } => {
            vec![(*gate_up, true), (*down, false)]
        }
        Op::ExpertProduct { desc, weights, .. } => vec![(*weights, desc.interleaved == 1)],
        _ => Vec::new(),
    };
    graph.nodes.iter().flat_map(|node| of_op(&node.op)).collect()
}

/// Of every product its matrices, and its biases.
fn side_by_side(graph: &Graph) -> Vec<Vec<WeightId>> {
    let of_op = |op: &Op| {
        let matrices = op.segments().iter().map(|segment| segment.weight).collect();
        let biases = op.segments().iter().filter_map(|segment| segment.bias).collect();
        [matrices, biases]
    };
    graph.nodes.iter().flat_map(|node| of_op(&node.op)).collect()
}

/// Offsets of all weights (`None`: held inside another), and the size of the whole.
struct Plan {
    offsets: Vec<Option<u64>>,
    matrices: Vec<Matrix>,
    bytes: u64,
    backend: usize,
}

impl Plan {
    fn new(graph: &Graph, backends: &Backends) -> Result<Self, WeightsError> {
        let mut plan =
            Self { offsets: vec![None; graph.weights.len()], matrices: Vec::new(), bytes: 0, backend: 0 };
        let mut placed = vec![false; graph.weights.len()];
        let layout = Layout(PACKED.to_owned());
        for (ids, interleaved) in expert_matrices(graph) {
            let weight = graph.weight(ids.blocks);
            let [experts, rows, blocks, _] = weight.shape[..] else { continue };
            let (rows, columns) = (rows as u32, blocks as u32 * 32);
            let source = RepackSource {
                data: 0,
                scales: 0,
                dtype: DType::MXFP4,
                interleaved,
                experts: experts as u32,
                rows,
                columns,
                row_range: (0, rows),
                column_range: (0, columns),
            };
            let sized = backends
                .list()
                .iter()
                .enumerate()
                .find_map(|(index, backend)| Some((index, backend.packed_size(&layout, &source)?)));
            let Some((backend, bytes)) = sized else {
                return Err(WeightsError::Layout { tensor: weight.name.clone(), layout: layout.0 });
            };
            plan.backend = backend;
            let maxima = Layout(MAXIMA.to_owned());
            let maxima_bytes = backends.list()[backend].packed_size(&maxima, &source).unwrap_or(0);
            plan.matrices.push(Matrix { ids, source, bytes, maxima_bytes });
            plan.place(ids.blocks, bytes, true);
            if maxima_bytes > 0 {
                plan.place(ids.scales, maxima_bytes, true);
            }
            placed[ids.blocks.0 as usize] = true;
            placed[ids.scales.0 as usize] = true;
        }
        for ids in side_by_side(graph) {
            for (at, id) in ids.iter().enumerate() {
                if !std::mem::replace(&mut placed[id.0 as usize], true) {
                    plan.place(*id, graph.weight(*id).bytes(), at == 0);
                }
            }
        }
        for (index, weight) in graph.weights.iter().enumerate() {
            if !placed[index] {
                plan.place(WeightId(index as u32), weight.bytes(), true);
            }
        }
        Ok(plan)
    }

    fn place(&mut self, id: WeightId, bytes: u64, aligned: bool) {
        if aligned {
            self.bytes = self.bytes.next_multiple_of(ALIGN);
        }
        self.offsets[id.0 as usize] = Some(self.bytes);
        self.bytes += bytes;
    }

    fn jobs(&self, graph: &Graph, base: u64) -> Vec<Job> {
        let mut jobs = Vec::new();
        for matrix in &self.matrices {
            let Some(offset) = self.offsets[matrix.ids.blocks.0 as usize] else { continue };
            let experts = matrix.source.experts;
            let one = code_bytes(&matrix.source) + scale_bytes(&matrix.source);
            let at_once = (PIECE / one.max(1)).clamp(1, experts.into()) as u32;
            let packed = matrix.bytes / u64::from(experts);
            let maxima = self.offsets[matrix.ids.scales.0 as usize];
            let maxima_packed = matrix.maxima_bytes / u64::from(experts);
            for first in (0..experts).step_by(at_once as usize) {
                let count = at_once.min(experts - first);
                let to = base + offset + u64::from(first) * packed;
                let maxima = maxima.map(|offset| base + offset + u64::from(first) * maxima_packed);
                jobs.push(Job::Repack { matrix: *matrix, first, count, to, maxima });
            }
        }
        let is_packed = |id: WeightId| {
            self.matrices.iter().any(|matrix| matrix.ids.blocks == id || matrix.ids.scales == id)
        };
        for (index, weight) in graph.weights.iter().enumerate() {
            let id = WeightId(index as u32);
            let Some(place) = self.offsets[index].filter(|_| !is_packed(id)) else { continue };
            for offset in (0..weight.bytes()).step_by(PIECE as usize) {
                let bytes = PIECE.min(weight.bytes() - offset);
                jobs.push(Job::Copy { id, offset, bytes, to: base + place + offset });
            }
        }
        jobs
    }
}

/// A thread's place for one piece in flight.
struct Slot {
    pinned: Pinned,
    staging: Buffer,
    done: Event,
    busy: bool,
}

struct Loader<'a> {
    cuda: &'a Cuda,
    source: &'a Source,
    graph: &'a Graph,
    backend: &'a dyn KernelBackend,
    jobs: &'a [Job],
    next: &'a AtomicUsize,
    stop: &'a AtomicBool,
    largest: u64,
}

impl Loader<'_> {
    /// One thread's life.
    fn run(&self) -> Result<(), WeightsError> {
        self.cuda.make_current()?;
        let stream = Stream::new()?;
        let slot = || -> Result<Slot, CudaError> {
            let bytes = self.largest;
            let (pinned, staging) = (Pinned::new(bytes as usize)?, Buffer::new(bytes)?);
            Ok(Slot { pinned, staging, done: Event::new()?, busy: false })
        };
        let mut slots = [slot()?, slot()?];
        let mut table = dummy::Table::default();
        let mut turn = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let Some(job) = self.jobs.get(self.next.fetch_add(1, Ordering::Relaxed)) else { break };
            let slot = &mut slots[turn];
            if slot.busy {
                slot.done.wait()?;
            }
            self.bring(job, slot, &stream, &mut table)?;
            slot.done.record(&stream)?;
            slot.busy = true;
            turn ^= 1;
        }
        Ok(stream.synchronize()?)
    }

    fn bring(
        &self,
        job: &Job,
        slot: &mut Slot,
        stream: &Stream,
        table: &mut dummy::Table<'_>,
    ) -> Result<(), WeightsError> {
        let weights = &self.graph.weights;
        match job {
            Job::Copy { id, offset, bytes, to } => {
                let piece = &mut slot.pinned.bytes_mut()[..*bytes as usize];
                self.source.read(weights, *id, *offset, piece, table)?;
                // SAFETY: the target is inside the weights' buffer; the slot is not touched before its event.
                Ok(unsafe { stream.upload(*to, &slot.pinned, *bytes as usize) }?)
            }
            Job::Repack { matrix, first, count, to, maxima } => {
                let (codes, scales) = (code_bytes(&matrix.source), scale_bytes(&matrix.source));
                let (first, many) = (u64::from(*first), u64::from(*count));
                let scales_at = (many * codes).next_multiple_of(ALIGN);
                let end = (scales_at + many * scales) as usize;
                let (head, tail) = slot.pinned.bytes_mut().split_at_mut(scales_at as usize);
                let (ids, code_part) = (matrix.ids, &mut head[..(many * codes) as usize]);
                self.source.read(weights, ids.blocks, first * codes, code_part, table)?;
                let scale_part = &mut tail[..(many * scales) as usize];
                self.source.read(weights, ids.scales, first * scales, scale_part, table)?;
                let data = slot.staging.address();
                let source =
                    RepackSource { data, scales: data + scales_at, experts: *count, ..matrix.source };
                // SAFETY: both parts were staged for `count` experts; the targets have room for them; the slot is not touched
                // before its event.
                unsafe {
                    stream.upload(data, &slot.pinned, end)?;
                    self.backend.repack(&Layout(PACKED.to_owned()), &source, *to, stream.raw())?;
                    if let Some(maxima) = maxima {
                        self.backend.repack(&Layout(MAXIMA.to_owned()), &source, *maxima, stream.raw())?;
                    }
                }
                Ok(())
            }
        }
    }
}

/// Loads all weights of a graph.
pub fn load(
    cuda: &Arc<Cuda>,
    directory: &Path,
    format: LoadFormat,
    graph: &Graph,
    backends: &Backends,
    seed: u64,
) -> Result<Weights, WeightsError> {
    let start = Instant::now();
    let source = match format {
        LoadFormat::Dummy => Source::Dummy(seed),
        LoadFormat::Auto | LoadFormat::Safetensors => {
            Source::Checkpoint(checkpoint::locate(directory, &graph.weights)?)
        }
    };
    let plan = Plan::new(graph, backends)?;
    let buffer = Buffer::new(plan.bytes)?;
    let jobs = plan.jobs(graph, buffer.address());
    let largest = jobs.iter().map(Job::staged_bytes).max().unwrap_or(1);
    let threads =
        std::thread::available_parallelism().map_or(1, |count| count.get().min(MOST_THREADS)).min(jobs.len());
    let (next, stop, failure) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(None));
    let loader = Loader {
        cuda,
        source: &source,
        graph,
        backend: &*backends.list()[plan.backend],
        jobs: &jobs,
        next: &next,
        stop: &stop,
        largest,
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                if let Err(error) = loader.run() {
                    stop.store(true, Ordering::Relaxed);
                    if let Ok(mut first) = failure.lock() {
                        first.get_or_insert(error);
                    }
                }
            });
        }
    });
    if let Some(error) = failure.into_inner().unwrap_or_default() {
        return Err(error);
    }
    let seconds = start.elapsed().as_secs_f64();
    tracing::info!(
        threads,
        gib = plan.bytes as f64 / f64::from(1 << 30),
        seconds,
        gb_per_second = plan.bytes as f64 / seconds / 1e9,
        "weights are on the device"
    );
    let addresses = plan.offsets.iter().map(|offset| offset.map_or(0, |at| buffer.address() + at)).collect();
    Ok(Weights { addresses, _backing: Backing { _device: Some(buffer), ..Backing::default() } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gossamer_kernels::graph::{GraphOptions, Shard, WeightType, build};
    use gossamer_kernels::passes;

    #[test]
    fn matrices_of_a_product_lie_side_by_side_whatever_it_was_fused_into() {
        let directory =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/golden-a");
        let config = gossamer_config::ModelConfig::load(&directory).unwrap();
        let options = GraphOptions {
            activation: DType::BF16,
            kv: DType::BF16,
            block_size: 64,
            max_logprobs: 5,
            allow_fp8_experts: false,
            allow_fp8_attention: false,
            shard: Shard::WHOLE,
        };
        let plain = build(&config, &options);
        let threes =
            |graph: &Graph| side_by_side(graph).into_iter().filter(|ids| ids.len() == 3).collect::<Vec<_>>();
        // Queries, keys and values of each layer: matrices and biases.
        assert_eq!(threes(&plain).len(), 2 * config.layers.len());
        for off in passes::PASSES.iter().map(|pass| Some(pass.name)).chain([None]) {
            let mut fused = plain.clone();
            passes::run(&mut fused, &off.into_iter().collect(), &|_| true);
            assert_eq!(threes(&fused), threes(&plain), "without {off:?}");
        }
    }

    #[test]
    fn parts_of_a_made_up_weight_are_those_of_the_whole() {
        let weight = Weight {
            name: "w".into(),
            shape: vec![1, 1000],
            element: WeightType::U8,
            fill: gossamer_kernels::graph::Fill::Codes,
        };
        let mut table = dummy::Table::default();
        let mut whole = vec![0; 1000];
        dummy::fill_part(&weight, 7, 0, &mut whole, &mut table);
        for (offset, len) in [(0, 17), (8, 64), (13, 100), (992, 8), (500, 500)] {
            let mut part = vec![0; len];
            dummy::fill_part(&weight, 7, offset as u64, &mut part, &mut table);
            assert_eq!(part, whole[offset..offset + len], "{offset} {len}");
        }
    }
}
