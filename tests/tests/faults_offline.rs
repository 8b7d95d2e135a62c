//! No network at all, no home, nothing on the path: everything that is needed is in the repository.

use gossamer_tests::{
    processes::{Bare, port_in},
    server::eventually,
};
use std::{io::Write, net::TcpStream, process::Command};

/// Whether this process may make network namespaces.
fn can_unshare() -> bool {
    let status = Command::new("unshare").args(["-n", "true"]).stderr(std::process::Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

#[tokio::test]
async fn the_demo_model_is_ready_without_any_network() {
    if !can_unshare() {
        println!("skipped: this user may not make network namespaces (`unshare -n` fails)");
        return;
    }
    let folder = tempfile::tempdir().expect("there is room");
    // Without a network there is not even a loopback device that is up: the wildcard address can be bound, and the log
    // says when the server is ready. `unshare` becomes the server, so that the process is the same.
    let arguments = ["serve", "--host", "0.0.0.0", "--port", "0", "--cpu-threads", "1"].map(str::to_owned);
    let mut server = Bare::start(&["unshare", "-n"], &arguments, folder.path());
    eventually("readiness", async || {
        let log = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
        if let Some(exit) = server.exited() {
            panic!("the server ended with {exit}: {log}");
        }
        if log.contains("ready after") { Ok(()) } else { Err(log) }
    })
    .await;
    // It is truly elsewhere: its port leads nowhere here.
    let port = port_in(folder.path()).expect("a port is named");
    let here = TcpStream::connect(("127.0.0.1", port)).and_then(|mut stream| stream.write_all(b"x"));
    assert!(here.is_err(), "the server can be reached from outside its namespace");
}
