//! The table of tokens: id to bytes, and which ids are special.

use std::borrow::Cow;
use std::collections::HashMap;

/// One entry on its way into a [`Vocabulary`].
pub struct Entry {
    /// The bytes that the token stands for; for a special token its name.
    pub bytes: Cow<'static, [u8]>,
    /// Whether the token is special: never made from text, never shown as text.
    pub special: bool,
}

/// All tokens of a tokenizer. Bytes lie in one block, so that a look-up is two loads.
pub struct Vocabulary {
    bytes: Vec<u8>,
    /// `ends[id]` is where the token's bytes end; they begin where the one before ends.
    ends: Vec<u32>,
    special: Vec<bool>,
    special_ids: HashMap<String, u32>,
    /// Distinct lengths of special names, longest first.
    special_lengths: Vec<usize>,
    /// Which bytes begin a special name; most texts have few of them.
    special_starts: [bool; 256],
}

impl Vocabulary {
    /// A table over `entries`, indexed by id; `None` for ids that no token has.
    pub fn new(entries: Vec<Option<Entry>>) -> Self {
        let mut table = Self {
            bytes: Vec::with_capacity(entries.iter().flatten().map(|e| e.bytes.len()).sum()),
            ends: Vec::with_capacity(entries.len()),
            special: Vec::with_capacity(entries.len()),
            special_ids: HashMap::new(),
            special_lengths: Vec::new(),
            special_starts: [false; 256],
        };
        for (id, entry) in entries.into_iter().enumerate() {
            if let Some(entry) = &entry {
                table.bytes.extend_from_slice(&entry.bytes);
                if entry.special && !entry.bytes.is_empty() {
                    let name = String::from_utf8_lossy(&entry.bytes).into_owned();
                    table.special_lengths.push(name.len());
                    table.special_starts[entry.bytes[0] as usize] = true;
                    table.special_ids.insert(name, id as u32);
                }
            }
            table.ends.push(table.bytes.len() as u32);
            table.special.push(entry.is_some_and(|e| e.special));
        }
        table.special_lengths.sort_unstable_by(|a, b| b.cmp(a));
        table.special_lengths.dedup();
        table
    }

    /// One more than the largest id.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The token's bytes (a special token's name); empty for ids that no token has.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// Whether the id is a special token's.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    /// The special token of that name.
    pub fn special_id(&self, name: &str) -> Option<u32> {
        self.special_ids.get(name).copied()
    }

    /// Names and ids of all special tokens, in no order.
    pub fn specials(&self) -> impl Iterator<Item = (&str, u32)> {
        self.special_ids.iter().map(|(name, &id)| (name.as_str(), id))
    }

    /// The special token whose name `text` begins with; of several the longest. Length and id.
    pub fn special_prefix(&self, text: &str) -> Option<(usize, u32)> {
        if !text.bytes().next().is_some_and(|first| self.special_starts[first as usize]) {
            return None;
        }
        self.special_lengths.iter().find_map(|&len| {
            let name = text.get(..len)?;
            Some((len, self.special_id(name)?))
        })
    }
}
