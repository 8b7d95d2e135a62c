//! Bytes to UTF-8 text as they arrive.

/// Decodes a stream of bytes; holds back the bytes of a character only while it can still become whole.
///
/// Invariant: the text of all pushes and the flush together is `String::from_utf8_lossy` of all the bytes,
/// however they are split.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    /// The beginning of a character: a valid prefix of some UTF-8 sequence, never a whole one.
    pending: [u8; 4],
    len: u8,
}

impl Detokenizer {
    /// A decoder at the beginning of a text.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether bytes are held back.
    pub fn is_pending(&self) -> bool {
        self.len > 0
    }

    /// Decodes `bytes` and appends what is certain to `out`.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        if self.len == 0
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            out.push_str(text);
            return;
        }
        for &byte in bytes {
            self.push_byte(byte, out);
        }
    }

    /// Ends the text: held bytes can no longer become a character, and appear as one U+FFFD.
    pub fn flush(&mut self, out: &mut String) {
        if self.len > 0 {
            self.len = 0;
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }

    fn push_byte(&mut self, byte: u8, out: &mut String) {
        if self.len > 0 {
            if self.continues(byte) {
                self.pending[self.len as usize] = byte;
                self.len += 1;
                if self.len == sequence_len(self.pending[0]) {
                    let whole = &self.pending[..self.len as usize];
                    self.len = 0;
                    out.push_str(std::str::from_utf8(whole).unwrap_or("\u{FFFD}"));
                }
                return;
            }
            self.flush(out);
        }
        match sequence_len(byte) {
            1 => out.push(byte as char),
            0 => out.push(char::REPLACEMENT_CHARACTER),
            _ => {
                self.pending[0] = byte;
                self.len = 1;
            }
        }
    }

    /// Whether `byte` may follow the pending bytes (Unicode, table 3-7: well-formed byte sequences).
    fn continues(&self, byte: u8) -> bool {
        let range = match (self.len, self.pending[0]) {
            (1, 0xE0) => 0xA0..=0xBF,
            (1, 0xED) => 0x80..=0x9F,
            (1, 0xF0) => 0x90..=0xBF,
            (1, 0xF4) => 0x80..=0x8F,
            _ => 0x80..=0xBF,
        };
        range.contains(&byte)
    }
}

/// Bytes in the sequence that `lead` begins; 0 for bytes that begin none.
fn sequence_len(lead: u8) -> u8 {
    match lead {
        0x00..=0x7F => 1,
        0xC2..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF4 => 4,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split_decode(parts: &[&[u8]]) -> Vec<String> {
        let mut detokenizer = Detokenizer::new();
        let mut texts: Vec<String> = parts
            .iter()
            .map(|part| {
                let mut out = String::new();
                detokenizer.push(part, &mut out);
                out
            })
            .collect();
        let mut rest = String::new();
        detokenizer.flush(&mut rest);
        texts.push(rest);
        texts
    }

    #[test]
    fn a_character_appears_when_its_last_byte_does() {
        assert_eq!(split_decode(&[b"\xF0", b"\x93", b"\x80", b"\x80"]), ["", "", "", "𓀀", ""]);
    }

    #[test]
    fn a_byte_that_can_never_complete_does_not_stall_the_text() {
        assert_eq!(split_decode(&[b"A", b"\xA0", b" then"]), ["A", "\u{FFFD}", " then", ""]);
        assert_eq!(split_decode(&[b"\xF0\x93", b" then"]), ["", "\u{FFFD} then", ""]);
        assert_eq!(split_decode(&[b"\xE2\x82"]), ["", "\u{FFFD}"]);
    }

    /// Bytes that meet all the borders of the UTF-8 table often.
    fn awkward_byte() -> impl Strategy<Value = u8> {
        prop_oneof![
            any::<u8>(),
            prop::sample::select(vec![
                0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEF,
                0xF0, 0xF1, 0xF4, 0xF5, 0xFF,
            ])
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn any_split_decodes_like_the_whole(
            parts in prop::collection::vec(prop::collection::vec(awkward_byte(), 0..6), 0..12)
        ) {
            let whole: Vec<u8> = parts.concat();
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(split_decode(&parts).concat(), String::from_utf8_lossy(&whole));
        }

        #[test]
        fn valid_text_is_never_held_at_a_character_border(text in "\\PC{0,20}") {
            let mut detokenizer = Detokenizer::new();
            for c in text.chars() {
                let mut out = String::new();
                detokenizer.push(c.to_string().as_bytes(), &mut out);
                prop_assert_eq!(out, c.to_string());
            }
        }
    }
}
