//! Case 39: a container's small /dev/shm, or one that cannot be written, stops no server.

use gossamer_tests::{
    client::Client,
    processes::{Bare, all_gone, golden},
    server::{eventually, kill},
};
use rustix::process::Signal;
use serde_json::json;
use std::process::{Command, Stdio};

/// Mounts a /dev/shm of its own, of these options, and becomes the program behind it.
fn elsewhere(options: &str) -> Vec<String> {
    let script = format!("mount -t tmpfs -o {options} tmpfs /dev/shm && exec \"$@\"");
    ["unshare", "-rm", "sh", "-c", &script, "sh"].map(str::to_owned).to_vec()
}

/// Whether this user may mount in a namespace of their own.
fn can_mount() -> bool {
    let words = elsewhere("size=64k");
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg("true").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[tokio::test]
async fn a_small_or_read_only_dev_shm_stops_no_server() {
    if !can_mount() {
        println!("skipped: this user may not mount in a namespace of their own (`unshare -rm` fails)");
        return;
    }
    // Room for nothing; for the small segments but not for all rings; for all but those of a restart; none at all.
    for options in ["size=4k", "size=4m", "size=16m", "ro"] {
        let folder = tempfile::tempdir().expect("there is room");
        let prefix = elsewhere(options);
        let prefix: Vec<&str> = prefix.iter().map(String::as_str).collect();
        let flags = ["--port", "0", "--cpu-threads", "1", "--num-gpu-blocks-override", "2200"];
        let mut arguments = vec!["serve".to_owned()];
        arguments.extend(golden(&[&flags[..], &["--api-server-count", "3"]].concat()));
        let mut server = Bare::start(&prefix, &arguments, folder.path());
        let client = Client::new(server.port().await);
        let body = json!({"prompt": [1, 2, 3], "max_tokens": 5, "ignore_eos": true});
        for role in ["worker-0", "scheduler", "api-server-0", "nobody"] {
            eventually("an answer", async || {
                if let Some(status) = server.exited() {
                    let log = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
                    panic!("{options}: it ended with {status}:\n{log}");
                }
                let answer = client.try_post("/v1/completions", &body).await?;
                if answer.status == 200 { Ok(()) } else { Err(answer.body.to_string()) }
            })
            .await;
            let Some((_, pid)) = server.children().into_iter().find(|(name, _)| name == role) else {
                continue;
            };
            kill(pid, Signal::KILL);
        }
        let log = std::fs::read_to_string(folder.path().join("log")).expect("it is there");
        assert!(log.contains("anonymous memory is used instead"), "{options}: {log}");
        // Nothing of it outlives a killed supervisor.
        let children = server.children();
        server.kill();
        all_gone(&children).await;
    }
}
