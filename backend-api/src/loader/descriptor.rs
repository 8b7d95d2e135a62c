//! Reads a plugin's descriptor from its ELF section.

use crate::abi::{ABI_VERSION, BackendTable, DESCRIPTOR_SECTION, Descriptor, MAGIC};
use object::{Object, ObjectSection};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a descriptor was refused. None of the file's code has run.
#[derive(Debug, Error)]
pub enum DescriptorError {
    /// The file could not be read.
    #[error("cannot read the file: {0}")]
    Read(#[from] std::io::Error),
    /// It is a directory, a pipe or a device.
    #[error("not a regular file")]
    NotAFile,
    /// It is no shared library, or a damaged one.
    #[error("not a readable ELF library: {0}")]
    NotElf(#[from] object::Error),
    /// It has no descriptor.
    #[error("no section {DESCRIPTOR_SECTION}: this library is not a Gossamer backend")]
    Missing,
    /// The descriptor is too short.
    #[error("expected a descriptor of {expected} bytes, got {got}; rebuild the backend against this version")]
    Size {
        /// Size on this side.
        expected: usize,
        /// Size in the file.
        got: usize,
    },
    /// It does not begin with the magic bytes.
    #[error("expected the descriptor to begin with {:?}, got {got:?}", "GSMRBKND")]
    Magic {
        /// The first bytes.
        got: String,
    },
    /// It is of another version.
    #[error("expected ABI version {ABI_VERSION}, got {got}; rebuild the backend against this version")]
    Version {
        /// The version in the file.
        got: u32,
    },
    /// Its table is of another size.
    #[error("expected a table of {expected} bytes, got {got}; rebuild the backend against this version")]
    TableSize {
        /// Size on this side.
        expected: usize,
        /// Size in the file.
        got: u32,
    },
    /// A string is not UTF-8 or empty.
    #[error("the descriptor's {field} is empty or not UTF-8")]
    Text {
        /// Which string.
        field: &'static str,
    },
}

/// A plugin file with a good descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendFile {
    /// The file.
    pub path: PathBuf,
    /// Name of the backend.
    pub name: String,
    /// Its version.
    pub version: String,
}

impl BackendFile {
    /// Reads and checks the descriptor of a file.
    pub fn read(path: &Path) -> Result<Self, DescriptorError> {
        // A pipe would be waited for.
        if !std::fs::metadata(path)?.is_file() {
            return Err(DescriptorError::NotAFile);
        }
        let bytes = std::fs::read(path)?;
        let elf = object::File::parse(&*bytes)?;
        let section = elf.section_by_name(DESCRIPTOR_SECTION).ok_or(DescriptorError::Missing)?;
        let data = section.data()?;
        let word = |at: usize| -> u32 {
            data.get(at..at + 4).map_or(0, |word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        };
        if data.len() < MAGIC.len() || data[..MAGIC.len()] != MAGIC {
            let got = String::from_utf8_lossy(&data[..data.len().min(MAGIC.len())]).into_owned();
            return Err(DescriptorError::Magic { got });
        }
        if word(8) != ABI_VERSION {
            return Err(DescriptorError::Version { got: word(8) });
        }
        let expected = size_of::<Descriptor>();
        if data.len() < expected || word(12) as usize != expected {
            return Err(DescriptorError::Size { expected, got: data.len().min(word(12) as usize) });
        }
        let table = size_of::<BackendTable>();
        if word(16) as usize != table {
            return Err(DescriptorError::TableSize { expected: table, got: word(16) });
        }
        let text = |at: usize, field| {
            let bytes = &data[at..at + 32];
            let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            match std::str::from_utf8(&bytes[..len]) {
                Ok(text) if !text.is_empty() => Ok(text.to_owned()),
                _ => Err(DescriptorError::Text { field }),
            }
        };
        Ok(Self { path: path.to_owned(), name: text(24, "name")?, version: text(56, "version")? })
    }
}
