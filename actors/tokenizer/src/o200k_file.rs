//! Recognises the published tokenizer.json of gpt-oss, whose vocabulary is the built-in one.
//!
//! Such a file is read for its special tokens alone; text is encoded by [`RankBpe`], which needs no merges, is an
//! order of magnitude faster than the general engine, and takes linear time on hostile input. Recognition
//! compares every token, so that a file which differs in any of them takes the general way.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use crate::byte_level::ByteAlphabet;
use crate::error::TokenizerError;
use crate::json::is_o200k_pre_tokenizer;
use crate::rank_bpe::{self, RankBpe};
use crate::vocabulary::{Entry, Vocabulary};

/// Smaller files cannot hold the vocabulary, and are not worth a look.
const MIN_BYTES: usize = 3 << 20;

#[derive(Deserialize)]
struct File<'a> {
    normalizer: Option<IgnoredAny>,
    pre_tokenizer: Value,
    #[serde(borrow)]
    model: Model<'a>,
    added_tokens: Vec<Added>,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    dropout: Option<f32>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(borrow)]
    vocab: Vocab<'a>,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    special: bool,
}

/// The vocabulary as a list, without a table that nobody looks up.
struct Vocab<'a>(Vec<(Text<'a>, u32)>);

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Vocab<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Vocab<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a map from token to id")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Vocab(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// The tokenizer in `bytes`, if its vocabulary is the built-in one; `None` sends the file the general way.
pub fn recognise(bytes: &[u8]) -> Result<Option<(Vocabulary, RankBpe)>, TokenizerError> {
    if bytes.len() < MIN_BYTES {
        return Ok(None);
    }
    let Ok(file) = serde_json::from_slice::<File<'_>>(bytes) else { return Ok(None) };
    let plain = file.normalizer.is_none()
        && file.model.kind == "BPE"
        && file.model.dropout.is_none_or(|share| share == 0.0)
        && !file.model.byte_fallback
        && file.added_tokens.iter().all(|added| added.special && !added.content.is_empty())
        && is_o200k_pre_tokenizer(&file.pre_tokenizer);
    if !plain {
        return Ok(None);
    }
    let (mut entries, encoder) = rank_bpe::o200k_harmony()?;
    // The file's own special tokens take the place of the built-in ones.
    let ordinary = entries.iter().flatten().filter(|entry| !entry.special).count();
    entries.truncate(
        entries.iter().rposition(|e| e.as_ref().is_some_and(|e| !e.special)).map_or(0, |last| last + 1),
    );
    let alphabet = ByteAlphabet::new();
    let mut seen = 0;
    for (Text(entry), id) in &file.model.vocab.0 {
        match entries.get(*id as usize) {
            Some(Some(known)) if alphabet.is_entry_of(entry, &known.bytes) => seen += 1,
            // Special tokens may be listed with the rest.
            _ if file.added_tokens.iter().any(|added| added.id == *id && added.content == *entry) => {}
            _ => return Ok(None),
        }
    }
    if seen != ordinary {
        return Ok(None);
    }
    for Added { id, content, .. } in file.added_tokens {
        let id = id as usize;
        if id < ordinary || id > ordinary * 2 {
            return Ok(None);
        }
        if entries.len() <= id {
            entries.resize_with(id + 1, || None);
        }
        entries[id] = Some(Entry { bytes: content.into_bytes().into(), special: true });
    }
    Ok(Some((Vocabulary::new(entries), encoder)))
}
