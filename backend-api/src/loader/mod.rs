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
    Ok(paths.into_iter().map(|path| inspect(&path)).collect())
}

/// Reads and checks the descriptor of one file, without running any of its code.
pub fn inspect(path: &Path) -> Found {
    BackendFile::read(path).map_err(|source| LoadError::Descriptor { path: path.to_owned(), source })
}

/// Opens a plugin whose descriptor was checked.
pub fn open(file: &BackendFile, host: &'static HostServices) -> Result<LoadedBackend, LoadError> {
    LoadedBackend::open(file, host)
}
