//! The printable alphabet of byte-level BPE: each byte is written as one visible character in vocabulary
//! files. Printable Latin-1 stands for itself; the other 68 bytes follow from U+0100 on, in order.

/// Whether `byte` stands for itself in the alphabet.
fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// Maps the alphabet's characters back to bytes.
pub struct ByteAlphabet {
    /// Indexed by code point; all characters of the alphabet are below U+0144.
    bytes: [Option<u8>; 0x144],
}

impl ByteAlphabet {
    /// The one alphabet there is.
    pub fn new() -> Self {
        let mut bytes = [None; 0x144];
        let mut next = 0x100;
        for byte in 0..=u8::MAX {
            if is_printable(byte) {
                bytes[byte as usize] = Some(byte);
            } else {
                bytes[next] = Some(byte);
                next += 1;
            }
        }
        Self { bytes }
    }

    /// Whether the vocabulary entry stands for these bytes.
    pub fn is_entry_of(&self, entry: &str, bytes: &[u8]) -> bool {
        let mut bytes = bytes.iter();
        entry.chars().all(|c| {
            let byte = self.bytes.get(c as usize).copied().flatten();
            byte.is_some() && byte == bytes.next().copied()
        }) && bytes.next().is_none()
    }

    /// The bytes of a vocabulary entry, or `None` where a character is not of the alphabet.
    pub fn decode(&self, entry: &str) -> Option<Vec<u8>> {
        entry.chars().map(|c| self.bytes.get(c as usize).copied().flatten()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let alphabet = ByteAlphabet::new();
        let mut seen: Vec<u8> = alphabet.bytes.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=u8::MAX).collect::<Vec<_>>());
        assert_eq!(alphabet.decode("Ġhi"), Some(b" hi".to_vec()));
        assert_eq!(alphabet.decode("Ċ"), Some(b"\n".to_vec()));
        assert_eq!(alphabet.decode("▁hi"), None);
        assert!(alphabet.is_entry_of("Ġhi", b" hi"));
        for (entry, bytes) in [("Ġhi", &b" h"[..]), ("Ġh", b" hi"), ("▁", b" "), ("", b"x")] {
            assert!(!alphabet.is_entry_of(entry, bytes), "{entry}");
        }
    }
}
