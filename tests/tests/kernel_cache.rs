//! Kernel cache files: one that fits is used, any other is ignored with one reason, and no file, directory or other server keeps a
//! server from its start or changes an answer.

// The lint knows test functions, but not their helpers.
#![allow(clippy::unwrap_used)]

use gossamer_tests::server::{TestServer, fixture, printed, run};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const STEP: [&str; 2] = ["--max-num-batched-tokens", "16"];

fn arguments(directory: &Path) -> Vec<String> {
    let directory = directory.to_str().unwrap();
    let flags = [
        "--skip-tokenizer-init",
        "--max-num-seqs",
        "8",
        "--autotune-budget",
        "5",
        "--kernel-cache-dir",
        directory,
    ];
    [&fixture("golden-a")]
        .into_iter()
        .cloned()
        .chain(flags.into_iter().chain(STEP).map(String::from))
        .collect()
}

/// Greedy tokens of a server with that cache directory, and what the server said of kernel caches.
async fn answer(directory: &Path) -> (Value, Vec<String>) {
    let arguments = arguments(directory);
    let server = TestServer::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let body = json!({"prompt": [5, 6, 7, 8], "temperature": 0, "max_tokens": 12, "ignore_eos": true});
    let tokens = server.client().post("/v1/completions", &body).await["choices"][0]["token_ids"].clone();
    assert_eq!(server.client().metric("worker_restarts_total", "").await, 0.0);
    (tokens, server.log().into_iter().filter(|line| line.contains("kernel cache")).collect())
}

/// Makes a cache and returns its only file.
fn tuned(directory: &Path) -> PathBuf {
    let said = printed(&autotune(directory));
    assert!(said.contains("measured") && !said.contains("measured 0"), "{said}");
    let files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

fn autotune(directory: &Path) -> [&str; 8] {
    // The fixture's path lives as long as the tests.
    let model: &'static str = Box::leak(fixture("golden-a").into_boxed_str());
    [
        "autotune",
        model,
        "--kernel-cache-dir",
        directory.to_str().unwrap(),
        "--device",
        "cpu",
        STEP[0],
        STEP[1],
    ]
}

#[tokio::test]
async fn whatever_the_cache_file_is_the_server_starts_says_once_why_and_answers_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("not/there/yet");
    let (expected, said) = answer(&directory).await;
    assert_eq!(expected.as_array().unwrap().len(), 12);
    assert!(said.len() == 1 && said[0].contains("no kernel cache yet"), "{said:?}");

    let path = tuned(&directory);
    let good = fs::read_to_string(&path).unwrap();
    let edited = |edit: &dyn Fn(&mut Value)| {
        let mut value = serde_json::from_str(&good).unwrap();
        edit(&mut value);
        value.to_string()
    };
    let no_tactic = edited(&|cache| {
        for entry in cache["entries"].as_array_mut().unwrap() {
            entry["tactic"] = "of another build".into();
        }
    });
    for (content, reason) in [
        (good.clone(), "uses the kernel cache"),
        (good[..good.len() / 2].to_owned(), "kernel cache ignored: damaged"),
        ("{}".to_owned(), "kernel cache ignored: damaged"),
        (String::new(), "kernel cache ignored: damaged"),
        (edited(&|cache| cache["key"]["device"] = "Other".into()), "written for device Other, this is"),
        (edited(&|cache| cache["key"]["driver"] = "CUDA 1.0".into()), "written for driver CUDA 1.0, this is"),
        (edited(&|cache| cache["key"]["plugins"][0]["hash"] = "0".into()), "written for plugins"),
        (edited(&|cache| cache["key"]["schema"] = 0.into()), "written for schema 0, this is 1"),
        (no_tactic, "ignored what the kernel cache chose where no loaded backend offers it"),
    ] {
        fs::write(&path, content).unwrap();
        let (tokens, said) = answer(&directory).await;
        assert_eq!(tokens, expected, "{reason}");
        assert_eq!(said.iter().filter(|line| line.contains(reason)).count(), 1, "{reason}: {said:?}");
        assert!(said.iter().filter(|line| line.contains("ignored")).count() <= 1, "{reason}: {said:?}");
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let (tokens, said) = answer(&directory).await;
    assert_eq!(tokens, expected);
    assert!(said.len() == 1 && said[0].contains("kernel cache ignored: Is a directory"), "{said:?}");
}

#[tokio::test]
async fn two_servers_start_at_once_on_one_file() {
    let folder = tempfile::tempdir().unwrap();
    tuned(folder.path());
    let (one, other) = tokio::join!(answer(folder.path()), answer(folder.path()));
    assert_eq!(one.0, other.0);
    for said in [one.1, other.1] {
        assert!(said.len() == 1 && said[0].contains("uses the kernel cache"), "{said:?}");
    }
}

#[test]
fn autotune_measures_nothing_twice_says_why_a_file_is_no_use_and_mends_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = tuned(folder.path());
    assert!(printed(&autotune(folder.path())).contains("measured 0 choices"));
    fs::write(&path, "{").unwrap();
    let (status, said) = run(&autotune(folder.path()));
    assert!(status.success() && said.contains("kernel cache ignored: damaged"), "{status} {said}");
    assert!(printed(&autotune(folder.path())).contains("measured 0 choices"));

    // Before it measures: a directory that is a file.
    let (status, said) = run(&autotune(&path));
    assert!(
        !status.success() && said.contains("cannot be written") && said.contains(path.to_str().unwrap()),
        "{said}"
    );
}
