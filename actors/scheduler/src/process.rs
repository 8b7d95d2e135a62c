//! The scheduler's process: a thin loop around a [`Scheduler`].
//!
//! ```text
//!  requests of API server i ──(thread)──┐                      ┌──▶ plans, one broadcast to all workers
//!  results of worker j ─────(thread)────┼──▶ inputs ──▶ loop ──┤
//!  events of the supervisor ──(actor)───┘                      └──▶ tokens to each API server
//! ```
//!
//! A turn of the loop takes all inputs that are there, plans as many steps as may be in flight, then sends outputs. The
//! threads decode, so that the loop only decides. The loop has a thread that an actor owns
//! ([`gossamer_supervisor::run_tree`]); a thread that decodes tells the loop of its panic, which ends it.
//!
//! Invariant: the loop never blocks on an API server. What does not fit a ring is kept. While a server is far behind but reads, no
//! more steps are planned: tokens are made as fast as they are read. One that does not read holds the others up for two
//! seconds at most; once it is [`MAX_BACKLOG`] bytes behind it loses its sequences.
//! Invariant: inputs of a link that was replaced are dropped: they carry its epoch.

mod links;
mod stats_clock;
mod worker_group;

use crate::process::links::{ServerLink, listen};
use crate::process::stats_clock::StatsClock;
use crate::process::worker_group::WorkerGroup;
use crate::{CompleteError, Scheduler, SchedulerConfig, WorkerError};
use gossamer_channel::{RecvError, SendError};
use gossamer_config::ServeConfig;
use gossamer_supervisor::{ChildContext, ChildEvent, ChildRole, ChildState, TreeError, Work, run_tree};
use gossamer_wire::{EngineInfo, FromScheduler, FromWorker, ToScheduler, WireError};
use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use thiserror::Error;

pub use links::MAX_BACKLOG;

/// Longest pause of the loop: it beats at least this often.
const PAUSE: Duration = Duration::from_millis(100);
/// Pause while a ring is full.
const RETRY: Duration = Duration::from_millis(1);
/// The ring of plans has room for more plans than are ever in flight; a worker that leaves it full is stuck.
const PLAN_TIMEOUT: Duration = Duration::from_secs(1);
/// Inputs taken in one turn.
const INPUTS_PER_TURN: usize = 4096;

/// Why the scheduler's process ends early.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// The worker cannot be worked with.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// A worker contradicted its plan.
    #[error(transparent)]
    Result(#[from] CompleteError),
    /// A worker's message cannot be read.
    #[error("worker {rank} sent what is no message")]
    Garbled {
        /// The worker.
        rank: u32,
        /// What is wrong with it.
        source: WireError,
    },
    /// Workers of one lock-step group answered different steps.
    #[error("expected all workers to finish step {expected}, worker {rank} finished {got}")]
    OutOfStep {
        /// The step of worker 0.
        expected: u64,
        /// The worker.
        rank: u32,
        /// Its step.
        got: u64,
    },
    /// A plan does not fit the ring, or the workers stopped reading.
    #[error("cannot send step {step} to the workers: {source}")]
    Plan {
        /// The step.
        step: u64,
        /// Why.
        source: SendError,
    },
    /// A message cannot be encoded.
    #[error(transparent)]
    Encode(WireError),
    /// A thread that reads a ring panicked.
    #[error("the thread `{name}` panicked: {message}")]
    Panicked {
        /// The thread.
        name: String,
        /// What it said.
        message: String,
    },
    /// The system refused a thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// What the loop reacts to.
pub enum Input {
    /// Something happened in the tree.
    Event(ChildEvent),
    /// The supervisor has gone.
    Orphaned,
    /// From an API server.
    Request {
        /// The API server.
        server: u16,
        /// Epoch of the link.
        link: u64,
        /// The message.
        message: Result<ToScheduler, WireError>,
    },
    /// An API server's ring ended.
    RequestsEnded {
        /// The API server.
        server: u16,
        /// Epoch of the link.
        link: u64,
        /// Why.
        reason: RecvError,
    },
    /// From a worker.
    Result {
        /// The worker.
        rank: u32,
        /// Epoch of the link.
        link: u64,
        /// The message.
        message: Result<FromWorker, WireError>,
    },
    /// A thread that reads a ring panicked.
    Panicked {
        /// The thread.
        name: String,
        /// What it said.
        message: String,
    },
}

/// How the loop shows that it lives.
pub trait Pulse {
    /// It turns.
    fn beat(&self);
    /// All workers were ready for the first time.
    fn ready(&self);
}

impl Pulse for gossamer_supervisor::StatusHandle {
    fn beat(&self) {
        gossamer_supervisor::StatusHandle::beat(self);
    }

    fn ready(&self) {
        self.set_state(ChildState::Ready);
    }
}

/// Runs the scheduler's process until the supervisor ends it: the loop, supervised by the process' own small tree.
pub fn serve(context: ChildContext) -> Result<(), TreeError> {
    let ChildContext { config, status, events, .. } = context;
    let (sender, inputs) = mpsc::channel();
    let supervisor = sender.clone();
    let work = Work {
        name: "plans",
        // Fails when the loop has ended.
        deliver: Box::new(move |event| drop(supervisor.send(event.map_or(Input::Orphaned, Input::Event)))),
        run: Box::new(move || Ok(run(settings(&config), &status, sender, &inputs)?)),
    };
    run_tree(events, work)
}

/// The scheduler's part of the server's configuration.
pub fn settings(config: &ServeConfig) -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: config.max_num_seqs,
        max_num_batched_tokens: config.max_num_batched_tokens,
        max_model_len: config.max_model_len.unwrap_or(u32::MAX),
        enable_prefix_caching: config.enable_prefix_caching,
        enable_chunked_prefill: config.enable_chunked_prefill,
        steps_in_flight: if config.async_scheduling { 1 + config.parallel.pipeline } else { 1 },
        max_queued_requests: config.max_queued_requests,
        cuda_graph_capture_size: config.cuda_graph_capture_size,
    }
}

/// The loop itself. `sender` is the other end of `inputs`; the threads that it starts write there.
pub fn run(
    config: SchedulerConfig,
    pulse: &impl Pulse,
    sender: mpsc::Sender<Input>,
    inputs: &mpsc::Receiver<Input>,
) -> Result<(), ProcessError> {
    let mut turn = Loop {
        config,
        pulse,
        sender,
        scheduler: None,
        servers: BTreeMap::new(),
        workers: None,
        early: Vec::new(),
        ending: None,
        stats: StatsClock::new(),
        buffer: Vec::new(),
    };
    loop {
        let mut next = inputs.recv_timeout(turn.pause()).ok();
        for _ in 0..INPUTS_PER_TURN {
            let Some(input) = next else { break };
            if turn.take(input)?.is_break() {
                return Ok(());
            }
            next = inputs.try_recv().ok();
        }
        // The last input of a full turn was fetched and must not be lost.
        if let Some(input) = next
            && turn.take(input)?.is_break()
        {
            return Ok(());
        }
        turn.plan()?;
        turn.send_outputs()?;
        pulse.beat();
        if turn.has_ended() {
            return Ok(());
        }
    }
}

struct Loop<'a, P> {
    config: SchedulerConfig,
    pulse: &'a P,
    sender: mpsc::Sender<Input>,
    /// From the first worker's first report on.
    scheduler: Option<Scheduler>,
    servers: BTreeMap<u16, ServerLink>,
    workers: Option<WorkerGroup>,
    /// Requests that came before the first worker was ready.
    early: Vec<(u16, u64, ToScheduler)>,
    /// When a drain is over at the latest.
    ending: Option<Instant>,
    stats: StatsClock,
    buffer: Vec<u8>,
}

type Flow = std::ops::ControlFlow<()>;
const ON: Flow = Flow::Continue(());

impl<P: Pulse> Loop<'_, P> {
    fn pause(&self) -> Duration {
        if self.servers.values().any(ServerLink::is_behind) {
            return RETRY;
        }
        let deadline = self.scheduler.as_ref().and_then(Scheduler::next_deadline);
        deadline.map_or(PAUSE, |deadline| {
            PAUSE.min(Duration::from_millis(deadline.saturating_sub(now_unix_ms())))
        })
    }

    fn take(&mut self, input: Input) -> Result<Flow, ProcessError> {
        match input {
            Input::Orphaned => return Ok(Flow::Break(())),
            Input::Panicked { name, message } => return Err(ProcessError::Panicked { name, message }),
            Input::Event(event) => return self.take_event(event),
            Input::Request { server, link, message } => {
                if self.servers.get(&server).is_some_and(|known| known.epoch == link) {
                    match message {
                        Ok(message) if self.scheduler.is_none() => self.early.push((server, link, message)),
                        Ok(message) => self.take_request(server, message),
                        Err(error) => {
                            tracing::error!(server, %error, "an API server sent what is no message")
                        }
                    }
                }
            }
            Input::RequestsEnded { server, link, reason } => {
                if self.servers.get(&server).is_some_and(|known| known.epoch == link) {
                    tracing::debug!(server, %reason, "an API server's ring ended");
                    self.lose_server(server);
                }
            }
            Input::Result { rank, link, message } => {
                if self.workers.as_ref().is_some_and(|workers| workers.epoch == link) {
                    let message = message.map_err(|source| ProcessError::Garbled { rank, source })?;
                    self.take_result(rank, message)?;
                }
            }
        }
        Ok(ON)
    }

    fn take_event(&mut self, event: ChildEvent) -> Result<Flow, ProcessError> {
        match event {
            ChildEvent::ApiServer { index, epoch, link } => {
                let bridge = listen(
                    &format!("requests-{index}"),
                    link.receiver,
                    &self.sender,
                    move |message| Input::Request { server: index, link: epoch, message },
                    move |reason| Some(Input::RequestsEnded { server: index, link: epoch, reason }),
                )?;
                let mut server = ServerLink::new(epoch, link.sender, bridge);
                if let (Some(scheduler), true) = (&self.scheduler, self.is_attached()) {
                    let ready = FromScheduler::Ready(scheduler.engine_info());
                    server.send(ready, &mut self.buffer).map_err(ProcessError::Encode)?;
                }
                self.servers.insert(index, server);
                self.stats.due();
            }
            ChildEvent::Workers { epoch, link } => {
                self.lose_workers()?;
                self.workers = Some(WorkerGroup::new(epoch, link, &self.sender)?);
            }
            ChildEvent::Lost { peer: ChildRole::ApiServer(index) } => self.lose_server(index),
            ChildEvent::Lost { peer: ChildRole::Worker(rank) } => {
                tracing::warn!(rank, "a worker is lost: its sequences wait");
                self.lose_workers()?;
            }
            ChildEvent::Failed { reason } => {
                if let Some(scheduler) = &mut self.scheduler {
                    scheduler.fail_all(&reason);
                }
            }
            ChildEvent::Drain { grace } => self.ending = Some(Instant::now() + grace),
            ChildEvent::Stop => return Ok(Flow::Break(())),
            // None concerns a scheduler; a failed control channel is its actor's to report.
            ChildEvent::Lost { peer: ChildRole::Scheduler }
            | ChildEvent::ControlFailed { .. }
            | ChildEvent::Scheduler { .. }
            | ChildEvent::Plans { .. } => {}
        }
        Ok(ON)
    }

    fn take_request(&mut self, server: u16, message: ToScheduler) {
        let Some(scheduler) = &mut self.scheduler else { return };
        match message {
            // Outputs go to the server that a key names: it must be the one that asks.
            ToScheduler::Submit(submit) if submit.key.request.api_server() != server => {
                tracing::error!(server, request = %submit.key.request, "a request of another API server");
            }
            ToScheduler::Submit(submit) => scheduler.submit(*submit),
            ToScheduler::Abort { key, reason } => scheduler.abort(key, reason),
            ToScheduler::Hello { api_server, epoch } => scheduler.hello(api_server, epoch),
        }
    }

    fn take_result(&mut self, rank: u32, message: FromWorker) -> Result<(), ProcessError> {
        let Some(workers) = &mut self.workers else { return Ok(()) };
        match message {
            FromWorker::Ready(info) => {
                let Some(info) = workers.ready(rank, info) else { return Ok(()) };
                match &mut self.scheduler {
                    Some(scheduler) => scheduler.worker_ready(&info)?,
                    None => {
                        self.scheduler = Some(Scheduler::new(self.config.clone(), &info)?);
                        self.pulse.ready();
                    }
                }
                tracing::info!(blocks = info.num_blocks, "workers are ready");
                if let Some(warning) = self.scheduler.as_ref().and_then(|it| too_small(&it.engine_info())) {
                    tracing::warn!("{warning}");
                }
                for (server, link, message) in std::mem::take(&mut self.early) {
                    if self.servers.get(&server).is_some_and(|known| known.epoch == link) {
                        self.take_request(server, message);
                    }
                }
                if let Some(scheduler) = &self.scheduler {
                    let ready = FromScheduler::Ready(scheduler.engine_info());
                    self.tell_all(&ready)?;
                }
            }
            FromWorker::Done(result) => {
                if let (Some(result), Some(scheduler)) = (workers.done(rank, result)?, &mut self.scheduler) {
                    self.stats.busy_ns += result.busy_ns;
                    scheduler.complete(result)?;
                }
            }
            // It exits now, and the supervisor tells of it.
            FromWorker::Fault { message } => tracing::error!(rank, message, "a worker failed"),
        }
        Ok(())
    }

    fn is_attached(&self) -> bool {
        self.workers.as_ref().is_some_and(WorkerGroup::is_ready)
    }

    fn lose_server(&mut self, server: u16) {
        self.servers.remove(&server);
        self.early.retain(|(early, _, _)| *early != server);
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.forget_api_server(server);
        }
    }

    fn lose_workers(&mut self) -> Result<(), ProcessError> {
        let was_ready = self.is_attached();
        self.workers = None;
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.worker_lost();
        }
        if was_ready { self.tell_all(&FromScheduler::Paused) } else { Ok(()) }
    }

    fn plan(&mut self) -> Result<(), ProcessError> {
        let Some(scheduler) = &mut self.scheduler else { return Ok(()) };
        let now = now_unix_ms();
        let Some(workers) = self.workers.as_mut().filter(|workers| workers.is_ready()) else {
            scheduler.expire(now);
            return Ok(());
        };
        if self.servers.values().any(ServerLink::needs_time) {
            scheduler.expire(now);
            return Ok(());
        }
        while let Some(plan) = scheduler.plan(now) {
            gossamer_wire::encode_into(plan, &mut self.buffer).map_err(ProcessError::Encode)?;
            let step = plan.step;
            match workers.plans.send(&self.buffer, PLAN_TIMEOUT) {
                Ok(()) => {}
                // The workers have just died; what was planned is planned again for their successors.
                Err(SendError::Closed) => return self.lose_workers(),
                Err(source) => return Err(ProcessError::Plan { step, source }),
            }
        }
        Ok(())
    }

    fn send_outputs(&mut self) -> Result<(), ProcessError> {
        let Some(scheduler) = &mut self.scheduler else { return Ok(()) };
        let (servers, buffer) = (&mut self.servers, &mut self.buffer);
        let mut result = Ok(());
        scheduler.drain_outputs(|server, message| {
            // Without a link its sequences were void before they could say this.
            if let Some(link) = servers.get_mut(&server)
                && let Err(error) = link.send(message, buffer)
            {
                result = Err(ProcessError::Encode(error));
            }
        });
        result?;
        if let Some(stats) = self.stats.next(scheduler) {
            self.tell_all(&FromScheduler::Stats(stats))?;
        }
        self.servers.values_mut().for_each(ServerLink::catch_up);
        let hopeless: Vec<u16> =
            self.servers.iter().filter(|(_, link)| link.is_hopeless()).map(|(server, _)| *server).collect();
        for server in hopeless {
            tracing::error!(server, "an API server does not read its tokens: its sequences end");
            self.lose_server(server);
        }
        Ok(())
    }

    fn tell_all(&mut self, message: &FromScheduler) -> Result<(), ProcessError> {
        for link in self.servers.values_mut() {
            link.send(message.clone(), &mut self.buffer).map_err(ProcessError::Encode)?;
        }
        Ok(())
    }

    fn has_ended(&self) -> bool {
        let idle = self.scheduler.as_ref().is_none_or(Scheduler::is_idle);
        self.ending.is_some_and(|end| Instant::now() >= end || (idle && self.servers.is_empty()))
    }
}

fn now_unix_ms() -> u64 {
    // A clock before 1970 lets no deadline pass.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// What to say where the KV cache holds less than the longest sequence: longer ones are refused one by one.
fn too_small(info: &EngineInfo) -> Option<String> {
    // The last token of a sequence is never a key.
    let longest = info.kv_capacity_tokens + 1;
    (longest < u64::from(info.max_model_len)).then(|| {
        format!(
            "the KV cache holds sequences of at most {longest} tokens, --max-model-len is {}: longer requests are refused; \
             lower it to {longest}, or make room (--gpu-memory-utilization, --num-gpu-blocks-override, --kv-cache-dtype fp8)",
            info.max_model_len
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_that_is_too_small_for_the_longest_sequence_says_what_it_holds() {
        let said = |kv_capacity_tokens| {
            too_small(&EngineInfo { max_model_len: 1000, kv_capacity_tokens, vocab_size: 9 })
        };
        assert_eq!([said(999), said(1 << 40)], [None, None]);
        let said = said(640).unwrap();
        assert!(said.contains("at most 641 tokens") && said.contains("--max-model-len is 1000"), "{said}");
    }
}
