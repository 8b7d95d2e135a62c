//! How the GPUs of one replica share the model: `tp=2,pp=2`, `dp=8,ep`, `prefill=1,decode=3`.
//!
//! One spelling for `bench sweep`, which turns it into flags of the server, and for `plan`, which turns it into factors of
//! the cost model.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Most ranks of one kind: far above any machine, far below an overflow.
const MAX_RANKS: u32 = 1024;

/// Ranks of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Layout {
    /// Ranks that split every layer.
    pub tensor: u32,
    /// Stages that split the layers.
    pub pipeline: u32,
    /// Ranks that share the requests in lock-step.
    pub data: u32,
    /// Whole experts are spread over the data-parallel ranks.
    pub expert: bool,
    /// Groups for prompts and for generation, each of `tensor` x `pipeline` ranks.
    pub split: Option<(u32, u32)>,
}

/// A layout that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("layout '{text}': expected {expected}")]
pub struct LayoutError {
    text: String,
    expected: String,
}

impl Layout {
    /// One GPU.
    pub const SINGLE: Self = Self { tensor: 1, pipeline: 1, data: 1, expert: false, split: None };

    /// GPUs of a replica.
    pub fn gpus(&self) -> u32 {
        let groups = self.split.map_or(self.data, |(prefill, decode)| prefill + decode);
        self.tensor * self.pipeline * groups
    }

    /// The flags of `gossamer serve` that ask for it.
    pub fn flags(&self) -> Vec<(String, String)> {
        let mut flags = Vec::new();
        for (name, size) in [
            ("tensor-parallel-size", self.tensor),
            ("pipeline-parallel-size", self.pipeline),
            ("data-parallel-size", self.data),
        ] {
            if size > 1 {
                flags.push((name.to_owned(), size.to_string()));
            }
        }
        if self.expert {
            flags.push(("enable-expert-parallel".to_owned(), "true".to_owned()));
        }
        if let Some((prefill, decode)) = self.split {
            flags.push(("disaggregate".to_owned(), format!("prefill={prefill},decode={decode}")));
        }
        flags
    }
}

impl FromStr for Layout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        let wrong = |expected: String| LayoutError { text: text.to_owned(), expected };
        let mut layout = Self::SINGLE;
        let (mut prefill, mut decode) = (None, None);
        let mut seen = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (name, value) =
                part.split_once('=').map_or((part, None), |(name, value)| (name, Some(value)));
            if seen.contains(&name) {
                return Err(wrong(format!("'{name}' once")));
            }
            seen.push(name);
            if name == "ep" && value.is_none() {
                layout.expert = true;
                continue;
            }
            let count =
                value.and_then(|value| value.parse().ok()).filter(|count| (1..=MAX_RANKS).contains(count));
            let Some(count) = count else {
                return Err(wrong(format!(
                    "parts such as tp=2, pp=2, dp=8, ep, prefill=1, decode=3 with numbers from 1 to {MAX_RANKS}, got '{part}'"
                )));
            };
            match name {
                "tp" => layout.tensor = count,
                "pp" => layout.pipeline = count,
                "dp" => layout.data = count,
                "prefill" => prefill = Some(count),
                "decode" => decode = Some(count),
                _ => return Err(wrong(format!("tp, pp, dp, ep, prefill or decode, got '{name}'"))),
            }
        }
        layout.split = match (prefill, decode) {
            (None, None) => None,
            (Some(prefill), Some(decode)) => Some((prefill, decode)),
            _ => return Err(wrong("both prefill and decode, or neither".to_owned())),
        };
        if layout.split.is_some() && (layout.data > 1 || layout.expert) {
            return Err(wrong("no dp or ep beside prefill and decode".to_owned()));
        }
        if u64::from(layout.tensor) * u64::from(layout.pipeline) * u64::from(layout.data)
            > u64::from(MAX_RANKS)
        {
            return Err(wrong(format!("at most {MAX_RANKS} GPUs in a replica")));
        }
        Ok(layout)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        for (name, size) in [("tp", self.tensor), ("pp", self.pipeline), ("dp", self.data)] {
            if size > 1 {
                parts.push(format!("{name}={size}"));
            }
        }
        if self.expert {
            parts.push("ep".to_owned());
        }
        if let Some((prefill, decode)) = self.split {
            parts.push(format!("prefill={prefill},decode={decode}"));
        }
        if parts.is_empty() {
            parts.push("tp=1".to_owned());
        }
        f.write_str(&parts.join(","))
    }
}

impl From<Layout> for String {
    fn from(layout: Layout) -> Self {
        layout.to_string()
    }
}

impl TryFrom<String> for Layout {
    type Error = LayoutError;

    fn try_from(text: String) -> Result<Self, LayoutError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_read_what_they_write_and_count_their_gpus() {
        for (text, canonical, gpus) in [
            ("tp=1", "tp=1", 1),
            ("pp=2, tp=4", "tp=4,pp=2", 8),
            ("dp=8,ep", "dp=8,ep", 8),
            ("prefill=1,decode=3,tp=2", "tp=2,prefill=1,decode=3", 8),
        ] {
            let layout: Layout = text.parse().unwrap();
            assert_eq!((layout.to_string().as_str(), layout.gpus()), (canonical, gpus), "{text}");
            assert_eq!(canonical.parse::<Layout>().unwrap(), layout);
        }
        let flags = "tp=2,prefill=1,decode=3".parse::<Layout>().unwrap().flags();
        let flags: Vec<_> = flags.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(flags, ["tensor-parallel-size=2", "disaggregate=prefill=1,decode=3"]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_is_expected() {
        for (text, part) in [
            ("tp=0", "from 1 to 1024, got 'tp=0'"),
            ("tp", "got 'tp'"),
            ("xp=2", "got 'xp'"),
            ("tp=1,tp=2", "'tp' once"),
            ("prefill=1", "both prefill and decode"),
            ("prefill=1,decode=1,ep", "no dp or ep"),
            ("tp=1024,pp=1024", "at most 1024 GPUs"),
        ] {
            let message = text.parse::<Layout>().unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
