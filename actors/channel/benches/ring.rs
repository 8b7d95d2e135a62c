//! The ring against what it replaces: ipc-channel and a Unix stream socket.
//!
//! Two figures: a round trip of one message through an echoing thread (latency; the ring both spinning and sleeping; with the
//! threads where the system puts them, and apart, with a core each, which is what spinning is for), and a one-way stream
//! (messages/s, bytes/s). Threads instead of processes: the same futexes, sockets and cache
//! lines, without the noise of starting processes.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gossamer_channel::ring::{self, RingSpec};
use gossamer_channel::{Receiver, Sender, Spin};
use ipc_channel::ipc::{self, IpcBytesReceiver, IpcBytesSender};
use rustix::thread::{CpuSet, sched_setaffinity};

const LONG: Duration = Duration::from_secs(20);
const SIZES: [usize; 3] = [64, 1024, 65536];
/// What `Spin::auto` does where cores can be spared.
const SPINNING: Spin = Spin::for_at_most(Duration::from_micros(20));

/// One direction of a transport: sends and receives whole messages.
trait Tx: Send + 'static {
    fn put(&mut self, bytes: &[u8]);
}
trait Rx: Send + 'static {
    /// Returns the length, or `None` when the sender is gone.
    fn get(&mut self) -> Option<usize>;
}

impl Tx for Sender {
    fn put(&mut self, bytes: &[u8]) {
        self.send(bytes, LONG).expect("send");
    }
}
impl Rx for Receiver {
    fn get(&mut self) -> Option<usize> {
        self.recv_with(LONG, <[u8]>::len).ok()
    }
}

impl Tx for IpcBytesSender {
    fn put(&mut self, bytes: &[u8]) {
        self.send(bytes).expect("send");
    }
}
impl Rx for IpcBytesReceiver {
    fn get(&mut self) -> Option<usize> {
        self.recv().ok().map(|bytes| bytes.len())
    }
}

struct Framed(UnixStream, Vec<u8>);
impl Tx for Framed {
    fn put(&mut self, bytes: &[u8]) {
        self.1.clear();
        self.1.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        self.1.extend_from_slice(bytes);
        self.0.write_all(&self.1).expect("write");
    }
}
impl Rx for Framed {
    fn get(&mut self) -> Option<usize> {
        let mut len = [0; 8];
        self.0.read_exact(&mut len).ok()?;
        let len = u64::from_le_bytes(len) as usize;
        self.1.resize(len, 0);
        self.0.read_exact(&mut self.1).ok()?;
        Some(len)
    }
}

fn ring_pair(spin: Spin) -> (Box<dyn Tx>, Box<dyn Rx>) {
    let spec = RingSpec { label: "bench", slot_size: 256, slots: 4096, readers: 1, epoch: 0 };
    let segment = Arc::new(ring::create(&spec).expect("ring"));
    segment.unlink();
    let sender = Sender::attach(Arc::clone(&segment), spin).expect("sender");
    (Box::new(sender), Box::new(Receiver::attach(segment, 0, spin).expect("receiver")))
}

fn ipc_pair() -> (Box<dyn Tx>, Box<dyn Rx>) {
    let (sender, receiver) = ipc::bytes_channel().expect("ipc");
    (Box::new(sender), Box::new(receiver))
}

fn socket_pair() -> (Box<dyn Tx>, Box<dyn Rx>) {
    let (one, two) = UnixStream::pair().expect("socket pair");
    (Box::new(Framed(one, Vec::new())), Box::new(Framed(two, Vec::new())))
}

type Pair = fn() -> (Box<dyn Tx>, Box<dyn Rx>);
const TRANSPORTS: [(&str, Pair); 4] = [
    ("ring-spinning", || ring_pair(SPINNING)),
    ("ring-sleeping", || ring_pair(Spin::NONE)),
    ("ipc-channel", ipc_pair),
    ("unix-socket", socket_pair),
];

/// Keeps this thread on one core, or lets it go where it will.
fn pin(core: Option<usize>) {
    let mut cores = CpuSet::new();
    match core {
        Some(core) => cores.set(core),
        None => (0..CpuSet::MAX_CPU).for_each(|core| cores.set(core)),
    }
    // A machine without that core measures the threads where they are.
    let _ = sched_setaffinity(None, &cores);
}

fn round_trip(c: &mut Criterion) {
    for (name, cores) in [("round-trip", [None, None]), ("round-trip-apart", [Some(0), Some(1)])] {
        round_trip_on(c, name, cores);
    }
    pin(None);
}

fn round_trip_on(c: &mut Criterion, group: &str, [near, far]: [Option<usize>; 2]) {
    let mut group = c.benchmark_group(group);
    pin(near);
    for size in SIZES {
        let message = vec![7_u8; size];
        for (name, pair) in TRANSPORTS {
            let ((mut there, mut far_rx), (mut far_tx, mut back)) = (pair(), pair());
            let echo = thread::spawn(move || {
                pin(far);
                let reply = vec![7_u8; size];
                while far_rx.get().is_some() {
                    far_tx.put(&reply);
                }
            });
            group.bench_function(BenchmarkId::new(name, size), |b| {
                b.iter(|| {
                    there.put(&message);
                    assert_eq!(back.get(), Some(size));
                });
            });
            drop(there);
            echo.join().expect("echo");
        }
    }
    group.finish();
}

fn stream(c: &mut Criterion) {
    let mut group = c.benchmark_group("stream");
    for size in SIZES {
        let message = vec![7_u8; size];
        group.throughput(Throughput::Bytes(size as u64));
        for (name, pair) in TRANSPORTS {
            group.bench_function(BenchmarkId::new(name, size), |b| {
                b.iter_custom(|messages| {
                    let (mut tx, mut rx) = pair();
                    let message = message.clone();
                    let start = Instant::now();
                    let sending = thread::spawn(move || {
                        for _ in 0..messages {
                            tx.put(&message);
                        }
                    });
                    for _ in 0..messages {
                        assert_eq!(rx.get(), Some(size));
                    }
                    let took = start.elapsed();
                    sending.join().expect("sender");
                    took
                });
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = round_trip, stream
}
criterion_main!(benches);
