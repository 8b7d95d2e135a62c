//! The workers as one: they get the same plans, and a step is done when all of them have done it.

use crate::process::links::listen;
use crate::process::{Input, ProcessError};
use gossamer_channel::{Bridge, Sender};
use gossamer_supervisor::WorkersLink;
use gossamer_wire::{StepResult, WorkerInfo};
use std::collections::VecDeque;
use std::sync::mpsc;

pub(super) struct WorkerGroup {
    pub epoch: u64,
    pub plans: Sender,
    /// By rank: what it reported, and its results that wait for those of the others.
    ranks: Vec<(Option<WorkerInfo>, VecDeque<StepResult>)>,
    _results: Vec<Bridge>,
}

impl WorkerGroup {
    pub fn new(epoch: u64, link: WorkersLink, inputs: &mpsc::Sender<Input>) -> Result<Self, ProcessError> {
        let mut results = Vec::new();
        for (rank, receiver) in (0..).zip(link.results) {
            let wrap = move |message| Input::Result { rank, link: epoch, message };
            // The supervisor tells of a worker's end.
            results.push(listen(&format!("results-{rank}"), receiver, inputs, wrap, |_| None)?);
        }
        let ranks = results.iter().map(|_| (None, VecDeque::new())).collect();
        Ok(Self { epoch, plans: link.plans, ranks, _results: results })
    }

    pub fn is_ready(&self) -> bool {
        self.ranks.iter().all(|(info, _)| info.is_some())
    }

    /// Notes a report. When it was the last, returns what all workers can do: blocks are granted by the same ids to all.
    pub fn ready(&mut self, rank: u32, info: WorkerInfo) -> Option<WorkerInfo> {
        let was_ready = self.is_ready();
        self.ranks.get_mut(rank as usize)?.0 = Some(info);
        if was_ready {
            tracing::warn!(rank, "a worker reported twice");
            return None;
        }
        let infos: Vec<&WorkerInfo> =
            self.ranks.iter().map(|(info, _)| info.as_ref()).collect::<Option<_>>()?;
        let first = *infos.first()?;
        Some(WorkerInfo {
            num_blocks: infos.iter().map(|info| info.num_blocks).min()?,
            max_model_len: infos.iter().map(|info| info.max_model_len).min()?,
            ..first.clone()
        })
    }

    /// Notes a result. Returns the step's once all ranks have done it: the tokens of the rank that drew them.
    pub fn done(&mut self, rank: u32, result: StepResult) -> Result<Option<StepResult>, ProcessError> {
        if let Some((_, results)) = self.ranks.get_mut(rank as usize) {
            results.push_back(result);
        }
        if self.ranks.iter().any(|(_, results)| results.is_empty()) {
            return Ok(None);
        }
        let mut whole: Option<StepResult> = None;
        for (rank, (_, results)) in (0..).zip(&mut self.ranks) {
            let Some(result) = results.pop_front() else { continue };
            match &mut whole {
                None => whole = Some(result),
                Some(whole) if whole.step != result.step => {
                    return Err(ProcessError::OutOfStep { expected: whole.step, rank, got: result.step });
                }
                Some(whole) => {
                    whole.busy_ns = whole.busy_ns.max(result.busy_ns);
                    if whole.sampled.is_empty() {
                        whole.sampled = result.sampled;
                    }
                }
            }
        }
        Ok(whole)
    }
}
