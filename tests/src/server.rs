//! The real binary as a child process.

use crate::client::Client;
use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Nothing that is waited for takes this long, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What the tests expect is what CPUs compute, whatever devices a machine has.
const ENVIRONMENT: [(&str, &str); 1] = [("GOSSAMER_DEVICE", "cpu")];

/// A running `gossamer serve`. Dropping it kills the supervisor, and the supervisor's death its children.
pub struct TestServer {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
    port: u16,
}

/// The binary that `cargo build --release --workspace` left beside the tests.
pub fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    let directory = test.ancestors().find(|directory| directory.join("gossamer").is_file());
    directory
        .expect("no `gossamer` beside the tests: run `cargo build --release --workspace` first")
        .join("gossamer")
}

/// A directory of the fixtures.
pub fn fixture(name: &str) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
    assert!(directory.is_dir(), "no fixture {}", directory.display());
    directory.to_str().expect("the repository has a UTF-8 path").to_owned()
}

/// Polls until `look` gives a value; fails with what `look` said last.
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match look().await {
            Ok(value) => return value,
            Err(seen) if start.elapsed() > PATIENCE => panic!("{what}: still {seen} after {PATIENCE:?}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

impl TestServer {
    /// Starts a server that loads dummy weights in the shape of a tiny model with the vocabulary of gpt-oss.
    pub async fn dummy(arguments: &[&str]) -> Self {
        let model = fixture("o200k-dummy");
        Self::start(&[&[&model, "--load-format", "dummy", "--served-model-name", "m"], arguments].concat())
            .await
    }

    /// Starts a server of the simulated device, with the vocabulary of gpt-oss.
    pub async fn sim(arguments: &[&str]) -> Self {
        let model = fixture("o200k-dummy");
        Self::start(&[&[&model, "--device", "sim", "--served-model-name", "m"], arguments].concat()).await
    }

    /// Starts a server and waits until it is ready.
    pub async fn start(arguments: &[&str]) -> Self {
        let mut server = Self::spawn(arguments);
        server.wait_ready().await;
        server
    }

    /// Starts a server on a free port, and waits only until it says which.
    pub fn spawn(arguments: &[&str]) -> Self {
        let mut all = vec!["serve", "--port", "0", "--cpu-threads", "1", "--num-gpu-blocks-override", "2200"];
        all.extend_from_slice(arguments);
        let (child, log, reader) = launch(&all);
        let mut server = Self { child, log, reader: Some(reader), port: 0 };
        let start = Instant::now();
        while server.port == 0 {
            let said = server.log();
            if let Some(port) = said.iter().find_map(|line| port_of(line)) {
                server.port = port;
            } else if let Some(status) = server.exited() {
                panic!("the server ended with {status}:\n{}", said.join("\n"));
            } else {
                assert!(start.elapsed() < PATIENCE, "no port was named:\n{}", said.join("\n"));
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        server
    }

    /// Waits until requests are taken.
    pub async fn wait_ready(&mut self) {
        let client = self.client();
        eventually("readiness", async || {
            if let Some(status) = self.exited() {
                panic!("the server ended with {status}:\n{}", self.log().join("\n"));
            }
            match client.get("/ready").await {
                Ok(answer) if answer.status == 200 => Ok(()),
                other => Err(format!("{other:?}\n{}", self.log().join("\n"))),
            }
        })
        .await;
    }

    /// A client of this server.
    pub fn client(&self) -> Client {
        Client::new(self.port)
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Process id of the supervisor.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its log lines so far.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().expect("the reader does not panic").clone()
    }

    /// How it ended, if it did.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the child is ours")
    }

    /// Sends the supervisor a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        kill(self.pid(), signal);
    }

    /// Waits for its end.
    pub async fn wait_exit(&mut self) -> ExitStatus {
        eventually("the end of the server", async || self.exited().ok_or_else(|| "running".to_owned())).await
    }

    /// Process ids of the children, by the role on their command line.
    pub fn children(&self) -> Vec<(String, u32)> {
        children_of(self.pid())
    }

    /// Process id of the child with a role.
    pub fn child(&self, role: &str) -> u32 {
        let children = self.children();
        let found = children.iter().find(|(name, _)| name == role);
        found.unwrap_or_else(|| panic!("no {role} among {children:?}")).1
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        // Fails when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            // Ends when the last child has closed its end of the pipe.
            let _ = reader.join();
        }
        if std::thread::panicking() {
            eprintln!("--- the server's log ---\n{}\n---", self.log().join("\n"));
        }
    }
}

/// Sends a signal to a process.
pub fn kill(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a process id is not zero");
    rustix::process::kill_process(pid, signal).expect("the process is ours");
}

/// Children of the supervisor `pid`, by role.
pub fn children_of(pid: u32) -> Vec<(String, u32)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc is there").flatten() {
        let Some(child) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // The parent is the fourth field; the second, in parentheses, may hold blanks.
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        if fields.get(1).and_then(|parent| parent.parse::<u32>().ok()) != Some(pid) || fields[0] == "Z" {
            continue;
        }
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
        if let [_, b"child", role, ..] = words[..] {
            found.push((String::from_utf8_lossy(role).into_owned(), child));
        }
    }
    found
}

/// Runs the binary to its end; status and stderr.
pub fn run(arguments: &[&str]) -> (ExitStatus, String) {
    let output = output(arguments);
    (output.status, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Runs the binary to its end, which must be a success; what it printed.
pub fn printed(arguments: &[&str]) -> String {
    let output = output(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {} {said}", output.status);
    String::from_utf8(output.stdout).expect("commands print UTF-8")
}

fn output(arguments: &[&str]) -> Output {
    Command::new(binary())
        .args(arguments)
        .env_clear()
        .envs(ENVIRONMENT)
        .stdin(Stdio::null())
        .output()
        .expect("the binary can be started")
}

fn launch(arguments: &[&str]) -> (Child, Arc<Mutex<Vec<String>>>, JoinHandle<()>) {
    let mut child = Command::new(binary())
        .args(arguments)
        // No home, no proxy, no settings of whoever runs the tests.
        .env_clear()
        .envs(ENVIRONMENT)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary can be started");
    let log = Arc::new(Mutex::new(Vec::new()));
    let stderr: Box<dyn Read + Send> = Box::new(child.stderr.take().expect("stderr is a pipe"));
    let lines = log.clone();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            lines.lock().expect("no test panics while it reads the log").push(line);
        }
    });
    (child, log, reader)
}

fn port_of(line: &str) -> Option<u16> {
    let address = line.split_once("listening on http://")?.1.split(';').next()?;
    address.rsplit(':').next()?.parse().ok()
}
