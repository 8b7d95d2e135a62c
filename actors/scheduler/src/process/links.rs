//! The loop's ends of the rings: threads that read and decode, and a writer that never waits.

use crate::process::Input;
use gossamer_channel::{Bridge, Receiver, RecvError, SendError, Sender};
use gossamer_supervisor::panic_message;
use gossamer_wire::{FromScheduler, TokenDelta, WireError};
use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Bytes that wait for an API server before it is given up.
pub const MAX_BACKLOG: usize = 64 << 20;
/// Bytes that wait for an API server before nothing more is planned until it has caught up.
const HEAVY_BACKLOG: usize = 8 << 20;
/// For how long a server that takes nothing may hold the others up.
const PATIENCE: Duration = Duration::from_secs(2);

/// Starts a thread that decodes what a ring brings and puts it among the loop's inputs.
pub(super) fn listen<T: serde::de::DeserializeOwned>(
    name: &str,
    receiver: Receiver,
    inputs: &mpsc::Sender<Input>,
    wrap: impl Fn(Result<T, WireError>) -> Input + Send + 'static,
    ended: impl FnOnce(RecvError) -> Option<Input> + Send + 'static,
) -> io::Result<Bridge> {
    let (deliver, last) = (inputs.clone(), inputs.clone());
    let thread = name.to_owned();
    Bridge::start(
        name,
        receiver,
        move |bytes| {
            // The loop would wait for ever for what a thread that has died does not bring.
            let decoded = catch_unwind(AssertUnwindSafe(|| wrap(gossamer_wire::decode(bytes))));
            let (input, panicked) = match decoded {
                Ok(input) => (input, false),
                Err(payload) => {
                    let message = panic_message(&*payload);
                    (Input::Panicked { name: thread.clone(), message }, true)
                }
            };
            match deliver.send(input) {
                Ok(()) if !panicked => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        },
        move |reason| {
            if let Some(input) = ended(reason.clone()) {
                // Fails when the loop has ended.
                let _ = last.send(input);
            }
        },
    )
}

/// Tokens to one API server, and the thread that hears it.
pub(super) struct ServerLink {
    pub epoch: u64,
    tokens: Sender,
    /// Messages that found the ring full.
    backlog: VecDeque<Vec<u8>>,
    backlog_bytes: usize,
    /// When it last took something that had waited, or nothing waited.
    last_taken: Instant,
    _requests: Bridge,
}

/// Whether planning waits for a server with so much to read, which last took something so long ago.
fn is_worth_waiting(backlog_bytes: usize, idle: Duration) -> bool {
    backlog_bytes > HEAVY_BACKLOG && idle < PATIENCE
}

impl ServerLink {
    pub fn new(epoch: u64, tokens: Sender, requests: Bridge) -> Self {
        Self {
            epoch,
            tokens,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            last_taken: Instant::now(),
            _requests: requests,
        }
    }

    /// Sends, or keeps for later. What is too long for the ring goes in parts.
    pub fn send(&mut self, message: FromScheduler, buffer: &mut Vec<u8>) -> Result<(), WireError> {
        gossamer_wire::encode_into(&message, buffer)?;
        if buffer.len() > self.tokens.max_len() {
            if let FromScheduler::Tokens(deltas) = message
                && let Some(parts) = halve(deltas)
            {
                return parts.into_iter().try_for_each(|part| self.send(FromScheduler::Tokens(part), buffer));
            }
            tracing::error!(
                len = buffer.len(),
                max = self.tokens.max_len(),
                "a message fits no ring and is lost"
            );
            return Ok(());
        }
        if self.backlog.is_empty() {
            match self.tokens.try_send(buffer) {
                Ok(()) => return Ok(()),
                Err(SendError::Full { .. }) => {}
                Err(error) => {
                    // The supervisor tells of its death; until then there is nobody to tell.
                    tracing::debug!(%error, "an API server is gone");
                    return Ok(());
                }
            }
        }
        self.backlog_bytes += buffer.len();
        self.backlog.push_back(buffer.clone());
        Ok(())
    }

    /// Sends of what was kept as much as fits now.
    pub fn catch_up(&mut self) {
        if self.backlog.is_empty() {
            self.last_taken = Instant::now();
            return;
        }
        while let Some(message) = self.backlog.front() {
            if matches!(self.tokens.try_send(message), Err(SendError::Full { .. })) {
                return;
            }
            self.backlog_bytes -= message.len();
            self.backlog.pop_front();
            self.last_taken = Instant::now();
        }
    }

    pub fn is_behind(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// It reads, but slower than tokens are made.
    pub fn needs_time(&self) -> bool {
        is_worth_waiting(self.backlog_bytes, self.last_taken.elapsed())
    }

    pub fn is_hopeless(&self) -> bool {
        self.backlog_bytes > MAX_BACKLOG
    }
}

/// Two halves of a list of deltas, or of the tokens of a single one. `None`: a single token cannot be halved.
fn halve(mut deltas: Vec<TokenDelta>) -> Option<[Vec<TokenDelta>; 2]> {
    if deltas.len() > 1 {
        let rest = deltas.split_off(deltas.len() / 2);
        return Some([deltas, rest]);
    }
    let mut first = deltas.pop()?;
    let middle = first.tokens.len() / 2;
    if middle == 0 {
        return None;
    }
    let second = TokenDelta {
        key: first.key,
        position: first.position + middle as u32,
        tokens: first.tokens.split_off(middle),
        logprobs: if first.logprobs.is_empty() { Vec::new() } else { first.logprobs.split_off(middle) },
        cached_prompt_tokens: None,
        finish: first.finish.take(),
    };
    Some([vec![first], vec![second]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use gossamer_channel::{RingSpec, Spin, ring};
    use gossamer_wire::{FinishReason, RequestId, SequenceKey, TokenLogprobs};
    use std::sync::Arc;

    #[test]
    fn a_server_that_reads_is_waited_for_and_one_that_does_not_is_not() {
        assert!(!is_worth_waiting(HEAVY_BACKLOG, Duration::ZERO), "a little behind is no reason");
        assert!(is_worth_waiting(HEAVY_BACKLOG + 1, Duration::from_millis(100)));
        assert!(!is_worth_waiting(MAX_BACKLOG, PATIENCE), "the others go on");
    }

    #[test]
    fn a_panic_of_a_thread_that_decodes_reaches_the_loop() {
        let spec = RingSpec { label: "listen-test", slot_size: 64, slots: 64, readers: 1, epoch: 1 };
        let segment = Arc::new(ring::create_unnamed(&spec).unwrap());
        let mut sender = Sender::attach(Arc::clone(&segment), Spin::NONE).unwrap();
        let receiver = Receiver::attach(segment, 0, Spin::NONE).unwrap();
        let (inputs, heard) = mpsc::channel();
        let wrap = |_: Result<u8, WireError>| -> Input { panic!("slot 7") };
        let bridge = listen("requests-0", receiver, &inputs, wrap, |_| None).unwrap();
        sender.send(&[1], Duration::from_secs(20)).unwrap();
        match heard.recv().unwrap() {
            Input::Panicked { name, message } => {
                assert_eq!((name.as_str(), message.as_str()), ("requests-0", "slot 7"));
            }
            _ => panic!("something else arrived"),
        }
        drop(bridge);
    }

    #[test]
    fn halves_name_the_same_tokens_as_the_whole() {
        let delta = TokenDelta {
            key: SequenceKey { request: RequestId(1), choice: 0 },
            position: 10,
            tokens: vec![1, 2, 3],
            logprobs: (0..3).map(|i| TokenLogprobs { logprob: i as f32, top: Vec::new() }).collect(),
            cached_prompt_tokens: Some(4),
            finish: Some(FinishReason::Length),
        };
        let [a, b] = halve(vec![delta.clone(); 3]).unwrap();
        assert_eq!((a.len(), b.len()), (1, 2));
        let [a, b] = halve(vec![delta]).unwrap().map(|mut part| part.pop().unwrap());
        assert_eq!((a.position, a.tokens, a.cached_prompt_tokens, a.finish), (10, vec![1], Some(4), None));
        assert_eq!((b.position, b.tokens, b.finish), (11, vec![2, 3], Some(FinishReason::Length)));
        assert_eq!((a.logprobs.len(), b.logprobs.len()), (1, 2));
    }
}
