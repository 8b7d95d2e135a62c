//! Operation: probes while loading, wrong starts, long prompts beside probes, several API servers as one. Deaths, drain and
//! clients that leave are in `faults_*`.

// The lint knows test functions, but not their helpers.
#![allow(clippy::unwrap_used)]

use gossamer_backend_api::abi::DESCRIPTOR_SECTION;
use gossamer_tests::server::{TestServer, binary, eventually, fixture, run};
use object::{Object, ObjectSection};
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};

const COMPLETIONS: &str = "/v1/completions";

#[tokio::test]
async fn health_is_503_until_the_model_is_loaded() {
    let mut server = TestServer::spawn(&[&fixture("o200k-dummy"), "--load-format", "dummy"]);
    let client = server.client();
    let mut seen = Vec::new();
    eventually("health", async || {
        let health = client.get("/health").await?.status;
        let live = client.get("/live").await?.status;
        assert_eq!(live, 200);
        seen.push(health);
        if health == 200 { Ok(()) } else { Err(format!("status {health}")) }
    })
    .await;
    let loading = seen.iter().filter(|status| **status != 200).copied().collect::<Vec<_>>();
    assert!(!loading.is_empty() && loading.iter().all(|status| *status == 503), "{seen:?}");
    server.wait_ready().await;
    assert_eq!(client.get("/version").await.unwrap().body["version"], env!("CARGO_PKG_VERSION"));
    let models = client.get("/v1/models").await.unwrap().body;
    assert_eq!(models["data"][0]["id"], "o200k-dummy");
    assert_eq!(models["data"][0]["max_model_len"], 131_072);
}

#[tokio::test]
async fn a_wrong_start_is_refused_with_the_reason() {
    let golden = fixture("golden-a");
    for (arguments, words) in [
        (&["serve", "/nowhere"][..], "does not exist"),
        (&["serve", &golden, "--max-model-len", "999999999"], "131072"),
        (&["serve", &golden, "-tp", "2"], "not supported yet"),
        (
            &["serve", &golden, "--attention-backend", "nonesuch", "--skip-tokenizer-init", "--port", "0"],
            "fallback",
        ),
        // No tokenizer, and not the vocabulary that is built in.
        (&["serve", &golden, "--port", "0"], "tokenizer.json"),
        (&["serve", &golden, "--bogus"], "--bogus"),
    ] {
        let (status, said) = run(arguments);
        assert!(!status.success(), "{arguments:?}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
}

/// A copy of the fallback backend under another name that dies of its first instruction.
fn crashing_plugin(folder: &Path) {
    let beside = binary().with_file_name("libgossamer_fallback.so");
    std::fs::copy(&beside, folder.join("libgossamer_fallback.so")).unwrap();
    let mut bytes = std::fs::read(beside).unwrap();
    let place = |name: &str| {
        let elf = object::File::parse(&*bytes).unwrap();
        elf.section_by_name(name).unwrap().file_range().unwrap()
    };
    let ((code, len), (descriptor, _)) = (place(".text"), place(DESCRIPTOR_SECTION));
    bytes[code as usize..(code + len) as usize].fill(0xcc);
    bytes[descriptor as usize + 24..][..8].copy_from_slice(b"crashing");
    std::fs::write(folder.join("libgossamer_crashing.so"), bytes).unwrap();
}

#[tokio::test]
async fn a_plugin_that_crashes_when_it_is_opened_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    crashing_plugin(folder.path());
    let directory = folder.path().to_str().unwrap();
    let listed =
        std::process::Command::new(binary()).args(["backends", "--backend-dir", directory]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("cannot be used: the process that opened it ended with signal: 5"), "{listed}");
    let server = TestServer::start(&["--backend-dir", directory]).await;
    let body = json!({"prompt": "a", "max_tokens": 2, "temperature": 0});
    assert_eq!(server.client().post("/v1/completions", &body).await["usage"]["completion_tokens"], 2);
    assert_eq!(server.client().metric("worker_restarts_total", "").await, 0.0);
    assert!(server.log().iter().any(|line| line.contains("libgossamer_crashing.so")), "{:?}", server.log());
}

/// A model's configuration and nothing else: whatever is refused of it is refused before weights are looked for.
#[tokio::test]
async fn settings_that_can_never_work_are_refused_before_weights_open() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(format!("{}/config.json", fixture("golden-a")), folder.path().join("config.json")).unwrap();
    let model = folder.path().to_str().unwrap();
    for (arguments, words) in [
        (&["--num-gpu-blocks-override", "1"][..], "expected at least 2"),
        (&["--num-gpu-blocks-override", "0"], "expected at least 2"),
        (
            &["--no-enable-chunked-prefill"],
            "--max-num-batched-tokens (512) is below the longest sequence (131072)",
        ),
        (&["--max-model-len", "131073"], "131072"),
    ] {
        for device in ["cpu", "sim", "cuda"] {
            let rest = ["--device", device, "--port", "0", "--max-num-batched-tokens", "512"];
            let (status, said) = run(&[&["serve", model][..], arguments, &rest].concat());
            assert!(!status.success(), "{arguments:?}");
            assert!(said.contains(words) && !said.contains("listening"), "{arguments:?}: {said}");
        }
    }
}

/// Other work on the machine may delay answers in one run, but hardly in each of three.
#[tokio::test(flavor = "multi_thread")]
async fn long_prompts_do_not_freeze_the_others() {
    let server = TestServer::sim(&[]).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(p99_beside_long_prompts(&server).await);
        if seen.iter().any(|p99| *p99 < FREEZE) {
            return;
        }
    }
    panic!("p99 of answers beside long prompts: {seen:?}");
}

/// An answer that takes longer waits for something.
const FREEZE: Duration = Duration::from_millis(100);

/// How long all but a hundredth of the answers to probes take at most, while long prompts are tokenized.
async fn p99_beside_long_prompts(server: &TestServer) -> Duration {
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(12_000);
    let mut tasks = Vec::new();
    for number in 0..8 {
        let client = server.client();
        let body = json!({"prompt": format!("{number} {text}"), "max_tokens": 1});
        tasks.push(tokio::spawn(async move { client.post(COMPLETIONS, &body).await }));
    }
    let client = server.client();
    let mut gaps = Vec::new();
    while !tasks.iter().all(|task| task.is_finished()) {
        let start = Instant::now();
        assert_eq!(client.get("/health").await.unwrap().status, 200);
        gaps.push(start.elapsed());
    }
    for task in tasks {
        let answer = task.await.unwrap();
        assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > 100_000);
    }
    gaps.sort();
    assert!(gaps.len() >= 20, "only {} answers", gaps.len());
    gaps[(gaps.len() * 99 / 100).min(gaps.len() - 1)]
}

#[tokio::test]
async fn api_servers_share_their_counters() {
    let server = TestServer::sim(&["--api-server-count", "3"]).await;
    for _ in 0..30 {
        // A client each, so that connections spread.
        server
            .client()
            .post(COMPLETIONS, &json!({"prompt": "hi", "max_tokens": 4, "ignore_eos": true}))
            .await;
    }
    for _ in 0..6 {
        assert_eq!(server.client().metric("generation_tokens_total", "").await, 120.0);
    }
    assert_eq!(server.children().iter().filter(|(role, _)| role.starts_with("api-server")).count(), 3);
}

#[tokio::test]
async fn connections_spread_over_the_api_servers() {
    let server = TestServer::sim(&["--api-server-count", "3"]).await;
    let mut kept = Vec::new();
    for _ in 0..60 {
        // Kept alive by its client.
        let client = server.client();
        assert_eq!(client.get("/live").await.unwrap().status, 200);
        kept.push(client);
    }
    let sockets = |pid: u32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
    };
    let servers = server.children().into_iter().filter(|(role, _)| role.starts_with("api-server"));
    let counts: Vec<usize> = servers.map(|(_, pid)| sockets(pid)).collect();
    assert_eq!(counts.len(), 3);
    assert!(counts.iter().sum::<usize>() >= 60, "{counts:?}");
    assert!(counts.iter().all(|count| *count >= 10), "{counts:?}");
}
