//! Why a configuration was refused.

use std::path::PathBuf;
use thiserror::Error;

/// A configuration that cannot be served. The message says what to change.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The command line was wrong, or asked for help.
    #[error("{0}")]
    Usage(clap::Error),
    /// A value from the environment, file or recipe was refused by the parser.
    #[error("{origin}: {message}")]
    Value {
        /// The variable, the file's key or the recipe.
        origin: String,
        /// What the parser said.
        message: String,
    },
    /// A setting has a name that no flag has.
    #[error("{origin}: unknown setting '{name}'{hint}; `gossamer serve --help` lists all")]
    UnknownKey {
        /// Where it was found.
        origin: String,
        /// The name.
        name: String,
        /// `, did you mean 'x'?` or empty.
        hint: String,
    },
    /// A file could not be read.
    #[error("cannot read {what} {path}: {source}")]
    Read {
        /// What the file is for.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The configuration file is not TOML.
    #[error("{path}: {message}")]
    Toml {
        /// The file.
        path: PathBuf,
        /// The parser's message with line and column.
        message: String,
    },
    /// Two settings contradict each other, or one is out of range.
    #[error("{0}")]
    Invalid(String),
    /// A feature that is planned but does not exist in this version.
    #[error("not supported yet: {what}; {instead}")]
    NotSupportedYet {
        /// The setting and the feature behind it.
        what: String,
        /// What to do instead.
        instead: String,
    },
}
