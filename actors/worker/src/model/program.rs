//! A graph with everything settled that does not change from step to step: tactics per token count, workspace, and
//! offsets of the activations.
//!
//! Attention is settled twice: for sequences with one query each, and for any. What serves one best does not serve the other,
//! and a step tells on the host which of its sequences are which.
//!
//! Invariant: each backend has a workspace of its own for each distinct operation, large enough for every tactic that may
//! be chosen, and nobody else writes it: kernels may keep what they left there from one launch to the next.

use gossamer_backend_api::ops::AttentionDesc;
use gossamer_backend_api::{BackendError, Layout, OpDesc, OpKind};
use gossamer_kernels::graph::{BufferPlan, Graph};
use gossamer_kernels::tuner::{self, Candidate, KernelCache};
use gossamer_kernels::{Backends, SelectError};
use thiserror::Error;

/// Alignment of a workspace.
const ALIGN: u64 = 256;

/// Why a graph cannot be run.
#[derive(Debug, Error)]
pub enum ProgramError {
    /// No backend may do an operation.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// A backend could not load a tactic.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A backend does not know its own tactic.
    #[error("backend {backend} names no workspace for tactic {tactic} of {operation}; rebuild it")]
    Workspace {
        /// The backend.
        backend: String,
        /// The tactic.
        tactic: String,
        /// The operation.
        operation: &'static str,
    },
}

/// What does an operation at a token count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Index into the backends.
    pub backend: u32,
    /// The tactic.
    pub tactic: u32,
    /// Whether a CUDA graph may hold it.
    pub capturable: bool,
    /// Offset of its workspace.
    pub workspace: u64,
    /// Bytes of its workspace.
    pub workspace_bytes: u64,
}

/// A distinct operation.
#[derive(Debug)]
struct Settled {
    desc: OpDesc,
    /// Per bucket.
    choices: Vec<Choice>,
    /// Per backend: offset and size of its workspace.
    regions: Vec<(u64, u64)>,
    /// Most rows of a launch.
    most: u32,
}

/// An operation whose tactic can be chosen by measuring.
#[derive(Debug)]
pub struct Open {
    /// A node that does it.
    pub node: usize,
    /// Index of the operation.
    settled: usize,
    /// What it is.
    pub desc: OpDesc,
    /// Index of its token count.
    pub bucket: usize,
    /// The token count.
    pub tokens: u32,
    /// Name for cache files.
    pub operation: String,
    /// What may be chosen, the present guess first.
    pub candidates: Vec<Candidate>,
}

/// A settled graph.
#[derive(Debug)]
pub struct Program {
    /// The graph.
    pub graph: Graph,
    /// Where activations are.
    pub buffers: BufferPlan,
    /// Bytes of all workspaces.
    pub workspace: u64,
    /// Per node: index into `settled`.
    of_node: Vec<usize>,
    /// Per node: the same for sequences with one query, if it is attention.
    single_of_node: Vec<Option<usize>>,
    settled: Vec<Settled>,
    buckets: Vec<u32>,
    /// Layout of the experts' weights.
    experts: Layout,
    /// Choices of the kernel cache that name no tactic offered here.
    not_offered: usize,
}

impl Program {
    /// Settles a graph for steps of up to `tokens` tokens and `samples` draws. `experts` is the layout in which the
    /// experts' weights are held; all others are as in the checkpoint.
    pub fn new(
        graph: Graph,
        backends: &Backends,
        cache: Option<&KernelCache>,
        tokens: u32,
        samples: u32,
        experts: Layout,
    ) -> Result<Self, ProgramError> {
        let buckets = tuner::buckets(tokens.max(samples));
        let mut program = Self {
            buffers: BufferPlan::new(&graph, tokens, samples),
            workspace: 0,
            of_node: Vec::with_capacity(graph.nodes.len()),
            single_of_node: Vec::with_capacity(graph.nodes.len()),
            settled: Vec::new(),
            buckets,
            graph,
            experts,
            not_offered: 0,
        };
        for index in 0..program.graph.nodes.len() {
            let op = &program.graph.nodes[index].op;
            let most = if op.runs_on_samples() { samples } else { tokens };
            let desc = op.desc();
            let at = program.settled_at(backends, cache, desc, most)?;
            program.of_node.push(at);
            let single = match single(&desc) {
                // There are no more of them than sequences, and as many draws.
                Some(single) => Some(program.settled_at(backends, cache, single, samples)?),
                None => None,
            };
            program.single_of_node.push(single);
        }
        if program.not_offered > 0 {
            let choices = program.not_offered;
            tracing::warn!(choices, "ignored what the kernel cache chose where no loaded backend offers it");
        }
        Ok(program)
    }

    /// Index of a settled operation.
    fn settled_at(
        &mut self,
        backends: &Backends,
        cache: Option<&KernelCache>,
        desc: OpDesc,
        most: u32,
    ) -> Result<usize, ProgramError> {
        if let Some(at) = self.settled.iter().position(|other| other.desc == desc) {
            return Ok(at);
        }
        let settled = self.settle(backends, cache, desc, most)?;
        self.settled.push(settled);
        Ok(self.settled.len() - 1)
    }

    /// Token counts that have choices of their own.
    pub fn buckets(&self) -> &[u32] {
        &self.buckets
    }

    /// What may do the operation of a node at a token count.
    pub fn candidates_of(
        &self,
        backends: &Backends,
        node: usize,
        tokens: u32,
    ) -> Result<Vec<Candidate>, SelectError> {
        self.candidates(backends, &self.settled[self.of_node[node]].desc, tokens)
    }

    fn candidates(
        &self,
        backends: &Backends,
        desc: &OpDesc,
        tokens: u32,
    ) -> Result<Vec<Candidate>, SelectError> {
        tuner::candidates(backends, desc, tokens, layout_of(desc, &self.experts))
    }

    fn settle(
        &mut self,
        backends: &Backends,
        cache: Option<&KernelCache>,
        desc: OpDesc,
        most: u32,
    ) -> Result<Settled, ProgramError> {
        let operation = format!("{desc:?}");
        let mut sizes = vec![0u64; backends.list().len()];
        let mut picked = Vec::with_capacity(self.buckets.len());
        for tokens in &self.buckets {
            let candidates = self.candidates(backends, &desc, *tokens)?;
            for Candidate { backend, tactic } in &candidates {
                let by = &backends.list()[*backend];
                by.prepare(&desc, tactic.id)?;
                // A bucket may reach beyond the largest step, a workspace need not.
                let bytes = by.workspace(&desc, tactic.id, (*tokens).min(most));
                if bytes == u64::MAX {
                    return Err(ProgramError::Workspace {
                        backend: by.name().to_owned(),
                        tactic: tactic.name.clone(),
                        operation: desc.kind().label(),
                    });
                }
                sizes[*backend] = sizes[*backend].max(bytes);
            }
            let cached = cache.and_then(|cache| cache.get(&operation, *tokens));
            let best = cached.and_then(|entry| tuner::cached(entry, &candidates, backends));
            self.not_offered += usize::from(cached.is_some() && best.is_none());
            picked.push(candidates[best.unwrap_or(0)].clone());
        }
        let mut regions = Vec::with_capacity(sizes.len());
        for bytes in sizes {
            regions.push((self.workspace, bytes));
            self.workspace += bytes.next_multiple_of(ALIGN);
        }
        let choices = picked.iter().map(|candidate| choice_of(candidate, &regions)).collect();
        Ok(Settled { desc, choices, regions, most })
    }

    /// Description and choice of a node at a token count.
    pub fn choice(&self, node: usize, tokens: u32) -> (&OpDesc, Choice) {
        let settled = &self.settled[self.of_node[node]];
        (&settled.desc, settled.choices[self.bucket_of(tokens)])
    }

    /// As [`Self::choice`] for attention where every sequence has one query; `None` for another operation.
    pub fn single_choice(&self, node: usize, sequences: u32) -> Option<(&OpDesc, Choice)> {
        let settled = &self.settled[self.single_of_node[node]?];
        Some((&settled.desc, settled.choices[self.bucket_of(sequences)]))
    }

    fn bucket_of(&self, tokens: u32) -> usize {
        let bucket = tuner::bucket(tokens);
        self.buckets.partition_point(|other| *other < bucket).min(self.buckets.len() - 1)
    }

    /// Everything that more than one tactic can do, one entry per distinct operation and token count that its launches reach: fewer
    /// rows are drawn than run.
    pub fn open_choices(&self, backends: &Backends) -> Result<Vec<Open>, SelectError> {
        let mut open = Vec::new();
        for (at, settled) in self.settled.iter().enumerate() {
            let does = |node: &usize| self.of_node[*node] == at || self.single_of_node[*node] == Some(at);
            let node = (0..self.of_node.len()).find(does).unwrap_or_default();
            let reached = tuner::bucket(settled.most);
            for (bucket, tokens) in self.buckets.iter().enumerate().filter(|(_, tokens)| **tokens <= reached)
            {
                // The last count may lie beyond the largest launch.
                let tokens = (*tokens).min(settled.most);
                let candidates = self.candidates(backends, &settled.desc, tokens)?;
                if candidates.len() > 1 {
                    let operation = format!("{:?}", settled.desc);
                    let desc = settled.desc;
                    open.push(Open { node, settled: at, desc, bucket, tokens, operation, candidates });
                }
            }
        }
        Ok(open)
    }

    /// What a launch of a candidate for an open operation would use.
    pub fn choice_for(&self, open: &Open, candidate: &Candidate) -> Choice {
        choice_of(candidate, &self.settled[open.settled].regions)
    }

    /// Chooses a candidate for an open operation at its token count.
    pub fn choose_for(&mut self, open: &Open, candidate: &Candidate) {
        self.settled[open.settled].choices[open.bucket] = self.choice_for(open, candidate);
    }

    /// Chooses a candidate for the operation of a node at a token count.
    pub fn choose(&mut self, node: usize, bucket: usize, candidate: &Candidate) {
        let settled = &mut self.settled[self.of_node[node]];
        settled.choices[bucket] = choice_of(candidate, &settled.regions);
    }

    /// Nodes that do an open operation.
    pub fn nodes_of(&self, open: &Open) -> Vec<usize> {
        let at = open.settled;
        let does = |node: &usize| self.of_node[*node] == at || self.single_of_node[*node] == Some(at);
        (0..self.of_node.len()).filter(does).collect()
    }

    /// Whether every operation of a step can be captured in a CUDA graph.
    pub fn is_capturable(&self, tokens: u32) -> bool {
        let bucket = self.bucket_of(tokens);
        self.settled.iter().all(|settled| settled.choices[bucket].capturable)
    }

    /// Names of the tactics in use, one line per distinct operation, for the log.
    pub fn summary(&self, backends: &Backends) -> String {
        let line = |settled: &Settled| {
            let mut names: Vec<String> = Vec::new();
            for choice in &settled.choices {
                let name = backends.list()[choice.backend as usize].name();
                let text = format!("{name}#{}", choice.tactic);
                if names.last() != Some(&text) {
                    names.push(text);
                }
            }
            let single = matches!(settled.desc, OpDesc::Attention(desc) if desc.single == 1);
            let kind = if single { "single " } else { "" };
            format!("{kind}{}: {}", settled.desc.kind().label(), names.join(", "))
        };
        self.settled.iter().map(line).collect::<Vec<_>>().join("; ")
    }
}

fn choice_of(candidate: &Candidate, regions: &[(u64, u64)]) -> Choice {
    let (workspace, workspace_bytes) = regions[candidate.backend];
    Choice {
        backend: candidate.backend as u32,
        tactic: candidate.tactic.id,
        capturable: candidate.tactic.capturable,
        workspace,
        workspace_bytes,
    }
}

/// Attention where every sequence has one query; `None` for another operation.
fn single(desc: &OpDesc) -> Option<OpDesc> {
    match desc {
        OpDesc::Attention(desc) => Some(OpDesc::Attention(AttentionDesc { single: 1, ..*desc })),
        _ => None,
    }
}

/// The layout in which an operation's weights are held.
pub fn layout_of<'a>(desc: &OpDesc, experts: &'a Layout) -> &'a Layout {
    static CHECKPOINT: std::sync::LazyLock<Layout> = std::sync::LazyLock::new(Layout::checkpoint);
    match desc.kind() {
        OpKind::Experts | OpKind::FusedMoe | OpKind::ExpertProduct => experts,
        _ => &CHECKPOINT,
    }
}
