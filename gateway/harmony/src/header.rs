//! The header of a generated message: what stands between `<|start|>` and `<|message|>`.
//!
//! Models write headers in several ways, and sometimes forget them. So header text is held only as long as it
//! still looks like a header; the moment it does not, it is the reply, and is delivered as such.

/// What the body of a message is to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Reasoning.
    Reasoning,
    /// The answer, or a preamble to tool calls.
    Content,
    /// Arguments of a call of this function.
    Call(String),
}

/// Header text longer than this is no header. A tool's name has at most 64 bytes.
pub const MAX_HEADER: usize = 256;
/// Words of a header part: role or channel, recipient, type, and one to spare.
const MAX_WORDS: usize = 4;
const CHANNELS: [&str; 3] = ["analysis", "commentary", "final"];
const ROLES: [&str; 5] = ["assistant", "user", "system", "developer", "tool"];

/// The part of a header that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Behind the end of a message, or `<|start|>assistant` of the prompt: a header may follow, or text.
    Implied,
    /// Behind a generated `<|start|>`: the role.
    Role,
    /// Behind `<|channel|>`.
    Channel,
}

/// Whether `text` can still become the given part of a header.
pub fn is_plausible(part: Part, text: &str) -> bool {
    if text.len() > MAX_HEADER || text.split_whitespace().count() > MAX_WORDS {
        return false;
    }
    match part {
        Part::Implied => {
            let text = text.trim_start();
            let text = text.strip_prefix("assistant").map_or(text, str::trim_start);
            "assistant".starts_with(text) || "to=".starts_with(text) || text.starts_with("to=")
        }
        Part::Role | Part::Channel => !text.contains('\n'),
    }
}

/// Whom a header part names as recipient: what follows `to=`.
pub fn recipient(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("to=")?;
    let end = rest.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(rest.len());
    Some(&rest[..end]).filter(|name| !name.is_empty())
}

/// Whether a role part begins the turn of somebody other than the assistant: a user, a developer, or a tool that answers.
pub fn is_anothers_turn(role: &str) -> bool {
    let word = first_word(role.trim_start());
    let known = word != "assistant" && (ROLES.contains(&word) || word.starts_with("functions."));
    known || (word != "assistant" && !word.starts_with("to=") && recipient(role) == Some("assistant"))
}

/// What a message is, by the text of its channel part and its recipient. `tools` are the names offered, for
/// models that leave out the namespace.
pub fn classify(channel: &str, recipient: Option<&str>, tools: &[String]) -> Body {
    if let Some(recipient) = recipient {
        let name = recipient.strip_prefix("functions.").or_else(|| {
            let offered = tools.iter().any(|tool| tool == recipient);
            offered.then_some(recipient)
        });
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            return Body::Call(name.to_owned());
        }
    }
    match channel_name(channel) {
        Some("analysis") => Body::Reasoning,
        // Addressed to a tool that nobody offered: not for the user's eyes, as the specification has it.
        Some("commentary") if !matches!(recipient, None | Some("all" | "user" | "assistant")) => {
            Body::Reasoning
        }
        // Commentary without recipient is a preamble, which is meant to be shown.
        _ => Body::Content,
    }
}

/// The known channel that a channel part begins with.
fn channel_name(text: &str) -> Option<&'static str> {
    let word = first_word(text.trim_start());
    let word = word.find("to=").map_or(word, |at| &word[..at]);
    CHANNELS.into_iter().find(|channel| *channel == word)
}

fn first_word(text: &str) -> &str {
    &text[..text.find(char::is_whitespace).unwrap_or(text.len())]
}

/// Where the text begins that is not header, in a header part that turned out to have no `<|message|>`; the
/// length of `text` if it is all header.
pub fn remainder(part: Part, text: &str) -> usize {
    let blank = |at: usize| text.len() - text[at..].trim_start().len();
    let mut at = blank(0);
    let word = first_word(&text[at..]);
    // A name that was cut off by the end is header where one must stand.
    let is_cut_off = |name: &str| text.trim_end().len() == at + word.len() && name.starts_with(word);
    at = match part {
        Part::Implied if word == "assistant" => blank(at + word.len()),
        Part::Implied if word.is_empty() || word.starts_with("to=") => at,
        Part::Implied => return 0,
        Part::Role if word.starts_with("to=") => at,
        Part::Role => {
            let known = ROLES.contains(&word) || word.starts_with("functions.");
            if !known && !is_cut_off("functions.") && !ROLES.into_iter().any(is_cut_off) {
                return 0;
            }
            blank(at + word.len())
        }
        Part::Channel => match channel_name(text) {
            Some(channel) => blank(at + channel.len()),
            None if CHANNELS.into_iter().any(is_cut_off) => text.len(),
            None => return 0,
        },
    };
    if text[at..].starts_with("to=") {
        at = blank(at + first_word(&text[at..]).len());
        let word = first_word(&text[at..]);
        if matches!(word, "json" | "code") {
            at = blank(at + word.len());
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_without_header_is_seen_at_once_and_headers_are_waited_for() {
        for text in ["", " ", "\n", "assis", "assistant", " to", " to=functions.f", "assistant to=f"] {
            assert!(is_plausible(Part::Implied, text), "{text:?}");
        }
        for text in ["hello", "comment", "to be", "assistants", "assistant, hi", "to=f and so on then", "1"] {
            assert!(!is_plausible(Part::Implied, text), "{text:?}");
        }
        assert!(is_plausible(Part::Channel, "commentary to=functions.f json"));
        assert!(!is_plausible(Part::Channel, "final here is the answer then"));
        assert!(!is_plausible(Part::Channel, "final\n"));
    }

    #[test]
    fn the_recipient_decides_then_the_channel() {
        let tools = ["f".to_owned()];
        let call = |name: &str| Body::Call(name.to_owned());
        for (channel, recipient, body) in [
            ("final", None, Body::Content),
            ("analysis", None, Body::Reasoning),
            ("commentary", None, Body::Content),
            ("commentary?commentary", None, Body::Content),
            ("", None, Body::Content),
            ("analysis to=functions.g code", Some("functions.g"), call("g")),
            ("commentary", Some("f"), call("f")),
            ("commentary", Some("g"), Body::Reasoning),
            ("commentary", Some("functions."), Body::Reasoning),
            ("commentary", Some("all"), Body::Content),
            ("analysis", Some("python"), Body::Reasoning),
        ] {
            assert_eq!(classify(channel, recipient, &tools), body, "{channel:?} {recipient:?}");
        }
        assert_eq!(recipient("commentaryto=functions.f json"), Some("functions.f"));
        assert_eq!(recipient(" to= json"), None);
    }

    #[test]
    fn turns_of_others_are_known_by_role_or_by_whom_they_answer() {
        for role in
            ["user", "developer", "system", "tool", "functions.f to=assistant", "browser.open to=assistant"]
        {
            assert!(is_anothers_turn(role), "{role:?}");
        }
        for role in ["", "assistant", "assistant to=functions.f", "to=assistant", "usher", "hello"] {
            assert!(!is_anothers_turn(role), "{role:?}");
        }
    }

    #[test]
    fn what_is_not_header_is_found() {
        for (part, text, rest) in [
            (Part::Implied, "assistant", ""),
            (Part::Implied, "assis", "assis"),
            (Part::Implied, " to=functions.f", ""),
            (Part::Role, "assis", ""),
            (Part::Role, "hello world", "hello world"),
            (Part::Channel, "final hello", "hello"),
            (Part::Channel, "comment", ""),
            (Part::Channel, "hello world", "hello world"),
            (Part::Channel, "commentary to=functions.f json {}", "{}"),
            (Part::Channel, "commentary to=functions.f json", ""),
        ] {
            assert_eq!(&text[remainder(part, text)..], rest, "{part:?} {text:?}");
        }
    }
}
