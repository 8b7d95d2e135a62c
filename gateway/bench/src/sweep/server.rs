//! A server of a sweep: started on a free port, waited for, and stopped.
//!
//! Invariant: the process ends with this value, whatever became of the sweep; but for a sweep that is ended by SIGKILL, which
//! leaves its server running.

use super::SweepError;
use crate::serve::{Client, ServeBenchArgs};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to stop after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// The same, when a sweep breaks off.
const DROP_TIMEOUT: Duration = Duration::from_secs(3);
/// How often a process is looked at.
const POLL: Duration = Duration::from_millis(50);

/// A running server.
pub struct Server {
    child: Child,
    log: PathBuf,
    url: String,
}

impl Server {
    /// Starts a server with `flags` and waits until it lists its model.
    pub async fn start(
        binary: &Path,
        model: Option<&Path>,
        flags: &[(String, String)],
        log: PathBuf,
        client: &ServeBenchArgs,
        patience: Duration,
    ) -> Result<Self, SweepError> {
        let failed = |message: String| SweepError::Server { log: log.clone(), message };
        let output = std::fs::File::create(&log).map_err(|error| failed(error.to_string()))?;
        let mut command = Command::new(binary);
        command.arg("serve").args(model).args(["--host", "127.0.0.1", "--port", "0", "--log", "info"]);
        for (name, value) in flags {
            match value.as_str() {
                "true" => command.arg(format!("--{name}")),
                "false" => command.arg(format!("--no-{name}")),
                value => command.arg(format!("--{name}={value}")),
            };
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
        let child = command.spawn().map_err(|error| failed(format!("{}: {error}", binary.display())))?;
        let mut server = Self { child, log: log.clone(), url: String::new() };
        let give_up = Instant::now() + patience;
        loop {
            if let Some(status) = server.exited() {
                return Err(failed(format!("it ended with {status}: {}", server.last_words())));
            }
            if server.url.is_empty() {
                server.url = address(&std::fs::read_to_string(&log).unwrap_or_default()).unwrap_or_default();
            }
            if !server.url.is_empty() {
                let args = ServeBenchArgs { base_url: Some(server.url.clone()), ..client.clone() };
                let ready = Client::new(&args).map_err(SweepError::Bench)?.discover(Duration::ZERO).await;
                if ready.is_ok() {
                    return Ok(server);
                }
            }
            if Instant::now() >= give_up {
                return Err(failed(format!("it was not ready within {} s", patience.as_secs())));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Its base URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its exit status, if it has ended.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// The end of its log, on one line.
    pub fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(3)..].join(" / ")
    }

    fn tell_to_stop(&self) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Asks it to stop, and waits.
    pub async fn stop(mut self) {
        self.tell_to_stop();
        let give_up = Instant::now() + STOP_TIMEOUT;
        while self.exited().is_none() && Instant::now() < give_up {
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.exited().is_some() {
            return;
        }
        // Only an orderly end removes the sockets of its processes.
        self.tell_to_stop();
        let give_up = Instant::now() + DROP_TIMEOUT;
        while self.exited().is_none() && Instant::now() < give_up {
            std::thread::sleep(POLL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address that a server said it listens on.
fn address(log: &str) -> Option<String> {
    let (_, rest) = log.split_once("listening on http://")?;
    let end = rest.find(|c: char| !(c.is_ascii_hexdigit() || ".:[]".contains(c)))?;
    Some(format!("http://{}", &rest[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_read_from_the_log_once_its_line_is_whole() {
        let log = "10:00:00.000 INFO  listening on http://127.0.0.1:4711; requests are answered 503\n";
        assert_eq!(address(log).as_deref(), Some("http://127.0.0.1:4711"));
        assert_eq!(address("listening on http://[::1]:80; x").as_deref(), Some("http://[::1]:80"));
        assert_eq!(address("listening on http://127.0.0.1:47"), None);
        assert_eq!(address("INFO  gossamer 0.1.0 serves"), None);
    }
}
