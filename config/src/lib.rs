//! Flags, TOML file, recipes and model configuration: parsed and validated once.
