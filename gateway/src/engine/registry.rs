//! The requests of this API server and their token log.

use super::ticket::Event;
use gossamer_wire::{FinishReason, Refusal, RequestId, SequenceKey, Submit, TokenDelta};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::mpsc::UnboundedSender;

/// Events that a client may leave unread. One that reads so little, or not at all, would fill the memory of its API server, which
/// others use too; a healthy one is never more than a few events behind.
pub(super) const MOST_UNREAD: usize = 8192;

/// All requests.
#[derive(Default)]
pub(super) struct Registry {
    requests: HashMap<RequestId, Request>,
}

/// One prompt with its choices.
pub(super) struct Request {
    pub(super) template: Arc<Submit>,
    /// Which of the ticket's prompts this is.
    pub(super) prompt_index: u32,
    pub(super) choices: Vec<Choice>,
    pub(super) events: UnboundedSender<Event>,
    /// Events of the ticket that wait to be read.
    pub(super) unread: Arc<AtomicUsize>,
}

/// One sequence.
#[derive(Default)]
pub(super) struct Choice {
    generated: Vec<u32>,
    finished: bool,
}

impl Request {
    fn tell(&self, event: Event) {
        self.unread.fetch_add(1, Ordering::Relaxed);
        // A receiver that is gone is just about to send its abort.
        let _ = self.events.send(event);
    }

    /// The submission of a choice: as at first, or with what was generated since.
    pub(super) fn submit(&self, key: SequenceKey) -> Submit {
        let mut submit = (*self.template).clone();
        submit.key = key;
        if let Some(choice) = self.choices.get(key.choice as usize) {
            submit.generated.clone_from(&choice.generated);
        }
        submit
    }
}

impl Registry {
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn insert(&mut self, id: RequestId, request: Request) {
        self.requests.insert(id, request);
    }

    /// What a new scheduler must be told.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = Submit> {
        self.requests.iter().flat_map(|(id, request)| {
            let open = |(_, choice): &(usize, &Choice)| !choice.finished;
            let key = |index: usize| SequenceKey { request: *id, choice: index as u32 };
            request.choices.iter().enumerate().filter(open).map(move |(index, _)| request.submit(key(index)))
        })
    }

    /// Hands new tokens to the request, without those it already has. Returns the sequences that the scheduler must end: those of
    /// a client that does not read.
    ///
    /// Invariant: at most [`MOST_UNREAD`] events and one for each request's end wait in a ticket.
    pub(super) fn deliver(&mut self, mut delta: TokenDelta) -> Vec<SequenceKey> {
        let key = delta.key;
        let Some(request) = self.requests.get_mut(&key.request) else { return Vec::new() };
        let Some(choice) = request.choices.get_mut(key.choice as usize) else { return Vec::new() };
        if choice.finished {
            return Vec::new();
        }
        if request.unread.load(Ordering::Relaxed) >= MOST_UNREAD {
            return self.end_unread(key.request);
        }
        let known = choice.generated.len();
        let position = delta.position as usize;
        if position > known {
            tracing::error!(request = %key.request, choice = key.choice, known, position, "tokens are missing");
            delta.tokens.clear();
            delta.logprobs.clear();
            delta.finish = Some(FinishReason::Error(format!(
                "expected the token at position {known}, got {position}: tokens were lost between processes"
            )));
        } else if position < known {
            let repeated = (known - position).min(delta.tokens.len());
            delta.tokens.drain(..repeated);
            delta.logprobs.drain(..repeated.min(delta.logprobs.len()));
            delta.position += repeated as u32;
            if delta.tokens.is_empty() && delta.finish.is_none() {
                return Vec::new();
            }
        }
        choice.generated.extend_from_slice(&delta.tokens);
        choice.finished = delta.finish.is_some();
        let prompt_index = request.prompt_index;
        request.tell(Event::Tokens { prompt_index, delta });
        self.forget_if_finished(key.request);
        Vec::new()
    }

    /// Ends a request whose client does not read; returns what was still open.
    fn end_unread(&mut self, id: RequestId) -> Vec<SequenceKey> {
        let Some(request) = self.requests.remove(&id) else { return Vec::new() };
        tracing::warn!(request = %id, "a client leaves {MOST_UNREAD} events unread: its request ends");
        let message = format!(
            "the client left {MOST_UNREAD} events of its stream unread; read faster, or raise --stream-interval"
        );
        request.tell(Event::Failed { message });
        let open = request.choices.iter().enumerate().filter(|(_, choice)| !choice.finished);
        open.map(|(index, _)| SequenceKey { request: id, choice: index as u32 }).collect()
    }

    pub(super) fn refuse(&mut self, key: SequenceKey, refusal: Refusal) {
        let Some(request) = self.requests.get_mut(&key.request) else { return };
        let Some(choice) = request.choices.get_mut(key.choice as usize) else { return };
        choice.finished = true;
        request.tell(Event::Refused { key, refusal });
        self.forget_if_finished(key.request);
    }

    /// Ends all requests with an event that `tell` makes.
    pub(super) fn end_all(&mut self, tell: impl Fn() -> Event) {
        for (_, request) in self.requests.drain() {
            request.tell(tell());
        }
    }

    /// Ends a choice from this side. Tells whether the scheduler still works on it.
    pub(super) fn end(&mut self, key: SequenceKey) -> bool {
        let Some(request) = self.requests.get_mut(&key.request) else { return false };
        let Some(choice) = request.choices.get_mut(key.choice as usize) else { return false };
        let was_open = !std::mem::replace(&mut choice.finished, true);
        self.forget_if_finished(key.request);
        was_open
    }

    fn forget_if_finished(&mut self, id: RequestId) {
        if self.requests.get(&id).is_some_and(|request| request.choices.iter().all(|choice| choice.finished))
        {
            self.requests.remove(&id);
        }
    }
}
