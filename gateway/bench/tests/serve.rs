//! The client against scripted servers: what counts as a token, as a failure, as a usable row.

#![allow(clippy::unwrap_used)]

mod support;

use gossamer_bench::serve::{BenchError, run};
use support::{Act, arguments, delta, done, result, serve, tokens, usage};

#[tokio::test]
async fn a_reasoning_delta_is_the_first_token_and_a_role_is_not() {
    let script = vec![
        delta(r#"{"role":"assistant","content":""}"#),
        Act::Wait(150),
        delta(r#"{"reasoning_content":"hm"}"#),
        Act::Wait(150),
        delta(r#"{"content":"yes"}"#),
        Act::Wait(150),
        usage(75, 10),
        done(),
    ];
    let port = serve(script).await;
    let directory = tempfile::tempdir().unwrap();
    let args = arguments(port, directory.path(), &["--backend", "openai-chat", "--num-prompts", "1"]);
    let summary = run(&args).await.unwrap();
    assert_eq!((summary.completed, summary.total_output, summary.total_input), (1, 10, 75));
    let (ttft, tpot) = (summary.ttft.mean, summary.tpot.mean);
    assert!((150.0..299.0).contains(&ttft), "TTFT {ttft} ms is the reasoning delta's");
    // One gap of 150 ms between first and last token, spread over the nine tokens after the first.
    assert!((150.0 / 9.0..299.0 / 9.0).contains(&tpot), "TPOT {tpot} ms is per token, not per chunk");
    assert_eq!(result(directory.path())["generated_texts"][0], "hmyes");
}

#[tokio::test]
async fn tpot_does_not_depend_on_the_stream_interval() {
    let mut means = Vec::new();
    for interval in [1usize, 5] {
        let mut script = vec![tokens(&[1])];
        for _ in 0..10 / interval {
            script.push(Act::Wait(20 * interval as u64));
            script.push(tokens(&vec![1; interval]));
        }
        script.extend([usage(8, 11), done()]);
        let port = serve(script).await;
        let directory = tempfile::tempdir().unwrap();
        let summary = run(&arguments(port, directory.path(), &["--num-prompts", "2"])).await.unwrap();
        assert_eq!(summary.total_output, 22);
        let itls = result(directory.path())["itls"][0].as_array().unwrap().len();
        assert_eq!(itls, 10, "a chunk's gap is spread over its tokens");
        means.push((summary.tpot.mean, summary.itl.mean));
    }
    // The script waits 20 ms per token. Timers fire late, never early; only the first token's own delay shortens the rest.
    assert!(means.iter().all(|(tpot, itl)| *tpot >= 15.0 && *itl >= 15.0), "{means:?}");
}

#[tokio::test]
async fn an_error_inside_the_stream_is_a_failure() {
    let error = Act::Event(r#"{"error":{"message":"worker died","type":"server_error"}}"#.to_owned());
    let script = vec![tokens(&[1]), tokens(&[2]), error, done()];
    let port = serve(script).await;
    let directory = tempfile::tempdir().unwrap();
    let outcome = run(&arguments(port, directory.path(), &["--num-prompts", "3"])).await;
    let Err(BenchError::Failed { failed, total, first }) = outcome else { panic!("got {outcome:?}") };
    assert_eq!((failed, total, first.as_str()), (3, 3, "worker died"));
    let saved = result(directory.path());
    assert_eq!((saved["completed"].as_u64(), saved["total_output_tokens"].as_u64()), (Some(0), Some(0)));
}

#[tokio::test]
async fn a_stream_without_its_end_and_a_refusal_are_failures() {
    for (script, expected) in [
        (vec![tokens(&[1]), usage(8, 1)], "the stream ended without [DONE]"),
        (vec![Act::Status(400, r#"{"error":{"message":"too long"}}"#)], "HTTP 400 Bad Request"),
        (vec![tokens(&[1]), done()], "the server sent no usage"),
    ] {
        let port = serve(script).await;
        let directory = tempfile::tempdir().unwrap();
        let outcome = run(&arguments(port, directory.path(), &["--num-prompts", "1"])).await;
        let error = outcome.expect_err("the run failed").to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Runs a ShareGPT file of this content; the number of requests made and the notes, or the error's text.
async fn sharegpt(content: &str) -> Result<(usize, Vec<String>), String> {
    let port = serve(vec![tokens(&[1]), usage(8, 1), done()]).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data.json");
    std::fs::write(&path, content).unwrap();
    let path = path.display().to_string();
    let more = ["--dataset-name", "sharegpt", "--dataset-path", &path, "--num-prompts", "4"];
    let summary = run(&arguments(port, directory.path(), &more)).await.map_err(|error| error.to_string())?;
    Ok((summary.completed, summary.notes))
}

const ROW: &str = r#"{"conversations":[{"from":"human","value":"Have you seen a 🦙?"},{"from":"gpt","value":"Hello there, I have not."}]}"#;

/// A row of so many one-token words a turn.
fn words(prompt: usize, answer: usize) -> String {
    let (prompt, answer) = (vec!["the"; prompt].join(" "), vec!["of"; answer].join(" "));
    serde_json::json!({"conversations": [{"from": "human", "value": prompt}, {"from": "gpt", "value": answer}]}).to_string()
}

#[tokio::test]
async fn answers_are_as_long_as_their_tokens_and_rows_of_unusual_length_are_left_out() {
    let rows = [(5, 300), (3, 300), (5, 3), (1025, 5), (1024, 1025), (1024, 1024)];
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data.json");
    std::fs::write(&path, format!("[{}]", rows.map(|(prompt, answer)| words(prompt, answer)).join(",")))
        .unwrap();
    let path = path.display().to_string();
    for (more, mut expected) in [(vec![], vec![300, 1024]), (vec!["--sharegpt-output-len", "2"], vec![2; 4])]
    {
        let (port, asked) = support::serve_and_keep(vec![tokens(&[1]), usage(8, 1), done()]).await;
        let count = expected.len().to_string();
        let mut args = vec!["--dataset-name", "sharegpt", "--dataset-path", &path, "--num-prompts", &count];
        args.extend(more);
        let summary = run(&arguments(port, directory.path(), &args)).await.unwrap();
        let mut lengths: Vec<_> =
            asked.lock().unwrap().iter().map(|body| body["max_tokens"].as_u64().unwrap()).collect();
        lengths.sort_unstable();
        expected.sort_unstable();
        assert_eq!(lengths, expected, "{:?}", summary.notes);
    }
}

#[tokio::test]
async fn a_tokenizer_that_is_not_there_is_an_error_that_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data.json");
    std::fs::write(&path, format!("[{ROW}]")).unwrap();
    let (path, missing) = (path.display().to_string(), directory.path().display().to_string());
    let port = serve(vec![tokens(&[1]), usage(8, 1), done()]).await;
    let more = ["--dataset-name", "sharegpt", "--dataset-path", &path, "--tokenizer", &missing];
    let error = run(&arguments(port, directory.path(), &more)).await.unwrap_err().to_string();
    assert!(error.contains(&missing) && error.contains("tokenizer.json"), "{error}");
}

#[tokio::test]
async fn unusable_rows_are_counted_and_repeats_are_said() {
    let bad = [
        r#"{"conversations":[{"from":"human","value":"alone"}]}"#,
        r#"{"conversations":[{"from":"gpt","value":"a"},{"from":"human","value":"b"}]}"#,
        r#"{"items":[]}"#,
    ];
    let (completed, notes) = sharegpt(&format!("[{ROW},{}]", bad.join(","))).await.unwrap();
    assert_eq!(completed, 4);
    let notes = notes.join("; ");
    for part in [
        "3 rows left out",
        "fewer than two turns: 1",
        "not from a human: 1",
        "no 'conversations': 1",
        "repeated",
    ] {
        assert!(notes.contains(part), "'{part}' is not in '{notes}'");
    }
    let (completed, notes) = sharegpt(&format!("[{}]", [ROW; 4].join(","))).await.unwrap();
    assert_eq!((completed, notes.len()), (4, 0));
}

#[tokio::test]
async fn files_without_a_usable_row_are_errors() {
    for (content, part) in [
        ("[]", "none of 0 rows"),
        ("{}", "got an object"),
        ("{\"a\":1}\n{\"b\":2}\n", "no JSON"),
        ("[{\"items\":[]}]", "none of 1 rows"),
    ] {
        let error = sharegpt(content).await.unwrap_err();
        assert!(error.contains(part), "{content}: {error}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_an_error_that_names_it() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let directory = tempfile::tempdir().unwrap();
    let args = arguments(port, directory.path(), &["--ready-check-timeout-sec", "0"]);
    let error = run(&args).await.unwrap_err().to_string();
    assert!(error.contains(&format!("http://127.0.0.1:{port}")), "{error}");
}
