//! Anonymous memory in one piece, and how much of it the machine has.

use memmap2::MmapMut;
use thiserror::Error;

/// Memory could not be had.
#[derive(Debug, Error)]
#[error(
    "cannot map {bytes} bytes for {what}: {source}; free memory, or lower --max-num-batched-tokens, --max-num-seqs or the number of \
     KV blocks (--num-gpu-blocks-override, --gpu-memory-utilization)"
)]
pub struct MemoryError {
    /// What it is for.
    pub what: &'static str,
    /// How much.
    pub bytes: u64,
    /// What the system said.
    pub source: std::io::Error,
}

/// Zeroed memory that becomes resident when it is touched.
#[derive(Debug)]
pub struct Region {
    map: MmapMut,
}

impl Region {
    /// Maps memory. Large regions ask for large pages.
    pub fn new(what: &'static str, bytes: u64) -> Result<Self, MemoryError> {
        let failed = |source| MemoryError { what, bytes, source };
        let len =
            usize::try_from(bytes.max(1)).map_err(|_| failed(std::io::ErrorKind::OutOfMemory.into()))?;
        let map = MmapMut::map_anon(len).map_err(failed)?;
        #[cfg(target_os = "linux")]
        if len >= 32 << 20 {
            // Only a wish: where it is refused, small pages do.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Self { map })
    }

    /// Address of the first byte; aligned to a page.
    pub fn address(&self) -> u64 {
        self.map.as_ptr() as u64
    }

    /// The bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

/// Memory that this process can still take, in bytes: what the machine has to spare, within the limit of its control
/// group.
pub fn available() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let machine = line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()? * 1024;
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let group = read("memory.max").map(|most| most.saturating_sub(read("memory.current").unwrap_or(0)));
    Some(group.map_or(machine, |group| group.min(machine)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_cannot_be_had_says_for_what_and_what_to_lower() {
        // More than an address can name.
        let error = Region::new("activations", 1 << 60).unwrap_err().to_string();
        for part in ["1152921504606846976 bytes for activations", "lower --max-num-batched-tokens"] {
            assert!(error.contains(part), "expected '{part}' in '{error}'");
        }
    }
}
