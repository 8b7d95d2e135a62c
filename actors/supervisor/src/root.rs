//! The root of the supervision tree: who lives, who is connected to whom, and what happens when somebody dies.
//!
//! Invariant: two neighbours have a link if and only if both have joined; a link is dropped (and closed) the moment one
//! of its ends is known to be dead, before anyone is told.

use std::collections::HashMap;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gossamer_channel::CreateError;
use gossamer_config::ServeConfig;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::oneshot;

use crate::links::{Epochs, Link};
use crate::message::{Down, SegmentRef, Setup};
use crate::process_actor::{ChildActor, ChildArguments, ChildMessage, ChildProcess};
use crate::restart::Restarts;
use crate::role::{ChildRole, Topology};
use crate::serve::{Board, ServeError};
use crate::spawn::{Spawner, describe};
use crate::status::{ChildState, StatusHandle, StatusTable};

/// How often heartbeats and deadlines are looked at.
const TICK: Duration = Duration::from_millis(25);
/// How long a server that failed for good still says so on `/health` and ends its streams with an error.
const LINGER: Duration = Duration::from_secs(5);
/// How long a process that was told to stop may take.
const STOPPING: Duration = Duration::from_secs(2);
/// What API servers get beyond the clients' grace to write their last bytes.
const LAST_BYTES: Duration = Duration::from_secs(1);

/// What the root is told.
pub(crate) enum RootMessage {
    /// A child shook hands.
    Joined { role: ChildRole, epoch: u64 },
    /// Time to look around.
    Tick,
    /// A pause before a restart is over.
    Restart(ChildRole),
    /// Drain and exit; said twice: exit at once.
    Terminate,
}

// The `cluster` feature takes the blanket implementation away; none of these messages leaves the process.
impl ractor::Message for RootMessage {}

/// What the root is started with.
pub(crate) struct RootArguments {
    pub(crate) config: ServeConfig,
    pub(crate) listener: Arc<TcpListener>,
    pub(crate) spawner: Spawner,
    pub(crate) board: Option<Board>,
    pub(crate) on_ready: Box<dyn FnOnce() + Send>,
    pub(crate) outcome: oneshot::Sender<Result<(), ServeError>>,
}

enum Phase {
    /// Not everybody has been ready yet.
    Starting,
    Serving,
    /// API servers finish what runs.
    Draining {
        until: Instant,
    },
    /// The engine is gone for good; API servers say so.
    Failed {
        reason: String,
        until: Instant,
    },
    /// Everybody was told to go.
    Stopping {
        until: Instant,
        result: Option<Result<(), ServeError>>,
    },
}

struct Slot {
    role: ChildRole,
    status: StatusHandle,
    /// 0 before the first start.
    epoch: u64,
    actor: Option<ActorRef<ChildMessage>>,
    joined: bool,
    restarts: Restarts,
    beats: u64,
    beaten: Instant,
    /// Why it was killed for want of heartbeats.
    stalled: Option<String>,
}

/// The root's state.
pub(crate) struct Tree {
    config: ServeConfig,
    topology: Topology,
    listener: Arc<TcpListener>,
    spawner: Spawner,
    status: StatusTable,
    board: Option<Board>,
    slots: Vec<Slot>,
    epochs: Epochs,
    api_links: HashMap<u16, Link>,
    workers_link: Option<Link>,
    phase: Phase,
    on_ready: Option<Box<dyn FnOnce() + Send>>,
    outcome: Option<oneshot::Sender<Result<(), ServeError>>>,
}

/// The behaviour.
pub(crate) struct Root;

impl Actor for Root {
    type Msg = RootMessage;
    type State = Tree;
    type Arguments = RootArguments;

    async fn pre_start(
        &self,
        _myself: ActorRef<RootMessage>,
        arguments: RootArguments,
    ) -> Result<Tree, ActorProcessingErr> {
        let RootArguments { config, listener, spawner, board, on_ready, outcome } = arguments;
        let topology = Topology::of(&config);
        let mut epochs = Epochs::default();
        let status = StatusTable::create(topology, epochs.next())?;
        let slot = |role| {
            status.line(role).map(|status| Slot {
                role,
                status,
                epoch: 0,
                actor: None,
                joined: false,
                restarts: Restarts::default(),
                beats: 0,
                beaten: Instant::now(),
                stalled: None,
            })
        };
        let slots = topology.roles().into_iter().filter_map(slot).collect();
        Ok(Tree {
            config,
            topology,
            listener,
            spawner,
            status,
            board,
            slots,
            epochs,
            api_links: HashMap::new(),
            workers_link: None,
            phase: Phase::Starting,
            on_ready: Some(on_ready),
            outcome: Some(outcome),
        })
    }

    async fn post_start(
        &self,
        myself: ActorRef<RootMessage>,
        tree: &mut Tree,
    ) -> Result<(), ActorProcessingErr> {
        drop(myself.send_interval(TICK, || RootMessage::Tick));
        for role in tree.topology.roles() {
            tree.start(role, &myself).await;
        }
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<RootMessage>,
        message: RootMessage,
        tree: &mut Tree,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RootMessage::Joined { role, epoch } => tree.joined(role, epoch, &myself),
            RootMessage::Tick => tree.tick(&myself),
            RootMessage::Restart(role) => {
                if matches!(tree.phase, Phase::Starting | Phase::Serving | Phase::Draining { .. }) {
                    tree.start(role, &myself).await;
                }
            }
            RootMessage::Terminate => tree.terminate(),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<RootMessage>,
        event: SupervisionEvent,
        tree: &mut Tree,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(actor, state, _) => {
                let ended = state.and_then(|mut state| state.take::<ChildProcess>().ok());
                match ended {
                    Some(ended) => tree.died(ended.role, ended.epoch, ended.exit, ended.reason, &myself),
                    None => tree.lost_actor(actor.get_id(), "its actor was stopped", &myself),
                }
            }
            SupervisionEvent::ActorFailed(actor, error) => {
                tree.lost_actor(actor.get_id(), &error.to_string(), &myself);
            }
            _ => {}
        }
        Ok(())
    }
}

impl Tree {
    fn slot(&mut self, role: ChildRole) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.role == role)
    }

    fn has_joined(&self, role: ChildRole) -> bool {
        self.slots.iter().any(|slot| slot.role == role && slot.joined)
    }

    fn tell(&self, role: ChildRole, down: Down) {
        let slot = self.slots.iter().find(|slot| slot.role == role && slot.joined);
        if let Some(actor) = slot.and_then(|slot| slot.actor.as_ref()) {
            // Fails when the process has just ended; that is handled where it is reported.
            let _ = actor.cast(ChildMessage::Send(down));
        }
    }

    fn tell_all(&self, which: impl Fn(ChildRole) -> bool, down: &Down) {
        for slot in self.slots.iter().filter(|slot| which(slot.role)) {
            self.tell(slot.role, down.clone());
        }
    }

    fn kill_all(&self) {
        for actor in self.slots.iter().filter_map(|slot| slot.actor.as_ref()) {
            let _ = actor.cast(ChildMessage::Kill);
        }
    }

    async fn start(&mut self, role: ChildRole, myself: &ActorRef<RootMessage>) {
        let setup = Setup {
            config: self.config.clone(),
            topology: self.topology,
            status: self.status.reference(),
            board: self.board.as_ref().map(|Board { segment, layout, .. }| {
                (SegmentRef { handle: segment.handle(), epoch: segment.epoch() }, *layout)
            }),
        };
        let spawner = self.spawner.clone();
        let listener = matches!(role, ChildRole::ApiServer(_)).then(|| Arc::clone(&self.listener));
        let Some(slot) = self.slot(role) else { return };
        slot.epoch += 1;
        slot.stalled = None;
        slot.status.reset();
        let epoch = slot.epoch;
        let arguments = ChildArguments { role, epoch, setup, spawner, listener, root: myself.clone() };
        match ChildActor::spawn_linked(None, ChildActor, arguments, myself.get_cell()).await {
            Ok((actor, _)) => slot.actor = Some(actor),
            Err(error) => {
                self.died(role, epoch, None, Some(format!("cannot be started: {error}")), myself);
            }
        }
    }

    fn joined(&mut self, role: ChildRole, epoch: u64, myself: &ActorRef<RootMessage>) {
        let Some(slot) = self.slot(role).filter(|slot| slot.epoch == epoch && slot.actor.is_some()) else {
            return;
        };
        slot.joined = true;
        slot.beats = slot.status.beats();
        slot.beaten = Instant::now();
        if let Err(error) = self.connect(role) {
            self.finish(Err(ServeError::SharedMemory(error)), myself);
            return;
        }
        match &self.phase {
            Phase::Starting | Phase::Serving => {}
            Phase::Draining { .. } => {
                if matches!(role, ChildRole::ApiServer(_)) {
                    self.tell(role, Down::Drain { grace: Duration::ZERO });
                }
            }
            Phase::Failed { reason, .. } => self.tell(role, Down::Failed { reason: reason.clone() }),
            Phase::Stopping { .. } => self.tell(role, Down::Stop),
        }
    }

    /// Links a child that has joined to those of its neighbours that have.
    fn connect(&mut self, role: ChildRole) -> Result<(), CreateError> {
        if !self.has_joined(ChildRole::Scheduler) {
            return Ok(());
        }
        let servers: Vec<u16> = match role {
            ChildRole::ApiServer(index) => vec![index],
            ChildRole::Scheduler => (0..self.topology.api_servers).collect(),
            ChildRole::Worker(_) => Vec::new(),
        };
        for index in servers {
            let server = ChildRole::ApiServer(index);
            if self.has_joined(server) {
                let link = Link::duplex(index, &mut self.epochs)?;
                self.announce(&link, server, ChildRole::Scheduler);
                self.announce(&link, ChildRole::Scheduler, server);
                self.api_links.insert(index, link);
            }
        }
        let workers: Vec<_> = (0..self.topology.workers).map(ChildRole::Worker).collect();
        if !matches!(role, ChildRole::ApiServer(_)) && workers.iter().all(|&worker| self.has_joined(worker)) {
            let link = Link::workers(self.topology.workers, &mut self.epochs)?;
            self.announce(&link, ChildRole::Scheduler, ChildRole::Worker(0));
            for worker in workers {
                self.announce(&link, worker, ChildRole::Scheduler);
            }
            self.workers_link = Some(link);
        }
        Ok(())
    }

    fn announce(&self, link: &Link, to: ChildRole, peer: ChildRole) {
        let segments = link.references(to);
        // The first ring's number rises with each replacement of the link.
        let epoch = segments.first().map_or(0, |first| first.epoch);
        self.tell(to, Down::PeerReplaced { peer, epoch, segments });
    }

    /// Drops a dead child's links and tells its neighbours.
    fn disconnect(&mut self, role: ChildRole) {
        let lost = Down::PeerLost { peer: role };
        match role {
            ChildRole::ApiServer(index) => {
                self.api_links.remove(&index);
                self.tell(ChildRole::Scheduler, lost);
            }
            ChildRole::Scheduler => {
                self.api_links.clear();
                self.workers_link = None;
                self.tell_all(|other| other != role, &lost);
            }
            ChildRole::Worker(_) => {
                self.workers_link = None;
                self.tell_all(|other| other != role && !matches!(other, ChildRole::ApiServer(_)), &lost);
            }
        }
    }

    fn lost_actor(&mut self, actor: ractor::ActorId, why: &str, myself: &ActorRef<RootMessage>) {
        let found =
            self.slots.iter_mut().find(|slot| slot.actor.as_ref().is_some_and(|a| a.get_id() == actor));
        if let Some(slot) = found {
            let (role, epoch) = (slot.role, slot.epoch);
            self.died(role, epoch, None, Some(why.to_owned()), myself);
        }
    }

    fn died(
        &mut self,
        role: ChildRole,
        epoch: u64,
        exit: Option<ExitStatus>,
        said: Option<String>,
        myself: &ActorRef<RootMessage>,
    ) {
        let most = self.config.max_restarts;
        let now = Instant::now();
        let Some(slot) = self.slot(role).filter(|slot| slot.epoch == epoch) else { return };
        slot.actor = None;
        slot.joined = false;
        let stalled = slot.stalled.take();
        let how = exit.map_or_else(|| "ended".to_owned(), describe);
        let reason = match said.as_ref().or(stalled.as_ref()) {
            Some(said) => format!("{role} {how}: {said}"),
            None => format!("{role} {how}"),
        };
        self.disconnect(role);
        match &self.phase {
            Phase::Stopping { .. } | Phase::Failed { .. } => {}
            Phase::Draining { .. } if matches!(role, ChildRole::ApiServer(_)) => {
                if exit.is_none_or(|exit| !exit.success()) {
                    tracing::warn!(reason, "an API server died while it drained");
                }
            }
            // What a child says about a bad model or machine will be so again; starting anew would only hide it. One that
            // was killed said nothing of the kind, even if its handshake broke off with an error.
            Phase::Starting if said.is_some() && exit.and_then(|exit| exit.signal()).is_none() => {
                self.finish(Err(ServeError::Start { role, reason: said.unwrap_or_default() }), myself)
            }
            phase => {
                let starting = matches!(phase, Phase::Starting);
                let pause = self.slot(role).and_then(|slot| slot.restarts.next(now, most));
                match pause {
                    Some(pause) => {
                        tracing::warn!(reason, ?pause, "a process died and is replaced");
                        if let Some(board) = &self.board {
                            board.count_replaced(role);
                        }
                        drop(myself.send_after(pause, move || RootMessage::Restart(role)));
                    }
                    None if starting => self.finish(Err(ServeError::Start { role, reason }), myself),
                    None => self.fail(format!("{reason}; --max-restarts is {most}")),
                }
            }
        }
    }

    /// The engine will not come back: API servers end their streams with an error and say so for a while.
    fn fail(&mut self, reason: String) {
        tracing::error!(reason, "the engine failed for good");
        self.tell_all(
            |role| matches!(role, ChildRole::ApiServer(_)),
            &Down::Failed { reason: reason.clone() },
        );
        self.tell_all(|role| !matches!(role, ChildRole::ApiServer(_)), &Down::Stop);
        self.phase = Phase::Failed { reason, until: Instant::now() + LINGER };
    }

    fn terminate(&mut self) {
        // With the scheduler ready, API servers may be serving already, though nobody has looked since.
        let serves = self.slots.iter().any(|slot| {
            slot.role == ChildRole::Scheduler && slot.joined && slot.status.state() == ChildState::Ready
        });
        match self.phase {
            Phase::Starting if !serves => self.stop(Ok(())),
            Phase::Starting | Phase::Serving => {
                let grace = self.config.shutdown_timeout;
                tracing::info!(?grace, "draining");
                self.tell_all(|role| matches!(role, ChildRole::ApiServer(_)), &Down::Drain { grace });
                self.phase = Phase::Draining { until: Instant::now() + grace + LAST_BYTES };
            }
            Phase::Draining { .. } => {
                tracing::warn!("told to end a second time: requests that still run are cut off");
                self.stop(Err(ServeError::Interrupted));
                self.kill_all();
            }
            Phase::Failed { ref reason, .. } => {
                let reason = reason.clone();
                self.stop(Err(ServeError::Failed(reason)));
            }
            Phase::Stopping { .. } => self.kill_all(),
        }
    }

    /// Ends every process, then the server with `result`.
    fn stop(&mut self, result: Result<(), ServeError>) {
        self.tell_all(|_| true, &Down::Stop);
        self.phase = Phase::Stopping { until: Instant::now() + STOPPING, result: Some(result) };
    }

    fn tick(&mut self, myself: &ActorRef<RootMessage>) {
        let now = Instant::now();
        self.watch_heartbeats(now);
        match &mut self.phase {
            Phase::Starting => {
                let ready = |slot: &Slot| slot.joined && slot.status.state() == ChildState::Ready;
                if self.slots.iter().all(ready) {
                    self.phase = Phase::Serving;
                    if let Some(on_ready) = self.on_ready.take() {
                        on_ready();
                    }
                }
            }
            Phase::Serving => {}
            Phase::Draining { until } => {
                let late = now >= *until;
                let api_servers =
                    self.slots.iter().filter(|slot| matches!(slot.role, ChildRole::ApiServer(_)));
                let open = api_servers.filter(|slot| slot.actor.is_some()).count();
                if late && open > 0 {
                    tracing::warn!(open, "API servers did not finish within --shutdown-timeout");
                }
                if late || open == 0 {
                    self.stop(Ok(()));
                }
            }
            Phase::Failed { reason, until } => {
                if now >= *until {
                    let reason = std::mem::take(reason);
                    self.stop(Err(ServeError::Failed(reason)));
                }
            }
            Phase::Stopping { until, result } => {
                if self.slots.iter().all(|slot| slot.actor.is_none()) {
                    let result = result.take().unwrap_or(Ok(()));
                    self.finish(result, myself);
                } else if now >= *until {
                    self.kill_all();
                }
            }
        }
    }

    fn watch_heartbeats(&mut self, now: Instant) {
        let limit = self.config.stall_timeout;
        for slot in self.slots.iter_mut().filter(|slot| slot.joined) {
            let (beats, state) = (slot.status.beats(), slot.status.state());
            if state == ChildState::Ready {
                slot.restarts.ready(now);
            }
            // A child that loads need not beat; its time starts when it is ready, which is a beat.
            if beats != slot.beats || matches!(state, ChildState::Starting | ChildState::Failed) {
                slot.beats = beats;
                slot.beaten = now;
            } else if now.duration_since(slot.beaten) >= limit
                && let Some(actor) = &slot.actor
            {
                tracing::error!(role = %slot.role, ?limit, "no heartbeat within --stall-timeout: killing the process");
                slot.stalled
                    .get_or_insert_with(|| format!("gave no heartbeat for {limit:?} (--stall-timeout)"));
                slot.beaten = now;
                let _ = actor.cast(ChildMessage::Kill);
            }
        }
    }

    fn finish(&mut self, result: Result<(), ServeError>, myself: &ActorRef<RootMessage>) {
        if let Some(outcome) = self.outcome.take() {
            // The children's actors end with the root's, and their processes with them.
            self.kill_all();
            let _ = outcome.send(result);
            myself.stop(None);
        }
    }
}
