//! Copies between private bytes and shared words.
//!
//! Shared words may change under the copy if the peer breaks the protocol. Relaxed atomics of one width make that a
//! wrong value instead of a data race, at about the speed of a plain copy.

use std::sync::atomic::{AtomicU64, Ordering};

/// Copies `out.len()` bytes from the start of `words`.
///
/// Copies less if there are fewer words; callers check lengths first.
pub(crate) fn load(words: &[AtomicU64], out: &mut [u8]) {
    let (whole, rest) = out.split_at_mut(out.len() / 8 * 8);
    for (word, bytes) in words.iter().zip(whole.chunks_exact_mut(8)) {
        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    if let (Some(word), false) = (words.get(whole.len() / 8), rest.is_empty()) {
        let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        rest.copy_from_slice(&bytes[..rest.len()]);
    }
}

/// Writes bytes in order into words; what does not fill a word waits in `pending`.
pub(crate) struct WordWriter<'a> {
    words: &'a [AtomicU64],
    next: usize,
    pending: [u8; 8],
    filled: usize,
}

impl<'a> WordWriter<'a> {
    pub(crate) fn new(words: &'a [AtomicU64]) -> Self {
        Self { words, next: 0, pending: [0; 8], filled: 0 }
    }

    /// Writes all of `bytes`; what is past the last word is lost, so callers check lengths first.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) {
        if self.filled > 0 {
            let taken = bytes.len().min(8 - self.filled);
            self.pending[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled < 8 {
                return;
            }
            self.flush();
        }
        let whole = bytes.len() / 8;
        let words = self.words.get(self.next..).unwrap_or(&[]);
        for (word, chunk) in words.iter().zip(bytes.chunks_exact(8)) {
            let mut value = [0; 8];
            value.copy_from_slice(chunk);
            word.store(u64::from_ne_bytes(value), Ordering::Relaxed);
        }
        self.next += whole;
        let rest = &bytes[whole * 8..];
        self.pending[..rest.len()].copy_from_slice(rest);
        self.filled = rest.len();
    }

    /// Stores the last, partly filled word.
    pub(crate) fn flush(&mut self) {
        if self.filled > 0 {
            self.pending[self.filled..].fill(0);
            if let Some(word) = self.words.get(self.next) {
                word.store(u64::from_ne_bytes(self.pending), Ordering::Relaxed);
            }
            self.next += 1;
            self.filled = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_in_any_pieces_is_loaded(pieces in prop::collection::vec(
            prop::collection::vec(any::<u8>(), 0..40), 0..12)) {
            let all: Vec<u8> = pieces.concat();
            let words: Vec<AtomicU64> = (0..all.len().div_ceil(8)).map(|_| AtomicU64::new(u64::MAX)).collect();
            let mut writer = WordWriter::new(&words);
            for piece in &pieces {
                writer.write(piece);
            }
            writer.flush();
            let mut out = vec![0xAA; all.len()];
            load(&words, &mut out);
            prop_assert_eq!(out, all);
        }
    }
}
