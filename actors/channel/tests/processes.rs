//! Rings and segments between real processes. The other process is this test binary again, running [`other_process`].

// The helpers stand outside of `#[test]` functions, where the workspace would have them not panic.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gossamer_channel::control::{ControlServer, HandshakeError, connect};
use gossamer_channel::ring::{self, RingSpec};
use gossamer_channel::{CreateError, OpenError, Receiver, RecvError, Segment, SegmentSpec, Sender, Spin};

const LONG: Duration = Duration::from_secs(20);
const PART: &str = "GOSSAMER_TEST_PART";
const ARGUMENT: &str = "GOSSAMER_TEST_ARGUMENT";

/// What the other process does; run by name, never by the ordinary test run.
#[test]
#[ignore = "the other process of the tests below"]
fn other_process() {
    let argument = std::env::var(ARGUMENT).unwrap_or_default();
    match std::env::var(PART).expect("a part").as_str() {
        "echo" => {
            let (mut receiver, mut sender) = ends(&argument);
            while let Ok(bytes) = receiver.recv(LONG) {
                sender.send(&bytes, LONG).unwrap();
            }
        }
        "hang" => {
            let (receiver, sender) = ends(&argument);
            say("attached");
            std::thread::park_timeout(LONG);
            drop((receiver, sender));
        }
        "own-segment" => {
            let spec = SegmentSpec { label: "stale", bytes: 100, layout: 1, epoch: 0 };
            let segment = Segment::create(&spec).unwrap();
            say(segment.name());
            std::thread::park_timeout(LONG);
        }
        "connect" => {
            let link = connect::<String, String>(&argument, 1, LONG).unwrap();
            let question = link.receiver.recv(LONG).unwrap();
            link.sender.send(format!("{question} yes")).unwrap();
        }
        "connect-refused" => match connect::<String, String>(&argument, 1, LONG) {
            Err(HandshakeError::Version { .. }) => say("refused"),
            other => panic!("expected a refusal, got {other:?}"),
        },
        part => panic!("no such part: {part}"),
    }
}

fn say(line: &str) {
    // On a line of its own, whatever the test harness printed before.
    println!("\n> {line}");
}

fn start(part: &str, argument: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "other_process", "--ignored", "--nocapture", "--test-threads=1"])
        .env(PART, part)
        .env(ARGUMENT, argument)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn hear(child: &mut Child) -> (String, BufReader<ChildStdout>) {
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    loop {
        let mut line = String::new();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "the other process ended without a word");
        if let Some(said) = line.strip_prefix("> ") {
            return (said.trim_end().to_owned(), lines);
        }
    }
}

/// Two rings, named by name or handle, and this side's ends.
fn rings(by_handle: bool) -> (Sender, Receiver, String) {
    let create = |label| {
        let spec = RingSpec { label, slot_size: 256, slots: 16, readers: 1, epoch: 1 };
        let segment = if by_handle { ring::create_unnamed(&spec) } else { ring::create(&spec) };
        Arc::new(segment.unwrap())
    };
    let (there, back) = (create("there"), create("back"));
    let address = |segment: &Segment| {
        if by_handle { segment.handle() } else { segment.name().to_owned() }
    };
    let argument = format!("{} {}", address(&there), address(&back));
    let sender = Sender::attach(there, Spin::NONE).unwrap();
    (sender, Receiver::attach(back, 0, Spin::NONE).unwrap(), argument)
}

/// The other side's ends, which unlinks as attaching sides do.
fn ends(argument: &str) -> (Receiver, Sender) {
    let (there, back) = argument.split_once(' ').unwrap();
    let open = |name| {
        let segment = ring::open(name).unwrap();
        segment.unlink();
        Arc::new(segment)
    };
    let receiver = Receiver::attach(open(there), 0, Spin::NONE).unwrap();
    (receiver, Sender::attach(open(back), Spin::NONE).unwrap())
}

fn echo(by_handle: bool) {
    let (mut sender, mut receiver, argument) = rings(by_handle);
    let mut child = start("echo", &argument);
    for number in 0..3000_usize {
        let bytes: Vec<u8> = (0..number % 700).map(|i| (i + number) as u8).collect();
        sender.send(&bytes, LONG).unwrap();
        assert_eq!(receiver.recv(LONG).unwrap(), bytes, "message {number}");
    }
    for name in argument.split(' ').filter(|name| !name.starts_with('/')) {
        assert!(!exists(name), "{name} is still linked after both sides attached");
    }
    drop(sender);
    assert!(child.wait().unwrap().success());
    assert_eq!(receiver.recv(LONG), Err(RecvError::Closed));
}

fn exists(name: &str) -> bool {
    std::path::Path::new("/dev/shm").join(name).exists()
}

#[test]
fn messages_go_there_and_back_by_name_and_the_names_are_gone() {
    echo(false);
}

#[test]
fn messages_go_there_and_back_by_handle_without_any_name() {
    echo(true);
}

#[test]
fn a_killed_peer_ends_the_waits_as_soon_as_the_ring_is_closed_for_it() {
    let (mut sender, mut receiver, argument) = rings(true);
    let mut child = start("hang", &argument);
    let _lines = hear(&mut child);
    let (there, back) = (Arc::clone(sender.segment()), Arc::clone(receiver.segment()));
    let reading = std::thread::spawn(move || receiver.recv(Duration::MAX));
    let writing = std::thread::spawn(move || {
        loop {
            if let Err(error) = sender.send(&[0; 1000], Duration::MAX) {
                return error;
            }
        }
    });
    child.kill().unwrap();
    child.wait().unwrap();
    ring::close(&there);
    ring::close(&back);
    assert_eq!(reading.join().unwrap(), Err(RecvError::Closed));
    assert_eq!(writing.join().unwrap(), gossamer_channel::SendError::Closed);
}

#[test]
fn the_sweep_takes_what_a_killed_owner_left_and_nothing_else() {
    let mine = Segment::create(&SegmentSpec { label: "mine", bytes: 64, layout: 1, epoch: 0 }).unwrap();
    let mut child = start("own-segment", "");
    let (name, _lines) = hear(&mut child);
    gossamer_channel::sweep_stale().unwrap();
    assert!(exists(&name), "the sweep took a living process' segment");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(exists(&name), "a killed owner cannot have unlinked {name}");
    // Another test's sweep may be the one that takes it.
    gossamer_channel::sweep_stale().unwrap();
    assert!(!exists(&name), "{name} survived the sweep");
    assert!(exists(mine.name()));
    let name = mine.name().to_owned();
    drop(mine);
    assert!(!exists(&name), "a dropped segment leaves its name behind");
}

#[test]
fn a_dev_shm_that_is_too_small_is_an_error_with_the_size() {
    let free = rustix::fs::statvfs("/dev/shm").map(|s| s.f_bavail * s.f_frsize).unwrap();
    let spec = SegmentSpec { label: "huge", bytes: free as usize + (1 << 30), layout: 1, epoch: 0 };
    for error in [Segment::create(&spec), Segment::create_unnamed(&spec)].map(Result::unwrap_err) {
        let CreateError::NoSpace { needed, .. } = error else { panic!("expected NoSpace, got {error}") };
        assert!(needed > free, "{error}");
        assert!(error.to_string().contains(&format!("expected {needed} free bytes in /dev/shm")), "{error}");
    }
    let left = std::fs::read_dir("/dev/shm").unwrap().flatten();
    let left: Vec<_> = left.filter(|e| e.file_name().to_string_lossy().ends_with("-huge")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn every_damaged_stamp_is_refused_with_what_was_found() {
    let check = |offset: u64, bytes: &[u8], expected: &str| {
        let spec = SegmentSpec { label: "stamp", bytes: 64, layout: 5, epoch: 9 };
        let segment = Segment::create(&spec).unwrap();
        assert_eq!(Segment::open(segment.name(), 5).unwrap().epoch(), 9);
        let path = format!("/dev/shm/{}", segment.name());
        let file = std::fs::File::options().write(true).open(path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, offset).unwrap();
        for name in [segment.name().to_owned(), segment.handle()] {
            let error = Segment::open(&name, 5).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    };
    check(0, &[0; 8], "expected the magic word");
    check(8, &7_u64.to_le_bytes(), "expected segment version 1");
    check(16, &6_u64.to_le_bytes(), "expected layout 0x5");
    check(32, &4096_u64.to_le_bytes(), "to hold 4096 bytes, got 192");
    for name in ["gossamer-0-0-none", "/proc/self/fd/9999", "../passwd"] {
        let error = Segment::open(name, 5).unwrap_err();
        assert!(matches!(error, OpenError::System { .. }), "{error}");
    }
}

#[test]
fn parent_and_child_shake_hands_and_talk() {
    let server = ControlServer::<String, String>::new(1).unwrap();
    let mut child = start("connect", server.name());
    let link = server.accept(LONG).unwrap();
    assert_eq!(link.peer_pid, Some(child.id()));
    link.sender.send("well?".to_owned()).unwrap();
    assert_eq!(link.receiver.recv(LONG).unwrap(), "well? yes");
    assert!(child.wait().unwrap().success());
    let closed = link.receiver.recv(LONG).unwrap_err().to_string();
    assert_eq!(closed, "the control channel is closed");
}

#[test]
fn another_version_is_refused_on_both_sides() {
    let server = ControlServer::<String, String>::new(77).unwrap();
    let mut child = start("connect-refused", server.name());
    let error = server.accept(LONG).unwrap_err();
    assert!(matches!(error, HandshakeError::Version { ours: 77, theirs: 1 }), "{error}");
    let (said, _lines) = hear(&mut child);
    assert_eq!(said, "refused");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_child_that_never_connects_ends_the_handshake_at_its_deadline() {
    let server = ControlServer::<String, String>::new(1).unwrap();
    let start = Instant::now();
    let patience = Duration::from_millis(50);
    let error = server.accept(patience).unwrap_err();
    assert!(matches!(error, HandshakeError::Deadline(_)), "{error}");
    assert!(start.elapsed() >= patience && start.elapsed() < LONG);
}
