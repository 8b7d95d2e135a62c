//! The supervision tree inside a process whose work is a loop (the scheduler's and the workers').
//!
//! ```text
//!  root ─┬─ control   hands on what the supervisor says, for as long as there is one
//!        └─ work      owns the thread of the loop
//! ```
//!
//! The loop is plain code on a thread of its own: no actor's message lies on the way of a step. It beats by itself, once
//! a turn; an actor that did it for the loop would beat for one that hangs.
//!
//! What this refuses to do: it restarts no part. A loop's state is that of its rings, which only a new process can have
//! anew, so the failure of any part is the failure of the process, and the supervisor replaces that.
//!
//! Invariant: the first failure of a part, its panic included, is what the process ends with.

use std::any::Any;
use std::error::Error;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use thiserror::Error;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

use crate::child::ChildEvent;

/// How long the loop may take to end once another part has failed.
const LAST_TURN: Duration = Duration::from_secs(1);
/// As much as a process' first thread has.
const STACK: usize = 8 << 20;

/// What a part of the process fails with.
pub type Failure = Box<dyn Error + Send + Sync>;

/// Why a process gives up.
#[derive(Debug, Error)]
pub enum TreeError {
    /// The runtime of the actors could not be had.
    #[error("cannot start the runtime: {0}")]
    Runtime(io::Error),
    /// An actor could not be started, or failed by itself.
    #[error("an actor of this process failed: {0}")]
    Actor(String),
    /// The control channel cannot be read.
    #[error("the control channel is unusable: {0}")]
    Control(String),
    /// The loop ended with an error.
    #[error(transparent)]
    Work(Failure),
    /// The loop panicked.
    #[error("the thread `{name}` panicked: {message}")]
    Panicked {
        /// Name of the loop's thread.
        name: &'static str,
        /// What it said.
        message: String,
    },
}

/// The loop of a process, and how it hears what happens.
pub struct Work {
    /// Name of the loop's thread.
    pub name: &'static str,
    /// Puts an event where the loop finds it. `None`: the supervisor has gone, and the loop should end. Must not block.
    pub deliver: Box<dyn FnMut(Option<ChildEvent>) + Send>,
    /// The loop.
    pub run: Box<dyn FnOnce() -> Result<(), Failure> + Send>,
}

/// Runs a process' tree until its loop has ended.
///
/// # Errors
/// The first failure of a part.
pub fn run_tree(events: UnboundedReceiver<ChildEvent>, work: Work) -> Result<(), TreeError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(TreeError::Runtime)?;
    runtime.block_on(async {
        let (outcome, ended) = oneshot::channel();
        let arguments = RootArguments { events, work, outcome };
        let (root, handle) =
            Root::spawn(None, Root, arguments).await.map_err(|error| TreeError::Actor(error.to_string()))?;
        let result = ended.await.unwrap_or_else(|_| Err(TreeError::Actor("the root actor ended".to_owned())));
        root.stop(None);
        drop(handle.await);
        result
    })
}

/// What a panic said.
pub fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// A part has failed, and the loop had time to end.
struct GiveUp;

// The `cluster` feature takes the blanket implementation away; no message of this file leaves the process.
impl ractor::Message for GiveUp {}

struct RootArguments {
    events: UnboundedReceiver<ChildEvent>,
    work: Work,
    outcome: oneshot::Sender<Result<(), TreeError>>,
}

struct RootState {
    work: ActorRef<Ended>,
    /// The first failure, while the loop still runs.
    failure: Option<TreeError>,
    outcome: Option<oneshot::Sender<Result<(), TreeError>>>,
}

impl RootState {
    fn end(&mut self, result: Result<(), TreeError>) {
        if let Some(outcome) = self.outcome.take() {
            let result = self.failure.take().map_or(result, Err);
            // Fails only when the process ends anyway.
            let _ = outcome.send(result);
        }
    }
}

struct Root;

impl Actor for Root {
    type Msg = GiveUp;
    type State = RootState;
    type Arguments = RootArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<GiveUp>,
        arguments: RootArguments,
    ) -> Result<RootState, ActorProcessingErr> {
        let RootArguments { events, work: Work { name, deliver, run }, outcome } = arguments;
        let (work, _) = WorkActor::spawn_linked(None, WorkActor, (name, run), myself.get_cell()).await?;
        Control::spawn_linked(None, Control, (events, deliver), myself.get_cell()).await?;
        Ok(RootState { work, failure: None, outcome: Some(outcome) })
    }

    async fn handle(
        &self,
        _myself: ActorRef<GiveUp>,
        GiveUp: GiveUp,
        state: &mut RootState,
    ) -> Result<(), ActorProcessingErr> {
        state.end(Ok(()));
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<GiveUp>,
        event: SupervisionEvent,
        state: &mut RootState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(part, ..) if part.get_id() == state.work.get_id() => {
                state.end(Ok(()));
            }
            SupervisionEvent::ActorFailed(part, error) => {
                let error = match error.downcast::<TreeError>() {
                    Ok(error) => *error,
                    Err(other) => TreeError::Actor(other.to_string()),
                };
                if part.get_id() == state.work.get_id() {
                    state.end(Err(error));
                } else {
                    state.failure.get_or_insert(error);
                    drop(myself.send_after(LAST_TURN, || GiveUp));
                }
            }
            // The control actor ends with the supervisor; it has told the loop to end, too.
            _ => {}
        }
        Ok(())
    }
}

type Deliver = Box<dyn FnMut(Option<ChildEvent>) + Send>;

/// Something happened in the tree of processes. `None`: the supervisor has gone.
struct Heard(Option<ChildEvent>);

impl ractor::Message for Heard {}

struct Control;

impl Actor for Control {
    type Msg = Heard;
    type State = Deliver;
    type Arguments = (UnboundedReceiver<ChildEvent>, Deliver);

    async fn pre_start(
        &self,
        myself: ActorRef<Heard>,
        (mut events, deliver): Self::Arguments,
    ) -> Result<Deliver, ActorProcessingErr> {
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                // Fails when the actor has ended: then nobody needs to know.
                if myself.cast(Heard(Some(event))).is_err() {
                    return;
                }
            }
            drop(myself.cast(Heard(None)));
        });
        Ok(deliver)
    }

    async fn handle(
        &self,
        myself: ActorRef<Heard>,
        Heard(event): Heard,
        deliver: &mut Deliver,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            Some(ChildEvent::ControlFailed { reason }) => {
                deliver(None);
                return Err(Box::new(TreeError::Control(reason)));
            }
            None => {
                deliver(None);
                myself.stop(None);
            }
            event => deliver(event),
        }
        Ok(())
    }
}

/// The loop has ended.
struct Ended(Result<(), TreeError>);

impl ractor::Message for Ended {}

struct WorkActor;

impl Actor for WorkActor {
    type Msg = Ended;
    type State = Option<JoinHandle<()>>;
    type Arguments = (&'static str, Box<dyn FnOnce() -> Result<(), Failure> + Send>);

    async fn pre_start(
        &self,
        myself: ActorRef<Ended>,
        (name, run): Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let thread =
            std::thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(move || {
                // Nothing of the loop is looked at after a panic: the process ends.
                let result = match catch_unwind(AssertUnwindSafe(run)) {
                    Ok(result) => result.map_err(TreeError::Work),
                    Err(payload) => Err(TreeError::Panicked { name, message: panic_message(&*payload) }),
                };
                // Fails when the process has given the loop up.
                drop(myself.cast(Ended(result)));
            })?;
        Ok(Some(thread))
    }

    async fn handle(
        &self,
        myself: ActorRef<Ended>,
        Ended(result): Ended,
        thread: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        // It said so last of all; what it owned is gone once it is joined.
        if let Some(thread) = thread.take() {
            drop(thread.join());
        }
        result?;
        myself.stop(None);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

    type Inbox = mpsc::Receiver<Option<ChildEvent>>;

    fn tree(
        run: impl FnOnce(Inbox) -> Result<(), Failure> + Send + 'static,
    ) -> (UnboundedSender<ChildEvent>, impl FnOnce() -> Result<(), TreeError>) {
        let (events, heard) = unbounded_channel();
        let (inbox, outbox) = mpsc::channel();
        let work = Work {
            name: "turns",
            // Fails when the loop has ended.
            deliver: Box::new(move |event| drop(inbox.send(event))),
            run: Box::new(move || run(outbox)),
        };
        (events, move || run_tree(heard, work))
    }

    #[test]
    fn a_loop_hears_events_in_order_and_its_end_is_that_of_the_process() {
        let (events, run) = tree(|inbox| {
            assert!(matches!(inbox.recv()?, Some(ChildEvent::Drain { .. })));
            assert!(matches!(inbox.recv()?, Some(ChildEvent::Stop)));
            Ok(())
        });
        events.send(ChildEvent::Drain { grace: Duration::ZERO }).unwrap();
        events.send(ChildEvent::Stop).unwrap();
        run().unwrap();
    }

    #[test]
    fn a_loop_without_a_supervisor_is_told_to_end() {
        let (events, run) = tree(|inbox| {
            assert!(inbox.recv()?.is_none());
            Ok(())
        });
        drop(events);
        run().unwrap();
    }

    #[test]
    fn an_error_of_the_loop_is_what_the_process_ends_with() {
        let (_events, run) = tree(|_| Err("the weights are bad".into()));
        let error = run().unwrap_err();
        assert!(matches!(error, TreeError::Work(_)), "{error:?}");
        assert_eq!(error.to_string(), "the weights are bad");
    }

    #[test]
    fn a_panic_of_the_loop_is_an_error_that_says_where_and_what() {
        let (_events, run) = tree(|_| panic!("slot {} of 4", 7));
        assert_eq!(run().unwrap_err().to_string(), "the thread `turns` panicked: slot 7 of 4");
    }

    #[test]
    fn a_garbled_control_channel_ends_the_loop_and_is_the_reason() {
        let (events, run) = tree(|inbox| {
            assert!(inbox.recv()?.is_none());
            Ok(())
        });
        events.send(ChildEvent::ControlFailed { reason: "17 bytes too many".into() }).unwrap();
        assert_eq!(run().unwrap_err().to_string(), "the control channel is unusable: 17 bytes too many");
    }

    #[test]
    fn a_loop_that_does_not_end_is_left_behind_after_a_failure() {
        let (hold, held) = mpsc::channel::<()>();
        let (events, run) = tree(move |_| Ok(held.recv()?));
        events.send(ChildEvent::ControlFailed { reason: "noise".into() }).unwrap();
        assert!(matches!(run().unwrap_err(), TreeError::Control(_)));
        drop(hold);
    }

    #[test]
    fn a_panic_of_another_part_is_the_reason_too() {
        let (events, heard) = unbounded_channel();
        let (hold, held) = mpsc::channel::<()>();
        let work = Work {
            name: "turns",
            deliver: Box::new(|_| panic!("no inbox")),
            run: Box::new(move || Ok(held.recv()?)),
        };
        events.send(ChildEvent::Stop).unwrap();
        let error = run_tree(heard, work).unwrap_err();
        assert!(matches!(&error, TreeError::Actor(reason) if reason.contains("no inbox")), "{error}");
        drop(hold);
    }
}
