//! The tokenizer of a model.

use std::path::Path;

use crate::detokenizer::Detokenizer;
use crate::encode::{EncodeCursor, Segment};
use crate::error::TokenizerError;
use crate::json::{self, JsonTokenizer};
use crate::o200k_file;
use crate::rank_bpe::{self, RankBpe};
use crate::vocabulary::Vocabulary;

/// Vocabulary size of the gpt-oss models, which marks a directory that may use the built-in vocabulary.
const GPT_OSS_VOCAB_SIZE: usize = 201_088;

/// Text to token ids and back. Shared between threads behind an `Arc`; immutable.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    encoder: Encoder,
}

enum Encoder {
    Json(Box<JsonTokenizer>),
    Rank(RankBpe),
}

impl Tokenizer {
    /// Loads the tokenizer of the checkpoint in `dir`, whose logits are `vocab_size` wide.
    ///
    /// `tokenizer.json` if there is one; else, for a gpt-oss model (by its vocabulary size), the built-in one.
    ///
    /// # Errors
    /// The file is missing, unreadable, not byte-level BPE, or has ids that the model does not.
    pub fn load(dir: &Path, vocab_size: usize) -> Result<Self, TokenizerError> {
        let path = dir.join("tokenizer.json");
        if !path.exists() {
            if vocab_size == GPT_OSS_VOCAB_SIZE {
                return Self::o200k_harmony();
            }
            return Err(TokenizerError::Missing { dir: dir.to_owned(), vocab_size });
        }
        let tokenizer = Self::from_file(&path)?;
        let largest = tokenizer.vocab_size().saturating_sub(1);
        if largest >= vocab_size {
            return Err(TokenizerError::TooManyTokens { path, largest, vocab_size });
        }
        Ok(tokenizer)
    }

    /// Loads one `tokenizer.json`.
    ///
    /// # Errors
    /// See [`load`](Self::load).
    pub fn from_file(path: &Path) -> Result<Self, TokenizerError> {
        let bytes =
            std::fs::read(path).map_err(|source| TokenizerError::Read { path: path.to_owned(), source })?;
        if let Some((vocabulary, encoder)) = o200k_file::recognise(&bytes)? {
            return Ok(Self { vocabulary, encoder: Encoder::Rank(encoder) });
        }
        let (vocabulary, encoder) = json::load(path, &bytes)?;
        Ok(Self { vocabulary, encoder: Encoder::Json(Box::new(encoder)) })
    }

    /// The vocabulary of gpt-oss (o200k_harmony), which is part of the program.
    ///
    /// # Errors
    /// The built-in table is damaged, which no input can cause.
    pub fn o200k_harmony() -> Result<Self, TokenizerError> {
        let (entries, encoder) = rank_bpe::o200k_harmony()?;
        Ok(Self { vocabulary: Vocabulary::new(entries), encoder: Encoder::Rank(encoder) })
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The bytes of a token; for a special token its name; empty for an id that no token has.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.token_bytes(id)
    }

    /// The bytes that a token adds to a text: those of [`token_bytes`](Self::token_bytes), but none for a
    /// special token.
    pub fn text_bytes(&self, id: u32) -> &[u8] {
        if self.vocabulary.is_special(id) { &[] } else { self.vocabulary.token_bytes(id) }
    }

    /// Whether the id is that of a special token.
    pub fn is_special(&self, id: u32) -> bool {
        self.vocabulary.is_special(id)
    }

    /// The id of the special token with this name, such as `<|end|>`.
    pub fn special_id(&self, name: &str) -> Option<u32> {
        self.vocabulary.special_id(name)
    }

    /// The ids of `text`. None of them is special, even where the text spells a special token's name.
    pub fn encode_ordinary(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 1);
        self.encode_ordinary_into(text, &mut ids);
        ids
    }

    pub(crate) fn encode_ordinary_into(&self, text: &str, ids: &mut Vec<u32>) {
        let from = ids.len();
        match &self.encoder {
            Encoder::Rank(bpe) => bpe.encode(&self.vocabulary, text, ids),
            Encoder::Json(json) => {
                json.encode(text, ids);
                // A vocabulary may list special names among its words and reach them by merges.
                if ids[from..].iter().any(|&id| self.is_special(id)) {
                    ids.truncate(from);
                    self.encode_around_names(json, text, ids);
                }
            }
        }
    }

    /// Encodes with a cut inside each special name, so that no piece can spell one.
    fn encode_around_names(&self, json: &JsonTokenizer, text: &str, ids: &mut Vec<u32>) {
        let mut start = 0;
        for (at, first) in text.char_indices() {
            if self.vocabulary.special_prefix(&text[at..]).is_some() {
                let cut = at + first.len_utf8();
                json.encode(&text[start..cut], ids);
                start = cut;
            }
        }
        json.encode(&text[start..], ids);
        // Only a name of a single character can be left.
        ids.retain(|&id| !self.is_special(id));
    }

    /// Cuts `text` at the names of special tokens, which become those tokens: how prompts of
    /// `/v1/completions` and `/tokenize` are read, where the client writes the template itself.
    pub fn split_special(&self, text: &str) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut start = 0;
        let mut at = 0;
        while at < text.len() {
            if text.is_char_boundary(at)
                && let Some((len, id)) = self.vocabulary.special_prefix(&text[at..])
            {
                if start < at {
                    segments.push(Segment::Text(text[start..at].to_owned()));
                }
                segments.push(Segment::Token(id));
                at += len;
                start = at;
            } else {
                at += 1;
            }
        }
        if start < text.len() {
            segments.push(Segment::Text(text[start..].to_owned()));
        }
        segments
    }

    /// The ids of `text`, names of special tokens being those tokens.
    pub fn encode_with_special(&self, text: &str) -> Vec<u32> {
        self.encode_segments(self.split_special(text))
    }

    /// The ids of a prompt in one go; [`EncodeCursor`] does it in slices.
    pub fn encode_segments(&self, segments: Vec<Segment>) -> Vec<u32> {
        let mut cursor = EncodeCursor::new(segments);
        while !cursor.step(self, usize::MAX) {}
        cursor.into_ids()
    }

    /// The text of `ids`, invalid UTF-8 replaced. Special tokens appear by name unless `skip_special`.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut detokenizer = Detokenizer::new();
        let mut text = String::new();
        for &id in ids {
            let bytes = if skip_special { self.text_bytes(id) } else { self.token_bytes(id) };
            detokenizer.push(bytes, &mut text);
        }
        detokenizer.flush(&mut text);
        text
    }

    /// Names and ids of all special tokens, in no order.
    pub fn specials(&self) -> impl Iterator<Item = (&str, u32)> {
        self.vocabulary.specials()
    }

    pub(crate) fn sliceable(&self) -> bool {
        match &self.encoder {
            Encoder::Rank(_) => true,
            Encoder::Json(json) => json.sliceable,
        }
    }
}
