//! Any bytes in a ring's payload, its control words included: the reader answers with messages or errors.
#![no_main]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gossamer_channel::ring::{self, RingSpec};
use gossamer_channel::{Receiver, RecvError, Spin};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, data)) = data.split_first() else { return };
    let spec = RingSpec { label: "fuzz", slot_size: 64, slots: 8, readers: 2, epoch: 0 };
    let segment = Arc::new(ring::create(&spec).expect("a small segment"));
    segment.unlink();
    // Half of the inputs keep the geometry, so that the rest is looked at, too.
    let first = if kind & 1 == 0 { 3 } else { 0 };
    for (word, bytes) in segment.words()[first..].iter().zip(data.chunks_exact(8)) {
        word.store(u64::from_le_bytes(bytes.try_into().expect("eight bytes")), Ordering::Relaxed);
    }
    let Ok(mut receiver) = Receiver::attach(segment, 0, Spin::NONE) else { return };
    for _ in 0..32 {
        if let Err(RecvError::Corrupt { .. }) = receiver.try_recv() {
            assert!(matches!(receiver.try_recv(), Err(RecvError::Corrupt { .. })));
            return;
        }
    }
});
