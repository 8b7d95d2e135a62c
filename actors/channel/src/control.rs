//! Each child's control channel: `ipc-channel`, for as long as the child lives.
//!
//! The handshake, in order:
//! 1. the parent opens a [`ControlServer`] and passes its name to the child it starts;
//! 2. the child connects ([`connect`]), and its first message is a [`Hello`]: magic, protocol version, its process
//!    number, and the two ends that the parent is to use;
//! 3. the parent answers with an [`Answer`] of the same kind, whether the versions agree or not;
//! 4. if they do, both sides talk in the caller's types.
//!
//! Invariant: `Hello` and `Answer` begin with magic and version and keep this form for ever, so that any two versions
//! can tell each other that they differ. Neither side waits past its deadline.
//!
//! Messages of the caller's types belong to the supervisor and the wire crate; this module only carries them.

use std::io;
use std::marker::PhantomData;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ipc_channel::ipc::{self, IpcOneShotServer, IpcReceiver, IpcSender, OpaqueIpcReceiver, OpaqueIpcSender};
use ipc_channel::{IpcError, TryRecvError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::names;

const MAGIC: u64 = u64::from_le_bytes(*b"gossctrl");

/// The child's first message.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    magic: u64,
    version: u32,
    pid: u32,
    /// Where the parent sends; first of all its [`Answer`].
    to_child: OpaqueIpcSender,
    /// Where the parent receives.
    from_child: OpaqueIpcReceiver,
}

/// The parent's first message.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    magic: u64,
    version: u32,
}

/// Why parent and child do not talk to each other.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The other side's first message did not come in time.
    #[error("expected the other process to say hello within {0:?}, got nothing")]
    Deadline(Duration),
    /// The other side is of another build.
    #[error("expected protocol version {ours}, got {theirs}; parent and child must be the same executable")]
    Version {
        /// This side's version.
        ours: u32,
        /// The other side's.
        theirs: u32,
    },
    /// Something else is at the other end.
    #[error("expected the control channel's magic word, got {0:#x}; the name belongs to something else")]
    NotOurs(u64),
    /// The other side went away in the middle.
    #[error("the other process went away during the handshake: {0}")]
    Gone(String),
    /// The system refused a socket or a thread.
    #[error("cannot open a control channel: {0}")]
    System(#[from] io::Error),
}

/// Why nothing was received.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nothing came within the time given.
    #[error("no control message within the time given")]
    Timeout,
    /// The other process ended or hung up.
    #[error("the control channel is closed")]
    Closed,
    /// A message that cannot be understood, or a failing socket.
    #[error("bad control message: {0}")]
    Bad(String),
}

/// Sends control messages of type `S`.
#[derive(Debug)]
pub struct ControlSender<S>(IpcSender<S>);

/// Receives control messages of type `R`.
#[derive(Debug)]
pub struct ControlReceiver<R>(IpcReceiver<R>);

/// Both directions of one side.
#[derive(Debug)]
pub struct ControlLink<S, R> {
    /// What this side says.
    pub sender: ControlSender<S>,
    /// What this side hears.
    pub receiver: ControlReceiver<R>,
    /// The process at the other end, as far as this side was told (a child is not told its parent's).
    pub peer_pid: Option<u32>,
}

impl<S: Serialize> ControlSender<S> {
    /// Sends one message.
    ///
    /// # Errors
    /// [`ControlError::Closed`] when the other process has gone.
    pub fn send(&self, message: S) -> Result<(), ControlError> {
        self.0.send(message).map_err(|error| match error {
            IpcError::Disconnected => ControlError::Closed,
            IpcError::Io(error)
                if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
            {
                ControlError::Closed
            }
            other => ControlError::Bad(other.to_string()),
        })
    }
}

impl<R: DeserializeOwned + Serialize> ControlReceiver<R> {
    /// Receives one message, waiting up to `timeout` ([`Duration::MAX`]: for ever).
    pub fn recv(&self, timeout: Duration) -> Result<R, ControlError> {
        receive(&self.0, timeout)
    }
}

fn receive<R: DeserializeOwned + Serialize>(
    receiver: &IpcReceiver<R>,
    timeout: Duration,
) -> Result<R, ControlError> {
    let deadline = Instant::now().checked_add(timeout);
    loop {
        let left = match deadline {
            // Longer waits than `poll` can express are made of several.
            None => Duration::from_secs(3600),
            Some(deadline) => {
                deadline.saturating_duration_since(Instant::now()).min(Duration::from_secs(3600))
            }
        };
        match receiver.try_recv_timeout(left) {
            Ok(message) => return Ok(message),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::IpcError(IpcError::Disconnected)) => return Err(ControlError::Closed),
            Err(TryRecvError::IpcError(IpcError::Io(error)))
                if error.kind() == io::ErrorKind::Interrupted => {}
            Err(TryRecvError::IpcError(IpcError::Io(error)))
                if error.kind() == io::ErrorKind::ConnectionReset =>
            {
                return Err(ControlError::Closed);
            }
            Err(TryRecvError::IpcError(error)) => return Err(ControlError::Bad(error.to_string())),
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(ControlError::Timeout);
        }
    }
}

/// A folder of this process' own for the sockets on which children connect.
///
/// A parent that is killed while a child starts leaves the socket behind; in a folder with its owner's name the next
/// sweep ([`crate::sweep_stale`]) finds it. Dropping the folder removes it.
#[derive(Debug)]
pub struct SocketFolder(PathBuf);

impl SocketFolder {
    /// Makes the folder and has all later [`ControlServer`]s of this process use it. Once per process.
    ///
    /// # Errors
    /// The folder cannot be made, or temporary files of this process have another place already.
    pub fn create() -> io::Result<Self> {
        let folder = Self(std::env::temp_dir().join(names::fresh("sockets")));
        std::fs::DirBuilder::new().mode(0o700).create(&folder.0)?;
        // The crate underneath takes its sockets' place from here and offers no other way to say it.
        tempfile::env::override_temp_dir(&folder.0).map_err(|other| {
            io::Error::other(format!("temporary files already have their place in {}", other.display()))
        })?;
        Ok(folder)
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The parent's place where one child connects.
pub struct ControlServer<S, R> {
    server: IpcOneShotServer<Hello>,
    name: String,
    version: u32,
    types: PhantomData<fn(S) -> R>,
}

impl<S, R> ControlServer<S, R>
where
    S: Serialize + DeserializeOwned,
    R: Serialize + DeserializeOwned,
{
    /// Opens a server for one child. `version` is that of everything that the processes say to each other.
    ///
    /// # Errors
    /// [`HandshakeError::System`].
    pub fn new(version: u32) -> Result<Self, HandshakeError> {
        let (server, name) = IpcOneShotServer::new()?;
        Ok(Self { server, name, version, types: PhantomData })
    }

    /// What the child needs to connect.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the child's hello, answers it and checks it.
    ///
    /// A child that connected and then hangs should be killed by the caller after a `Deadline`: that also ends the
    /// thread which waits for it.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn accept(self, timeout: Duration) -> Result<ControlLink<S, R>, HandshakeError> {
        let Self { server, name, version, .. } = self;
        let (done, hello) = mpsc::channel();
        // `accept` knows no deadline, so it waits in a thread.
        std::thread::Builder::new().name("control-accept".into()).spawn(move || {
            let _ = done.send(server.accept());
        })?;
        let (bootstrap, hello) = match hello.recv_timeout(timeout) {
            Ok(Ok(accepted)) => accepted,
            Ok(Err(error)) => return Err(HandshakeError::Gone(error.to_string())),
            Err(_) => {
                // If nobody ever connected, this ends the thread: a connection that says nothing.
                drop(IpcSender::<Hello>::connect(name));
                return Err(HandshakeError::Deadline(timeout));
            }
        };
        drop(bootstrap);
        check_magic(hello.magic)?;
        let answer: IpcSender<Answer> = hello.to_child.to();
        answer
            .send(Answer { magic: MAGIC, version })
            .map_err(|error| HandshakeError::Gone(error.to_string()))?;
        check_version(version, hello.version)?;
        Ok(ControlLink {
            sender: ControlSender(answer.to_opaque().to()),
            receiver: ControlReceiver(hello.from_child.to()),
            peer_pid: Some(hello.pid),
        })
    }
}

/// The child's side of the handshake; `version` as for [`ControlServer::new`].
///
/// # Errors
/// [`HandshakeError`].
pub fn connect<S, R>(name: &str, version: u32, timeout: Duration) -> Result<ControlLink<S, R>, HandshakeError>
where
    S: Serialize + DeserializeOwned,
    R: Serialize + DeserializeOwned,
{
    let (to_child, answers) = ipc::channel::<Answer>()?;
    let (sender, from_child) = ipc::channel::<S>()?;
    let bootstrap = IpcSender::connect(name.to_owned())?;
    bootstrap
        .send(Hello {
            magic: MAGIC,
            version,
            pid: std::process::id(),
            to_child: to_child.to_opaque(),
            from_child: from_child.to_opaque(),
        })
        .map_err(|error| HandshakeError::Gone(error.to_string()))?;
    let answer = receive(&answers, timeout).map_err(|error| match error {
        ControlError::Timeout => HandshakeError::Deadline(timeout),
        other => HandshakeError::Gone(other.to_string()),
    })?;
    check_magic(answer.magic)?;
    check_version(version, answer.version)?;
    Ok(ControlLink {
        sender: ControlSender(sender),
        receiver: ControlReceiver(answers.to_opaque().to()),
        peer_pid: None,
    })
}

fn check_magic(got: u64) -> Result<(), HandshakeError> {
    if got == MAGIC { Ok(()) } else { Err(HandshakeError::NotOurs(got)) }
}

fn check_version(ours: u32, theirs: u32) -> Result<(), HandshakeError> {
    if ours == theirs { Ok(()) } else { Err(HandshakeError::Version { ours, theirs }) }
}
