//! `tokenizer.json` of a checkpoint, through the `tokenizers` crate.

use std::path::Path;

use serde_json::Value;
use tokenizers::models::ModelWrapper;

use crate::byte_level::ByteAlphabet;
use crate::error::TokenizerError;
use crate::rank_bpe::O200K_PATTERN;
use crate::slices::is_safe_pattern;
use crate::vocabulary::{Entry, Vocabulary};

/// A tokenizer as its file describes it.
pub struct JsonTokenizer {
    inner: tokenizers::Tokenizer,
    /// Whether [`crate::slices`] holds for its pre-tokenizer.
    pub sliceable: bool,
}

/// Reads `path`. Refuses everything but byte-level BPE: other kinds cannot say which bytes a token stands for.
pub fn load(path: &Path, bytes: &[u8]) -> Result<(Vocabulary, JsonTokenizer), TokenizerError> {
    let parse = |reason: String| TokenizerError::Parse { path: path.to_owned(), reason };
    let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(|e| parse(e.to_string()))?;
    let not_byte_level =
        |found: &str| TokenizerError::NotByteLevel { path: path.to_owned(), found: found.into() };
    match inner.get_model() {
        ModelWrapper::BPE(_) => {}
        ModelWrapper::WordPiece(_) => return Err(not_byte_level("WordPiece")),
        ModelWrapper::WordLevel(_) => return Err(not_byte_level("WordLevel")),
        ModelWrapper::Unigram(_) => return Err(not_byte_level("Unigram")),
    }
    let pre_tokenizer = serde_json::to_value(inner.get_pre_tokenizer()).map_err(|e| parse(e.to_string()))?;
    if !mentions_byte_level(&pre_tokenizer) {
        return Err(not_byte_level("BPE without a ByteLevel pre-tokenizer"));
    }
    // Truncation and padding are for training; a prompt is never changed in silence.
    inner.with_truncation(None).map_err(|e| parse(e.to_string()))?;
    inner.with_padding(None);
    // Names of special tokens in a text are text. This is the crate's switch for it.
    inner.set_encode_special_tokens(true);

    let alphabet = ByteAlphabet::new();
    let added = inner.get_added_tokens_decoder();
    let mut entries: Vec<Option<Entry>> = Vec::new();
    let mut put = |id: u32, entry: Entry| {
        if entries.len() <= id as usize {
            entries.resize_with(id as usize + 1, || None);
        }
        entries[id as usize] = Some(entry);
    };
    for (name, id) in inner.get_vocab(false) {
        // Entries outside the alphabet are added tokens, which follow.
        if let Some(bytes) = alphabet.decode(&name) {
            put(id, Entry { bytes: bytes.into(), special: false });
        }
    }
    for (id, token) in &added {
        put(*id, Entry { bytes: token.content.clone().into_bytes().into(), special: token.special });
    }
    let sliceable = inner.get_normalizer().is_none()
        && is_blank_prefixing(&pre_tokenizer)
        && added.values().all(|token| token.special);
    Ok((Vocabulary::new(entries), JsonTokenizer { inner, sliceable }))
}

impl JsonTokenizer {
    /// Appends the ids of `text`.
    pub fn encode(&self, text: &str, out: &mut Vec<u32>) {
        match self.inner.encode_fast(text, false) {
            Ok(encoding) => out.extend_from_slice(encoding.get_ids()),
            // Byte-level BPE has an id for every byte, so this is a broken file; the text is left out of
            // the prompt rather than the process ended.
            Err(error) => {
                tracing::error!(%error, bytes = text.len(), "the tokenizer could not encode a text")
            }
        }
    }
}

fn mentions_byte_level(node: &Value) -> bool {
    node["type"] == "ByteLevel"
        || node["pretokenizers"].as_array().is_some_and(|all| all.iter().any(mentions_byte_level))
}

/// Whether the pre-tokenizer is one of the byte-level family whose pieces begin, but never go on, with a blank.
fn is_blank_prefixing(node: &Value) -> bool {
    is_byte_level(node, true) || split_pattern(node).is_some_and(is_safe_pattern)
}

fn is_byte_level(node: &Value, with_pattern: bool) -> bool {
    node["type"] == "ByteLevel" && node["add_prefix_space"] == false && node["use_regex"] == with_pattern
}

/// The pattern of a pre-tokenizer that cuts a text into the pattern's matches and writes them as bytes.
fn split_pattern(node: &Value) -> Option<&str> {
    let [split, bytes] = node["pretokenizers"].as_array()?.as_slice() else { return None };
    // Both ways of writing it keep the matches as the pieces.
    let keeps_matches = (split["behavior"] == "Isolated" && split["invert"] == false)
        || (split["behavior"] == "Removed" && split["invert"] == true);
    let fits = split["type"] == "Split" && keeps_matches && is_byte_level(bytes, false);
    split["pattern"]["Regex"].as_str().filter(|_| fits)
}

/// Whether the pre-tokenizer is that of the built-in vocabulary.
pub fn is_o200k_pre_tokenizer(node: &Value) -> bool {
    split_pattern(node) == Some(O200K_PATTERN)
}
