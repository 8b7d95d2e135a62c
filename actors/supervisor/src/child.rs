//! The child's side: what a process of the tree gets from its supervisor.
//!
//! `main` of the executable calls [`child_main`] when it was started as `gossamer child …`, and hands the
//! [`ChildContext`] to the code of the role. Everything that happens later comes as a [`ChildEvent`].

use std::io::Write;
use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gossamer_channel::control::{
    self, ControlError, ControlLink, ControlReceiver, ControlSender, HandshakeError,
};
use gossamer_channel::{OpenError, Segment};
use gossamer_config::ServeConfig;
use gossamer_wire::PROTOCOL_VERSION;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::links::{self, DuplexLink, LinkError, WorkerLink, WorkersLink};
use crate::message::{Down, Setup, Up};
use crate::role::{ChildRole, NoSuchRole, Topology};
use crate::status::{StatusHandle, StatusTable};

/// First argument of a child's command line.
pub const CHILD_COMMAND: &str = "child";
/// The supervisor answers at once or not at all.
const HANDSHAKE: Duration = Duration::from_secs(30);

/// Why a child could not join the tree.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The command line is not one that a supervisor wrote.
    #[error("expected `child ROLE EPOCH CONTROL [LISTENER]`, which only `gossamer serve` writes, got {0:?}")]
    CommandLine(Vec<String>),
    /// The role does not exist.
    #[error(transparent)]
    Role(#[from] NoSuchRole),
    /// The control channel could not be opened, or the other side is another build.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The supervisor went away, or said something else first.
    #[error("expected the configuration from the supervisor, got {0}")]
    Setup(String),
    /// A shared segment could not be opened.
    #[error(transparent)]
    Segment(#[from] OpenError),
    /// The system refused a thread.
    #[error("cannot start the control thread: {0}")]
    Thread(std::io::Error),
}

/// What happens in the tree around a child.
#[derive(Debug)]
pub enum ChildEvent {
    /// To an API server: a scheduler is there, for the first time or again. Refill it.
    Scheduler {
        /// Rises with each replacement.
        epoch: u64,
        /// The rings.
        link: DuplexLink,
    },
    /// To the scheduler: an API server is there, for the first time or again.
    ApiServer {
        /// Which one.
        index: u16,
        /// Rises with each replacement.
        epoch: u64,
        /// The rings.
        link: DuplexLink,
    },
    /// To the scheduler: all workers are there (they may still load), for the first time or again. They know nothing.
    Workers {
        /// Rises with each replacement.
        epoch: u64,
        /// The rings.
        link: WorkersLink,
    },
    /// To a worker: the scheduler's plans, for the first time or again. A snapshot comes first.
    Plans {
        /// Rises with each replacement.
        epoch: u64,
        /// The rings.
        link: WorkerLink,
    },
    /// A neighbour died; its rings are closed. Its successor will be announced, or [`ChildEvent::Failed`] will.
    Lost {
        /// Who.
        peer: ChildRole,
    },
    /// The engine will not come back: running requests end with an error, `/health` is 503.
    Failed {
        /// Why.
        reason: String,
    },
    /// Readiness turns false, running requests finish within `grace`, then the process exits with 0.
    Drain {
        /// How long requests may still run.
        grace: Duration,
    },
    /// Exit now.
    Stop,
    /// The supervisor sent what is no message. Nothing more will come: give up with this reason.
    ControlFailed {
        /// What is wrong with it.
        reason: String,
    },
}

/// A child's place in the tree.
#[derive(Debug)]
pub struct ChildContext {
    /// What this process is.
    pub role: ChildRole,
    /// Which incarnation, from 1.
    pub epoch: u64,
    /// The validated configuration.
    pub config: ServeConfig,
    /// How many processes there are.
    pub topology: Topology,
    /// This child's line: beat once per turn of the main loop, and announce states.
    pub status: StatusHandle,
    /// The listening socket; API servers only.
    pub listener: Option<TcpListener>,
    /// The memory that all API servers share, if the supervisor was asked for it; API servers only.
    pub board: Option<Arc<Segment>>,
    /// What happens. It ends when the supervisor has gone: then exit. `recv().await` in async code, `blocking_recv()`
    /// or `try_recv()` in threads.
    pub events: UnboundedReceiver<ChildEvent>,
    /// Tells the supervisor why this child gives up.
    pub reporter: Reporter,
}

/// Tells the supervisor why a child gives up.
#[derive(Clone, Debug)]
pub struct Reporter {
    sender: Arc<Mutex<ControlSender<Up>>>,
    status: StatusHandle,
}

impl Reporter {
    /// Reports the reason and gives the exit status to end with.
    ///
    /// A child that fails before the server was ever ready stops the start with this reason; later it is restarted.
    pub fn failed(&self, reason: &str) -> ExitCode {
        self.status.set_state(crate::ChildState::Failed);
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = sender.send(Up::Failed { reason: reason.to_owned() }) {
            tracing::error!(%error, reason, "cannot tell the supervisor why this process gives up");
        }
        ExitCode::FAILURE
    }
}

/// If this process was started as a child, runs `body` with its context and returns the exit status.
///
/// `body`'s error is reported to the supervisor, in the whole chain of its sources.
pub fn child_main<E: std::error::Error>(
    arguments: &[String],
    body: impl FnOnce(ChildContext) -> Result<(), E>,
) -> Option<ExitCode> {
    let (first, rest) = arguments.split_first()?;
    if first != CHILD_COMMAND {
        return None;
    }
    Some(match join(rest) {
        Ok(context) => {
            let reporter = context.reporter.clone();
            match body(context) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => reporter.failed(&chain(&error)),
            }
        }
        Err(error) => {
            // Before there is a log; whoever reads neither this nor the exit status cannot be told.
            let _ = writeln!(std::io::stderr(), "gossamer child: {}", chain(&error));
            ExitCode::FAILURE
        }
    })
}

/// An error and its sources in one line, without repeating those that the error already quotes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        source = error.source();
    }
    text
}

fn join(arguments: &[String]) -> Result<ChildContext, JoinError> {
    let bad = || JoinError::CommandLine(arguments.to_vec());
    let (role, epoch, control, listener) = match arguments {
        [role, epoch, control] => (role, epoch, control, None),
        [role, epoch, control, listener] => (role, epoch, control, Some(listener)),
        _ => return Err(bad()),
    };
    let role: ChildRole = role.parse()?;
    let epoch: u64 = epoch.parse().map_err(|_| bad())?;
    let listener = listener.map(|fd| fd.parse::<RawFd>().map_err(|_| bad())).transpose()?.map(inherit);
    ignore_termination();

    let ControlLink { sender, receiver, .. } =
        control::connect::<Up, Down>(control, PROTOCOL_VERSION, HANDSHAKE)?;
    let setup = match receiver.recv(HANDSHAKE) {
        Ok(Down::Setup(setup)) => *setup,
        Ok(other) => return Err(JoinError::Setup(format!("{other:?}"))),
        Err(error) => return Err(JoinError::Setup(error.to_string())),
    };
    let Setup { config, topology, status, board } = setup;
    let status = StatusTable::open(&status, topology)?
        .line(role)
        .ok_or_else(|| JoinError::Setup(format!("a tree of {topology:?}, where {role} has no place")))?;
    let board = board
        .filter(|_| matches!(role, ChildRole::ApiServer(_)))
        .map(|(reference, layout)| Segment::open(&reference.handle, layout).map(Arc::new))
        .transpose()?;
    let (events_in, events) = unbounded_channel();
    std::thread::Builder::new()
        .name("control".into())
        .spawn(move || listen(&receiver, role, &events_in))
        .map_err(JoinError::Thread)?;
    let reporter = Reporter { sender: Arc::new(Mutex::new(sender)), status: status.clone() };
    Ok(ChildContext { role, epoch, config, topology, status, listener, board, events, reporter })
}

fn inherit(fd: RawFd) -> TcpListener {
    // SAFETY: the supervisor opened this number for this process alone and wrote it into the command line; nothing
    // else here owns it, since this runs once and first of all.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // The executable may start others, which must not keep the port.
    if let Err(error) = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC) {
        tracing::warn!(%error, "the inherited listener stays open in processes started from here");
    }
    TcpListener::from(fd)
}

/// An orderly end comes through the control channel. A service manager that signals every process of the group would
/// otherwise end the engine under the requests that the drain is to finish.
fn ignore_termination() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: ignoring a signal installs no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

fn listen(receiver: &ControlReceiver<Down>, role: ChildRole, events: &UnboundedSender<ChildEvent>) {
    loop {
        let event = match receiver.recv(Duration::MAX) {
            Ok(message) => understand(role, message),
            Err(ControlError::Timeout) => continue,
            Err(ControlError::Closed) => return,
            Err(ControlError::Bad(reason)) => {
                // Nobody listens any more: the child is on its way out.
                let _ = events.send(ChildEvent::ControlFailed { reason });
                return;
            }
        };
        match event {
            Ok(event) => {
                // Nobody listens any more: the child is on its way out.
                if events.send(event).is_err() {
                    return;
                }
            }
            // The neighbour died again before its rings were opened; its successor has others.
            Err(error) => tracing::warn!(%error, "a link was not taken up"),
        }
    }
}

fn understand(role: ChildRole, message: Down) -> Result<ChildEvent, LinkError> {
    Ok(match message {
        Down::PeerReplaced { peer, epoch, segments } => match (role, peer) {
            (ChildRole::ApiServer(_), _) => {
                ChildEvent::Scheduler { epoch, link: links::open_api_server(&segments)? }
            }
            (ChildRole::Worker(rank), _) => {
                ChildEvent::Plans { epoch, link: links::open_worker(&segments, rank)? }
            }
            (ChildRole::Scheduler, ChildRole::ApiServer(index)) => {
                ChildEvent::ApiServer { index, epoch, link: links::open_scheduler(&segments)? }
            }
            (ChildRole::Scheduler, _) => ChildEvent::Workers { epoch, link: links::open_workers(&segments)? },
        },
        Down::PeerLost { peer } => ChildEvent::Lost { peer },
        Down::Failed { reason } => ChildEvent::Failed { reason },
        Down::Drain { grace } => ChildEvent::Drain { grace },
        // A second configuration has no meaning; ending is the safe reading.
        Down::Stop | Down::Setup(_) => ChildEvent::Stop,
    })
}
