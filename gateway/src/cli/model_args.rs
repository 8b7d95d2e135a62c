//! The model that a command is about, as the server's flags name it.

use crate::process::demo_model;
use clap::Args;
use gossamer_config::{ServeConfig, resolve};
use std::{ffi::OsString, path::PathBuf};

/// Flags that commands about a model share.
#[derive(Args)]
pub struct ModelArgs {
    /// Directory of the model; without it the demo model
    #[arg(value_name = "MODEL_DIR")]
    model: Option<PathBuf>,
    /// Type of the activations
    #[arg(long)]
    dtype: Option<String>,
    /// Type of the KV cache
    #[arg(long)]
    kv_cache_dtype: Option<String>,
    /// Directory with backend plugins
    #[arg(long, value_name = "DIR")]
    backend_dir: Option<PathBuf>,
}

impl ModelArgs {
    /// The server's flags that say the same.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        let mut flag = |name: &str, value: Option<OsString>| {
            if let Some(value) = value {
                arguments.extend([name.into(), value]);
            }
        };
        flag("--dtype", self.dtype.clone().map(Into::into));
        flag("--kv-cache-dtype", self.kv_cache_dtype.clone().map(Into::into));
        flag("--backend-dir", self.backend_dir.clone().map(Into::into));
        arguments.extend(self.model.clone().map(Into::into));
        arguments
    }

    /// The configuration that a server with these flags has.
    pub fn config(&self) -> Result<ServeConfig, gossamer_config::ConfigError> {
        Ok(resolve(self.to_arguments(), [], &demo_model())?.config)
    }
}
