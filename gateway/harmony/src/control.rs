//! The seven control tokens of harmony. They are found by name, so that every vocabulary that has them will do.

use gossamer_tokenizer::Tokenizer;

/// A control token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlToken {
    /// `<|start|>` begins a message; its role follows.
    Start,
    /// `<|channel|>` begins the channel in a message's header.
    Channel,
    /// `<|constrain|>` begins the type of a tool call's arguments in a header.
    Constrain,
    /// `<|message|>` ends the header and begins the body.
    Message,
    /// `<|end|>` ends a message.
    End,
    /// `<|call|>` ends a tool call, and the generation.
    Call,
    /// `<|return|>` ends the final message, and the generation.
    Return,
}

impl ControlToken {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Start, Self::Channel, Self::Constrain, Self::Message, Self::End, Self::Call, Self::Return];

    /// Its name in vocabularies.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "<|start|>",
            Self::Channel => "<|channel|>",
            Self::Constrain => "<|constrain|>",
            Self::Message => "<|message|>",
            Self::End => "<|end|>",
            Self::Call => "<|call|>",
            Self::Return => "<|return|>",
        }
    }
}

/// The vocabulary lacks a control token, so the model cannot chat in harmony.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected the harmony control token {name} in the tokenizer, got none; this model serves /v1/completions only"
)]
pub struct MissingControlToken {
    /// The token's name.
    pub name: &'static str,
}

/// The ids of the control tokens in one vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlIds {
    ids: [u32; 7],
}

impl ControlIds {
    /// Looks the control tokens up.
    ///
    /// # Errors
    /// One of them is missing.
    pub fn find(tokenizer: &Tokenizer) -> Result<Self, MissingControlToken> {
        let mut ids = [0; 7];
        for (id, token) in ids.iter_mut().zip(ControlToken::ALL) {
            *id = tokenizer.special_id(token.name()).ok_or(MissingControlToken { name: token.name() })?;
        }
        Ok(Self { ids })
    }

    /// The id of a control token.
    pub fn id(&self, token: ControlToken) -> u32 {
        self.ids[token as usize]
    }

    /// The control token with this id.
    pub fn token(&self, id: u32) -> Option<ControlToken> {
        self.ids.iter().position(|&own| own == id).map(|index| ControlToken::ALL[index])
    }

    /// The two that end a generation, whatever a checkpoint's configuration says: `<|return|>`, `<|call|>`.
    pub fn stops(&self) -> [u32; 2] {
        [self.id(ControlToken::Return), self.id(ControlToken::Call)]
    }
}
