//! Processes of one server: which there are, how they are killed, and what they leave behind.
//!
//! Signals go only to processes that a test's own server started. Listings are restricted to names that carry its process
//! id, since other servers may run on the machine.

use crate::server::{TestServer, binary, children_of, eventually, kill};
use rustix::process::Signal;
use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// The golden checkpoint: a real model that is quick, without tokenizer.
pub fn golden(more: &[&str]) -> Vec<String> {
    let model = crate::server::fixture("golden-a");
    let all = [&[model.as_str(), "--skip-tokenizer-init"], more].concat();
    all.into_iter().map(str::to_owned).collect()
}

/// Starts a server of the golden checkpoint and waits until it is ready.
pub async fn golden_server(more: &[&str]) -> TestServer {
    let arguments = golden(more);
    TestServer::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await
}

/// Kills the child with a role, and waits until another process has its place.
pub async fn kill_and_await_successor(server: &TestServer, role: &str) {
    let old = server.child(role);
    kill(old, Signal::KILL);
    successor(server, role, old).await;
}

/// Waits until another process than `old` has the role.
pub async fn successor(server: &TestServer, role: &str, old: u32) {
    eventually(&format!("a successor of {role}"), async || {
        let children = server.children();
        match children.iter().find(|(name, pid)| name == role && *pid != old) {
            Some(_) => Ok(()),
            None => Err(format!("{children:?}\n{}", server.log().join("\n"))),
        }
    })
    .await;
}

/// How old the scheduler's gauges may be, with room for a busy machine: it sends them ten times a second.
const GAUGES_LAG: Duration = Duration::from_millis(300);

/// Waits until nothing runs, nothing waits and no block is in use, while nothing else is sent, and all that happened before
/// shows in the gauges.
pub async fn idle(server: &TestServer) {
    let client = server.client();
    let mut since = None;
    eventually("an idle engine", async || {
        let mut seen = Vec::new();
        for name in ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"] {
            seen.push((name, client.metric(name, "").await));
        }
        if seen.iter().any(|(_, value)| *value != 0.0) {
            since = None;
        } else if since.get_or_insert_with(Instant::now).elapsed() >= GAUGES_LAG {
            return Ok(());
        }
        Err(format!("{seen:?}"))
    })
    .await;
}

/// Waits until this many sequences run or wait, and at least one runs.
pub async fn taken_in(server: &TestServer, count: f64) {
    let client = server.client();
    eventually(&format!("{count} sequences"), async || {
        let running = client.metric("num_requests_running", "").await;
        let waiting = client.metric("num_requests_waiting", "").await;
        if running >= 1.0 && running + waiting == count {
            Ok(())
        } else {
            Err(format!("{running} running, {waiting} waiting"))
        }
    })
    .await;
}

/// Waits until a metric has a value that is accepted.
pub async fn metric(server: &TestServer, name: &str, accept: impl Fn(f64) -> bool) -> f64 {
    let client = server.client();
    eventually(name, async || {
        let value = client.metric(name, "").await;
        if accept(value) { Ok(value) } else { Err(value.to_string()) }
    })
    .await
}

/// A `gossamer` of any command line and environment, whose output nobody reads. Dropping it kills it.
pub struct Bare(Child);

impl Bare {
    /// Starts it, in `folder` for temporary files. `prefix` is the program that starts it, if any.
    pub fn start(prefix: &[&str], arguments: &[String], folder: &Path) -> Self {
        let log = std::fs::File::create(folder.join("log")).expect("the folder is writable");
        Self::with_output(prefix, arguments, folder, Stdio::null(), log.into())
    }

    /// The same, with an output and a log of the test's choice.
    pub fn with_output(
        prefix: &[&str],
        arguments: &[String],
        folder: &Path,
        stdout: Stdio,
        stderr: Stdio,
    ) -> Self {
        let binary = binary();
        let words: Vec<&std::ffi::OsStr> =
            prefix.iter().map(|word| word.as_ref()).chain([binary.as_os_str()]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(arguments).env_clear().env("TMPDIR", folder);
        // Some programs that start others look for them on the path.
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        Self(command.spawn().expect("the binary can be started"))
    }

    /// Waits until it listens; the port, as the system tells it.
    pub async fn port(&mut self) -> u16 {
        eventually("a listening socket", async || {
            if let Some(status) = self.exited() {
                panic!("it ended with {status}");
            }
            listening_port(self.pid()).ok_or_else(|| "none".to_owned())
        })
        .await
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Its children, by role.
    pub fn children(&self) -> Vec<(String, u32)> {
        children_of(self.pid())
    }

    /// How it ended, if it did.
    pub fn exited(&mut self) -> Option<std::process::ExitStatus> {
        self.0.try_wait().expect("the child is ours")
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        self.0.kill().expect("the child is ours");
        self.0.wait().expect("the child is ours");
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // Fails when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The port of the first TCP socket that a process listens on.
fn listening_port(pid: u32) -> Option<u16> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    let sockets: Vec<String> = links
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    // Local address, remote address, state (0A: listening), …, and the socket's number in the tenth column.
    table.lines().skip(1).find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (address, state, number) = (columns.get(1)?, columns.get(3)?, columns.get(9)?);
        let ours = *state == "0A" && sockets.iter().any(|socket| socket == number);
        let port = ours.then(|| address.rsplit(':').next())??;
        u16::from_str_radix(port, 16).ok()
    })
}

/// Waits until none of these processes is there any more. Their numbers may belong to others by then.
pub async fn all_gone(children: &[(String, u32)]) {
    eventually("the end of all children", async || {
        let left: Vec<_> = children
            .iter()
            .filter(|(role, pid)| {
                let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let words: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
                matches!(words[..], [_, b"child", found, ..] if found == role.as_bytes())
            })
            .collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

/// Names in /dev/shm that a server with this process id made.
pub fn shared_memory_of(pid: u32) -> Vec<String> {
    let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&format!("gossamer-{pid}-"))).collect()
}

/// Names in a folder for temporary files, but for the log.
pub fn left_in(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).expect("the folder is there").flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name != "log").collect()
}

/// The port that a server says it listens on, in the log in its folder.
pub fn port_in(folder: &Path) -> Option<u16> {
    let log = std::fs::read_to_string(folder.join("log")).ok()?;
    let address = log.split_once("listening on http://")?.1.split(';').next()?.to_owned();
    address.rsplit(':').next()?.parse().ok()
}
