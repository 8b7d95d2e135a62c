//! The tokenizer actor: a bounded set of threads for everything that takes more than microseconds.
//!
//! One actor admits jobs and answers questions about them; permanent threads do the work. Long encodes run in
//! slices and go to the back of the queue after each, so that a short prompt waits for slices, not for prompts.
//! A job whose caller has gone (its future was dropped) is dropped at its next slice.
//!
//! Streaming does not come here: detokenizing the tokens of one step takes well under a microsecond, less than
//! the way to another thread and back.

mod threads;

use std::sync::{Arc, Mutex};

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, Message, RpcReplyPort};
use tokio::sync::oneshot;

use crate::encode::Segment;
use crate::tokenizer::Tokenizer;
use threads::{Queue, Work};

/// Sizes of the pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    /// Threads; at least one.
    pub threads: usize,
    /// Jobs that may wait or run; further ones are refused.
    pub max_jobs: usize,
}

impl Default for PoolOptions {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { threads: cores.clamp(1, 4), max_jobs: 4096 }
    }
}

/// Why a job gave no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// All places are taken; the client should try again.
    #[error("expected at most {max_jobs} waiting prompts, got one more; try again in a moment")]
    Busy {
        /// The limit.
        max_jobs: usize,
    },
    /// The pool has stopped.
    #[error("the tokenizer pool has stopped; the server is shutting down")]
    Stopped,
    /// The job panicked. That is a defect of this program; the pool goes on.
    #[error("a tokenizer job failed inside the server")]
    Failed,
}

/// Why rendering and encoding gave no ids.
#[derive(Debug, thiserror::Error)]
pub enum RenderError<E> {
    /// The caller's own part failed.
    #[error("{0}")]
    Render(E),
    /// The pool could not do it.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// How many jobs the pool has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Jobs that wait or run.
    pub jobs: usize,
}

/// What the actor understands.
pub enum PoolMessage {
    /// Do this job.
    Submit(Job),
    /// Say how busy the pool is.
    Stats(RpcReplyPort<PoolStats>),
}

impl Message for PoolMessage {}

/// A job on its way to the threads. Made by the methods of [`TokenizerPool`].
pub struct Job {
    work: Work,
    /// Told when the job is refused; dropped with the job when it is done.
    refused: oneshot::Sender<PoolError>,
}

struct PoolActor;

struct PoolState {
    queue: Arc<Queue>,
    threads: Vec<std::thread::JoinHandle<()>>,
    max_jobs: usize,
}

impl Actor for PoolActor {
    type Msg = PoolMessage;
    type State = PoolState;
    type Arguments = (Arc<Tokenizer>, PoolOptions);

    async fn pre_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        (tokenizer, options): Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let queue = Arc::new(Queue::default());
        let threads = threads::spawn(options.threads.max(1), &queue, &tokenizer)?;
        Ok(PoolState { queue, threads, max_jobs: options.max_jobs.max(1) })
    }

    async fn handle(
        &self,
        _myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            PoolMessage::Submit(job) if state.queue.jobs() >= state.max_jobs => {
                // The caller may have gone; then nobody needs the answer.
                let _ = job.refused.send(PoolError::Busy { max_jobs: state.max_jobs });
            }
            PoolMessage::Submit(job) => state.queue.push(job.work),
            PoolMessage::Stats(reply) => {
                let _ = reply.send(PoolStats { jobs: state.queue.jobs() });
            }
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        _myself: ActorRef<Self::Msg>,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        state.queue.close();
        let threads = std::mem::take(&mut state.threads);
        tokio::task::spawn_blocking(move || threads.into_iter().for_each(|t| drop(t.join()))).await?;
        Ok(())
    }
}

/// A handle of the pool; cheap to clone.
///
/// Dropping the future of any method cancels its job.
#[derive(Clone)]
pub struct TokenizerPool {
    actor: ActorRef<PoolMessage>,
    tokenizer: Arc<Tokenizer>,
}

impl TokenizerPool {
    /// Starts the actor and its threads, linked to `supervisor` where one is given.
    ///
    /// # Errors
    /// A thread could not be started.
    pub async fn start(
        tokenizer: Arc<Tokenizer>,
        options: PoolOptions,
        supervisor: Option<ActorCell>,
    ) -> Result<Self, ractor::SpawnErr> {
        let arguments = (tokenizer.clone(), options);
        let (actor, _) = match supervisor {
            Some(supervisor) => Actor::spawn_linked(None, PoolActor, arguments, supervisor).await?,
            None => Actor::spawn(None, PoolActor, arguments).await?,
        };
        Ok(Self { actor, tokenizer })
    }

    /// The actor, for supervision and orderly stop.
    pub fn actor(&self) -> &ActorRef<PoolMessage> {
        &self.actor
    }

    /// The tokenizer that the pool works with.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The ids of a prompt.
    ///
    /// # Errors
    /// The pool is full or stopped.
    pub async fn encode(&self, segments: Vec<Segment>) -> Result<Vec<u32>, PoolError> {
        self.encode_from(move |_| Some(segments)).await
    }

    /// The ids of a text; with `special`, names of special tokens in it are those tokens.
    ///
    /// # Errors
    /// The pool is full or stopped.
    pub async fn encode_text(&self, text: String, special: bool) -> Result<Vec<u32>, PoolError> {
        self.encode_from(move |tokenizer| {
            Some(if special { tokenizer.split_special(&text) } else { vec![Segment::Text(text)] })
        })
        .await
    }

    /// Renders a prompt and encodes it, both off the runtime.
    ///
    /// # Errors
    /// `render` failed, or the pool is full or stopped.
    pub async fn render_and_encode<E: Send + 'static>(
        &self,
        render: impl FnOnce(&Tokenizer) -> Result<Vec<Segment>, E> + Send + 'static,
    ) -> Result<Vec<u32>, RenderError<E>> {
        let failure = Arc::new(Mutex::new(None));
        let place = failure.clone();
        let ids = self
            .encode_from(move |tokenizer| match render(tokenizer) {
                Ok(segments) => Some(segments),
                Err(error) => {
                    *place.lock().unwrap_or_else(|e| e.into_inner()) = Some(error);
                    None
                }
            })
            .await;
        let failure = failure.lock().unwrap_or_else(|e| e.into_inner()).take();
        match failure {
            Some(error) => Err(RenderError::Render(error)),
            None => Ok(ids?),
        }
    }

    /// The text of `ids`.
    ///
    /// # Errors
    /// The pool is full or stopped.
    pub async fn decode(&self, ids: Vec<u32>, skip_special: bool) -> Result<String, PoolError> {
        self.run(move |tokenizer| tokenizer.decode(&ids, skip_special)).await
    }

    /// Runs `job` on one of the threads, in one piece.
    ///
    /// # Errors
    /// The pool is full or stopped, or the job panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Tokenizer) -> T + Send + 'static,
    ) -> Result<T, PoolError> {
        let (reply, result) = oneshot::channel();
        self.submit(Work::run(job, reply), result).await
    }

    /// How busy the pool is.
    ///
    /// # Errors
    /// The pool has stopped.
    pub async fn stats(&self) -> Result<PoolStats, PoolError> {
        match self.actor.call(PoolMessage::Stats, None).await {
            Ok(ractor::rpc::CallResult::Success(stats)) => Ok(stats),
            _ => Err(PoolError::Stopped),
        }
    }

    async fn encode_from(
        &self,
        source: impl FnOnce(&Tokenizer) -> Option<Vec<Segment>> + Send + 'static,
    ) -> Result<Vec<u32>, PoolError> {
        let (reply, result) = oneshot::channel();
        self.submit(Work::encode(source, reply), result).await
    }

    async fn submit<T>(&self, work: Work, result: oneshot::Receiver<T>) -> Result<T, PoolError> {
        let (refused, refusal) = oneshot::channel();
        self.actor.cast(PoolMessage::Submit(Job { work, refused })).map_err(|_| PoolError::Stopped)?;
        // The job owns `reply`, and is dropped when it is done, refused, or the pool stops.
        match result.await {
            Ok(value) => Ok(value),
            Err(_) => Err(match refusal.await {
                Ok(error) => error,
                Err(_) if self.actor.get_status() >= ractor::ActorStatus::Draining => PoolError::Stopped,
                Err(_) => PoolError::Failed,
            }),
        }
    }
}
