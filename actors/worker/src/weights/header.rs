//! The header of a safetensors file.
//!
//! Read here and not by the crate of that name, because a damaged file must be reported with the tensor that it hits:
//! the crate checks the file as a whole.

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::fmt;

/// Headers are text; one of this size describes millions of tensors.
const MAX_HEADER: u64 = 100 << 20;

/// A tensor as the header describes it.
#[derive(Debug, Deserialize)]
pub struct Entry {
    /// Type, such as `BF16`.
    pub dtype: String,
    /// Shape.
    pub shape: Vec<u64>,
    /// First and last byte (exclusive), counted from the end of the header.
    pub data_offsets: (u64, u64),
}

/// A header, in file order. A name may occur twice; the reader of the list must look.
#[derive(Debug)]
pub struct Header {
    /// The tensors.
    pub entries: Vec<(String, Entry)>,
    /// Where the tensors' bytes begin.
    pub data_start: u64,
}

struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Entries, M::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Visit)
    }
}

/// Parses the header at the beginning of a file's bytes; the error says what is wrong with it.
pub fn parse(bytes: &[u8]) -> Result<Header, String> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(format!("expected at least 8 bytes, got {}", bytes.len()));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER || length > rest.len() as u64 {
        return Err(format!("a header of {length} bytes does not fit the file's {} bytes", bytes.len()));
    }
    let entries: Entries = serde_json::from_slice(&rest[..length as usize])
        .map_err(|error| format!("the header is damaged: {error}"))?;
    Ok(Header { entries: entries.0, data_start: 8 + length })
}
