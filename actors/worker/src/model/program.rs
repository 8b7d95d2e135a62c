//! A graph with everything settled that does not change from step to step: tactics per token count, workspace, and
//! offsets of the activations.

use gossamer_backend_api::{BackendError, Layout, OpDesc};
use gossamer_kernels::graph::{BufferPlan, Graph};
use gossamer_kernels::tuner::{self, Candidate, KernelCache};
use gossamer_kernels::{Backends, SelectError};
use thiserror::Error;

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
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Index into the backends.
    pub backend: u32,
    /// The tactic.
    pub tactic: u32,
}

/// A settled graph.
#[derive(Debug)]
pub struct Program {
    /// The graph.
    pub graph: Graph,
    /// Where activations are.
    pub buffers: BufferPlan,
    /// Bytes that the largest launch needs beside.
    pub workspace: u64,
    /// Per node: index into `choices`.
    of_node: Vec<usize>,
    /// Per distinct description: one choice per bucket.
    choices: Vec<(OpDesc, Vec<Choice>)>,
    buckets: Vec<u32>,
}

impl Choice {
    /// A candidate, as a choice.
    pub fn of(candidate: &Candidate) -> Self {
        Self { backend: candidate.backend as u32, tactic: candidate.tactic.id }
    }
}

impl Program {
    /// Token counts that have choices of their own.
    pub fn buckets(&self) -> &[u32] {
        &self.buckets
    }

    /// Changes the choice of a node, and of all nodes with its description, at one bucket.
    pub(super) fn set_choice(&mut self, node: usize, bucket: u32, choice: Choice) {
        if let Some(at) = self.buckets.iter().position(|other| *other == bucket) {
            self.choices[self.of_node[node]].1[at] = choice;
        }
    }

    /// Settles a graph for steps of up to `tokens` tokens and `samples` draws.
    pub fn new(
        graph: Graph,
        backends: &Backends,
        cache: Option<&KernelCache>,
        tokens: u32,
        samples: u32,
    ) -> Result<Self, ProgramError> {
        let buckets = tuner::buckets(tokens.max(samples));
        let mut program = Self {
            buffers: BufferPlan::new(&graph, tokens, samples),
            workspace: 0,
            of_node: Vec::with_capacity(graph.nodes.len()),
            choices: Vec::new(),
            buckets,
            graph,
        };
        for index in 0..program.graph.nodes.len() {
            let op = &program.graph.nodes[index].op;
            let most = if op.runs_on_samples() { samples } else { tokens };
            let desc = op.desc();
            let known = program.choices.iter().position(|(other, _)| *other == desc);
            let at = match known {
                Some(at) => at,
                None => {
                    let choices = program.choose(backends, cache, &desc, most)?;
                    program.choices.push((desc, choices));
                    program.choices.len() - 1
                }
            };
            program.of_node.push(at);
        }
        Ok(program)
    }

    fn choose(
        &mut self,
        backends: &Backends,
        cache: Option<&KernelCache>,
        desc: &OpDesc,
        most: u32,
    ) -> Result<Vec<Choice>, ProgramError> {
        let operation = format!("{desc:?}");
        let mut choices = Vec::with_capacity(self.buckets.len());
        for tokens in &self.buckets {
            let candidates = tuner::candidates(backends, desc, *tokens, &Layout::checkpoint())?;
            let cached = cache.and_then(|cache| cache.get(&operation, *tokens));
            let best = cached.and_then(|entry| tuner::cached(entry, &candidates, backends)).unwrap_or(0);
            let Candidate { backend, tactic } = &candidates[best];
            let by = &backends.list()[*backend];
            by.prepare(desc, tactic.id)?;
            // A bucket may reach beyond the largest step, a workspace need not.
            let bytes = by.workspace(desc, tactic.id, (*tokens).min(most));
            if bytes == u64::MAX {
                return Err(ProgramError::Workspace {
                    backend: by.name().to_owned(),
                    tactic: tactic.name.clone(),
                    operation: desc.kind().label(),
                });
            }
            self.workspace = self.workspace.max(bytes);
            choices.push(Choice::of(&candidates[best]));
        }
        Ok(choices)
    }

    /// Description and choice of a node at a token count.
    pub fn choice(&self, node: usize, tokens: u32) -> (&OpDesc, Choice) {
        let (desc, choices) = &self.choices[self.of_node[node]];
        let bucket = tuner::bucket(tokens);
        let at = self.buckets.partition_point(|other| *other < bucket).min(choices.len() - 1);
        (desc, choices[at])
    }

    /// Names of the tactics in use, one line per distinct operation, for the log.
    pub fn summary(&self, backends: &Backends) -> String {
        let line = |(desc, choices): &(OpDesc, Vec<Choice>)| {
            let mut names: Vec<String> = Vec::new();
            for choice in choices {
                let name = backends.list()[choice.backend as usize].name();
                let text = format!("{name}#{}", choice.tactic);
                if !names.contains(&text) {
                    names.push(text);
                }
            }
            format!("{}: {}", desc.kind().label(), names.join(", "))
        };
        self.choices.iter().map(line).collect::<Vec<_>>().join("; ")
    }
}
