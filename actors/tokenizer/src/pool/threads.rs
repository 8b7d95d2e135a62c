//! The threads of the pool and the queue that they share.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use tokio::sync::oneshot;

use crate::encode::{EncodeCursor, Segment};
use crate::tokenizer::Tokenizer;

/// Bytes that a job encodes before it makes room for the next one: about a millisecond.
const SLICE_BYTES: usize = 8 * 1024;

type Source = Box<dyn FnOnce(&Tokenizer) -> Option<Vec<Segment>> + Send>;

/// What a thread does for one job.
pub enum Work {
    /// Something short, in one piece. It looks itself whether anybody still waits for it.
    Run(Box<dyn FnOnce(&Tokenizer) + Send>),
    /// An encode whose segments are still to be made.
    Prepare(Source, oneshot::Sender<Vec<u32>>),
    /// An encode under way.
    Encode(EncodeCursor, oneshot::Sender<Vec<u32>>),
}

impl Work {
    /// Work that answers with what `job` returns.
    pub fn run<T: Send + 'static>(
        job: impl FnOnce(&Tokenizer) -> T + Send + 'static,
        reply: oneshot::Sender<T>,
    ) -> Self {
        Self::Run(Box::new(move |tokenizer| {
            if !reply.is_closed() {
                let _ = reply.send(job(tokenizer));
            }
        }))
    }

    /// Work that encodes what `source` returns, and answers with nothing where that is `None`.
    pub fn encode(
        source: impl FnOnce(&Tokenizer) -> Option<Vec<Segment>> + Send + 'static,
        reply: oneshot::Sender<Vec<u32>>,
    ) -> Self {
        Self::Prepare(Box::new(source), reply)
    }

    /// Does one slice; gives back the work if there is more.
    fn step(self, tokenizer: &Tokenizer) -> Option<Self> {
        match self {
            Self::Run(job) => {
                job(tokenizer);
                None
            }
            Self::Prepare(_, reply) | Self::Encode(_, reply) if reply.is_closed() => None,
            Self::Prepare(source, reply) => {
                Self::Encode(EncodeCursor::new(source(tokenizer)?), reply).step(tokenizer)
            }
            Self::Encode(mut cursor, reply) => {
                if !cursor.step(tokenizer, SLICE_BYTES) {
                    return Some(Self::Encode(cursor, reply));
                }
                let _ = reply.send(cursor.into_ids());
                None
            }
        }
    }
}

/// Work that waits, first come first served.
#[derive(Default)]
pub struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// Jobs that wait or run.
    jobs: AtomicUsize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The lock is held only for queue operations, which leave the queue whole even if they panic.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Adds a new job.
    pub fn push(&self, work: Work) {
        self.jobs.fetch_add(1, Ordering::Relaxed);
        self.lock().waiting.push_back(work);
        self.changed.notify_one();
    }

    /// Jobs that wait or run.
    pub fn jobs(&self) -> usize {
        self.jobs.load(Ordering::Relaxed)
    }

    /// Drops what waits and ends the threads.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.waiting.clear();
        self.changed.notify_all();
    }

    fn next(&self) -> Option<Work> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(work) = state.waiting.pop_front() {
                return Some(work);
            }
            state = self.changed.wait(state).unwrap_or_else(|e| e.into_inner());
        }
    }

    fn put_back(&self, work: Work) {
        let mut state = self.lock();
        if !state.closed {
            state.waiting.push_back(work);
            self.changed.notify_one();
        }
    }
}

/// Starts the threads. They end when the queue is closed.
pub fn spawn(
    count: usize,
    queue: &Arc<Queue>,
    tokenizer: &Arc<Tokenizer>,
) -> std::io::Result<Vec<std::thread::JoinHandle<()>>> {
    let mut threads = Vec::with_capacity(count);
    for index in 0..count {
        let (own_queue, tokenizer) = (queue.clone(), tokenizer.clone());
        let thread = std::thread::Builder::new()
            .name(format!("tokenizer-{index}"))
            .spawn(move || work_until_closed(&own_queue, &tokenizer));
        match thread {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                queue.close();
                return Err(error);
            }
        }
    }
    Ok(threads)
}

fn work_until_closed(queue: &Queue, tokenizer: &Tokenizer) {
    while let Some(work) = queue.next() {
        // A panic drops the work, and with it the reply, which the caller sees as a failed job.
        match catch_unwind(AssertUnwindSafe(|| work.step(tokenizer))) {
            Ok(Some(rest)) => queue.put_back(rest),
            Ok(None) | Err(_) => {
                queue.jobs.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}
