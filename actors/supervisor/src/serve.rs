//! The supervisor's process: bind first, then start the tree, then wait for signals and for its end.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gossamer_channel::control::SocketFolder;
use gossamer_channel::{CreateError, Segment, SegmentSpec};
use gossamer_config::ServeConfig;
use ractor::Actor;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::role::ChildRole;
use crate::root::{Root, RootArguments, RootMessage};
use crate::spawn::{Program, Spawner};

/// Connections that may wait while API servers start or are busy.
const BACKLOG: i32 = 4096;

/// Why the server ended otherwise than it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}{}", port_hint(.source, .address))]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// Shared memory could not be had.
    #[error(transparent)]
    SharedMemory(#[from] CreateError),
    /// A process could not start its work.
    #[error("the start failed: {role}: {reason}")]
    Start {
        /// Which one.
        role: ChildRole,
        /// What it said.
        reason: String,
    },
    /// The engine failed while the server ran.
    #[error("the engine failed: {0}")]
    Failed(String),
    /// A second signal cut the drain short.
    #[error("interrupted while draining")]
    Interrupted,
    /// The runtime, a thread or a signal handler could not be had.
    #[error("cannot start the supervisor: {0}")]
    System(String),
}

fn port_hint(source: &io::Error, address: &SocketAddr) -> String {
    match source.kind() {
        io::ErrorKind::AddrInUse => {
            format!("; port {} is in use: stop the other server or choose another --port", address.port())
        }
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need a privilege: choose another --port".into()
        }
        io::ErrorKind::AddrNotAvailable => "; no interface has this address: choose another --host".into(),
        _ => String::new(),
    }
}

/// Zeroed memory that all API servers share.
#[derive(Clone, Copy, Debug)]
pub struct BoardSpec {
    /// Number of 64-bit words.
    pub words: usize,
    /// Hash of what they mean.
    pub layout: u64,
    /// The first of three words in which the supervisor counts the processes that died and were replaced: API servers,
    /// schedulers, workers.
    pub replaced: usize,
}

/// The memory of the API servers, as the supervisor keeps it.
pub(crate) struct Board {
    pub(crate) segment: Arc<Segment>,
    pub(crate) layout: u64,
    replaced: usize,
}

impl Board {
    /// Counts a process that is replaced.
    pub(crate) fn count_replaced(&self, role: ChildRole) {
        let kind = match role {
            ChildRole::ApiServer(_) => 0,
            ChildRole::Scheduler => 1,
            ChildRole::Worker(_) => 2,
        };
        if let Some(word) = self.segment.words().get(self.replaced + kind) {
            word.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What to serve, and with what.
pub struct ServeOptions {
    /// The validated configuration.
    pub config: ServeConfig,
    /// Memory for the API servers.
    pub board: Option<BoardSpec>,
    /// What children are started from.
    pub program: Program,
    /// Called with the bound address, before any child is started.
    pub on_listening: Box<dyn FnOnce(SocketAddr) + Send>,
    /// Called when every child is ready for the first time.
    pub on_ready: Box<dyn FnOnce() + Send>,
}

impl ServeOptions {
    /// Serves `config` with children of this executable.
    pub fn new(config: ServeConfig) -> Self {
        Self {
            config,
            board: None,
            program: Program::default(),
            on_listening: Box::new(|_| {}),
            on_ready: Box::new(|| {}),
        }
    }
}

/// Serves until a signal or a failure ends it. `Ok`: an orderly end that was asked for.
///
/// # Errors
/// [`ServeError`]; the process should then end with a status that is not zero.
pub fn serve(options: ServeOptions) -> Result<(), ServeError> {
    let ServeOptions { config, board, program, on_listening, on_ready } = options;
    // First of all: a port in use is known before anything else costs time.
    let listener = bind(config.address())?;
    match listener.local_addr() {
        Ok(address) => on_listening(address),
        Err(source) => return Err(ServeError::Bind { address: config.address(), source }),
    }
    match gossamer_channel::sweep_stale() {
        Ok(removed) if removed.is_empty() => {}
        Ok(removed) => tracing::info!(?removed, "removed what killed servers left"),
        Err(error) => tracing::warn!(%error, "cannot look for what killed servers left"),
    }
    let system = |error: &dyn std::fmt::Display| ServeError::System(error.to_string());
    let _sockets = SocketFolder::create().map_err(|error| system(&error))?;
    let board = board
        .map(|BoardSpec { words, layout, replaced }| {
            let spec = SegmentSpec { label: "board", bytes: words * 8, layout, epoch: 1 };
            let segment = Arc::new(Segment::create_unnamed(&spec)?);
            Ok::<_, CreateError>(Board { segment, layout, replaced })
        })
        .transpose()?;
    let spawner = Spawner::start(program).map_err(|error| system(&error))?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| system(&error))?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(|error| system(&error))?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| system(&error))?;
        let (outcome, mut ended) = oneshot::channel();
        let arguments =
            RootArguments { config, listener: Arc::new(listener), spawner, board, on_ready, outcome };
        let (root, handle) = Root::spawn(None, Root, arguments).await.map_err(|error| system(&error))?;
        let result = loop {
            tokio::select! {
                result = &mut ended => break result,
                Some(()) = terminate.recv() => drop(root.cast(RootMessage::Terminate)),
                Some(()) = interrupt.recv() => drop(root.cast(RootMessage::Terminate)),
            }
        };
        // Without a word: the root actor itself failed.
        let result = result.unwrap_or_else(|_| Err(ServeError::System("the root actor ended".into())));
        drop(handle.await);
        result
    })
}

fn bind(address: SocketAddr) -> Result<TcpListener, ServeError> {
    let failed = |source| ServeError::Bind { address, source };
    // The standard library sets SO_REUSEADDR, so that a restart need not wait for old connections, and never
    // SO_REUSEPORT, with which a second server would bind silently.
    let listener = TcpListener::bind(address).map_err(failed)?;
    // Listening again only changes the length of the queue.
    rustix::net::listen(&listener, BACKLOG).map_err(|error| failed(error.into()))?;
    Ok(listener)
}
