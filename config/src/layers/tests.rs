use super::*;
use crate::{Device, KvCacheDtype};
use std::{fs, time::Duration};

struct Case {
    directory: tempfile::TempDir,
}

impl Case {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn file(&self, text: &str) -> String {
        let path = self.directory.path().join("gossamer.toml");
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn resolve(&self, args: &[&str], env: &[(&str, &str)]) -> Result<Resolved, ConfigError> {
        resolve(
            args.iter().map(OsString::from),
            env.iter().map(|(name, value)| (name.into(), value.into())),
            self.directory.path(),
        )
    }

    fn error(&self, args: &[&str], env: &[(&str, &str)]) -> String {
        self.resolve(args, env).expect_err("expected a refusal").to_string()
    }
}

#[test]
fn nothing_given_serves_the_demo_model_with_defaults() {
    let case = Case::new();
    let config = case.resolve(&[], &[("PATH", "/bin")]).unwrap().config;
    assert_eq!(config.model, case.directory.path());
    assert_eq!(config.port, 8000);
    assert_eq!(config.device, Device::Cpu);
    assert!(config.enable_prefix_caching && config.async_scheduling && config.enable_chunked_prefill);
    assert_eq!(config.shutdown_timeout, Duration::from_secs(30));
}

#[test]
fn the_device_is_asked_for_only_where_it_is_left_open() {
    let case = Case::new();
    let asked = |args: &[&str]| {
        let args = args.iter().map(OsString::from);
        let mut count = 0;
        let best = |args: &ServeArgs| {
            assert_eq!(args.max_num_seqs, Some(5));
            count += 1;
            Device::Cuda
        };
        let config = resolve_on(args, [], case.directory.path(), best).unwrap().config;
        (count, config.device, config.max_num_batched_tokens)
    };
    assert_eq!(asked(&["--max-num-seqs", "5"]), (1, Device::Cuda, 8192));
    assert_eq!(asked(&["--max-num-seqs", "5", "--device", "auto"]), (1, Device::Cuda, 8192));
    assert_eq!(asked(&["--max-num-seqs", "5", "--device", "cpu"]), (0, Device::Cpu, 512));
}

#[test]
fn flag_beats_environment_beats_file_beats_recipe_beats_default() {
    let case = Case::new();
    let file = case.file(
        "recipe = 'max-throughput'\nmax-num-seqs = 33\nport = 1000\nstream_interval = 3\n\
         served-model-name = ['a', 'b']\nenable-prefix-caching = false",
    );
    let env = [
        ("GOSSAMER_PORT", "2000"),
        ("GOSSAMER_STREAM_INTERVAL", "5"),
        ("GOSSAMER_ASYNC_SCHEDULING", "false"),
    ];
    let resolved = case.resolve(&["--config", &file, "--stream-interval=7"], &env).unwrap();
    let config = resolved.config;
    assert_eq!(config.stream_interval, 7, "flag");
    assert_eq!(config.port, 2000, "environment");
    assert!(!config.async_scheduling, "environment over recipe");
    assert_eq!(config.max_num_seqs, 33, "file");
    assert_eq!(config.served_model_names, ["a", "b"]);
    assert!(!config.enable_prefix_caching, "file");
    assert_eq!(config.cuda_graph_capture_size, 1024, "recipe");
    assert_eq!(config.max_queued_requests, 4096, "default");
    let (name, kept) = resolved.recipe.unwrap();
    assert_eq!(name, "max-throughput");
    assert!(kept.iter().any(|(key, value)| key == "max-num-batched-tokens" && value == "16384"), "{kept:?}");
    assert!(!kept.iter().any(|(key, _)| key == "max-num-seqs"), "{kept:?}");
}

#[test]
fn lists_of_a_stronger_source_replace_weaker_ones() {
    let case = Case::new();
    let file = case.file("served-model-name = ['a', 'b']");
    let config = case.resolve(&["--config", &file, "--served-model-name", "c"], &[]).unwrap().config;
    assert_eq!(config.served_model_names, ["c"]);
}

#[test]
fn a_switch_on_the_command_line_beats_its_opposite_elsewhere() {
    let case = Case::new();
    let env = [("GOSSAMER_ENABLE_PREFIX_CACHING", "false")];
    assert!(case.resolve(&["--enable-prefix-caching"], &env).unwrap().config.enable_prefix_caching);
    assert!(!case.resolve(&["--no-enable-prefix-caching"], &[]).unwrap().config.enable_prefix_caching);
    let last = ["--no-async-scheduling", "--async-scheduling"];
    assert!(case.resolve(&last, &[]).unwrap().config.async_scheduling);
}

#[test]
fn vllm_spellings_are_read() {
    let case = Case::new();
    let args = ["-tp", "1", "--max_model_len=8K", "--kv-cache-dtype", "bfloat16", "-dp=1"];
    let config = case.resolve(&args, &[]).unwrap().config;
    assert_eq!(config.max_model_len, Some(8192));
    assert_eq!(config.kv_cache_dtype, KvCacheDtype::Bf16);
}

#[test]
fn unknown_names_are_errors_that_suggest_the_known_one() {
    let case = Case::new();
    let file = case.file("stream-intervall = 2");
    let error = case.error(&["--config", &file], &[]);
    assert!(error.contains("unknown setting 'stream-intervall', did you mean 'stream-interval'?"), "{error}");
    let error = case.error(&[], &[("GOSSAMER_MAX_NUM_SEQ", "2")]);
    assert!(error.contains("GOSSAMER_MAX_NUM_SEQ") && error.contains("'max-num-seqs'"), "{error}");
    let error = case.error(&["--bogus"], &[]);
    assert!(error.contains("--bogus"), "{error}");
}

#[test]
fn variables_of_the_build_do_not_stop_a_server() {
    let case = Case::new();
    let env =
        [("GOSSAMER_KERNELS_DIR", "/kernels"), ("GOSSAMER_CPU_ISA", "scalar"), ("GOSSAMER_PORT", "2000")];
    assert_eq!(case.resolve(&[], &env).expect("none of these is wrong").config.port, 2000);
}

#[test]
fn wrong_values_name_their_source() {
    let case = Case::new();
    let file = case.file("port = 'http'");
    let error = case.error(&["--config", &file], &[]);
    assert!(error.contains("gossamer.toml: port") && error.contains("http"), "{error}");
    let error = case.error(&[], &[("GOSSAMER_ASYNC_SCHEDULING", "perhaps")]);
    assert!(error.contains("expected true or false, got 'perhaps'"), "{error}");
    let error = case.error(&[], &[("GOSSAMER_RECIPE", "fastest")]);
    assert!(error.contains("max-throughput"), "{error}");
    let error = case.error(&["--config", "/nonexistent.toml"], &[]);
    assert!(error.contains("cannot read the configuration file /nonexistent.toml"), "{error}");
    let file = case.file("port = = 3");
    assert!(case.error(&["--config", &file], &[]).contains("gossamer.toml"));
}

#[test]
fn what_does_not_exist_yet_is_refused_by_name() {
    let case = Case::new();
    for (args, word) in [
        (&["-tp", "2"][..], "--tensor-parallel-size 2"),
        (&["--enable-expert-parallel"], "--enable-expert-parallel"),
        (&["--disaggregate", "prefill=1,decode=1"], "--disaggregate"),
        (&["--device", "cpu", "--moe-activation-dtype", "fp8"], "--moe-activation-dtype fp8"),
        (
            &["--device", "cpu", "--kv-cache-dtype", "fp8", "--attention-arithmetic", "fp8"],
            "--attention-arithmetic fp8",
        ),
    ] {
        let error = case.error(args, &[]);
        assert!(error.starts_with("not supported yet: ") && error.contains(word), "{error}");
    }
}

#[test]
fn ranges_are_checked() {
    let case = Case::new();
    for (args, words) in [
        (&["--max-num-seqs", "0"][..], "at least 1"),
        (&["--stream-interval", "-1"], "-1 is not in 0..=4294967295"),
        (&["--shutdown-timeout", "-1"], "invalid value '-1' for '--shutdown-timeout <SECONDS>': expected"),
        (&["--max-model-len", "-1"], "invalid value '-1' for '--max-model-len <TOKENS>': expected"),
        (&["--gpu-memory-utilization", "-0.5"], "invalid value '-0.5'"),
        (&["--max-num-seqs", "64", "--max-num-batched-tokens", "32"], "below --max-num-seqs"),
        (&["--no-enable-chunked-prefill", "--max-model-len", "4096"], "below --max-model-len"),
        (&["--gpu-memory-utilization", "1.5"], "at most 1"),
        (&["--sim-script", "x"], "need --device sim"),
        (&["--block-size", "16"], "expected 64"),
        (&["--attention-arithmetic", "fp8"], "add --kv-cache-dtype fp8"),
        (&["--attention-arithmetic", "fp8", "--kv-cache-dtype", "bf16"], "add --kv-cache-dtype fp8"),
        (&["--cpu-threads", "9999"], "expected at most 1024, got 9999"),
        (&["--disaggregate", "prefill=0,decode=1"], "expected prefill=N,decode=M"),
        (&["/nonexistent/model"], "does not exist"),
    ] {
        let error = case.error(args, &[]);
        assert!(error.contains(words), "{args:?}: {error}");
    }
}

#[test]
fn keys_come_from_flags_and_file_and_are_never_printed() {
    let case = Case::new();
    let path = case.directory.path().join("keys");
    fs::write(&path, "# ours\nsecond-key\n\n").unwrap();
    let path = path.to_str().unwrap();
    let config = case.resolve(&["--api-key", "first-key", "--api-key-file", path], &[]).unwrap().config;
    let keys: Vec<_> = config.api_keys.iter().map(crate::Secret::expose).collect();
    assert_eq!(keys, ["first-key", "second-key"]);
    assert!(!format!("{config:?}").contains("first-key"));
    fs::write(path, "# none\n").unwrap();
    assert!(case.error(&["--api-key-file", path], &[]).contains("holds no key"));
}

#[test]
fn every_recipe_resolves() {
    let case = Case::new();
    for recipe in crate::RECIPES {
        case.resolve(&["--recipe", recipe.name], &[]).unwrap();
    }
}
