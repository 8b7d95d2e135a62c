//! Starting processes, and learning how they ended.
//!
//! Linux ties a child's parent-death signal to the *thread* that started it: if a short-lived thread did, the child
//! would be killed when that thread ends. So one thread starts them all and lives as long as the process.

use std::ffi::OsString;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use tokio::sync::oneshot;

use crate::child::CHILD_COMMAND;
use crate::role::ChildRole;

/// What children are started from.
#[derive(Clone, Debug)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    /// What stands before the role on its command line.
    pub arguments: Vec<OsString>,
}

impl Default for Program {
    /// This executable, as it was when this process started: a restarted child is of the same build even if the file
    /// was replaced meanwhile.
    fn default() -> Self {
        Self { path: "/proc/self/exe".into(), arguments: vec![CHILD_COMMAND.into()] }
    }
}

/// One child to start.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) role: ChildRole,
    pub(crate) epoch: u64,
    /// Name of its control channel.
    pub(crate) control: String,
    /// For API servers.
    pub(crate) listener: Option<Arc<TcpListener>>,
}

struct Request {
    launch: Launch,
    reply: oneshot::Sender<io::Result<Child>>,
}

/// The thread that starts all children.
#[derive(Clone, Debug)]
pub(crate) struct Spawner {
    requests: mpsc::Sender<Request>,
}

impl Spawner {
    pub(crate) fn start(program: Program) -> io::Result<Self> {
        let (requests, inbox) = mpsc::channel::<Request>();
        std::thread::Builder::new().name("spawner".into()).spawn(move || {
            for Request { launch, reply } in inbox {
                // Nobody waits any more: the child is dropped and, with its supervisor, dies.
                let _ = reply.send(spawn(&program, &launch));
            }
            // The last sender is gone although the process lives on; ending here would kill the children.
            loop {
                std::thread::park();
            }
        })?;
        Ok(Self { requests })
    }

    pub(crate) async fn spawn(&self, launch: Launch) -> io::Result<Child> {
        let gone = || io::Error::other("the thread that starts processes has ended");
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request { launch, reply }).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

fn spawn(program: &Program, launch: &Launch) -> io::Result<Child> {
    let mut command = Command::new(&program.path);
    command.arg0("gossamer").args(&program.arguments).arg(launch.role.to_string());
    command.arg(launch.epoch.to_string()).arg(&launch.control);
    let listener = launch.listener.as_ref().map(|listener| listener.as_raw_fd());
    if let Some(fd) = listener {
        command.arg(fd.to_string());
    }
    // A group of its own: an interrupt from the terminal reaches the supervisor alone, which then drains in order.
    command.process_group(0);
    let supervisor = std::process::id() as i32;
    // SAFETY: between fork and exec only async-signal-safe calls are made, and nothing allocates.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The supervisor may have died before the line above.
            if libc::getppid() != supervisor {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            if let Some(fd) = listener
                && libc::fcntl(fd, libc::F_SETFD, 0) != 0
            {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
    command.spawn()
}

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    /// False once the number may belong to another process. Held while a signal is sent and while it is reaped.
    alive: Arc<Mutex<bool>>,
}

impl Process {
    /// Calls `ended` from a thread when the child has ended.
    pub(crate) fn watch(
        mut child: Child,
        ended: impl FnOnce(ExitStatus) + Send + 'static,
    ) -> io::Result<Self> {
        let pid = child.id();
        let alive = Arc::new(Mutex::new(true));
        let process = Self { pid, alive: Arc::clone(&alive) };
        std::thread::Builder::new().name(format!("wait-{pid}")).spawn(move || {
            if let Some(pid) = Pid::from_raw(pid as i32) {
                // Waits without reaping, so that the number stays this child's until the lock is held.
                let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
                while let Err(rustix::io::Errno::INTR) = rustix::process::waitid(WaitId::Pid(pid), options) {}
            }
            let mut alive = alive.lock().unwrap_or_else(PoisonError::into_inner);
            // Fails only if somebody else reaped it: then how it ended is not known.
            let status = child.wait().unwrap_or_else(|_| ExitStatus::from_raw(1 << 8));
            *alive = false;
            drop(alive);
            ended(status);
        })?;
        Ok(process)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn kill(&self) {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        if let (true, Some(pid)) = (*alive, Pid::from_raw(self.pid as i32)) {
            // Not yet reaped, so the number is right; a zombie takes the signal without effect.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How a process ended, for people.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}
