//! Kernel cache files: what the tuner found out, kept for the next start.
//!
//! One JSON file per device and model. A file that is damaged, or was written for another device, driver, plugin or
//! shape, is a miss with one reason, never an error. Files are replaced whole: written beside, synced, renamed.

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Version of the file's shape.
pub const SCHEMA: u32 = 1;

/// A plugin as it was when a cache was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginId {
    /// Name.
    pub name: String,
    /// Version.
    pub version: String,
    /// BLAKE3 of the file.
    pub hash: String,
}

impl PluginId {
    /// Identifies a plugin by its file.
    pub fn of(name: &str, version: &str, file: &Path) -> std::io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        std::io::copy(&mut File::open(file)?, &mut hasher)?;
        Ok(Self { name: name.into(), version: version.into(), hash: hasher.finalize().to_hex().to_string() })
    }
}

/// Everything that a measurement depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheKey {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The device's name.
    pub device: String,
    /// Its driver's version; empty on CPUs.
    pub driver: String,
    /// The loaded plugins.
    pub plugins: Vec<PluginId>,
    /// Shape of the model, the types it runs in, and the backends that are forced.
    pub model: String,
    /// How ranks share it.
    pub layout: String,
}

impl CacheKey {
    /// Where the cache of a directory lies.
    pub fn path(&self, directory: &Path) -> PathBuf {
        directory.join(self.file_name())
    }

    /// Name of the file. It holds what a person would call "the same machine and model"; the rest is compared inside,
    /// so that a stale file is noticed and explained.
    fn file_name(&self) -> String {
        let hash = blake3::hash(format!("{}\n{}\n{}", self.device, self.model, self.layout).as_bytes());
        let device: String = self
            .device
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
            .collect();
        format!("{}-{}.json", device.trim_matches('-'), &hash.to_hex()[..16])
    }
}

/// What was chosen for one operation at one token count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CacheEntry {
    /// The operation with all its sizes, as text.
    pub operation: String,
    /// Bucket of the token count.
    pub tokens: u32,
    /// The backend chosen.
    pub backend: String,
    /// The tactic chosen.
    pub tactic: String,
    /// Its time.
    pub micros: f64,
    /// The others, cheapest first: backend, tactic, microseconds.
    pub runners_up: Vec<(String, String, f64)>,
}

/// Why a cache was not used.
#[derive(Debug, Error)]
pub enum CacheMiss {
    /// There is none.
    #[error("{path}: no kernel cache yet")]
    Absent {
        /// Where it would be.
        path: PathBuf,
    },
    /// It could not be read.
    #[error("{path}: kernel cache ignored: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is no cache file, or a damaged one.
    #[error("{path}: kernel cache ignored: damaged: {message}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        message: String,
    },
    /// It was written under other conditions.
    #[error("{path}: kernel cache ignored: it was written for {field} {got}, this is {expected}")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What differs.
        field: &'static str,
        /// The value here.
        expected: String,
        /// The value in the file.
        got: String,
    },
}

/// The part of a file that every schema has.
#[derive(Deserialize)]
struct Stamp {
    key: StampKey,
}

#[derive(Deserialize)]
struct StampKey {
    schema: u32,
}

/// A kernel cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelCache {
    key: CacheKey,
    entries: Vec<CacheEntry>,
}

impl KernelCache {
    /// An empty cache.
    pub fn new(key: CacheKey) -> Self {
        Self { key, entries: Vec::new() }
    }

    /// Loads the cache for `key` from a directory.
    pub fn load(directory: &Path, key: &CacheKey) -> Result<Self, CacheMiss> {
        let path = key.path(directory);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(CacheMiss::Absent { path });
            }
            Err(source) => return Err(CacheMiss::Unreadable { path, source }),
        };
        // Alone first: what a file of another schema holds beside it is not known here.
        let cache = serde_json::from_slice(&bytes).and_then(|stamp: Stamp| match stamp.key.schema {
            SCHEMA => serde_json::from_slice(&bytes).map(Ok),
            other => Ok(Err(other)),
        });
        let cache: Self = match cache {
            Ok(Ok(cache)) => cache,
            Ok(Err(other)) => {
                let (expected, got) = (SCHEMA.to_string(), other.to_string());
                return Err(CacheMiss::Foreign { path, field: "schema", expected, got });
            }
            Err(error) => return Err(CacheMiss::Damaged { path, message: error.to_string() }),
        };
        match difference(key, &cache.key) {
            None => Ok(cache),
            Some((field, expected, got)) => Err(CacheMiss::Foreign { path, field, expected, got }),
        }
    }

    /// Writes the cache and returns the file's path, which an error names too.
    pub fn store(&self, directory: &Path) -> std::io::Result<PathBuf> {
        let path = self.key.path(directory);
        let named = |error: std::io::Error| {
            std::io::Error::new(error.kind(), format!("{} cannot be written: {error}", path.display()))
        };
        std::fs::create_dir_all(directory).map_err(named)?;
        // Two processes may write at once; each has its own file until the rename.
        let beside = path.with_extension(format!("{}.tmp", std::process::id()));
        let write = || {
            let mut file = File::create(&beside)?;
            file.write_all(&serde_json::to_vec_pretty(self)?)?;
            file.sync_all()?;
            std::fs::rename(&beside, &path)
        };
        write()
            .inspect_err(|_| {
                let _ = std::fs::remove_file(&beside);
            })
            .map_err(named)?;
        Ok(path)
    }

    /// Choices that it holds.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entry of an operation and bucket.
    pub fn get(&self, operation: &str, tokens: u32) -> Option<&CacheEntry> {
        self.entries.iter().find(|entry| entry.tokens == tokens && entry.operation == operation)
    }

    /// Adds an entry, or replaces the one of the same operation and bucket.
    pub fn insert(&mut self, entry: CacheEntry) {
        self.entries.retain(|other| other.tokens != entry.tokens || other.operation != entry.operation);
        self.entries.push(entry);
    }
}

fn difference(here: &CacheKey, there: &CacheKey) -> Option<(&'static str, String, String)> {
    let plugins = |key: &CacheKey| {
        let one = |plugin: &PluginId| {
            format!("{} {} ({})", plugin.name, plugin.version, plugin.hash.get(..8).unwrap_or(&plugin.hash))
        };
        key.plugins.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    let fields = [
        ("device", here.device.clone(), there.device.clone()),
        ("driver", here.driver.clone(), there.driver.clone()),
        ("plugins", plugins(here), plugins(there)),
        ("model", here.model.clone(), there.model.clone()),
        ("layout", here.layout.clone(), there.layout.clone()),
    ];
    fields.into_iter().find(|(_, here, there)| here != there)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> CacheKey {
        let plugin = PluginId { name: "fallback".into(), version: "1".into(), hash: "00112233".into() };
        CacheKey {
            schema: SCHEMA,
            device: "Some CPU @ 2 GHz".into(),
            driver: String::new(),
            plugins: vec![plugin],
            model: "20b".into(),
            layout: "tp1".into(),
        }
    }

    fn entry(micros: f64) -> CacheEntry {
        CacheEntry {
            operation: "gemm".into(),
            tokens: 4,
            backend: "fallback".into(),
            tactic: "rows".into(),
            micros,
            runners_up: vec![],
        }
    }

    #[test]
    fn what_is_stored_is_loaded_and_the_last_entry_counts() {
        let directory = tempfile::tempdir().unwrap();
        let mut cache = KernelCache::new(key());
        cache.insert(entry(2.0));
        cache.insert(entry(1.0));
        cache.store(directory.path()).unwrap();
        let loaded = KernelCache::load(directory.path(), &key()).unwrap();
        assert_eq!(loaded, cache);
        assert_eq!(loaded.get("gemm", 4).unwrap().micros, 1.0);
        assert!(loaded.get("gemm", 5).is_none());
        assert_eq!(
            std::fs::read_dir(directory.path()).unwrap().count(),
            1,
            "nothing is left beside the file"
        );
    }

    #[test]
    fn absent_damaged_unreadable_and_foreign_files_are_misses_with_a_reason() {
        let directory = tempfile::tempdir().unwrap();
        let miss = |key: &CacheKey| KernelCache::load(directory.path(), key).unwrap_err().to_string();
        assert!(miss(&key()).contains("no kernel cache yet"));
        let path = KernelCache::new(key()).store(directory.path()).unwrap();
        let mut newer = key();
        newer.plugins[0].hash = "99112233".into();
        let message = miss(&newer);
        assert!(
            message.contains("plugins fallback 1 (00112233), this is fallback 1 (99112233)"),
            "{message}"
        );
        // An older or newer file is told from a damaged one, whatever else it holds.
        std::fs::write(&path, r#"{"key": {"schema": 0, "gpu": "x"}, "tactics": {}}"#).unwrap();
        assert!(miss(&key()).contains("schema 0, this is 1"), "{}", miss(&key()));
        let mut cache = KernelCache::new(key());
        (1..5).for_each(|tokens| cache.insert(CacheEntry { tokens, ..entry(1.0) }));
        cache.store(directory.path()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        KernelCache::load(directory.path(), &key()).unwrap();
        for damaged in
            [&b"{"[..], b"{}", b"", b"\xff\xfe", &whole[..whole.len() / 2], &whole[..whole.len() - 1]]
        {
            std::fs::write(&path, damaged).unwrap();
            assert!(miss(&key()).contains("kernel cache ignored: damaged"), "{}", miss(&key()));
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(miss(&key()).contains("kernel cache ignored: Is a directory"), "{}", miss(&key()));
    }
}
