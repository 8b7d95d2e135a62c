//! Byte-pair encoding by rank for the built-in o200k vocabulary: the id of a token is its merge priority.
//!
//! The vocabulary's pattern needs a look-ahead (`\s+(?!\S)`), for which engines backtrack and give up on
//! hostile input such as a megabyte of blanks. Here the pattern runs on a linear-time engine without the
//! look-ahead, and the one alternative that needs it is corrected by hand.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use regex::Regex;

use crate::error::TokenizerError;
use crate::vocabulary::{Entry, Vocabulary};

/// The vocabulary's pattern for cutting a text into pieces.
pub const O200K_PATTERN: &str = include_str!(concat!(env!("OUT_DIR"), "/o200k_pattern.txt"));
/// The look-ahead alternative of the vocabulary's pattern.
const LOOK_AHEAD: &str = r"|\s+(?!\S)";
/// Pieces longer than this are merged with a heap: O(n log n) instead of O(n²).
const SHORT_PIECE: usize = 96;
const NO_RANK: u32 = u32::MAX;
const EMPTY: u32 = u32::MAX;

/// The encoder of the built-in vocabulary.
pub struct RankBpe {
    pattern: Regex,
    /// Open addressing over the ordinary tokens; a power of two long, at most half full.
    slots: Vec<u32>,
}

/// The encoder of the built-in vocabulary and the entries of its tokens, by id.
pub fn o200k_harmony() -> Result<(Vec<Option<Entry>>, RankBpe), TokenizerError> {
    let embedded = |reason: &str| TokenizerError::Embedded { reason: reason.to_owned() };
    // Packed by the build script, which describes the format.
    let mut block: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/o200k_harmony.bin"));
    let mut entries = Vec::with_capacity(1 << 18);
    while let Some((length, rest)) = block.split_first_chunk::<2>() {
        let length = u16::from_le_bytes(*length);
        let special = length >> 15 == 1;
        let (bytes, rest) = rest
            .split_at_checked((length & 0x7FFF) as usize)
            .ok_or_else(|| embedded("it ends within a token"))?;
        entries.push((!bytes.is_empty()).then(|| Entry { bytes: bytes.into(), special }));
        block = rest;
    }
    let pattern = O200K_PATTERN.replace(LOOK_AHEAD, "");
    let pattern = Regex::new(&pattern).map_err(|e| embedded(&e.to_string()))?;
    let bpe = RankBpe::new(&entries, pattern);
    Ok((entries, bpe))
}

fn hash(bytes: &[u8]) -> usize {
    let mut state = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0u8; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        state = (state.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    (state ^ (state >> 29)) as usize
}

impl RankBpe {
    fn new(entries: &[Option<Entry>], pattern: Regex) -> Self {
        let mut slots = vec![EMPTY; (entries.len() * 2).next_power_of_two()];
        let mask = slots.len() - 1;
        for (id, entry) in entries.iter().enumerate() {
            let Some(entry) = entry.as_ref().filter(|entry| !entry.special) else { continue };
            let mut slot = hash(&entry.bytes) & mask;
            while slots[slot] != EMPTY {
                slot = (slot + 1) & mask;
            }
            slots[slot] = id as u32;
        }
        Self { pattern, slots }
    }

    fn rank(&self, vocabulary: &Vocabulary, bytes: &[u8]) -> u32 {
        let mask = self.slots.len() - 1;
        let mut slot = hash(bytes) & mask;
        loop {
            let id = self.slots[slot];
            if id == EMPTY {
                return NO_RANK;
            }
            if vocabulary.token_bytes(id) == bytes {
                return id;
            }
            slot = (slot + 1) & mask;
        }
    }

    /// Appends the ids of `text`, none of them special.
    pub fn encode(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) {
        let mut at = 0;
        while let Some(found) = self.pattern.find_at(text, at) {
            let end = corrected_end(text, found.start(), found.end());
            self.encode_piece(vocabulary, &text.as_bytes()[found.start()..end], out);
            at = end;
        }
    }

    fn encode_piece(&self, vocabulary: &Vocabulary, piece: &[u8], out: &mut Vec<u32>) {
        let whole = self.rank(vocabulary, piece);
        if whole != NO_RANK {
            out.push(whole);
        } else if piece.len() <= SHORT_PIECE {
            self.merge_short(vocabulary, piece, out);
        } else {
            self.merge_long(vocabulary, piece, out);
        }
    }

    fn merge_short(&self, vocabulary: &Vocabulary, piece: &[u8], out: &mut Vec<u32>) {
        // `starts[i]` begins part i; `ranks[i]` is the priority of joining part i with the next one.
        let mut starts = [0u8; SHORT_PIECE + 1];
        let mut ranks = [NO_RANK; SHORT_PIECE + 1];
        let mut parts = piece.len();
        for (i, start) in starts.iter_mut().enumerate().take(parts + 1) {
            *start = i as u8;
        }
        let span = |starts: &[u8], from: usize, to: usize| starts[from] as usize..starts[to] as usize;
        for i in 0..parts.saturating_sub(1) {
            ranks[i] = self.rank(vocabulary, &piece[span(&starts, i, i + 2)]);
        }
        loop {
            let joins = parts.saturating_sub(1);
            let Some((best, &rank)) = ranks[..joins].iter().enumerate().min_by_key(|&(_, rank)| rank) else {
                break;
            };
            if rank == NO_RANK {
                break;
            }
            starts.copy_within(best + 2..parts + 1, best + 1);
            ranks.copy_within(best + 1..joins, best);
            parts -= 1;
            let rank_at = |i: usize| {
                if i + 2 > parts { NO_RANK } else { self.rank(vocabulary, &piece[span(&starts, i, i + 2)]) }
            };
            ranks[best] = rank_at(best);
            if best > 0 {
                ranks[best - 1] = rank_at(best - 1);
            }
        }
        out.extend((0..parts).map(|i| self.rank(vocabulary, &piece[span(&starts, i, i + 1)])));
    }

    fn merge_long(&self, vocabulary: &Vocabulary, piece: &[u8], out: &mut Vec<u32>) {
        // A linked list of parts by start offset; `next[i]` is where the part at i ends. A heap entry is out
        // of date when the list no longer has its borders.
        let len = piece.len();
        let mut next: Vec<usize> = (1..=len + 1).collect();
        let mut previous: Vec<usize> = (0..=len).map(|i| i.wrapping_sub(1)).collect();
        let mut alive = vec![true; len + 1];
        let mut heap = BinaryHeap::with_capacity(len);
        let push = |heap: &mut BinaryHeap<_>, start: usize, middle: usize, end: usize| {
            let rank = self.rank(vocabulary, &piece[start..end]);
            if rank != NO_RANK {
                heap.push(Reverse((rank, start, middle, end)));
            }
        };
        for i in 0..len - 1 {
            push(&mut heap, i, i + 1, i + 2);
        }
        while let Some(Reverse((_, start, middle, end))) = heap.pop() {
            if !alive[start] || next[start] != middle || next[middle] != end {
                continue;
            }
            next[start] = end;
            alive[middle] = false;
            previous[end] = start;
            if end < len {
                push(&mut heap, start, end, next[end]);
            }
            if start > 0 {
                push(&mut heap, previous[start], start, end);
            }
        }
        let mut at = 0;
        while at < len {
            out.push(self.rank(vocabulary, &piece[at..next[at]]));
            at = next[at];
        }
    }
}

/// Where a match of the pattern without its look-ahead ends once the look-ahead is taken into account.
///
/// `\s+(?!\S)` gives up the last blank of a run that a word follows, so that the word keeps it; only blanks
/// without a line break get here, since `\s*[\r\n]+` stands before it.
fn corrected_end(text: &str, start: usize, end: usize) -> usize {
    if end == text.len() || end - start == 1 {
        return end;
    }
    let found = &text[start..end];
    if !found.chars().all(|c| c.is_whitespace() && c != '\r' && c != '\n') {
        return end;
    }
    match found.char_indices().next_back() {
        Some((last, _)) if last > 0 => start + last,
        _ => end,
    }
}
