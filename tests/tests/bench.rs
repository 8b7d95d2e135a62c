//! `gossamer bench` against the real server: both count the same, and what fails is a failure.

use gossamer_tests::{
    processes::golden_server,
    server::{TestServer, binary, eventually, fixture, kill, run},
};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

/// Runs the benchmark in a thread of its own: whether it succeeded, what it said, and its result file.
async fn bench(server: &TestServer, more: &[&str]) -> (bool, String, Value) {
    let folder = tempfile::tempdir().expect("there is room");
    let (port, path) = (server.port().to_string(), folder.path().display().to_string());
    let fixed =
        ["bench", "serve", "--port", &port, "--disable-progress", "--save-result", "--result-dir", &path];
    let all = [&fixed[..], &["--result-filename", "r.json"], more].concat();
    let all: Vec<String> = all.into_iter().map(str::to_owned).collect();
    let run = tokio::task::spawn_blocking(move || run(&all.iter().map(String::as_str).collect::<Vec<_>>()));
    let (status, said) = run.await.expect("the benchmark can be started");
    (status.success(), said, json_of(&folder.path().join("r.json")))
}

fn json_of(path: &Path) -> Value {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Cases 27 and 47: the interval changes no figure, lengths are those asked for, and totals are the server's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lengths_and_times_are_right_on_both_endpoints_at_any_interval() {
    let mut steps = tempfile::NamedTempFile::new().expect("there is room");
    let cost = json!({
        "schema": 1, "device": "test", "fixed_us": 20_000, "dense_us": 0, "experts_us": 0, "num_experts": 1,
        "experts_per_token": 1, "token_us": 0, "context_us": 0, "pair_us": 0,
    });
    write!(steps, "{cost}").expect("there is room");
    let steps = steps.path().to_str().expect("temporary files have UTF-8 paths").to_owned();
    // Other work on the machine may stretch a step in one run, but hardly in the same way in each of three.
    let mut ratios = Vec::new();
    for _ in 0..3 {
        let times = times_at_both_intervals(&steps).await;
        assert!(times.iter().all(|time| *time >= 19.0), "a step takes 20 ms: {times:?}");
        let ratio = times[1] / times[0];
        if (0.95..1.05).contains(&ratio) {
            return;
        }
        ratios.push(ratio);
    }
    panic!("time per token at interval 20 over that at 1: {ratios:?}");
}

/// Runs the same load at intervals 1 and 20, checks what was counted, and returns the times per token in milliseconds.
async fn times_at_both_intervals(steps: &str) -> Vec<f64> {
    let mut times = Vec::new();
    for interval in ["1", "20"] {
        let server = TestServer::sim(&["--sim-calibration", steps, "--stream-interval", interval]).await;
        let (mut prompts, mut tokens) = (0, 0);
        for (backend, frame) in [("openai", 0), ("openai-chat", 67)] {
            let lengths = ["--random-input-len", "100", "--random-output-len", "41"];
            let load = ["--backend", backend, "--num-prompts", "20", "--ignore-eos", "--seed", "3"];
            let (ok, said, result) = bench(&server, &[&load[..], &lengths].concat()).await;
            assert!(ok, "{backend}: {said}");
            assert_eq!(result["completed"], 20);
            assert_eq!(result["total_output_tokens"], 20 * 41, "{backend}");
            assert_eq!(result["total_input_tokens"], 20 * (100 + frame), "{backend}: {said}");
            prompts += 20 * (100 + frame);
            tokens += 20 * 41;
            if backend == "openai" {
                times.push(result["mean_tpot_ms"].as_f64().expect("a number"));
            }
        }
        let client = server.client();
        assert_eq!(client.metric("prompt_tokens_total", "").await, f64::from(prompts));
        assert_eq!(client.metric("generation_tokens_total", "").await, f64::from(tokens));
    }
    times
}

/// Case 28: what breaks in mid-stream is no success, and the exit status says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_end_with_an_error_are_failures() {
    let server = golden_server(&["--max-restarts", "0"]).await;
    let load =
        ["--num-prompts", "6", "--random-input-len", "8", "--random-output-len", "20000", "--ignore-eos"];
    let killer = async {
        eventually("six streams", async || match server.client().metric("num_requests_running", "").await {
            6.0 => Ok(()),
            other => Err(other.to_string()),
        })
        .await;
        kill(server.child("worker-0"), Signal::KILL);
    };
    let load = [&load[..], &["--random-vocab-size", "500"]].concat();
    let ((ok, said, result), ()) = tokio::join!(bench(&server, &load), killer);
    assert!(!ok && said.contains("6 of 6 requests failed") && said.contains("engine failed"), "{said}");
    let counts = [&result["completed"], &result["failed"], &result["total_output_tokens"]];
    assert_eq!(counts, [&json!(0), &json!(6), &json!(0)]);
}

#[tokio::test]
async fn a_calibration_is_measured_and_a_simulated_device_goes_by_it() {
    let folder = tempfile::tempdir().expect("there is room");
    let file = folder.path().join("calibration.json").display().to_string();
    let sizes =
        ["--batch-size", "1,4", "--input-len", "32,64", "--num-iters", "2", "--num-iters-warmup", "1"];
    let (status, said) =
        run(&[&["bench", "latency", &fixture("golden-a"), "--calibrate", &file][..], &sizes].concat());
    assert!(status.success(), "{said}");
    let cost = json_of(Path::new(&file));
    // What the fit gives to which part depends on what else the machine did; time passed in any case.
    let parts = ["fixed_us", "dense_us", "experts_us", "token_us"].map(|part| cost[part].as_f64());
    assert!(parts.iter().all(Option::is_some) && parts.iter().flatten().sum::<f64>() > 0.0, "{cost}");
    let server = TestServer::sim(&["--sim-calibration", &file]).await;
    let body = json!({"prompt": [1, 2], "max_tokens": 5, "ignore_eos": true});
    assert_eq!(server.client().post("/v1/completions", &body).await["usage"]["completion_tokens"], 5);
}

/// A sweep that a person or a batch system ends takes its server along.
#[tokio::test]
async fn a_sweep_that_is_told_to_end_leaves_no_server() {
    let folder = tempfile::tempdir().expect("there is room");
    let output = folder.path().display().to_string();
    let arguments =
        ["bench", "sweep", "--output", &output, "--concurrency", "1", "--server-flag", "device=sim"];
    let load =
        ["--disable-progress", "--ignore-eos", "--random-output-len", "100000", "--num-prompts", "1000"];
    let mut sweep = Command::new(binary())
        .args(arguments.iter().chain(&load))
        .env_clear()
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary is built");
    let log = folder.path().join("device=sim.log");
    let address = eventually("a server of the sweep that is ready", async || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let found = text.split_once("ready after").and_then(|(_, rest)| rest.split_once("http://"));
        let address = found.and_then(|(_, rest)| rest.split_once('/')).map(|(address, _)| address.to_owned());
        address.ok_or(text)
    })
    .await;
    std::net::TcpStream::connect(&address).expect("the server listens");
    kill(sweep.id(), Signal::TERM);
    let status = tokio::task::spawn_blocking(move || sweep.wait()).await.expect("no panic").expect("it ends");
    assert_eq!(status.code(), Some(1));
    eventually("a closed port", async || match std::net::TcpStream::connect(&address) {
        Ok(_) => Err(format!("a server still listens at {address}")),
        Err(_) => Ok(()),
    })
    .await;
}
