//! An API server's process: a small supervision tree around the HTTP service.
//!
//! The root actor hears what happens in the tree of processes, and supervises the tokenizer pool. The HTTP service and
//! its streams are tasks of the runtime: they are as many as the clients, and end with them.
//!
//! Invariant: nothing here waits on the runtime's threads. The ring from the scheduler has a thread of its own, and the
//! tokenizer is loaded and used on others.

use super::{
    link::RingLink,
    model::{self, ModelFilesError},
};
use crate::{
    engine::Engine,
    http::{App, Board, Drain, TextServices, router, serve_listener},
};
use gossamer_channel::Bridge;
use gossamer_supervisor::{ChildContext, ChildEvent, ChildRole, ChildState, DuplexLink, StatusHandle};
use gossamer_tokenizer::{PoolOptions, Tokenizer, TokenizerPool};
use gossamer_wire::{FromScheduler, decode};
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use std::{
    io,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use thiserror::Error;
use tokio::sync::oneshot;

/// How often the process says that its runtime turns, and looks after a full ring.
const BEAT: Duration = Duration::from_millis(50);

/// Why an API server gave up.
#[derive(Debug, Error)]
pub enum ApiServerError {
    /// The runtime could not be had.
    #[error("cannot start the runtime: {0}")]
    Runtime(io::Error),
    /// The supervisor passed no listening socket.
    #[error("expected a listening socket from the supervisor, got none")]
    NoListener,
    /// The shared counters do not fit.
    #[error("the shared counters: {0}")]
    Board(String),
    /// The model's directory cannot be used.
    #[error(transparent)]
    Model(#[from] ModelFilesError),
    /// An actor could not be started.
    #[error("cannot start an actor: {0}")]
    Actor(String),
    /// The listening socket failed.
    #[error("the listening socket failed: {0}")]
    Listener(io::Error),
    /// The supervisor cannot be heard.
    #[error("the control channel is unusable: {0}")]
    Control(String),
    /// An actor failed.
    #[error("the tokenizer pool failed: {0}")]
    Pool(String),
}

/// What the root actor is told.
enum Message {
    /// Something happened in the tree of processes.
    Event(ChildEvent),
    /// The supervisor is gone.
    Orphaned,
    /// The tokenizer was loaded, or there is none.
    Tokenizer(Result<Option<Arc<Tokenizer>>, ModelFilesError>),
    /// The HTTP service ended.
    HttpEnded(io::Result<()>),
    /// Time to beat.
    Beat,
}

impl ractor::Message for Message {}

struct ApiServer;

struct Arguments {
    app: Arc<App>,
    drain: Drain,
    status: StatusHandle,
    outcome: oneshot::Sender<Result<(), ApiServerError>>,
}

struct State {
    app: Arc<App>,
    drain: Drain,
    status: StatusHandle,
    link: Option<Arc<RingLink>>,
    bridge: Option<Bridge>,
    /// When a drain ends at the latest.
    drain_until: Option<Instant>,
    outcome: Option<oneshot::Sender<Result<(), ApiServerError>>>,
}

/// An API server's life.
pub fn run(context: ChildContext) -> Result<(), ApiServerError> {
    allow_many_connections();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // All API servers together get the cores; on few cores one thread each saves the hand-overs between threads.
    let threads = (cores / usize::from(context.config.api_server_count)).clamp(1, 8);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("http")
        .enable_all()
        .build()
        .map_err(ApiServerError::Runtime)?;
    let result = runtime.block_on(serve(context));
    // Threads that still tokenize for clients who are gone must not hold up the end.
    runtime.shutdown_background();
    result
}

/// Every connection is a file. Systems give programs few by default, and let them ask for more.
fn allow_many_connections() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, wanted) {
        tracing::debug!(%error, "the number of open files stays as it was");
    }
}

async fn serve(mut context: ChildContext) -> Result<(), ApiServerError> {
    let index = match context.role {
        ChildRole::ApiServer(index) => index,
        ChildRole::Scheduler | ChildRole::Worker(_) => 0,
    };
    let listener = context.listener.take().ok_or(ApiServerError::NoListener)?;
    let board = match context.board.take() {
        Some(segment) => Board::new(segment).map_err(ApiServerError::Board)?,
        None => Board::private(),
    };
    let config = context.config.clone();
    let servers = context.topology.api_servers;
    let engine = Engine::new(index, (context.epoch & 0xFFFF) as u16);
    let eos = model::end_tokens(&config)?;
    let loading = config.clone();
    let app = Arc::new(App::new(config, engine, eos, board));
    let drain = Drain::new();
    let (outcome, ended) = oneshot::channel();
    let arguments =
        Arguments { app: app.clone(), drain: drain.clone(), status: context.status.clone(), outcome };
    let actor_error = |error: ractor::SpawnErr| ApiServerError::Actor(error.to_string());
    let (root, handle) = Actor::spawn(None, ApiServer, arguments).await.map_err(actor_error)?;

    // Connections are answered from here on: with 503 until the engine and the tokenizer are there.
    let http = root.clone();
    tokio::spawn(async move {
        let result = serve_listener(listener, router(app.clone()), app, (index, servers), drain).await;
        // The actor may have ended before: then nobody needs to know.
        drop(http.cast(Message::HttpEnded(result)));
    });
    let loaded = root.clone();
    tokio::task::spawn_blocking(move || drop(loaded.cast(Message::Tokenizer(model::tokenizer(&loading)))));
    let events = root.clone();
    tokio::spawn(async move {
        while let Some(event) = context.events.recv().await {
            if events.cast(Message::Event(event)).is_err() {
                return;
            }
        }
        drop(events.cast(Message::Orphaned));
    });
    let result = ended.await.unwrap_or_else(|_| Err(ApiServerError::Actor("the root actor ended".into())));
    root.stop(None);
    drop(handle.await);
    result
}

impl Actor for ApiServer {
    type Msg = Message;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        arguments: Arguments,
    ) -> Result<State, ActorProcessingErr> {
        drop(myself.send_interval(BEAT, || Message::Beat));
        let Arguments { app, drain, status, outcome } = arguments;
        Ok(State { app, drain, status, link: None, bridge: None, drain_until: None, outcome: Some(outcome) })
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Event(event) => state.event(event),
            Message::Orphaned => state.end(Ok(())),
            Message::Tokenizer(Ok(tokenizer)) => state.start_text(tokenizer, &myself).await,
            Message::Tokenizer(Err(error)) => state.end(Err(error.into())),
            Message::HttpEnded(result) => state.end(result.map_err(ApiServerError::Listener)),
            Message::Beat => state.beat(),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<Message>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            // Its threads may be in any state: the process is replaced as a whole.
            SupervisionEvent::ActorFailed(_, error) => {
                state.end(Err(ApiServerError::Pool(error.to_string())));
            }
            SupervisionEvent::ActorTerminated(_, _, reason) => {
                let reason = reason.unwrap_or_else(|| "it ended".into());
                state.end(Err(ApiServerError::Pool(reason)));
            }
            _ => {}
        }
        Ok(())
    }
}

impl State {
    fn event(&mut self, event: ChildEvent) {
        match event {
            ChildEvent::Scheduler { epoch, link } => self.attach(epoch, link),
            ChildEvent::Lost { peer: ChildRole::Scheduler } => {
                self.app.engine.detach();
                self.link = None;
                // Its ring is closed, so its thread has ended or is about to.
                self.bridge = None;
            }
            ChildEvent::Failed { reason } => self.app.engine.fail(&reason),
            ChildEvent::Drain { grace } => {
                self.app.drain();
                self.status.set_state(ChildState::Draining);
                self.drain_until = Some(Instant::now() + grace);
            }
            ChildEvent::Stop => self.end(Ok(())),
            ChildEvent::ControlFailed { reason } => self.end(Err(ApiServerError::Control(reason))),
            ChildEvent::Lost { .. }
            | ChildEvent::ApiServer { .. }
            | ChildEvent::Workers { .. }
            | ChildEvent::Plans { .. } => {}
        }
    }

    fn attach(&mut self, epoch: u64, link: DuplexLink) {
        let DuplexLink { sender, receiver } = link;
        let ring = Arc::new(RingLink::new(sender));
        let engine = self.app.engine.clone();
        let flushed = ring.clone();
        let broken = AtomicBool::new(false);
        let deliver = move |bytes: &[u8]| {
            match decode::<FromScheduler>(bytes) {
                Ok(message) => engine.deliver(message),
                Err(error) if !broken.swap(true, Ordering::Relaxed) => {
                    tracing::error!(%error, "the scheduler sent what is no message");
                }
                Err(_) => {}
            }
            flushed.flush();
            ControlFlow::Continue(())
        };
        // What was told first must be heard first: the reader starts before the engine says hello.
        let ended =
            |reason: &gossamer_channel::RecvError| tracing::debug!(%reason, "the scheduler's ring ended");
        match Bridge::start("from-scheduler", receiver, deliver, ended) {
            Ok(bridge) => self.bridge = Some(bridge),
            Err(error) => return self.end(Err(ApiServerError::Runtime(error))),
        }
        match self.app.engine.attach(ring.clone()) {
            Ok(()) => tracing::debug!(epoch, "the scheduler is there"),
            // It died again; its successor is announced next.
            Err(error) => tracing::warn!(%error, "the scheduler could not be told of running requests"),
        }
        self.link = Some(ring);
    }

    async fn start_text(&mut self, tokenizer: Option<Arc<Tokenizer>>, myself: &ActorRef<Message>) {
        if let Some(tokenizer) = tokenizer {
            match TokenizerPool::start(tokenizer, PoolOptions::default(), Some(myself.get_cell())).await {
                Ok(pool) => self.app.set_text(TextServices::new(pool)),
                Err(error) => return self.end(Err(ApiServerError::Actor(error.to_string()))),
            }
        }
        self.status.set_state(ChildState::Ready);
    }

    fn beat(&mut self) {
        self.status.beat();
        self.app.publish_readiness();
        if let Some(link) = &self.link {
            link.flush();
        }
        let Some(until) = self.drain_until else { return };
        let open = self.app.engine.open_requests();
        if open == 0 || Instant::now() >= until {
            if open > 0 {
                tracing::warn!(open, "requests are cut off: the time to finish is over");
                self.app.engine.shut_down();
            }
            self.drain_until = None;
            self.drain.close();
        }
    }

    fn end(&mut self, result: Result<(), ApiServerError>) {
        if let Some(outcome) = self.outcome.take() {
            // Fails only when the process ends anyway.
            let _ = outcome.send(result);
        }
    }
}
