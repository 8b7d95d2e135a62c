//! A third party's plugin is built, found, loaded and used; and plugins that are wrong in any way are refused or contained
//! with a reason that a person understands.

use gossamer_backend_api::loader::{self, BackendFile, LoadError, LoadedBackend};
use gossamer_backend_api::ops::{EmbedDesc, RmsNormArgs, RmsNormDesc};
use gossamer_backend_api::{DType, HostServices, KernelBackend, Launch, OpArgs, OpDesc, Support, abi};
use object::{Object, ObjectSection};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex};

/// Builds the example with a feature (or none), once per process, and returns the library.
fn example(feature: &str) -> PathBuf {
    static BUILT: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    let mut built = BUILT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let built = built.get_or_insert_default();
    if let Some(path) = built.get(feature) {
        return path.clone();
    }
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/example-plugin/Cargo.toml");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("example-plugin");
    let output = Command::new(env!("CARGO"))
        .args(["build", "--release", "--offline", "--locked", "--features", feature])
        .arg("--manifest-path")
        .arg(&manifest)
        .arg("--target-dir")
        .arg(&target)
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "the example does not build:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // Each feature overwrites the library of the one before.
    let name = if feature.is_empty() { "plain" } else { feature };
    let copy = target.join(format!("libgossamer_example_{name}.so"));
    std::fs::copy(target.join("release/libgossamer_example.so"), &copy).expect("the library was built");
    built.insert(feature.to_owned(), copy.clone());
    copy
}

fn host() -> &'static HostServices {
    static HOST: LazyLock<HostServices> = LazyLock::new(HostServices::inline);
    &HOST
}

fn load(path: &Path) -> Result<LoadedBackend, LoadError> {
    loader::open(&loader::inspect(path)?, host())
}

/// A copy of the example, changed by `patch`.
fn patched(patch: impl FnOnce(&mut Vec<u8>)) -> (tempfile::TempDir, PathBuf) {
    let mut bytes = std::fs::read(example("")).expect("the example is there");
    patch(&mut bytes);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("libgossamer_patched.so");
    std::fs::write(&path, bytes).expect("the copy is written");
    (folder, path)
}

/// Where the descriptor lies in the file.
fn descriptor_at(bytes: &[u8]) -> usize {
    let elf = object::File::parse(bytes).expect("an ELF file");
    let section = elf.section_by_name(abi::DESCRIPTOR_SECTION).expect("a descriptor");
    section.file_range().expect("bytes in the file").0 as usize
}

fn refusal(patch: impl FnOnce(&mut Vec<u8>)) -> String {
    let (_folder, path) = patched(patch);
    match load(&path) {
        Ok(_) => panic!("a bad plugin was loaded"),
        Err(error) => error.to_string(),
    }
}

fn check_refusal(expected: &str, patch: impl FnOnce(&mut Vec<u8>)) {
    let reason = refusal(patch);
    assert!(reason.contains(expected), "expected a reason with {expected:?}, got {reason:?}");
    assert!(reason.contains("libgossamer_patched.so"), "the reason names no file: {reason:?}");
}

const DESC: RmsNormDesc = RmsNormDesc { hidden: 4, eps: 0.0, activation: DType::F32 };

/// Normalises a row of four with weight one.
fn norm(backend: &LoadedBackend) -> Result<[f32; 4], String> {
    let x = [1f32, -1.0, 1.0, -1.0];
    let weight = [0x3f80u16; 4];
    let mut out = [f32::NAN; 4];
    let args = RmsNormArgs {
        x: x.as_ptr() as u64,
        weight: weight.as_ptr() as u64,
        out: out.as_mut_ptr() as u64,
        tokens: 1,
    };
    let args = OpArgs::RmsNorm(args);
    let launch = Launch { args, tactic: 0, workspace: 0, workspace_bytes: 0, stream: 0 };
    // SAFETY: the buffers have a row of four.
    unsafe { backend.launch(&OpDesc::RmsNorm(DESC), &launch) }.map_err(|error| error.to_string())?;
    Ok(out)
}

#[test]
fn a_third_party_plugin_is_found_loaded_and_computes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::copy(example(""), folder.path().join("libgossamer_example.so")).expect("a copy");
    std::fs::write(folder.path().join("libother.so"), b"not looked at").expect("a file");
    std::fs::write(folder.path().join("libgossamer_text.so"), b"hello").expect("a file");
    let found = loader::discover(folder.path()).expect("the folder is readable");
    assert_eq!(found.len(), 2, "two files have a backend's name");
    let file: &BackendFile = found[0].as_ref().expect("the example has a good descriptor");
    assert_eq!((file.name.as_str(), file.version.as_str()), ("example", "0.3.1"));
    assert!(found[1].is_err(), "a text file is no backend");

    let backend = loader::open(file, host()).expect("the example opens");
    assert_eq!(backend.supports(&OpDesc::RmsNorm(DESC)), Support::Yes);
    let embed = OpDesc::Embed(EmbedDesc { hidden: 4, vocab: 4, activation: DType::F32 });
    assert_eq!(backend.supports(&embed), Support::No("embed is not part of the example".to_owned()));
    assert_eq!(backend.tactics(&embed, 1), []);
    assert_eq!(backend.tactics(&OpDesc::RmsNorm(DESC), 1)[0].name, "rows");
    assert_eq!(norm(&backend), Ok([1.0, -1.0, 1.0, -1.0]));
}

#[test]
fn another_version_is_refused_before_any_code_runs() {
    let word = |bytes: &mut Vec<u8>, at: usize, value: u32| {
        let at = descriptor_at(bytes) + at;
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    };
    check_refusal("expected ABI version", |bytes| word(bytes, 8, abi::ABI_VERSION + 1));
    check_refusal("expected a descriptor of", |bytes| word(bytes, 12, 4));
    check_refusal("expected a table of", |bytes| word(bytes, 16, 1 << 20));
    check_refusal("name is empty", |bytes| word(bytes, 24, 0));
    check_refusal("begin with", |bytes| word(bytes, 0, 0));
}

#[test]
fn a_damaged_file_is_refused() {
    check_refusal("not a readable ELF library", |bytes| bytes[..64].fill(0));
    check_refusal("not a readable ELF library", |bytes| bytes.truncate(0));
    check_refusal("not a Gossamer backend", |bytes| {
        let name = abi::DESCRIPTOR_SECTION.as_bytes();
        let at = bytes.windows(name.len()).position(|window| window == name).expect("the section's name");
        bytes[at + 1] = b'X';
    });
    for share in [3, 10, 50, 90, 99] {
        let reason = refusal(|bytes| bytes.truncate(bytes.len() * share / 100));
        assert!(reason.contains("libgossamer_patched.so: "), "{reason}");
    }
}

#[test]
fn no_damage_to_headers_makes_the_reader_panic() {
    let good = std::fs::read(example("")).expect("the example is there");
    let sections = good.len() - 64 * 40;
    for seed in 0..3000u64 {
        let mut bytes = good.clone();
        for i in 0..4u64 {
            let word = (seed * 4 + i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let at = if word & 1 == 0 {
                (word >> 8) as usize % 64
            } else {
                sections + (word >> 8) as usize % (64 * 40)
            };
            bytes[at] = (word >> 40) as u8;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("libgossamer_damaged.so");
        std::fs::write(&path, bytes).expect("the copy is written");
        // Only read, never opened: whether it is refused depends on what was hit.
        let _ = loader::inspect(&path);
    }
}

#[test]
fn a_table_of_another_version_is_refused() {
    check_refusal("expected a table of version", |bytes| {
        let table =
            [(size_of::<abi::BackendTable>() as u32).to_le_bytes(), abi::ABI_VERSION.to_le_bytes()].concat();
        let elf = object::File::parse(&**bytes).expect("an ELF file");
        let section = elf.section_by_name(".data.rel.ro").expect("the table holds addresses");
        let (start, size) = section.file_range().expect("bytes in the file");
        let range = start as usize..(start + size) as usize;
        let at = bytes[range.clone()].windows(8).position(|window| window == table).expect("the table")
            + range.start;
        bytes[at + 4] += 1;
    });
}

#[test]
fn a_missing_file_and_folder_are_named() {
    let missing = Path::new("/nonexistent/libgossamer_none.so");
    let reason = load(missing).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(reason.contains("libgossamer_none.so") && reason.contains("cannot read"), "{reason}");
    let reason =
        loader::discover(Path::new("/nonexistent")).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(reason.contains("/nonexistent") && reason.contains("--backend-dir"), "{reason}");
}

#[test]
fn a_pipe_is_refused_and_of_two_files_with_one_name_the_first_is_taken() {
    let (folder, first) = patched(|_| ());
    std::fs::copy(&first, folder.path().join("libgossamer_second.so")).expect("copied");
    let pipe = folder.path().join("libgossamer_pipe.so");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let found = loader::discover(folder.path()).expect("the folder is read");
    assert_eq!(found.iter().flatten().map(|file| &file.path).collect::<Vec<_>>(), [&first]);
    let reasons: Vec<String> =
        found.into_iter().filter_map(Result::err).map(|error| error.to_string()).collect();
    assert!(reasons.iter().any(|reason| reason.contains("pipe.so: not a regular file")), "{reasons:?}");
    assert!(reasons.iter().any(|reason| reason.contains("second.so") && reason.contains("patched.so holds a backend named")), "{reasons:?}");
}

#[test]
fn what_a_plugin_says_or_panics_with_in_open_is_the_reason() {
    for (feature, expected) in [
        ("fail-in-open", "the example was told to fail"),
        ("panic-in-open", "panicked: the example was told to panic in open"),
    ] {
        let reason = load(&example(feature)).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(reason.contains(expected), "expected {expected:?}, got {reason:?}");
    }
}

#[test]
fn a_panic_in_launch_is_an_error_and_the_process_goes_on() {
    let backend = load(&example("panic-in-launch")).expect("it opens");
    for _ in 0..3 {
        let reason = norm(&backend).expect_err("it panics");
        assert!(reason.contains("panicked: the example was told to panic in launch"), "{reason}");
    }
    assert_eq!(backend.supports(&OpDesc::RmsNorm(DESC)), Support::Yes);
}
