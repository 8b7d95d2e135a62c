//! Outputs that nobody reads: a server goes on whatever has become of its stderr and stdout, commands end quietly.

use gossamer_tests::{
    client::Client,
    processes::{Bare, golden},
    server::{TestServer, binary, eventually, fixture, kill},
};
use rustix::{
    fs::{Mode, OFlags},
    process::Signal,
};
use serde_json::json;
use std::{
    io::{Read, pipe},
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    process::{Command, Stdio},
};

/// A pipe whose reader has left.
fn closed() -> OwnedFd {
    let (reader, writer) = pipe().expect("the system has pipes");
    drop(reader);
    writer.into()
}

/// A pipe that is full, and its reader, who does not read.
fn full() -> (impl Sized, OwnedFd) {
    let (reader, writer) = pipe().expect("the system has pipes");
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    // Opened anew, so that what the server inherits still blocks.
    let other = rustix::fs::open(path, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).expect("it is ours");
    for size in [4096, 1] {
        while rustix::io::write(&other, &[b'x'; 4096][..size]).is_ok() {}
    }
    (reader, writer.into())
}

fn device_without_room() -> OwnedFd {
    rustix::fs::open("/dev/full", OFlags::WRONLY, Mode::empty()).expect("Linux has it")
}

/// A server with these outputs: every process of it has something to say, requests are answered, and it ends in order.
async fn lives_on(prefix: &[&str], stdout: OwnedFd, stderr: OwnedFd) {
    let folder = tempfile::tempdir().expect("there is room");
    let flags = ["--port", "0", "--cpu-threads", "1", "--num-gpu-blocks-override", "2200"];
    let mut arguments = vec!["serve".to_owned()];
    // A process that waits for somebody to read what it says would be taken for dead. All that can be said is.
    arguments.extend(golden(&[&flags[..], &["--stall-timeout", "10", "--log", "debug"]].concat()));
    let mut server = Bare::with_output(prefix, &arguments, folder.path(), stdout.into(), stderr.into());
    let client = Client::new(server.port().await);
    let body = json!({"prompt": [1, 2, 3], "max_tokens": 5, "ignore_eos": true});
    let works = async |server: &mut Bare| {
        eventually("an answer", async || {
            if let Some(status) = server.exited() {
                panic!("it ended with {status}");
            }
            let answer = client.try_post("/v1/completions", &body).await?;
            if answer.status == 200 { Ok(()) } else { Err(answer.body.to_string()) }
        })
        .await;
    };
    works(&mut server).await;
    for role in ["worker-0", "scheduler", "api-server-0"] {
        let old = server.children().into_iter().find(|(name, _)| name == role).expect("it is there").1;
        kill(old, Signal::KILL);
        eventually(role, async || {
            if let Some(status) = server.exited() {
                panic!("it ended with {status}");
            }
            let found = server.children();
            let is_new = |(name, pid): &(String, u32)| name == role && *pid != old;
            if found.iter().any(is_new) { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
        works(&mut server).await;
    }
    kill(server.pid(), Signal::TERM);
    let status = eventually("its end", async || server.exited().ok_or_else(|| "running".to_owned())).await;
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn a_server_outlives_the_reader_of_its_output() {
    lives_on(&[], closed(), closed()).await;
}

#[tokio::test]
async fn a_server_does_not_wait_for_a_reader_that_does_not_read() {
    let ((_out, stdout), (_err, stderr)) = (full(), full());
    lives_on(&[], stdout, stderr).await;
}

#[tokio::test]
async fn a_full_disk_under_the_log_stops_no_server() {
    lives_on(&[], device_without_room(), device_without_room()).await;
}

#[tokio::test]
async fn a_server_needs_no_output_at_all() {
    lives_on(&["/bin/sh", "-c", "exec \"$@\" >&- 2>&-", "sh"], closed(), closed()).await;
}

/// Every command that prints, with what it needs.
fn commands(folder: &Path, port: &str) -> Vec<Vec<String>> {
    let result =
        json!({"output_throughput": 10.0, "mean_tpot_ms": 5.0, "max_concurrency": 1, "completed": 1});
    let cost = json!({
        "schema": 1, "device": "test", "fixed_us": 1000, "dense_us": 0, "experts_us": 0, "num_experts": 128,
        "experts_per_token": 4, "token_us": 0, "context_us": 0, "pair_us": 0,
    });
    let file = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("there is room");
        path.display().to_string()
    };
    let (a, b) = (file("a.json", result.to_string()), file("b.json", result.to_string()));
    let (cost, page) = (file("cost.cfg", cost.to_string()), folder.join("page.html").display().to_string());
    let golden = fixture("golden-a");
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let plan =
        ["plan", "--calibration", &cost, "--ttft-ms", "1000", "--tpot-ms", "1000", "--request-rate", "1"];
    let plan = [&plan[..], &["--num-requests", "20", "--layout", "tp=1", "--disable-progress"]].concat();
    vec![
        words(&["graph", &golden]),
        words(&["backends", &golden]),
        words(&plan),
        words(&[&plan[..], &["--json"]].concat()),
        words(&["bench", "compare", &a, &b]),
        words(&["bench", "pareto", &a, "--out", &page]),
        words(&[
            "bench",
            "serve",
            "--port",
            port,
            "--num-prompts",
            "2",
            "--disable-progress",
            "--ignore-eos",
        ]),
    ]
}

fn status(arguments: &[String], stdout: OwnedFd) -> (Option<i32>, String) {
    let mut command = Command::new(binary());
    command.args(arguments).env_clear().stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary can be started");
    let mut said = String::new();
    child.stderr.take().expect("it is a pipe").read_to_string(&mut said).expect("it is text");
    (child.wait().expect("the child is ours").code(), said)
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_end_quietly_when_their_reader_leaves_and_say_so_when_a_disk_is_full() {
    let server = TestServer::sim(&[]).await;
    let folder = tempfile::tempdir().expect("there is room");
    for arguments in commands(folder.path(), &server.port().to_string()) {
        let (code, said) = status(&arguments, closed());
        // What a shell shows of any program that ends by the signal for it.
        assert_eq!((code, said.as_str()), (Some(141), ""), "{arguments:?}");
        let (code, said) = status(&arguments, device_without_room());
        assert_eq!(code, Some(1), "{arguments:?}: {said}");
        assert!(said.contains("No space left"), "{arguments:?}: {said}");
    }
    for arguments in [&["--help"][..], &["serve", "--help"], &["--version"]] {
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        assert_eq!(status(&arguments, closed()), (Some(0), String::new()), "{arguments:?}");
    }
}
