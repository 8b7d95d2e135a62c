//! Token ids that the simulated device replays, so that exact outputs can be sent through the whole server.
//!
//! ```json
//! { "in_order": [[1, 2, 3], [4, 5]], "by_marker": { "9000": [200005, 35644, 200008] } }
//! ```
//!
//! The last token of a prompt that is a marker chooses its script. Prompts without a marker take the scripts of
//! `in_order`, each once, in the order in which they arrive. Who has no script draws seeded tokens; whoever comes to the
//! end of one draws its request's stop token, or seeded tokens where it has none.
//!
//! Invariant: a sequence that joins again (it was pre-empted) keeps its script. A worker that is restarted starts
//! `in_order` anew, so that tests which kill workers use markers.

use gossamer_wire::SlotJoin;
use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// A script cannot be used.
#[derive(Debug, Error)]
pub enum ScriptError {
    /// It cannot be read.
    #[error("--sim-script: cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is no script.
    #[error(
        "--sim-script: expected {{\"in_order\": [[ids]], \"by_marker\": {{\"id\": [ids]}}}} in {path}: {source}"
    )]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// It names a token that the model does not have.
    #[error("--sim-script: expected token ids below {vocab_size}, got {token} in {path}")]
    Token {
        /// The file.
        path: PathBuf,
        /// Width of the logits.
        vocab_size: u32,
        /// The token.
        token: u32,
    },
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    in_order: Vec<Vec<u32>>,
    by_marker: HashMap<u32, Vec<u32>>,
}

/// A sequence as `in_order` knows it again.
type Identity = (Vec<u32>, u64, u32);

/// Scripts, and who plays which.
#[derive(Debug, Default)]
pub struct Script {
    in_order: Vec<Arc<[u32]>>,
    by_marker: HashMap<u32, Arc<[u32]>>,
    /// Scripts of `in_order` that were given out.
    given: HashMap<Identity, usize>,
    /// Per slot.
    playing: Vec<Option<Part>>,
}

/// A script being played.
#[derive(Clone, Debug)]
struct Part {
    tokens: Arc<[u32]>,
    /// What follows the last of them.
    end: Option<u32>,
}

impl Script {
    /// Reads and checks a script.
    pub fn load(path: &Path, vocab_size: u32) -> Result<Self, ScriptError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ScriptError::Read { path: path.to_owned(), source })?;
        let file: File = serde_json::from_str(&text)
            .map_err(|source| ScriptError::Parse { path: path.to_owned(), source })?;
        let mut tokens = file.in_order.iter().chain(file.by_marker.values()).flatten();
        if let Some(token) = tokens.find(|token| **token >= vocab_size) {
            return Err(ScriptError::Token { path: path.to_owned(), vocab_size, token: *token });
        }
        Ok(Self::new(file.in_order, file.by_marker))
    }

    /// A script from its parts.
    pub fn new(in_order: Vec<Vec<u32>>, by_marker: HashMap<u32, Vec<u32>>) -> Self {
        Self {
            in_order: in_order.into_iter().map(Arc::from).collect(),
            by_marker: by_marker.into_iter().map(|(marker, tokens)| (marker, Arc::from(tokens))).collect(),
            ..Self::default()
        }
    }

    /// A sequence enters a slot.
    pub fn join(&mut self, join: &SlotJoin) {
        let slot = join.slot as usize;
        if self.playing.len() <= slot {
            self.playing.resize(slot + 1, None);
        }
        let script = self.find(join);
        self.playing[slot] = script.map(|tokens| Part { tokens, end: join.stop_token_ids.first().copied() });
    }

    fn find(&mut self, join: &SlotJoin) -> Option<Arc<[u32]>> {
        if self.in_order.is_empty() && self.by_marker.is_empty() {
            return None;
        }
        let prompt = &join.tokens[..join.prompt_len as usize];
        if let Some(script) = prompt.iter().rev().find_map(|token| self.by_marker.get(token)) {
            return Some(Arc::clone(script));
        }
        let identity = (prompt.to_vec(), join.sampling.seed, join.choice);
        let next = self.given.len();
        if next >= self.in_order.len() && !self.given.contains_key(&identity) {
            return None;
        }
        let index = *self.given.entry(identity).or_insert(next);
        self.in_order.get(index).map(Arc::clone)
    }

    /// The token that the sequence in `slot` says after `generated` others; `None`: it is free.
    pub fn token(&self, slot: u32, generated: u32) -> Option<u32> {
        let part = self.playing.get(slot as usize)?.as_ref()?;
        part.tokens.get(generated as usize).copied().or(part.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gossamer_wire::SamplingParams;

    fn join(slot: u32, prompt: &[u32], seed: u64) -> SlotJoin {
        SlotJoin {
            slot,
            tokens: prompt.to_vec(),
            prompt_len: prompt.len() as u32,
            choice: 0,
            sampling: SamplingParams { seed, ..Default::default() },
            min_tokens: 0,
            stop_token_ids: if seed == 0 { vec![99] } else { Vec::new() },
        }
    }

    #[test]
    fn markers_choose_and_the_others_take_their_turn() {
        let mut script =
            Script::new(vec![vec![1, 2], vec![3]], HashMap::from([(50, vec![7]), (51, vec![8, 9])]));
        script.join(&join(0, &[4, 5], 0));
        script.join(&join(1, &[4, 50, 51, 5], 0));
        script.join(&join(2, &[4, 5], 1));
        script.join(&join(3, &[6], 0));
        let says = |script: &Script, slot| (0..3).map(|n| script.token(slot, n)).collect::<Vec<_>>();
        assert_eq!(says(&script, 0), [Some(1), Some(2), Some(99)]);
        assert_eq!(says(&script, 1), [Some(8), Some(9), Some(99)]);
        assert_eq!(says(&script, 2), [Some(3), None, None], "no stop token: free again");
        assert_eq!(says(&script, 3), [None; 3], "no script is left");
        // Pre-empted, and back in another slot with what it has said.
        let again = SlotJoin { tokens: vec![4, 5, 1], slot: 3, ..join(0, &[4, 5], 0) };
        script.join(&again);
        assert_eq!(says(&script, 3), [Some(1), Some(2), Some(99)]);
    }

    #[test]
    fn files_are_checked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("script.json");
        let load = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Script::load(&path, 100)
        };
        assert_eq!(load(r#"{"by_marker": {"5": [1, 2]}}"#).unwrap().by_marker[&5][..], [1, 2]);
        assert!(load(r#"{"in_ordr": []}"#).unwrap_err().to_string().contains("in_order"));
        assert!(load(r#"{"in_order": [[100]]}"#).unwrap_err().to_string().contains("below 100, got 100"));
        assert!(Script::load(&directory.path().join("none"), 9).is_err());
    }
}
