//! Starting a tree under test, talking to it, and watching its processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use gossamer_config::{Device, ServeArgs, ServeConfig};
use gossamer_supervisor::{BoardSpec, ServeOptions, serve as serve_tree};

pub const LONG: Duration = Duration::from_secs(20);

/// The supervisor of a tree under test: `serve PORT API_SERVERS MAX_RESTARTS STALL_MS GRACE_MS MODEL_DIR`.
pub fn serve(arguments: &[String]) -> ExitCode {
    let number = |at: usize| arguments[at].parse::<u64>().unwrap();
    let mut args = ServeArgs::default();
    args.port = Some(number(0) as u16);
    args.api_server_count = Some(number(1) as u16);
    args.max_restarts = Some(number(2) as u32);
    args.stall_timeout = Some(Duration::from_millis(number(3)));
    args.shutdown_timeout = Some(Duration::from_millis(number(4)));
    args.model = Some(PathBuf::from(&arguments[5]));
    let config = ServeConfig::from_args(args, "/nonexistent".as_ref(), |_| Device::Cpu).unwrap();
    let mut options = ServeOptions::new(config);
    options.board = Some(BoardSpec { words: 8, layout: 1, replaced: 4 });
    options.on_listening = Box::new(|address| println!("listening {address}"));
    options.on_ready = Box::new(|| println!("ready"));
    match serve_tree(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// How a tree is to be.
#[derive(Clone)]
pub struct Shape {
    pub port: u16,
    pub api_servers: u16,
    pub max_restarts: u32,
    pub stall: Duration,
    pub grace: Duration,
    pub worker: &'static str,
}

impl Default for Shape {
    fn default() -> Self {
        Self { port: 0, api_servers: 1, max_restarts: 10, stall: LONG, grace: LONG, worker: "" }
    }
}

/// A tree under test. Dropping it kills its supervisor.
pub struct Tree {
    pub supervisor: Child,
    pub address: String,
    lines: BufReader<std::process::ChildStdout>,
    pub folder: tempfile::TempDir,
}

impl Shape {
    pub fn command(&self, folder: &Path) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("serve").arg(self.port.to_string()).arg(self.api_servers.to_string());
        command.arg(self.max_restarts.to_string()).arg(self.stall.as_millis().to_string());
        command.arg(self.grace.as_millis().to_string()).arg(folder);
        command.env("GOSSAMER_TEST_WORKER", self.worker).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts a tree and waits until it listens.
    pub fn listening(&self) -> Tree {
        let folder = tempfile::tempdir().unwrap();
        let mut supervisor = self.command(folder.path()).spawn().unwrap();
        let mut lines = BufReader::new(supervisor.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening ").unwrap_or_else(|| panic!("got {line:?}"));
        Tree { supervisor, address: address.to_owned(), lines, folder }
    }

    /// Starts a tree and waits until it is ready.
    pub fn ready(&self) -> Tree {
        let mut tree = self.listening();
        let mut line = String::new();
        tree.lines.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        tree
    }
}

impl Tree {
    /// Sends a line; the answer is read from what is returned.
    pub fn send(&self, line: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(format!("{line}\n").as_bytes()).unwrap();
        stream
    }

    pub fn ask(&self, line: &str) -> String {
        read(self.send(line))
    }

    /// A file name that holds a line up until the file is made.
    pub fn hold(&self) -> (String, PathBuf) {
        let path = self.folder.path().join("go");
        (format!("hold={}", path.display()), path)
    }

    pub fn signal(&self, signal: i32) {
        send_signal(self.supervisor.id(), signal);
    }

    /// Waits for the supervisor's end; its exit status and what it wrote to standard error.
    pub fn end(&mut self) -> (ExitStatus, String) {
        let status = eventually("the supervisor's end", || self.supervisor.try_wait().unwrap());
        let mut text = String::new();
        self.supervisor.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (status, text)
    }

    /// Process numbers of the supervisor's children.
    pub fn children(&self) -> Vec<u32> {
        children_of(self.supervisor.id())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
    }
}

pub fn read(stream: TcpStream) -> String {
    let mut line = String::new();
    // A broken connection reads as no answer.
    let _ = BufReader::new(stream).read_line(&mut line);
    line.trim_end().to_owned()
}

/// The number behind `name=` in an answer.
pub fn pid(answer: &str, name: &str) -> u32 {
    let word = answer.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    word.and_then(|pid| pid.parse().ok()).unwrap_or_else(|| panic!("no {name} in {answer:?}"))
}

pub fn send_signal(pid: u32, signal: i32) {
    // SAFETY: a plain system call; the number is that of a process this test started.
    let sent = unsafe { libc::kill(pid as i32, signal) };
    assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
}

/// A zombie counts as gone: its parent is the test's init, which may be slow.
pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn children_of(parent: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
        if fields.get(1).and_then(|field| field.parse().ok()) == Some(parent) && is_alive(pid) {
            found.push(pid);
        }
    }
    found
}

/// Segments in /dev/shm that one of these processes made.
pub fn segments(owners: &[u32]) -> Vec<String> {
    owned("/dev/shm".as_ref(), owners)
}

/// Folders of control sockets that one of these processes made.
pub fn socket_folders(owners: &[u32]) -> Vec<String> {
    owned(&std::env::temp_dir(), owners)
}

fn owned(folder: &Path, owners: &[u32]) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| owners.iter().any(|pid| name.starts_with(&format!("gossamer-{pid}-")))).collect()
}

/// Looks until there is something to see.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(start.elapsed() < LONG, "waited {LONG:?} for {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}
