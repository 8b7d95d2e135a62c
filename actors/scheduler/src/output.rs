//! What the API servers must hear, collected until it is fetched.

use crate::sequence::Sequence;
use gossamer_wire::{FinishReason, FromScheduler, Refusal, SequenceKey, TokenDelta};

#[derive(Default)]
struct Mailbox {
    api_server: u16,
    deltas: Vec<TokenDelta>,
    refused: Vec<(SequenceKey, Refusal)>,
}

/// Messages per API server.
#[derive(Default)]
pub(crate) struct Outbox {
    mailboxes: Vec<Mailbox>,
}

impl Outbox {
    fn mailbox(&mut self, api_server: u16) -> &mut Mailbox {
        let index = self.mailboxes.iter().position(|mailbox| mailbox.api_server == api_server);
        let index = index.unwrap_or_else(|| {
            self.mailboxes.push(Mailbox { api_server, ..Default::default() });
            self.mailboxes.len() - 1
        });
        &mut self.mailboxes[index]
    }

    /// Sends the tokens that were not sent yet, if there is a reason: the first token, a full interval, the end.
    pub fn report(&mut self, sequence: &mut Sequence, finish: Option<FinishReason>) {
        let unreported = sequence.generated() - sequence.reported;
        let due = unreported >= sequence.stream_interval || (!sequence.announced && unreported > 0);
        if !due && finish.is_none() {
            return;
        }
        let start = (sequence.prompt_len + sequence.reported) as usize;
        let delta = TokenDelta {
            key: sequence.key,
            position: sequence.reported,
            tokens: sequence.tokens[start..].to_vec(),
            logprobs: std::mem::take(&mut sequence.logprobs),
            cached_prompt_tokens: if sequence.announced { None } else { sequence.cached_prompt_tokens },
            finish,
        };
        sequence.announced = true;
        sequence.reported += unreported;
        self.mailbox(delta.key.request.api_server()).deltas.push(delta);
    }

    pub fn refuse(&mut self, key: SequenceKey, refusal: Refusal) {
        self.mailbox(key.request.api_server()).refused.push((key, refusal));
    }

    /// Forgets what waits for an incarnation that is gone.
    pub fn void(&mut self, api_server: u16, is_void: impl Fn(SequenceKey) -> bool) {
        let mailbox = self.mailbox(api_server);
        mailbox.deltas.retain(|delta| !is_void(delta.key));
        mailbox.refused.retain(|(key, _)| !is_void(*key));
    }

    pub fn drain(&mut self, mut send: impl FnMut(u16, FromScheduler)) {
        for mailbox in &mut self.mailboxes {
            for (key, refusal) in mailbox.refused.drain(..) {
                send(mailbox.api_server, FromScheduler::Refused { key, refusal });
            }
            if !mailbox.deltas.is_empty() {
                let room = mailbox.deltas.len();
                let deltas = std::mem::replace(&mut mailbox.deltas, Vec::with_capacity(room));
                send(mailbox.api_server, FromScheduler::Tokens(deltas));
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.mailboxes.iter().all(|mailbox| mailbox.deltas.is_empty() && mailbox.refused.is_empty())
    }
}
