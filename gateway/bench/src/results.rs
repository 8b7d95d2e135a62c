//! Stored results: the points of a sweep, and result files of other programs beside them.
//!
//! Invariant: a point is known by its settings, not by its file's name; what was measured under other settings is never
//! taken for it.

use crate::layout::Layout;
use crate::output::OutputError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Version of the point files.
pub const POINT_SCHEMA: u32 = 1;

/// Settings that a point was measured under.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Settings {
    /// What the client sent: concurrency, lengths, rate, data set.
    pub client: BTreeMap<String, String>,
    /// How the server was started; empty where it was there already.
    pub server: BTreeMap<String, String>,
}

/// A point's file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PointFile {
    /// [`POINT_SCHEMA`].
    pub schema: u32,
    /// Name of the result set.
    pub label: String,
    /// The settings.
    pub settings: Settings,
    /// GPUs that served.
    pub gpus: u32,
    /// Why the point failed; a point without it is good.
    pub error: Option<String>,
    /// The result file of `bench serve`; empty if nothing was measured.
    pub result: Map<String, Value>,
}

/// A good point, from a sweep or from a result file of `bench serve` or vLLM.
#[derive(Clone, Debug)]
pub struct Record {
    /// Name of the result set.
    pub label: String,
    /// The settings, as far as they are known.
    pub settings: Settings,
    /// GPUs that served.
    pub gpus: u32,
    /// The figures.
    pub figures: Map<String, Value>,
}

/// Results that cannot be used.
#[derive(Debug, Error)]
pub enum ResultsError {
    /// Something cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Something cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// They cannot be printed.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A file that is no result.
    #[error("expected a point of `bench sweep` or a result of `bench serve`, got {path}: {got}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        got: String,
    },
    /// Nothing that counts.
    #[error(
        "expected results in {path}, got none that is complete ({failed} failed); run `gossamer bench sweep` first"
    )]
    Empty {
        /// The folder.
        path: PathBuf,
        /// Points that failed.
        failed: usize,
    },
}

impl Record {
    /// A figure.
    pub fn figure(&self, key: &str) -> Option<f64> {
        self.figures.get(key).and_then(Value::as_f64).filter(|value| value.is_finite())
    }

    /// Generated tokens per second and GPU.
    pub fn per_gpu(&self) -> Option<f64> {
        Some(self.figure("output_throughput")? / f64::from(self.gpus.max(1)))
    }

    /// Tokens per second that a user sees: the inverse of the mean TPOT. `None` where no request had a second token.
    pub fn per_user(&self) -> Option<f64> {
        self.figure("mean_tpot_ms").filter(|tpot| *tpot > 0.0).map(|tpot| 1e3 / tpot)
    }

    /// The concurrency, where it was limited.
    pub fn concurrency(&self) -> Option<&str> {
        self.settings.client.get("concurrency").map(String::as_str)
    }
}

/// Reads one file. `Ok(Err(..))`: a point that failed.
pub fn read_file(path: &Path, label: &str, gpus: u32) -> Result<Result<Record, String>, ResultsError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ResultsError::Read { path: path.to_owned(), source })?;
    let wrong = |got: String| ResultsError::Format { path: path.to_owned(), got };
    let value: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if value.get("settings").is_some() {
        let point: PointFile = serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        if point.schema != POINT_SCHEMA {
            return Err(wrong(format!("schema {}, not {POINT_SCHEMA}", point.schema)));
        }
        return Ok(match point.error {
            Some(error) => Err(error),
            None => Ok(Record {
                label: point.label,
                settings: point.settings,
                gpus: point.gpus,
                figures: point.result,
            }),
        });
    }
    let Value::Object(figures) = value else { return Err(wrong("no JSON object".to_owned())) };
    if !figures.contains_key("output_throughput") {
        return Err(wrong("no 'output_throughput'".to_owned()));
    }
    let mut client = BTreeMap::new();
    for (key, name) in
        [("max_concurrency", "concurrency"), ("request_rate", "request-rate"), ("num_prompts", "num-prompts")]
    {
        match figures.get(key) {
            Some(Value::String(text)) => drop(client.insert(name.to_owned(), text.clone())),
            Some(number @ Value::Number(_)) => drop(client.insert(name.to_owned(), number.to_string())),
            _ => {}
        }
    }
    let own = figures.get("label").and_then(Value::as_str).unwrap_or(label).to_owned();
    let settings = Settings { client, server: BTreeMap::new() };
    Ok(Ok(Record { label: own, settings, gpus, figures }))
}

/// Reads a file, or all `.json` files of a folder. `gpus` counts for results that do not say how many they had.
pub fn read_set(path: &Path, gpus: u32) -> Result<Vec<Record>, ResultsError> {
    let name = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let stem = if path.is_dir() { name.file_name() } else { name.file_stem() };
    let label = stem.map_or_else(|| "results".to_owned(), |name| name.to_string_lossy().into_owned());
    let files = if path.is_dir() { json_files(path)? } else { vec![path.to_owned()] };
    let (mut records, mut failed) = (Vec::new(), 0);
    for file in files {
        match read_file(&file, &label, gpus)? {
            Ok(record) => records.push(record),
            Err(_) => failed += 1,
        }
    }
    if records.is_empty() {
        return Err(ResultsError::Empty { path: path.to_owned(), failed });
    }
    Ok(records)
}

/// The `.json` files of a folder, by name.
fn json_files(folder: &Path) -> Result<Vec<PathBuf>, ResultsError> {
    let failed = |source| ResultsError::Read { path: folder.to_owned(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Writes a file whole or not at all.
pub fn write(path: &Path, content: &str) -> Result<(), ResultsError> {
    let failed = |source| ResultsError::Write { path: path.to_owned(), source };
    let temporary = path.with_extension("partial");
    std::fs::write(&temporary, content).map_err(failed)?;
    std::fs::rename(&temporary, path).map_err(failed)
}

impl Settings {
    /// The layout that the server was started in.
    pub fn layout(&self) -> Layout {
        self.server.get("layout").and_then(|text| text.parse().ok()).unwrap_or(Layout::SINGLE)
    }

    /// All settings whose values differ within a set, as `name value`; the concurrency first.
    pub fn varying<'a>(all: &[&'a Self]) -> Vec<&'a str> {
        let mut names: Vec<&str> = Vec::new();
        let entries = |settings: &'a Self| settings.client.iter().chain(&settings.server);
        for (name, _) in all.iter().flat_map(|settings| entries(settings)) {
            let value =
                |settings: &&'a Self| entries(settings).find(|entry| entry.0 == name).map(|entry| entry.1);
            if !names.contains(&name.as_str())
                && all.windows(2).any(|pair| value(&pair[0]) != value(&pair[1]))
            {
                names.push(name);
            }
        }
        names.sort_by_key(|name| (*name != "concurrency", *name));
        names
    }

    /// A setting's value.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.client.get(name).or_else(|| self.server.get(name)).map(String::as_str)
    }
}
