//! Finds plugins, checks them, and opens them.
//!
//! A file goes through four gates, and each refusal says why: its name (`libgossamer_*.so`), its descriptor (read from
//! the file, no code runs), the opening of the library, and its table.

mod descriptor;
mod loaded;

pub use descriptor::{BackendFile, DescriptorError};
pub use loaded::LoadedBackend;

use crate::abi;
use crate::{BackendError, HostServices};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a plugin was not loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The directory could not be read.
    #[error("cannot read the backend directory {path}: {source}; pass --backend-dir DIR")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The descriptor was refused.
    #[error("{path}: {source}")]
    Descriptor {
        /// The file.
        path: PathBuf,
        /// Why.
        source: DescriptorError,
    },
    /// The system's loader refused the library.
    #[error("{path}: cannot open the library: {source}")]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system's loader said.
        source: libloading::Error,
    },
    /// The table is not of this version.
    #[error(
        "{path}: expected a table of version {}, got version {version} with {size} bytes; rebuild the backend",
        abi::ABI_VERSION
    )]
    Table {
        /// The file.
        path: PathBuf,
        /// Version in the table.
        version: u32,
        /// Size in the table.
        size: u32,
    },
    /// Another file has a backend of this name.
    #[error("{path}: {first} holds a backend named {name} already; remove one of them")]
    Duplicate {
        /// The file.
        path: PathBuf,
        /// The backend's name.
        name: String,
        /// The file that comes first.
        first: PathBuf,
    },
    /// A process that only opened the library did not survive it.
    #[error("{path}: the process that tried to open it {end}; rebuild the backend or remove the file")]
    Crash {
        /// The file.
        path: PathBuf,
        /// How the process ended.
        end: String,
    },
    /// The backend could not start.
    #[error("{path}: {source}")]
    Start {
        /// The file.
        path: PathBuf,
        /// Why.
        source: BackendError,
    },
}

/// A plugin file that was found, and what its descriptor said.
pub type Found = Result<BackendFile, LoadError>;

/// Lists the plugin files of a directory, in name order, without running any of their code.
pub fn discover(directory: &Path) -> Result<Vec<Found>, LoadError> {
    let unreadable = |source| LoadError::Directory { path: directory.to_owned(), source };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with("libgossamer_") && name.ends_with(".so") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut found: Vec<Found> = Vec::new();
    for path in paths {
        let file = inspect(&path).and_then(|file| {
            match found.iter().flatten().find(|other| other.name == file.name) {
                Some(first) => Err(LoadError::Duplicate { path, name: file.name, first: first.path.clone() }),
                None => Ok(file),
            }
        });
        found.push(file);
    }
    Ok(found)
}

/// Reads and checks the descriptor of one file, without running any of its code.
pub fn inspect(path: &Path) -> Found {
    BackendFile::read(path).map_err(|source| LoadError::Descriptor { path: path.to_owned(), source })
}

/// Opens a plugin whose descriptor was checked.
pub fn open(file: &BackendFile, host: &'static HostServices) -> Result<LoadedBackend, LoadError> {
    LoadedBackend::open(file, host)
}
