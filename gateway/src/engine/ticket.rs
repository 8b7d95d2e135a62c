//! What the HTTP side holds while its sequences run.

use super::{
    Engine,
    registry::{Choice, Registry, Request},
};
use gossamer_wire::{AbortReason, Refusal, RequestId, SequenceKey, Submit, ToScheduler, TokenDelta};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};
use tokio::sync::mpsc::{self, UnboundedReceiver};

/// Something that happened to a ticket's sequences.
#[derive(Debug)]
pub enum Event {
    /// New tokens; each position once and in order.
    Tokens {
        /// Which of the submitted prompts.
        prompt_index: u32,
        /// The tokens.
        delta: TokenDelta,
    },
    /// A sequence was not admitted.
    Refused {
        /// The sequence.
        key: SequenceKey,
        /// Why.
        refusal: Refusal,
    },
    /// The engine failed for good.
    Failed {
        /// What happened.
        message: String,
    },
    /// The server shuts down and waits no longer.
    ShutDown,
}

/// The sequences of one HTTP request. Dropping it ends those that still run, which is how a client that went away
/// stops the work done for it.
pub struct Ticket {
    engine: Engine,
    /// One per prompt: its request and number of choices.
    requests: Vec<(RequestId, u32)>,
    pub(super) events: UnboundedReceiver<Event>,
    unread: Arc<AtomicUsize>,
    drop_reason: AbortReason,
}

impl Ticket {
    pub(super) fn register(
        engine: Engine,
        registry: &mut Registry,
        templates: Vec<(Submit, u32)>,
        mut next_id: impl FnMut() -> RequestId,
    ) -> (Self, Vec<Submit>) {
        let (sender, events) = mpsc::unbounded_channel();
        let unread = Arc::new(AtomicUsize::new(0));
        let mut requests = Vec::with_capacity(templates.len());
        let mut submits = Vec::new();
        for (prompt_index, (template, n)) in templates.into_iter().enumerate() {
            let id = next_id();
            let request = Request {
                template: Arc::new(template),
                prompt_index: prompt_index as u32,
                choices: (0..n).map(|_| Choice::default()).collect(),
                events: sender.clone(),
                unread: unread.clone(),
            };
            submits.extend((0..n).map(|choice| request.submit(SequenceKey { request: id, choice })));
            registry.insert(id, request);
            requests.push((id, n));
        }
        (Self { engine, requests, events, unread, drop_reason: AbortReason::Disconnected }, submits)
    }

    /// Name of the request of a prompt.
    pub fn id(&self, prompt_index: u32) -> Option<RequestId> {
        self.requests.get(prompt_index as usize).map(|(id, _)| *id)
    }

    /// The next event; pending until there is one.
    pub fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(context).map(|event| self.taken(event))
    }

    /// The next event. `None` when all sequences have ended and were read.
    pub async fn event(&mut self) -> Option<Event> {
        let event = self.events.recv().await;
        self.taken(event)
    }

    fn taken(&self, event: Option<Event>) -> Option<Event> {
        event.inspect(|_| {
            self.unread.fetch_sub(1, Ordering::Relaxed);
        })
    }

    /// Ends a sequence because its text is complete.
    pub fn finish(&self, key: SequenceKey) {
        self.end(key, AbortReason::StopString);
    }

    fn end(&self, key: SequenceKey, reason: AbortReason) {
        let was_open = self.engine.registry().end(key);
        if was_open {
            self.engine.send(&ToScheduler::Abort { key, reason });
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        for (request, n) in std::mem::take(&mut self.requests) {
            for choice in 0..n {
                self.end(SequenceKey { request, choice }, self.drop_reason);
            }
        }
    }
}
