//! Sweeps against scripted servers, and what is drawn and compared of their results.

#![allow(clippy::unwrap_used)]

mod support;

use clap::Parser;
use gossamer_bench::results::{PointFile, read_set};
use gossamer_bench::sweep::{SweepArgs, SweepError, run, servers};
use gossamer_bench::{compare, pareto};
use std::path::{Path, PathBuf};
use support::{Act, done, serve, tokens, usage};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: SweepArgs,
}

fn arguments(output: &Path, more: &[&str]) -> SweepArgs {
    let output = output.display().to_string();
    let fixed = ["sweep", "--output", &output, "--disable-progress", "--prompts-per-stream", "2"];
    Cli::parse_from([&fixed[..], more].concat()).args
}

fn against(port: u16, output: &Path, more: &[&str]) -> SweepArgs {
    let url = format!("http://127.0.0.1:{port}");
    arguments(output, &[&["--base-url", &url, "--ready-check-timeout-sec", "0"], more].concat())
}

fn answer() -> Vec<Act> {
    vec![tokens(&[1]), Act::Wait(20), tokens(&[2, 3]), usage(8, 3), done()]
}

fn point(folder: &Path, name: &str) -> PointFile {
    serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap()
}

#[tokio::test]
async fn a_grid_is_measured_kept_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let port = serve(answer()).await;
    let axes = ["--concurrency", "1,3", "--lengths", "8:3,16:3", "--gpus", "2"];
    let swept = run(&against(port, folder.path(), &axes)).await.unwrap();
    assert_eq!((swept.total, swept.kept, swept.errors.len()), (4, 0, 0));
    let file = point(folder.path(), "in16-out3__c3.json");
    assert_eq!((file.gpus, file.error), (2, None));
    assert_eq!(file.result["completed"], 6, "two requests for each of three streams");
    assert_eq!(file.result["ttfts"].as_array().unwrap().len(), 6, "raw results are kept");
    let page = std::fs::read_to_string(folder.path().join("pareto.html")).unwrap();
    let picture = std::fs::read_to_string(folder.path().join("pareto.svg")).unwrap();
    assert_eq!([&page, &picture].map(|text| text.matches("class=\"point\"").count()), [4, 4]);
    assert!(page.contains("lengths 16:3"), "settings in which points differ are told");
    assert!(!page.contains("http://") && !page.contains("https://"), "the page needs no network");
    assert!(picture.starts_with("<svg ") && picture.contains("xmlns=\"http://www.w3.org/2000/svg\""));
}

#[tokio::test]
async fn what_is_stored_is_not_measured_again_and_what_failed_is() {
    let folder = tempfile::tempdir().unwrap();
    let port = serve(answer()).await;
    let args = against(port, folder.path(), &["--concurrency", "1,2,3"]);
    run(&args).await.unwrap();
    let content = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let kept = [content("c1.json"), content("c3.json")];
    let mut broken = point(folder.path(), "c2.json");
    broken.error = Some("the server died".into());
    std::fs::write(folder.path().join("c2.json"), serde_json::to_string(&broken).unwrap()).unwrap();
    let swept = run(&args).await.unwrap();
    assert_eq!((swept.total, swept.kept), (3, 2));
    assert_eq!(point(folder.path(), "c2.json").error, None);
    assert_eq!([content("c1.json"), content("c3.json")], kept);
}

#[tokio::test]
async fn results_of_other_settings_are_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let port = serve(answer()).await;
    run(&against(port, folder.path(), &["--concurrency", "1"])).await.unwrap();
    let other = against(port, folder.path(), &["--concurrency", "1", "--seed", "7"]);
    let error = run(&other).await.unwrap_err().to_string();
    assert!(error.contains("seed 0, not 7") && error.contains("c1.json"), "{error}");
}

#[tokio::test]
async fn a_failed_point_is_recorded_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let port = serve(vec![tokens(&[1]), done()]).await;
    let error = run(&against(port, folder.path(), &["--concurrency", "1,2"])).await.unwrap_err();
    let SweepError::Points { failed: 2, total: 2, first } = error else { panic!("got {error:?}") };
    assert!(first.contains("no usage"), "{first}");
    assert!(point(folder.path(), "c2.json").error.is_some(), "the second point was tried");
    assert!(!folder.path().join("pareto.html").exists(), "there is nothing to draw");
}

#[tokio::test]
async fn a_server_that_does_not_start_fails_its_points_with_its_last_words() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("server");
    std::fs::write(&program, "#!/bin/sh\necho \"expected a model, got $*\" >&2\nexit 3\n").unwrap();
    let mut permissions = program.metadata().unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
    std::fs::set_permissions(&program, permissions).unwrap();
    let program = program.display().to_string();
    let output = folder.path().join("results");
    let grid = ["--concurrency", "1", "--server-flag", "stream-interval=1,20", "--layout", "tp=2"];
    let args = arguments(&output, &[&["--server-binary", &program], &grid[..]].concat());
    let error = run(&args).await.unwrap_err();
    let SweepError::Points { failed: 2, total: 2, first } = error else { panic!("got {error:?}") };
    assert!(first.contains("exit status: 3"), "{first}");
    assert!(first.contains("--stream-interval=1 --tensor-parallel-size=2"), "{first}");
    let file = point(&output, "stream-interval=20__tp=2__c1.json");
    assert_eq!((file.gpus, file.settings.value("layout")), (2, Some("tp=2")));
    assert!(file.error.unwrap().contains("--stream-interval=20"));
}

#[test]
fn a_grid_has_every_combination_once() {
    let folder = PathBuf::from("unused");
    let args = arguments(
        &folder,
        &[
            "--concurrency",
            "1,2",
            "--server-flag",
            "a=1,2",
            "--server-flag",
            "b",
            "--layout",
            "tp=2",
            "--layout",
            "dp=4,ep",
        ],
    );
    let servers = servers(&args).unwrap();
    let names: Vec<&str> =
        servers.iter().flat_map(|server| &server.points).map(|point| point.name.as_str()).collect();
    assert_eq!((servers.len(), names.len()), (4, 8));
    assert_eq!(names[0], "a=1__b=true__tp=2__c1");
    assert_eq!(servers[3].gpus, 4);
    let flags: Vec<String> = servers[3].flags.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(flags, ["a=2", "b=true", "data-parallel-size=4", "enable-expert-parallel=true"]);
}

#[tokio::test]
async fn contradictions_stop_a_sweep_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    for (more, part) in [
        (&["--base-url", "http://127.0.0.1:1", "--layout", "tp=2"][..], "runs already"),
        (&["--max-concurrency", "3"], "use --concurrency"),
        (&["--server-flag", "port=1"], "leave it out"),
        (&["--server-flag", "a=1", "--server-flag", "a=2"], "list its values"),
        (&["--layout", "tp=2", "--server-flag", "tensor-parallel-size=2"], "comes from --layout"),
        (&["--concurrency", "4,4"], "twice"),
        (&["--concurrency", "0"], "numbers from 1"),
        (&["--metric-percentiles", "50,101"], "from 0 to 100, got 101"),
        (&["--percentile-metrics", "ttft,foo"], "got 'foo'"),
    ] {
        let error = run(&arguments(folder.path(), more)).await.unwrap_err().to_string();
        assert!(error.contains(part), "{more:?}: {error}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

fn vllm_result(folder: &Path, concurrency: u32, throughput: f64, tpot: f64) {
    let text = format!(
        r#"{{"max_concurrency":{concurrency},"request_rate":"inf","num_prompts":10,"output_throughput":{throughput},
        "mean_tpot_ms":{tpot},"mean_ttft_ms":50.0,"p99_ttft_ms":80.0}}"#
    );
    std::fs::write(folder.join(format!("{concurrency}.json")), text).unwrap();
}

#[test]
fn result_files_of_other_programs_are_drawn_and_compared() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (folder, factor) in [(&a, 1.0), (&b, 2.0)] {
        vllm_result(folder.path(), 8, 800.0 * factor, 10.0 / factor);
        vllm_result(folder.path(), 64, 4000.0 * factor, 16.0);
    }
    vllm_result(b.path(), 128, 5000.0, 30.0);
    let [base, other] = [&a, &b].map(|folder| read_set(folder.path(), 1).unwrap());
    let table = compare::table(&base, &other, false).unwrap();
    let row =
        |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{table}"));
    let words: Vec<&str> = row("concurrency 8").split_whitespace().collect();
    assert_eq!(words[2..5], ["2.000x", "2.000x", "2.000x"], "{table}");
    let words: Vec<&str> = row("concurrency 64").split_whitespace().collect();
    assert_eq!(words[2..5], ["2.000x", "2.000x", "1.000x"], "{table}");
    assert!(row("geometric mean").contains("1.414x"), "{table}");
    assert!(row("1 points").contains("no partner"), "{table}");
    let files = compare::table(&base[..1], &other[2..], true).unwrap();
    assert!(files.contains("B / A"), "two files are compared whatever their settings: {files}");
    assert!(compare::table(&base[..1], &other[..0], false).is_err());

    let out = a.path().join("both.html");
    pareto::draw(&[a.path().to_owned(), b.path().to_owned()], &out, 4).unwrap();
    let page = std::fs::read_to_string(&out).unwrap();
    assert_eq!(page.matches("class=\"point\"").count(), 5);
    assert_eq!(page.matches("class=\"key\"").count(), 2);
    assert!(page.contains("200 tokens/s per GPU"), "800 tokens/s by 4 GPUs");
}

#[test]
fn what_is_no_result_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let error = read_set(folder.path(), 1).unwrap_err().to_string();
    assert!(error.contains("got none that is complete"), "{error}");
    for (content, part) in [("{", "EOF"), ("[]", "no JSON object"), ("{\"a\":1}", "no 'output_throughput'")] {
        std::fs::write(folder.path().join("x.json"), content).unwrap();
        let error = read_set(folder.path(), 1).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
