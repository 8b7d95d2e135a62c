//! Names of segments, and the sweep of those whose owner is dead.
//!
//! A name is `gossamer-<owner pid>-<nonce>-<label>`; the nonce is `<pid namespace>.<owner's start time>.<random>` in
//! hexadecimal. A process number alone does not name a process: numbers are used again (the start time tells), and
//! another container that shares /dev/shm counts its own (the namespace tells).

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Where POSIX shared memory is visible as files.
pub(crate) const SHM_DIR: &str = "/dev/shm";
const PREFIX: &str = "gossamer-";

/// Why stale segments could not be looked for.
#[derive(Debug, thiserror::Error)]
#[error("expected to list {dir}, got: {source}")]
pub struct SweepError {
    dir: PathBuf,
    source: std::io::Error,
}

/// The file of a segment.
pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(SHM_DIR).join(name)
}

/// A fresh name owned by this process.
pub(crate) fn fresh(label: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let random = RandomState::new().build_hasher().finish() as u32;
    let label: String =
        label.chars().take(64).map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let pid = std::process::id();
    let start = start_time(pid).unwrap_or(0);
    format!("{PREFIX}{pid}-{:x}.{start:x}.{random:x}{count:x}-{label}", pid_namespace())
}

/// Removes the segments, and the folders of control sockets, whose owner is dead, and returns their names.
///
/// What belongs to living owners or to other process namespaces stays, as does every file that is not ours.
pub fn sweep_stale() -> Result<Vec<String>, SweepError> {
    let mut removed = sweep(SHM_DIR.as_ref(), |path| std::fs::remove_file(path))?;
    removed.extend(sweep(&std::env::temp_dir(), |path| std::fs::remove_dir_all(path))?);
    Ok(removed)
}

fn sweep(dir: &Path, remove: impl Fn(&Path) -> std::io::Result<()>) -> Result<Vec<String>, SweepError> {
    let failed = |source| SweepError { dir: dir.to_owned(), source };
    let mut removed = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let Some(name) = name.to_str() else { continue };
        // Another server that starts at the same moment may have removed it first: not a failure.
        if is_stale(name) && remove(&dir.join(name)).is_ok() {
            removed.push(name.to_owned());
        }
    }
    Ok(removed)
}

fn is_stale(name: &str) -> bool {
    let Some((pid, nonce)) = parse(name) else { return false };
    let mut parts = nonce.split('.').map(|part| u64::from_str_radix(part, 16).ok());
    let (Some(Some(namespace)), Some(Some(start))) = (parts.next(), parts.next()) else { return false };
    namespace == pid_namespace() && start_time(pid) != Some(start)
}

fn parse(name: &str) -> Option<(u32, &str)> {
    let mut parts = name.strip_prefix(PREFIX)?.splitn(3, '-');
    let pid = parts.next()?.parse().ok()?;
    let nonce = parts.next()?;
    parts.next()?;
    Some((pid, nonce))
}

/// Start time of a process in clock ticks since boot; `None` if there is no such process.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name may hold blanks and parentheses; the fields after the last one are numbers.
    let fields = stat.rsplit_once(')')?.1;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    // A zombie holds no memory any more.
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

fn pid_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map(|m| m.ino()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_this_process_parses_and_is_not_stale() {
        let name = fresh("plan/0 to-1");
        assert_eq!(parse(&name).map(|(pid, _)| pid), Some(std::process::id()), "{name}");
        assert!(name.ends_with("-plan_0_to_1"), "{name}");
        assert!(!is_stale(&name), "{name}");
    }

    #[test]
    fn a_name_is_stale_if_its_process_number_was_used_again() {
        let (pid, namespace) = (std::process::id(), pid_namespace());
        let start = start_time(pid).unwrap();
        assert!(!is_stale(&format!("gossamer-{pid}-{namespace:x}.{start:x}.1-a")));
        assert!(is_stale(&format!("gossamer-{pid}-{namespace:x}.{:x}.1-a", start + 1)));
        assert!(!is_stale(&format!("gossamer-{pid}-{:x}.{:x}.1-a", namespace + 1, start + 1)));
    }

    #[test]
    fn names_of_others_are_never_stale() {
        for name in ["", "gossamer-", "gossamer-1", "gossamer-x-1.1.1-a", "gossamer-1-zz-a", "sem.other"] {
            assert!(!is_stale(name), "{name}");
        }
    }
}
