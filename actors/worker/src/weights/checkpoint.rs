//! Maps a safetensors checkpoint and checks every tensor that the model needs.

use super::header;
use super::{Backing, Weights};
use gossamer_kernels::graph::{Weight, WeightType};
use memmap2::Mmap;
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a checkpoint was refused.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// A file or directory could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The directory holds no weights.
    #[error("{path} holds no *.safetensors file; `--load-format dummy` runs the model with random weights")]
    NoFiles {
        /// The directory.
        path: PathBuf,
    },
    /// A file's header, or the index, is damaged.
    #[error("{path}: {message}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// A tensor is missing.
    #[error("{path}: tensor '{tensor}' is missing")]
    Missing {
        /// The file that should hold it, or the directory.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor is there twice.
    #[error("{path}: tensor '{tensor}' is there a second time; the first is in {first}")]
    Duplicate {
        /// The file with the second.
        path: PathBuf,
        /// The file with the first.
        first: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor has another type or shape than the model's configuration asks for.
    #[error("{path}: tensor '{tensor}': expected {expected}, got {got}")]
    Unexpected {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Type and shape that the configuration asks for.
        expected: String,
        /// Type and shape in the file.
        got: String,
    },
    /// The file ends before the tensor does.
    #[error(
        "{path}: tensor '{tensor}' ends at byte {needs}, but the file has {has} bytes: it is truncated; fetch it again"
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where the tensor ends.
        needs: u64,
        /// Bytes in the file.
        has: u64,
    },
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

const INDEX: &str = "model.safetensors.index.json";

/// Files of a checkpoint, and where the index places each tensor.
fn files(directory: &Path) -> Result<(Vec<PathBuf>, HashMap<String, String>), CheckpointError> {
    let index_path = directory.join(INDEX);
    if index_path.is_file() {
        let damaged = |message: String| CheckpointError::Damaged { path: index_path.clone(), message };
        let bytes = std::fs::read(&index_path)
            .map_err(|source| CheckpointError::Read { path: index_path.clone(), source })?;
        let index: Index = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        let names: BTreeSet<&String> = index.weight_map.values().collect();
        if let Some(name) =
            names.iter().find(|name| Path::new(name).components().count() != 1 || name.starts_with(".."))
        {
            return Err(damaged(format!("expected names of files in the same directory, got '{name}'")));
        }
        return Ok((names.iter().map(|name| directory.join(name)).collect(), index.weight_map));
    }
    let unreadable = |source| CheckpointError::Read { path: directory.to_owned(), source };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            paths.push(path);
        }
    }
    paths.sort();
    match paths.is_empty() {
        true => Err(CheckpointError::NoFiles { path: directory.to_owned() }),
        false => Ok((paths, HashMap::new())),
    }
}

/// Where a tensor was found.
struct Place {
    file: usize,
    entry: header::Entry,
    data_start: u64,
}

/// The files of a checkpoint with every tensor's place, checked.
pub struct Located {
    pub maps: Vec<Mmap>,
    pub files: Vec<File>,
    /// Per weight: file and first byte.
    pub places: Vec<(usize, u64)>,
}

/// Finds and checks all tensors; reads headers only.
pub fn locate(directory: &Path, weights: &[Weight]) -> Result<Located, CheckpointError> {
    let (paths, index) = files(directory)?;
    let mut maps = Vec::with_capacity(paths.len());
    let mut handles = Vec::with_capacity(paths.len());
    let mut places: HashMap<String, Place> = HashMap::new();
    for (file, path) in paths.iter().enumerate() {
        let unreadable = |source| CheckpointError::Read { path: path.clone(), source };
        let handle = File::open(path).map_err(unreadable)?;
        // SAFETY: the mapping is read-only and only ever read as bytes that may hold anything. Another program that
        // shortens the file while it is served ends this process, as it would end any reader of mapped weights.
        let map = unsafe { Mmap::map(&handle) }.map_err(unreadable)?;
        let header = header::parse(&map)
            .map_err(|message| CheckpointError::Damaged { path: path.clone(), message })?;
        maps.push(map);
        handles.push(handle);
        for (tensor, entry) in header.entries {
            if let Some(first) = places.get(&tensor) {
                let first = paths[first.file].clone();
                return Err(CheckpointError::Duplicate { path: path.clone(), first, tensor });
            }
            places.insert(tensor, Place { file, entry, data_start: header.data_start });
        }
    }
    let mut found = Vec::with_capacity(weights.len());
    for weight in weights {
        let Some(place) = places.get(&weight.name) else {
            let file = index.get(&weight.name).map(|name| directory.join(name));
            let single = (paths.len() == 1).then(|| paths[0].clone());
            let path = file.or(single).unwrap_or_else(|| directory.to_owned());
            return Err(CheckpointError::Missing { path, tensor: weight.name.clone() });
        };
        checked(weight, place, &paths[place.file], &maps[place.file])?;
        found.push((place.file, place.data_start + place.entry.data_offsets.0));
    }
    Ok(Located { maps, files: handles, places: found })
}

/// Maps the checkpoint of a directory.
pub fn map(directory: &Path, weights: &[Weight]) -> Result<Weights, CheckpointError> {
    let Located { maps, places, .. } = locate(directory, weights)?;
    let mut copies = Vec::new();
    let mut addresses = Vec::with_capacity(weights.len());
    for (weight, (file, start)) in weights.iter().zip(places) {
        let bytes = &maps[file][start as usize..(start + weight.bytes()) as usize];
        addresses.push(match weight.element {
            // Nothing in the format aligns tensors; kernels read bfloat16 in pairs of bytes.
            WeightType::Bf16 if !(bytes.as_ptr() as usize).is_multiple_of(2) => {
                let pairs = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
                copies.push(pairs.collect::<Vec<u16>>());
                copies.last().map_or(0, |copy| copy.as_ptr() as u64)
            }
            _ => bytes.as_ptr() as u64,
        });
    }
    Ok(Weights { addresses, _backing: Backing { _maps: maps, _copies: copies, ..Backing::default() } })
}

/// A tensor's bytes, after type, shape and extent were checked.
fn checked<'a>(
    weight: &Weight,
    place: &Place,
    path: &Path,
    map: &'a Mmap,
) -> Result<&'a [u8], CheckpointError> {
    let dtype = match weight.element {
        WeightType::Bf16 => "BF16",
        WeightType::U8 => "U8",
    };
    let entry = &place.entry;
    let (start, end) = entry.data_offsets;
    let extent = end.checked_sub(start);
    if entry.dtype != dtype || entry.shape != weight.shape || extent != Some(weight.bytes()) {
        return Err(CheckpointError::Unexpected {
            path: path.to_owned(),
            tensor: weight.name.clone(),
            expected: format!("{dtype} {:?} in {} bytes", weight.shape, weight.bytes()),
            got: format!("{} {:?} at bytes {start}..{end}", entry.dtype, entry.shape),
        });
    }
    let has = map.len() as u64;
    let needs = end.saturating_add(place.data_start);
    let range = (place.data_start + start) as usize..needs as usize;
    map.get(range).ok_or_else(|| CheckpointError::Truncated {
        path: path.to_owned(),
        tensor: weight.name.clone(),
        needs,
        has,
    })
}

#[cfg(test)]
mod tests;
