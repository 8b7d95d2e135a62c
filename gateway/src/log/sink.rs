//! Where log lines go: stderr, whatever has become of it.
//!
//! What this refuses to do: it never fails and never blocks for long. A process that serves requests must not die or stall
//! because nobody reads what it says: a closed pipe takes nothing, a full disk takes nothing, a full pipe takes nothing until
//! it is read again. What was not taken is counted, and said once there is room.
//!
//! Invariant: after a line has waited in vain, no line waits until one was taken again.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FileType, Mode, OFlags},
    io::Errno,
    net::SendFlags,
};
use std::{
    io::{self, IsTerminal, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Mutex, PoisonError},
};
use tracing_subscriber::fmt::MakeWriter;

/// How long a line may wait for a reader that is only slow.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// A pipe that says it has room has room for this much.
const PIECE: usize = 4096;

/// Takes lines.
pub struct Sink {
    /// A descriptor of this process alone, so that not waiting is not forced on others who share the pipe.
    file: Option<OwnedFd>,
    stderr: io::Stderr,
    is_socket: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Lines that were not taken since the last one that was.
    dropped: u64,
    /// Whether the last line that was taken lacks its end.
    torn: bool,
}

impl Sink {
    /// Stderr of this process.
    pub fn stderr() -> Self {
        let stderr = io::stderr();
        let kind = rustix::fs::fstat(&stderr).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let waits = match kind {
            Ok(FileType::Fifo) => true,
            Ok(FileType::CharacterDevice) => stderr.is_terminal(),
            _ => false,
        };
        // Opening it anew gives flags of its own. Where that is not allowed (another user's pipe), polling has to do.
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = waits.then(|| rustix::fs::open("/proc/self/fd/2", flags, Mode::empty()).ok()).flatten();
        Self { file, stderr, is_socket: matches!(kind, Ok(FileType::Socket)), state: Mutex::default() }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_ref().map_or_else(|| self.stderr.as_fd(), |file| file.as_fd())
    }

    /// Waits for room, at most `patience`. A file or a device always has some.
    fn has_room(&self, patience: &Timespec) -> bool {
        let mut events = [PollFd::from_borrowed_fd(self.descriptor(), PollFlags::OUT)];
        // An error or a hang-up is told by the write.
        !matches!(poll(&mut events, Some(patience)), Ok(0))
    }

    fn write_once(&self, bytes: &[u8]) -> Result<usize, Errno> {
        if self.is_socket {
            return rustix::net::send(self.descriptor(), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        rustix::io::write(self.descriptor(), &bytes[..bytes.len().min(PIECE)])
    }

    /// Bytes that were taken. `patience` is zero once a wait was in vain.
    fn write_all(&self, bytes: &[u8], mut patience: Timespec) -> usize {
        let mut taken = 0;
        while taken < bytes.len() {
            if !self.has_room(&patience) {
                break;
            }
            match self.write_once(&bytes[taken..]) {
                Ok(0) => break,
                Ok(count) => taken += count,
                Err(Errno::INTR) => {}
                // Another process was faster.
                Err(Errno::AGAIN) if patience != Timespec::default() => patience = Timespec::default(),
                Err(_) => break,
            }
        }
        taken
    }

    fn take(&self, line: &[u8]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let patience = if state.dropped == 0 { PATIENCE } else { Timespec::default() };
        let mut text = Vec::new();
        if state.torn {
            text.push(b'\n');
        }
        if state.dropped > 0 {
            text.extend_from_slice(format!("({} log lines were not taken)\n", state.dropped).as_bytes());
        }
        let before = text.len();
        text.extend_from_slice(line);
        match self.write_all(&text, patience) {
            0 => state.dropped += 1,
            taken if taken < text.len() => {
                state.torn = true;
                state.dropped = if taken < before { state.dropped + 1 } else { 1 };
            }
            _ => *state = State::default(),
        }
    }
}

/// A line at a time: the subscriber writes each event whole.
impl Write for &Sink {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.take(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = &'a Sink;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Read, time::Instant};

    fn over(file: OwnedFd, is_socket: bool) -> Sink {
        Sink { file: Some(file), stderr: io::stderr(), is_socket, state: Mutex::default() }
    }

    fn pipe() -> (std::fs::File, Sink) {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        (reader.into(), over(writer, false))
    }

    #[test]
    fn a_full_pipe_delays_one_line_drops_the_rest_and_says_how_many() {
        let (mut reader, sink) = pipe();
        let line = [&[b'x'; 99][..], b"\n"].concat();
        let start = Instant::now();
        for _ in 0..10_000 {
            sink.take(&line);
        }
        assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
        let dropped = sink.state.lock().unwrap().dropped;
        assert!(dropped > 1000, "{dropped}");
        let mut said = vec![0; 1 << 20];
        let mut read = |said: &mut [u8]| {
            let mut length = 0;
            while let Ok(count @ 1..) = reader.read(&mut said[length..]) {
                length += count;
            }
            String::from_utf8(said[..length].to_vec()).unwrap()
        };
        let before = read(&mut said);
        assert_eq!(before.lines().count() as u64 + dropped, 10_000);
        sink.take(b"again\n");
        sink.take(b"and again\n");
        assert_eq!(read(&mut said), format!("({dropped} log lines were not taken)\nagain\nand again\n"));
    }

    #[test]
    fn a_line_that_was_cut_off_does_not_run_into_the_next() {
        let (mut reader, sink) = pipe();
        let line = vec![b'x'; 1 << 20];
        sink.take(&line);
        assert!(sink.state.lock().unwrap().torn);
        let mut said = vec![0; 1 << 20];
        while reader.read(&mut said).is_ok_and(|count| count > 0) {}
        sink.take(b"next\n");
        let count = reader.read(&mut said).unwrap();
        assert_eq!(&said[..count], b"\n(1 log lines were not taken)\nnext\n");
    }

    #[test]
    fn closed_pipes_full_disks_and_stuck_sockets_take_nothing_and_stop_nobody() {
        let (reader, sink) = pipe();
        drop(reader);
        sink.take(b"nobody\n");
        assert_eq!(sink.state.lock().unwrap().dropped, 1);

        let full = rustix::fs::open("/dev/full", OFlags::WRONLY, Mode::empty()).unwrap();
        let sink = over(full, false);
        sink.take(b"nobody\n");
        assert_eq!(sink.state.lock().unwrap().dropped, 1);

        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let sink = over(ours.into(), true);
        for _ in 0..10_000 {
            sink.take(&[b'x'; 1000]);
        }
        assert!(sink.state.lock().unwrap().dropped > 0);
        drop(theirs);
        sink.take(b"nobody\n");
    }
}
