//! Flags, TOML file, recipes and model configuration: parsed and validated once.
//!
//! Everything that can be set goes through one parser, whatever its source: a TOML key or an environment variable is
//! turned into the flag of the same name first. What comes out is a [`ServeConfig`]: plain data that travels to the
//! child processes over their control channels. Nothing here opens weights, sockets or devices.
//!
//! Invariant: a [`ServeConfig`] that exists has been validated; no process checks a flag's range again.
//!
//! Invariant: of two sources that name one setting, the whole value of the stronger one is used (lists are replaced,
//! not joined): flag > environment > file > recipe > default.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod error;
mod layers;
pub mod model;
mod recipe;
mod serve;
mod values;

pub use args::ServeArgs;
pub use error::ConfigError;
pub use layers::{ENV_PREFIX, Resolved, expand_short_flags, read_negative_numbers, resolve, resolve_on};
pub use model::{LayerKind, ModelConfig, ModelConfigError};
pub use recipe::{RECIPES, Recipe};
pub use serve::{Parallel, ServeConfig};
pub use values::{
    AttentionArithmetic, Device, Disaggregate, Dtype, KvCacheDtype, LoadFormat, MoeActivationDtype, Secret,
};
