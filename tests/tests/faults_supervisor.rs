//! A supervisor that is killed takes everything with it and leaves nothing; trouble with ports is found at once.

use gossamer_tests::{
    load::{Load, mixed},
    processes::{Bare, all_gone, golden, left_in, port_in, shared_memory_of},
    server::{TestServer, eventually, fixture, kill},
};
use rustix::process::Signal;
use serde_json::json;
use std::{
    path::Path,
    time::{Duration, Instant},
};

fn arguments(more: &[&str]) -> Vec<String> {
    let mut all = vec!["serve".to_owned()];
    all.extend(golden(
        &[&["--port", "0", "--cpu-threads", "1", "--num-gpu-blocks-override", "2200"], more].concat(),
    ));
    all
}

/// Waits for a server in a folder to be ready; its port.
async fn ready(server: &mut Bare, folder: &Path) -> u16 {
    eventually("readiness", async || {
        if let Some(exit) = server.exited() {
            panic!("the server ended with {exit}: {:?}", std::fs::read_to_string(folder.join("log")));
        }
        let port = port_in(folder).ok_or("no port yet")?;
        let answer = gossamer_tests::client::Client::new(port).get("/ready").await?;
        if answer.status == 200 { Ok(port) } else { Err(answer.body.to_string()) }
    })
    .await
}

#[tokio::test]
async fn nothing_survives_a_killed_supervisor_and_the_next_start_sweeps() {
    let folder = tempfile::tempdir().expect("there is room");
    let folder = folder.path();
    for round in 0..10 {
        let mut server = Bare::start(&[], &arguments(&["--api-server-count", "2"]), folder);
        let pid = server.pid();
        let mut load = None;
        match round % 5 {
            // At once; with the port bound; with some children; with all of them; ready; under load.
            0 if round == 0 => {}
            0 => drop(eventually("a port", async || port_in(folder).ok_or("none".to_owned())).await),
            1 | 2 => {
                let goal = if round % 5 == 1 { 1 } else { 4 };
                eventually("children", async || match server.children().len() {
                    count if count >= goal => Ok(()),
                    count => Err(format!("{count}")),
                })
                .await;
            }
            3 => drop(ready(&mut server, folder).await),
            _ => {
                let port = ready(&mut server, folder).await;
                let started = Load::start(port, &mixed(2000));
                started.advance(300).await;
                load = Some(started);
            }
        }
        let children = server.children();
        server.kill();
        all_gone(&children).await;
        assert_eq!(server.children(), [], "round {round}");
        assert_eq!(shared_memory_of(pid), Vec::<String>::new(), "round {round}");
        if let Some(load) = load {
            assert!(load.results().await.iter().all(Result::is_err), "no request can have ended");
        }
        // What sockets need lies in one folder, which the next start removes: there is never more than one.
        assert!(left_in(folder).len() <= 1, "round {round}: {:?}", left_in(folder));
    }
    let mut server = Bare::start(&[], &arguments(&[]), folder);
    let port = ready(&mut server, folder).await;
    let own = format!("gossamer-{}-", server.pid());
    let left = left_in(folder);
    assert!(left.iter().all(|name| name.starts_with(&own)), "{left:?} is not swept");
    let body = json!({"prompt": [1], "max_tokens": 1});
    gossamer_tests::client::Client::new(port).post("/v1/completions", &body).await;
    // An orderly end leaves nothing at all.
    kill(server.pid(), Signal::TERM);
    eventually("the end", async || server.exited().ok_or_else(|| "running".to_owned())).await;
    assert_eq!(left_in(folder), Vec::<String>::new());
    assert_eq!(shared_memory_of(server.pid()), Vec::<String>::new());
}

#[tokio::test]
async fn a_process_that_dies_while_the_server_starts_is_replaced() {
    let command = golden(&["--api-server-count", "2"]);
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    for role in ["worker-0", "scheduler", "api-server-0", "api-server-1"] {
        let mut server = TestServer::spawn(&command);
        let pid = eventually(role, async || {
            let children = server.children();
            let found = children.iter().find(|(name, _)| name == role);
            found.map(|(_, pid)| *pid).ok_or_else(|| format!("{children:?}"))
        })
        .await;
        // As early as can be: it may not even have said hello.
        kill(pid, Signal::KILL);
        server.wait_ready().await;
        let body = json!({"prompt": [1, 2], "max_tokens": 2, "ignore_eos": true});
        let answer = server.client().post("/v1/completions", &body).await;
        assert_eq!(answer["usage"]["completion_tokens"], 2);
    }
}

#[tokio::test]
async fn an_orphan_that_is_stopped_dies_too() {
    let folder = tempfile::tempdir().expect("there is room");
    let mut server = Bare::start(&[], &arguments(&[]), folder.path());
    ready(&mut server, folder.path()).await;
    let children = server.children();
    assert_eq!(children.len(), 3, "{children:?}");
    for (_, pid) in &children {
        kill(*pid, Signal::STOP);
    }
    server.kill();
    all_gone(&children).await;
}

#[tokio::test]
async fn a_port_in_use_is_named_at_once() {
    let first = TestServer::spawn(&[&fixture("golden-a"), "--skip-tokenizer-init"]);
    let port = first.port().to_string();
    let start = Instant::now();
    let mut command = arguments(&[]);
    command.extend(["--port".to_owned(), port.clone()]);
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let (exit, said) = gossamer_tests::server::run(&command);
    assert!(start.elapsed() < Duration::from_secs(2), "it took {:?}", start.elapsed());
    assert!(exit.code().is_some_and(|code| code != 0), "{exit}");
    assert!(said.contains(&port) && said.contains("in use"), "{said}");
    // The first one is not disturbed.
    let mut first = first;
    first.wait_ready().await;
}

#[tokio::test]
async fn four_servers_that_start_at_once_all_serve() {
    let folders: Vec<_> = (0..4).map(|_| tempfile::tempdir().expect("there is room")).collect();
    for _ in 0..2 {
        let mut servers: Vec<_> =
            folders.iter().map(|folder| Bare::start(&[], &arguments(&[]), folder.path())).collect();
        for (server, folder) in servers.iter_mut().zip(&folders) {
            let port = ready(server, folder.path()).await;
            let body = json!({"prompt": [1, 2], "max_tokens": 2, "ignore_eos": true});
            let answer = gossamer_tests::client::Client::new(port).post("/v1/completions", &body).await;
            assert_eq!(answer["usage"]["completion_tokens"], 2);
        }
    }
}
