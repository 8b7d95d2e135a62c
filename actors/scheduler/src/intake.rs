//! New sequences: what is refused at the door, and what a sequence starts with.
//!
//! Values were validated by the API server; what would break the engine is looked at again.

use crate::queue::Place;
use crate::scheduler::Scheduler;
use crate::sequence::Sequence;
use gossamer_wire::{FinishReason, Refusal, SequenceKey, Submit};

impl Scheduler {
    /// Takes in a sequence, or answers why not. One that is known already is left alone: its API server repeats itself.
    pub fn submit(&mut self, submit: Submit) {
        let key = submit.key;
        if self.by_key.contains_key(&key) {
            return;
        }
        if let Some(refusal) = self.refusal(&submit) {
            self.outbox.refuse(key, refusal);
            return;
        }
        let bad_token =
            submit.prompt.iter().chain(&submit.generated).find(|token| **token >= self.layout.vocab_size);
        let complaint = match bad_token {
            Some(token) => Some(format!("expected token ids below {}, got {token}", self.layout.vocab_size)),
            None if submit.prompt.is_empty() => {
                Some("expected a prompt of at least one token, got none".into())
            }
            None => None,
        };
        let tenant = self.queue.enter(submit.tenant);
        self.arrivals += 1;
        let (priority, arrival) = (submit.priority, self.arrivals);
        let max_model_len = self.layout.max_model_len;
        let id = self
            .sequences
            .insert(|id| new_sequence(submit, tenant, Place { priority, arrival, id }, max_model_len));
        self.by_key.insert(key, id);
        let sequence = self.sequences.get(id);
        if let Some(deadline) = sequence.deadline_unix_ms {
            self.deadlines.insert((deadline, id));
        }
        let finish = complaint.map(FinishReason::Error).or_else(|| sequence.natural_end());
        self.queue.push(tenant, sequence.place);
        if let Some(finish) = finish {
            self.end(id, Some(finish));
        }
    }

    fn refusal(&self, submit: &Submit) -> Option<Refusal> {
        if self.draining {
            return Some(Refusal::Draining);
        }
        let prompt = submit.prompt.len() as u64;
        let longest = u64::from(self.layout.max_model_len);
        let tokens = (prompt + u64::from(submit.stop.max_tokens)).min(longest).max(prompt + 1);
        let capacity = self.layout.capacity_tokens();
        // The last token is drawn and never run: it needs no keys.
        if tokens > longest || tokens - 1 > capacity {
            return Some(Refusal::NeverFits { tokens, capacity: capacity.min(longest) });
        }
        // Refilled sequences and the further choices of an admitted request were let in before.
        let first_choice = SequenceKey { choice: 0, ..submit.key };
        if !submit.generated.is_empty() || (submit.key.choice > 0 && self.by_key.contains_key(&first_choice))
        {
            return None;
        }
        let free = self.config.max_running().saturating_sub(self.running.len());
        if self.queue.len() >= free + self.config.max_queued_requests as usize {
            let wait = self.queue.len() as f64 / self.pace.per_second.max(0.1);
            return Some(Refusal::QueueFull { retry_after_s: (wait.ceil() as u32).clamp(1, 60) });
        }
        None
    }
}

fn new_sequence(submit: Submit, tenant: u32, place: Place, max_model_len: u32) -> Sequence {
    let prompt_len = submit.prompt.len() as u32;
    let max_total = prompt_len.saturating_add(submit.stop.max_tokens).min(max_model_len).max(prompt_len + 1);
    let reported = submit.generated.len() as u32;
    let mut tokens = submit.prompt;
    tokens.extend(submit.generated);
    Sequence {
        computed: 0,
        pending: 0,
        max_total,
        columns: 0,
        granted: 0,
        charged: 0,
        prompt_len,
        registered: 0,
        slide_at: 0,
        tenant,
        slot: None,
        planned_step: 0,
        tokens,
        tables: Vec::new(),
        place,
        key: submit.key,
        sampling: submit.sampling,
        min_tokens: submit.stop.min_tokens,
        stop_token_ids: submit.stop.stop_token_ids,
        deadline_unix_ms: submit.deadline_unix_ms,
        cache_salt: submit.cache_salt,
        hashes: Vec::new(),
        cached_prompt_tokens: None,
        stream_interval: submit.stream_interval.max(1),
        reported,
        announced: reported > 0,
        logprobs: Vec::new(),
    }
}
