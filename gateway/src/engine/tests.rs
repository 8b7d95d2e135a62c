use super::*;
use gossamer_wire::{AbortReason, FinishReason, Refusal, SamplingParams, SequenceKey, StopRules, TokenDelta};

#[derive(Default)]
struct Recorder {
    sent: Mutex<Vec<ToScheduler>>,
}

impl SchedulerLink for Recorder {
    fn send(&self, message: &ToScheduler) -> Result<(), LinkError> {
        lock(&self.sent).push(message.clone());
        Ok(())
    }
}

impl Recorder {
    fn take(&self) -> Vec<ToScheduler> {
        std::mem::take(&mut lock(&self.sent))
    }

    fn submitted(&self) -> Vec<Submit> {
        let submits = self.take().into_iter().filter_map(|message| match message {
            ToScheduler::Submit(submit) => Some(*submit),
            _ => None,
        });
        submits.collect()
    }
}

fn template(prompt: &[u32]) -> Submit {
    Submit {
        key: SequenceKey { request: RequestId(0), choice: 0 },
        prompt: prompt.to_vec(),
        generated: Vec::new(),
        sampling: SamplingParams::default(),
        stop: StopRules { max_tokens: 8, min_tokens: 0, stop_token_ids: Vec::new() },
        stream_interval: 1,
        priority: 0,
        tenant: 0,
        cache_salt: 0,
        deadline_unix_ms: None,
    }
}

fn tokens(key: SequenceKey, position: u32, tokens: &[u32], finish: Option<FinishReason>) -> FromScheduler {
    FromScheduler::Tokens(vec![TokenDelta {
        key,
        position,
        tokens: tokens.to_vec(),
        logprobs: Vec::new(),
        cached_prompt_tokens: None,
        finish,
    }])
}

fn attached() -> (Engine, Arc<Recorder>) {
    let engine = Engine::new(3, 1);
    let recorder = Arc::new(Recorder::default());
    engine.attach(recorder.clone()).unwrap();
    assert_eq!(recorder.take(), [ToScheduler::Hello { api_server: 3, epoch: 1 }]);
    (engine, recorder)
}

/// Reads what is there: joined tokens and whether the sequence ended.
fn read(ticket: &mut Ticket) -> (Vec<u32>, Option<FinishReason>) {
    let (mut joined, mut finish) = (Vec::new(), None);
    while let Ok(event) = ticket.events.try_recv() {
        match event {
            Event::Tokens { delta, .. } => {
                joined.extend(delta.tokens);
                finish = finish.or(delta.finish);
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    (joined, finish)
}

#[test]
fn replayed_positions_are_handed_out_once() {
    let (engine, recorder) = attached();
    let mut ticket = engine.submit(vec![(template(&[1]), 1)]).unwrap();
    let key = recorder.submitted()[0].key;
    engine.deliver(tokens(key, 0, &[10, 11], None));
    engine.deliver(tokens(key, 0, &[10, 11], None));
    engine.deliver(tokens(key, 1, &[11, 12], None));
    engine.deliver(tokens(key, 2, &[12], Some(FinishReason::Stop)));
    assert_eq!(read(&mut ticket), (vec![10, 11, 12], Some(FinishReason::Stop)));
    assert_eq!(engine.open_requests(), 0);
    drop(ticket);
    assert_eq!(recorder.take(), [], "nothing is aborted after the end");
}

#[test]
fn a_gap_in_the_positions_is_an_error() {
    let (engine, recorder) = attached();
    let mut ticket = engine.submit(vec![(template(&[1]), 1)]).unwrap();
    let key = recorder.submitted()[0].key;
    engine.deliver(tokens(key, 1, &[11], None));
    let (joined, finish) = read(&mut ticket);
    assert!(joined.is_empty());
    assert!(matches!(finish, Some(FinishReason::Error(message)) if message.contains("position 0, got 1")));
}

#[test]
fn a_new_scheduler_is_refilled_from_the_log() {
    let (engine, recorder) = attached();
    let mut ticket = engine.submit(vec![(template(&[1, 2]), 2), (template(&[3]), 1)]).unwrap();
    let keys: Vec<_> = recorder.submitted().into_iter().map(|submit| submit.key).collect();
    assert_eq!(keys.iter().map(|key| key.choice).collect::<Vec<_>>(), [0, 1, 0]);
    engine.deliver(tokens(keys[0], 0, &[10, 11], None));
    engine.deliver(tokens(keys[1], 0, &[20], Some(FinishReason::Stop)));
    engine.detach();
    let successor = Arc::new(Recorder::default());
    engine.attach(successor.clone()).unwrap();
    let mut again = successor.submitted();
    again.sort_by_key(|submit| submit.key);
    let found: Vec<_> = again.iter().map(|submit| (submit.key, &submit.generated[..])).collect();
    assert_eq!(found, [(keys[0], &[10, 11][..]), (keys[2], &[][..])]);
    assert_eq!(read(&mut ticket).0, [10, 11, 20]);
}

#[test]
fn dropping_the_ticket_aborts_what_still_runs() {
    let (engine, recorder) = attached();
    let ticket = engine.submit(vec![(template(&[1]), 3)]).unwrap();
    let keys: Vec<_> = recorder.submitted().into_iter().map(|submit| submit.key).collect();
    engine.deliver(tokens(keys[0], 0, &[10], Some(FinishReason::Length)));
    ticket.finish(keys[1]);
    drop(ticket);
    assert_eq!(
        recorder.take(),
        [
            ToScheduler::Abort { key: keys[1], reason: AbortReason::StopString },
            ToScheduler::Abort { key: keys[2], reason: AbortReason::Disconnected },
        ]
    );
    assert_eq!(engine.open_requests(), 0);
    engine.deliver(tokens(keys[2], 0, &[30], None));
}

#[test]
fn refusals_and_failures_reach_the_request() {
    let (engine, recorder) = attached();
    let mut ticket = engine.submit(vec![(template(&[1]), 1)]).unwrap();
    let key = recorder.submitted()[0].key;
    engine.deliver(FromScheduler::Refused { key, refusal: Refusal::Draining });
    assert!(matches!(ticket.events.try_recv(), Ok(Event::Refused { refusal: Refusal::Draining, .. })));
    let mut ticket = engine.submit(vec![(template(&[1]), 1)]).unwrap();
    engine.fail("workers died");
    assert!(matches!(ticket.events.try_recv(), Ok(Event::Failed { message }) if message == "workers died"));
    assert_eq!(engine.state(), EngineState::Failed("workers died".into()));
    // One that was let in just before would wait for ever.
    assert!(matches!(engine.submit(vec![(template(&[1]), 1)]), Err(LinkError::Closed)));
}

#[test]
fn without_a_scheduler_nothing_is_taken() {
    let engine = Engine::new(0, 0);
    assert!(matches!(engine.submit(vec![(template(&[1]), 1)]), Err(LinkError::Closed)));
    assert_eq!(engine.open_requests(), 0);
}

#[test]
fn a_client_that_does_not_read_loses_its_request_and_nobody_else() {
    let engine = Engine::new(0, 1);
    let recorder = Arc::new(Recorder::default());
    engine.attach(recorder.clone()).unwrap();
    let mut deaf = engine.submit(vec![(template(&[1]), 2)]).unwrap();
    let mut other = engine.submit(vec![(template(&[2]), 1)]).unwrap();
    let keys: Vec<SequenceKey> = recorder.submitted().iter().map(|submit| submit.key).collect();
    let most = registry::MOST_UNREAD as u32;
    for position in 0..most {
        engine.deliver(tokens(keys[0], position, &[7], None));
    }
    assert!(recorder.take().is_empty(), "up to here it may be slow");
    engine.deliver(tokens(keys[0], most, &[7], None));
    let aborts: Vec<ToScheduler> = recorder.take();
    let abort = |key| ToScheduler::Abort { key, reason: AbortReason::Disconnected };
    assert_eq!(aborts, [abort(keys[0]), abort(keys[1])]);
    for _ in 0..most {
        assert!(matches!(deaf.events.try_recv(), Ok(Event::Tokens { .. })));
    }
    assert!(matches!(deaf.events.try_recv(), Ok(Event::Failed { message }) if message.contains("unread")));
    engine.deliver(tokens(keys[2], 0, &[9], None));
    assert!(matches!(other.events.try_recv(), Ok(Event::Tokens { .. })));
}
