//! One actor per child process: it starts the process, shakes hands, passes messages, and ends when the process does.
//!
//! The root supervises these actors as ractor does any actor; the end of the actor *is* the end of the process, and its
//! last state tells how it went.

use std::net::TcpListener;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use gossamer_channel::control::{ControlError, ControlLink, ControlSender, ControlServer};
use gossamer_wire::PROTOCOL_VERSION;
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::message::{Down, Setup, Up};
use crate::role::ChildRole;
use crate::root::RootMessage;
use crate::spawn::{Launch, Process, Spawner};

/// A child that does not say hello for this long is killed. Nothing heavy happens before the hello.
const HANDSHAKE: Duration = Duration::from_secs(30);

/// What the actor is told.
pub(crate) enum ChildMessage {
    /// The handshake is done.
    Connected(ControlLink<Down, Up>),
    /// The handshake failed.
    Refused(String),
    /// The child said why it gives up.
    Reported(String),
    /// The child closed its end of the control channel: nothing more will be reported.
    Silent,
    /// The process has ended.
    Exited(ExitStatus),
    /// Pass this on.
    Send(Down),
    /// End the process at once.
    Kill,
}

// The `cluster` feature takes the blanket implementation away; none of these messages leaves the process.
impl ractor::Message for ChildMessage {}

/// What the actor is started with.
pub(crate) struct ChildArguments {
    pub(crate) role: ChildRole,
    pub(crate) epoch: u64,
    pub(crate) setup: Setup,
    pub(crate) spawner: Spawner,
    pub(crate) listener: Option<Arc<TcpListener>>,
    pub(crate) root: ActorRef<RootMessage>,
}

/// The actor's state; the root gets it when the actor has ended.
pub(crate) struct ChildProcess {
    pub(crate) role: ChildRole,
    pub(crate) epoch: u64,
    /// How the process ended, once it has.
    pub(crate) exit: Option<ExitStatus>,
    /// Why it gave up, if it said so.
    pub(crate) reason: Option<String>,
    /// Whether reports may still come.
    listening: bool,
    process: Process,
    control: Option<ControlSender<Down>>,
    setup: Option<Setup>,
    root: ActorRef<RootMessage>,
}

/// The behaviour.
pub(crate) struct ChildActor;

impl Actor for ChildActor {
    type Msg = ChildMessage;
    type State = ChildProcess;
    type Arguments = ChildArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<ChildMessage>,
        arguments: ChildArguments,
    ) -> Result<ChildProcess, ActorProcessingErr> {
        let ChildArguments { role, epoch, setup, spawner, listener, root } = arguments;
        let server = ControlServer::<Down, Up>::new(PROTOCOL_VERSION)?;
        let launch = Launch { role, epoch, control: server.name().to_owned(), listener };
        let child = spawner.spawn(launch).await?;
        let exits = myself.clone();
        // Casts below fail only when the actor has ended before; then nobody needs to know.
        let process = Process::watch(child, move |status| drop(exits.cast(ChildMessage::Exited(status))))?;
        std::thread::Builder::new().name(format!("hello-{role}")).spawn(move || {
            let message = match server.accept(HANDSHAKE) {
                Ok(link) => ChildMessage::Connected(link),
                Err(error) => ChildMessage::Refused(error.to_string()),
            };
            drop(myself.cast(message));
        })?;
        tracing::debug!(%role, epoch, pid = process.pid(), "started a process");
        Ok(ChildProcess {
            role,
            epoch,
            exit: None,
            reason: None,
            listening: false,
            process,
            control: None,
            setup: Some(setup),
            root,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<ChildMessage>,
        message: ChildMessage,
        state: &mut ChildProcess,
    ) -> Result<(), ActorProcessingErr> {
        let ChildProcess { role, epoch, .. } = *state;
        match message {
            ChildMessage::Connected(ControlLink { sender, receiver, .. }) => {
                if let Some(setup) = state.setup.take()
                    && let Err(error) = sender.send(Down::Setup(Box::new(setup)))
                {
                    // Its end is reported on its own.
                    tracing::debug!(%role, %error, "the process went away during the handshake");
                    return Ok(());
                }
                state.control = Some(sender);
                state.listening = true;
                std::thread::Builder::new().name(format!("hear-{role}")).spawn(move || {
                    loop {
                        match receiver.recv(Duration::MAX) {
                            Ok(Up::Failed { reason }) => drop(myself.cast(ChildMessage::Reported(reason))),
                            Err(ControlError::Timeout) => {}
                            Err(_) => break,
                        }
                    }
                    drop(myself.cast(ChildMessage::Silent));
                })?;
                state.root.cast(RootMessage::Joined { role, epoch })?;
            }
            ChildMessage::Refused(reason) => {
                state.reason.get_or_insert(reason);
                state.process.kill();
            }
            ChildMessage::Reported(reason) => state.reason = Some(reason),
            ChildMessage::Silent => {
                state.listening = false;
                if state.exit.is_some() {
                    myself.stop(None);
                }
            }
            ChildMessage::Exited(status) => {
                state.exit = Some(status);
                // Its last words may still be on the way.
                if !state.listening {
                    myself.stop(None);
                }
            }
            ChildMessage::Send(down) => {
                if let Some(control) = &state.control
                    && let Err(error) = control.send(down)
                {
                    tracing::debug!(%role, %error, "a message did not reach the process");
                }
            }
            ChildMessage::Kill => state.process.kill(),
        }
        Ok(())
    }
}
