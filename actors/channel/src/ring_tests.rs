//! The ring in one process: against a model, and with every kind of damage.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::ring::{self, RingSpec, View};
use crate::{AttachError, Bridge, Receiver, RecvError, Segment, SendError, Sender, Spin};

const LONG: Duration = Duration::from_secs(20);

fn segment(slot_size: usize, slots: usize, readers: usize) -> Arc<Segment> {
    let segment =
        ring::create(&RingSpec { label: "test", slot_size, slots, readers, epoch: 3 }).expect("create");
    segment.unlink();
    Arc::new(segment)
}

fn pair(slot_size: usize, slots: usize) -> (Sender, Receiver) {
    let segment = segment(slot_size, slots, 1);
    let sender = Sender::attach(Arc::clone(&segment), Spin::NONE).expect("sender");
    (sender, Receiver::attach(segment, 0, Spin::NONE).expect("receiver"))
}

fn message(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + number * 13) as u8).collect()
}

#[derive(Debug, Clone)]
enum Step {
    Send(usize),
    Receive(usize),
    Detach(usize),
    Readmit(usize),
}

fn steps(readers: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0usize..300).prop_map(Step::Send),
        8 => (0..readers).prop_map(Step::Receive),
        1 => (0..readers).prop_map(Step::Detach),
        1 => (0..readers).prop_map(Step::Readmit),
    ];
    prop::collection::vec(step, 1..120)
}

/// A message, and the reader's position behind it.
type Unread = (Vec<u8>, u64);

/// Slots that the message takes if it starts at `position` (slots of 64 bytes, 16 of them), skipping included.
fn taken(position: u64, len: usize) -> u64 {
    let slots = (8 + len.div_ceil(8) * 8).div_ceil(64) as u64;
    let to_end = 16 - position % 16;
    if slots > to_end { to_end + slots } else { slots }
}

fn agrees_with_the_model(readers: usize, steps: Vec<Step>) {
    let segment = segment(64, 16, readers);
    let mut sender = Sender::attach(Arc::clone(&segment), Spin::NONE).unwrap();
    let attach = |reader| Receiver::attach(Arc::clone(&segment), reader, Spin::NONE);
    let mut ends: Vec<Option<Receiver>> = (0..readers).map(|reader| attach(reader).ok()).collect();
    // Per reader, while attached: the messages it has not read, each with the position behind it.
    let mut unread: Vec<Option<VecDeque<Unread>>> = vec![Some(VecDeque::new()); readers];
    let mut heads = vec![0u64; readers];
    let mut tail = 0u64;
    for (number, step) in steps.into_iter().enumerate() {
        match step {
            Step::Send(len) => {
                let bytes = message(number, len);
                let need = taken(tail, len);
                let slowest = (0..readers).filter(|&r| unread[r].is_some()).map(|r| heads[r]).min();
                let sent = sender.try_send(&bytes);
                match slowest {
                    None => assert_eq!(sent, Err(SendError::Closed)),
                    Some(slowest) if tail + need > slowest + 16 => {
                        assert_eq!(sent, Err(SendError::Full { behind: tail - slowest }));
                    }
                    Some(_) => {
                        assert_eq!(sent, Ok(()));
                        tail += need;
                        for queue in unread.iter_mut().flatten() {
                            queue.push_back((bytes.clone(), tail));
                        }
                    }
                }
            }
            Step::Receive(reader) => {
                let Some(end) = &mut ends[reader] else { continue };
                let got = end.try_recv();
                match &mut unread[reader] {
                    None => assert_eq!(got, Err(RecvError::Detached)),
                    Some(queue) => match queue.pop_front() {
                        None => assert_eq!(got, Err(RecvError::Timeout)),
                        Some((bytes, behind)) => {
                            assert_eq!(got, Ok(bytes));
                            heads[reader] = behind;
                        }
                    },
                }
            }
            Step::Detach(reader) => {
                sender.detach_reader(reader);
                unread[reader] = None;
            }
            Step::Readmit(reader) => {
                sender.readmit_reader(reader).unwrap();
                ends[reader] = Some(attach(reader).unwrap());
                unread[reader] = Some(VecDeque::new());
                heads[reader] = tail;
            }
        }
    }
    sender.close();
    for (end, queue) in ends.iter_mut().zip(&mut unread) {
        let (Some(end), Some(queue)) = (end, queue) else { continue };
        for (bytes, _) in queue.drain(..) {
            assert_eq!(end.try_recv(), Ok(bytes));
        }
        assert_eq!(end.try_recv(), Err(RecvError::Closed));
    }
}

proptest! {
    #[test]
    fn a_queue_agrees_with_its_model(steps in steps(1)) {
        agrees_with_the_model(1, steps);
    }

    #[test]
    fn a_broadcast_agrees_with_its_model(steps in steps(3)) {
        agrees_with_the_model(3, steps);
    }

    /// The reader's side of the fuzz target: any words at all in the whole payload.
    #[test]
    fn random_words_never_make_more_than_an_error(
        words in prop::collection::vec(prop_oneof![any::<u64>(), 0u64..40, Just(u64::from(u32::MAX))], 0..300),
        keep_geometry in any::<bool>(),
    ) {
        let segment = segment(64, 8, 2);
        for (at, &word) in words.iter().enumerate().skip(if keep_geometry { 3 } else { 0 }) {
            if let Some(place) = segment.words().get(at) {
                place.store(word, Ordering::Relaxed);
            }
        }
        if let Ok(mut receiver) = Receiver::attach(Arc::clone(&segment), 0, Spin::NONE) {
            for _ in 0..20 {
                if let Err(RecvError::Corrupt { .. }) = receiver.try_recv() {
                    let stays = matches!(receiver.try_recv(), Err(RecvError::Corrupt { .. }));
                    prop_assert!(stays, "a damaged ring was read again");
                }
            }
        }
    }
}

#[test]
fn messages_of_every_length_round_the_corner() {
    let (mut sender, mut receiver) = pair(64, 16);
    let max = sender.max_len();
    assert_eq!(max, 8 * 64 - 8);
    for number in 0..2000 {
        let bytes = message(number, number % (max + 1));
        sender.send(&bytes, LONG).unwrap();
        assert_eq!(receiver.recv(LONG).unwrap(), bytes, "message {number}");
    }
    assert_eq!(sender.try_send(&vec![0; max + 1]), Err(SendError::TooLarge { len: max + 1, max }));
}

#[test]
fn a_producer_that_writes_another_length_sends_nothing() {
    let (mut sender, mut receiver) = pair(64, 16);
    for written in [0, 9, 11, 500] {
        let sent = sender.send_with(10, Duration::ZERO, |writer| writer.put(&vec![1; written]));
        assert_eq!(sent, Err(SendError::WrongLength { expected: 10, written }));
    }
    assert_eq!(receiver.try_recv(), Err(RecvError::Timeout));
    sender.try_send(b"fine").unwrap();
    assert_eq!(receiver.try_recv().unwrap(), b"fine");
}

#[test]
fn two_threads_pass_everything_in_order_with_back_pressure() {
    let (mut sender, mut receiver) = pair(64, 8);
    let total = 50_000;
    let writer = std::thread::spawn(move || {
        for number in 0..total {
            sender.send(&message(number, number % 200), LONG).unwrap();
        }
    });
    for number in 0..total {
        let ok = receiver.recv_with(LONG, |bytes| bytes == message(number, number % 200)).unwrap();
        assert!(ok, "message {number}");
    }
    writer.join().unwrap();
    assert_eq!(receiver.recv(LONG), Err(RecvError::Closed));
}

#[test]
fn a_wait_ends_with_its_timeout_and_not_before() {
    let (mut sender, mut receiver) = pair(64, 2);
    let patience = Duration::from_millis(30);
    let start = Instant::now();
    assert_eq!(receiver.recv(patience), Err(RecvError::Timeout));
    assert!(start.elapsed() >= patience);
    sender.send(b"1", patience).unwrap();
    sender.send(b"2", patience).unwrap();
    let start = Instant::now();
    assert_eq!(sender.send(b"3", patience), Err(SendError::Full { behind: 2 }));
    assert!(start.elapsed() >= patience);
}

#[test]
fn closing_for_a_dead_peer_ends_both_sides_waits() {
    let (mut sender, mut receiver) = pair(64, 2);
    let segment = Arc::clone(receiver.segment());
    let reading = std::thread::spawn(move || receiver.recv(Duration::MAX));
    // Also right if the closing comes first: the flag is looked at before each sleep.
    ring::close(&segment);
    assert_eq!(reading.join().unwrap(), Err(RecvError::Closed));
    assert_eq!(sender.send(b"x", Duration::MAX), Err(SendError::Closed));
}

#[test]
fn a_reader_that_closes_frees_a_waiting_writer() {
    let (mut sender, receiver) = pair(64, 2);
    sender.try_send(b"1").unwrap();
    sender.try_send(b"2").unwrap();
    let writing = std::thread::spawn(move || sender.send(b"3", Duration::MAX));
    drop(receiver);
    assert_eq!(writing.join().unwrap(), Err(SendError::Closed));
}

#[test]
fn each_end_is_taken_once() {
    let segment = segment(64, 4, 2);
    let _sender = Sender::attach(Arc::clone(&segment), Spin::NONE).unwrap();
    let _receiver = Receiver::attach(Arc::clone(&segment), 1, Spin::NONE).unwrap();
    let me = std::process::id();
    let again = Sender::attach(Arc::clone(&segment), Spin::NONE).unwrap_err();
    assert!(matches!(again, AttachError::Taken { owner, .. } if owner == me), "{again}");
    let again = Receiver::attach(Arc::clone(&segment), 1, Spin::NONE).unwrap_err();
    assert_eq!(
        again.to_string(),
        format!("expected the reader 1 end of the ring to be free, but process {me} holds it")
    );
    let beyond = Receiver::attach(segment, 2, Spin::NONE).unwrap_err();
    assert!(matches!(beyond, AttachError::NoSuchReader { reader: 2, readers: 2 }), "{beyond}");
}

#[test]
fn a_geometry_that_cannot_be_is_refused() {
    for (slot_size, slots, readers) in [(60, 4, 1), (64, 3, 1), (64, 4, 0), (64, 1, 1), (64, 4, 2000)] {
        let spec = RingSpec { label: "bad", slot_size, slots, readers, epoch: 0 };
        let error = ring::create(&spec).unwrap_err().to_string();
        assert!(
            error.contains(&format!("got {slots} slots of {slot_size} bytes for {readers} readers")),
            "{error}"
        );
    }
    for (word, value) in [(0, 128), (0, 0), (1, 8), (1, u64::MAX), (2, 2), (2, 0)] {
        let segment = segment(64, 4, 1);
        segment.words()[word].store(value, Ordering::Relaxed);
        let error = Receiver::attach(segment, 0, Spin::NONE).unwrap_err();
        assert!(matches!(error, AttachError::Geometry { .. }), "word {word} = {value}: {error}");
    }
}

#[test]
fn positions_that_cannot_be_are_refused_when_attaching() {
    for (head, tail) in [(0, 5), (1, 0), (u64::MAX, u64::MAX), (1 << 62, 1 << 62), (0, u64::MAX)] {
        let segment = segment(64, 4, 1);
        let view = View::new(Arc::clone(&segment)).unwrap();
        view.head(0).store(head, Ordering::Relaxed);
        view.tail().store(tail, Ordering::Relaxed);
        let error = Receiver::attach(Arc::clone(&segment), 0, Spin::NONE).unwrap_err();
        assert!(matches!(error, AttachError::Position { .. }), "{head} {tail}: {error}");
        assert_eq!(Sender::attach(segment, Spin::NONE).is_err(), tail >= 1 << 62);
    }
}

#[test]
fn a_damaged_index_length_or_stamp_is_an_error_that_stays() {
    type Damage = fn(&View);
    let damages: [(&str, Damage); 5] = [
        ("the writer at most a ring ahead", |view| view.tail().store(1000, Ordering::Relaxed)),
        ("the writer at most a ring ahead", |view| view.tail().store(u64::MAX, Ordering::Relaxed)),
        ("a message's stamp", |view| view.slots(0, 1)[0].store(5, Ordering::Relaxed)),
        ("a length of at most half a ring", |view| damage_length(view, 4 * 64)),
        ("a length within the slots written", |view| damage_length(view, 100)),
    ];
    for (expected, damage) in damages {
        let (mut sender, mut receiver) = pair(64, 8);
        sender.try_send(b"whole").unwrap();
        damage(&View::new(Arc::clone(receiver.segment())).unwrap());
        for _ in 0..2 {
            let error = receiver.try_recv().unwrap_err();
            assert!(matches!(&error, RecvError::Corrupt { expected: e, .. } if *e == expected), "{error}");
        }
        assert_eq!(sender.try_send(b"more"), Err(SendError::Closed), "{expected}");
    }
}

fn damage_length(view: &View, len: u64) {
    let word = &view.slots(0, 1)[0];
    let stamp = word.load(Ordering::Relaxed) >> 32 << 32;
    word.store(stamp | len, Ordering::Relaxed);
}

#[test]
fn a_reader_that_lies_about_its_position_is_detached_and_the_others_go_on() {
    let segment = segment(64, 2, 2);
    let view = View::new(Arc::clone(&segment)).unwrap();
    let mut sender = Sender::attach(Arc::clone(&segment), Spin::NONE).unwrap();
    let mut good = Receiver::attach(segment, 1, Spin::NONE).unwrap();
    sender.try_send(b"1").unwrap();
    sender.try_send(b"2").unwrap();
    view.head(0).store(77, Ordering::Relaxed);
    assert_eq!(good.try_recv().unwrap(), b"1");
    let error = sender.try_send(b"3").unwrap_err();
    assert_eq!(error, SendError::BadReader { reader: 0, from: 0, tail: 2, got: 77 });
    assert!(!sender.is_attached(0) && sender.is_attached(1));
    sender.try_send(b"3").unwrap();
    assert_eq!(good.try_recv().unwrap(), b"2");
    assert_eq!(good.try_recv().unwrap(), b"3");
}

#[test]
fn a_detached_reader_wakes_up_and_a_successor_starts_at_the_present() {
    let segment = segment(64, 4, 2);
    let mut sender = Sender::attach(Arc::clone(&segment), Spin::NONE).unwrap();
    let mut old = Receiver::attach(Arc::clone(&segment), 0, Spin::NONE).unwrap();
    let waiting = std::thread::spawn(move || {
        let answer = old.recv(Duration::MAX);
        (old, answer)
    });
    sender.detach_reader(0);
    let (old, answer) = waiting.join().unwrap();
    assert_eq!(answer, Err(RecvError::Detached));
    sender.try_send(b"missed").unwrap();
    sender.readmit_reader(0).unwrap();
    let mut new = Receiver::attach(segment, 0, Spin::NONE).unwrap();
    // The late end of a predecessor closes nothing of its successor's.
    drop(old);
    sender.try_send(b"seen").unwrap();
    assert_eq!(new.try_recv().unwrap(), b"seen");
}

#[test]
fn a_bridge_delivers_in_order_says_why_it_ended_and_ends_when_dropped() {
    let (mut sender, receiver) = pair(64, 4);
    let (inbox, outbox) = std::sync::mpsc::channel();
    let deliver = move |bytes: &[u8]| {
        let _ = inbox.send(bytes.to_vec());
        std::ops::ControlFlow::Continue(())
    };
    let bridge = Bridge::start("bridge", receiver, deliver, |_| {}).unwrap();
    for number in 0..100 {
        sender.send(&message(number, number), LONG).unwrap();
    }
    drop(sender);
    assert_eq!(bridge.join(), RecvError::Closed);
    let got: Vec<Vec<u8>> = outbox.iter().collect();
    assert_eq!(got, (0..100).map(|number| message(number, number)).collect::<Vec<_>>());

    let (mut sender, receiver) = pair(64, 4);
    drop(Bridge::start("bridge", receiver, |_| std::ops::ControlFlow::Continue(()), |_| {}).unwrap());
    assert_eq!(sender.try_send(b"x"), Err(SendError::Closed));
}
