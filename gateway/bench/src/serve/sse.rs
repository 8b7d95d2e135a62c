//! Splits a byte stream into the `data:` payloads of server-sent events.

/// An incremental splitter. Feed it bytes as they come; it keeps an unfinished line.
#[derive(Default)]
pub struct Splitter {
    line: Vec<u8>,
}

impl Splitter {
    /// Calls `event` with every complete `data:` payload.
    pub fn push(&mut self, bytes: &[u8], mut event: impl FnMut(&[u8])) {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.line.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
            if let Some(data) = line.strip_prefix(b"data:") {
                event(data.strip_prefix(b" ").unwrap_or(data));
            }
            self.line.clear();
        }
        self.line.extend_from_slice(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_however_the_bytes_are_cut() {
        let stream = b": comment\ndata: {\"a\":1}\r\n\r\ndata:[DONE]\n\n";
        for cut in 0..stream.len() {
            let mut splitter = Splitter::default();
            let mut seen = Vec::new();
            for part in [&stream[..cut], &stream[cut..]] {
                splitter.push(part, |data| seen.push(String::from_utf8_lossy(data).into_owned()));
            }
            assert_eq!(seen, ["{\"a\":1}", "[DONE]"], "cut at {cut}");
        }
    }
}
