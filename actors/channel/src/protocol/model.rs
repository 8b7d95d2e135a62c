//! Loom runs the protocol through its interleavings: a lost wake-up is a deadlock here, and a slot that is read while
//! it is written is a reported race.

use std::sync::atomic::Ordering;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::{Gate, Index, Memory, Patience, advance, wait};

struct Modelled;

struct ModelGate {
    word: AtomicU32,
    /// The kernel's queue: the word is compared and the thread put to sleep under one lock.
    queue: Mutex<()>,
    sleeper: Condvar,
}

impl ModelGate {
    fn new() -> Self {
        Self { word: AtomicU32::new(0), queue: Mutex::new(()), sleeper: Condvar::new() }
    }
}

impl Index for AtomicU64 {
    fn publish(&self, position: u64) {
        self.store(position, Ordering::Release);
    }
}

impl Gate for ModelGate {
    fn arm(&self) {
        self.word.swap(1, Ordering::AcqRel);
    }
    fn is_armed(&self) -> bool {
        self.word.load(Ordering::Relaxed) != 0
    }
    fn disarm(&self) -> bool {
        self.word.swap(0, Ordering::AcqRel) != 0
    }
    fn sleep(&self, _at_most: Option<Duration>) {
        let queue = self.queue.lock().unwrap();
        if self.word.load(Ordering::Relaxed) == 1 {
            drop(self.sleeper.wait(queue).unwrap());
        }
    }
    fn wake(&self) {
        let queue = self.queue.lock().unwrap();
        self.sleeper.notify_one();
        drop(queue);
    }
}

impl Memory for Modelled {
    type Index = AtomicU64;
    type Gate = ModelGate;
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// Sleeps at once and for ever: a missing wake-up cannot hide behind a timeout.
struct Endless;

impl Patience for Endless {
    fn spin(&mut self) -> bool {
        false
    }
    fn left(&self) -> Option<Duration> {
        None
    }
}

struct Ring {
    tail: AtomicU64,
    heads: Vec<AtomicU64>,
    data: Vec<ModelGate>,
    space: ModelGate,
    slots: Vec<UnsafeCell<u64>>,
}

impl Ring {
    fn new(slots: usize, readers: usize) -> Self {
        Self {
            tail: AtomicU64::new(0),
            heads: (0..readers).map(|_| AtomicU64::new(0)).collect(),
            data: (0..readers).map(|_| ModelGate::new()).collect(),
            space: ModelGate::new(),
            slots: (0..slots).map(|_| UnsafeCell::new(0)).collect(),
        }
    }

    fn send(&self, position: u64) {
        let slots = self.slots.len() as u64;
        wait::<Modelled, _>(&self.space, &mut Endless, || {
            let slowest = self.heads.iter().map(|head| head.load(Ordering::Acquire)).min().unwrap();
            (position - slowest < slots).then_some(())
        });
        // SAFETY: the position is free: loom itself reports a race if it is not.
        self.slots[(position % slots) as usize].with_mut(|slot| unsafe { *slot = position + 100 });
        advance::<Modelled>(&self.tail, position + 1, self.data.iter());
    }

    fn receive(&self, reader: usize, position: u64) -> u64 {
        wait::<Modelled, _>(&self.data[reader], &mut Endless, || {
            (self.tail.load(Ordering::Acquire) > position).then_some(())
        });
        let slot = (position % self.slots.len() as u64) as usize;
        // SAFETY: the position is published: loom itself reports a race if it is not.
        let value = self.slots[slot].with(|slot| unsafe { *slot });
        advance::<Modelled>(&self.heads[reader], position + 1, [&self.space]);
        value
    }
}

fn explore(slots: usize, readers: usize, messages: u64, preemptions: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(move || {
        let ring = Arc::new(Ring::new(slots, readers));
        let threads: Vec<_> = (0..readers)
            .map(|reader| {
                let ring = Arc::clone(&ring);
                thread::spawn(move || {
                    for position in 0..messages {
                        assert_eq!(ring.receive(reader, position), position + 100);
                    }
                })
            })
            .collect();
        for position in 0..messages {
            ring.send(position);
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn one_slot_makes_both_sides_sleep_and_none_stays_asleep() {
    explore(1, 1, 3, 3);
}

#[test]
fn two_slots_carry_three_messages_in_order() {
    explore(2, 1, 4, 3);
}

#[test]
fn a_broadcast_waits_for_the_slowest_reader() {
    explore(1, 2, 2, 2);
}
