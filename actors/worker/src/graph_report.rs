//! What `gossamer graph MODEL_DIR` prints: the graph as it is built, and as the fusion passes leave it.

use crate::model::{ModelError, ModelOptions};
use gossamer_config::ModelConfig;
use gossamer_kernels::Backends;
use gossamer_kernels::graph::Graph;
use gossamer_kernels::passes::Applied;
use std::collections::BTreeSet;
use std::path::Path;

/// A model's graph before and after fusion.
#[derive(Clone, Debug)]
pub struct GraphReport {
    /// As built.
    pub before: Graph,
    /// As run.
    pub after: Graph,
    /// What each pass did.
    pub applied: Vec<Applied>,
    /// Passes that were switched off.
    pub disabled: BTreeSet<&'static str>,
}

impl GraphReport {
    /// Reads the model's configuration and builds its graph; no weights are needed.
    pub fn new(directory: &Path, options: &ModelOptions, backends: &Backends) -> Result<Self, ModelError> {
        let config = ModelConfig::load(directory)?;
        let (after, applied) = options.graph(&config, backends);
        Ok(Self {
            before: options.unfused_graph(&config),
            after,
            applied,
            disabled: options.disabled_passes.clone(),
        })
    }

    /// Both graphs as text, with what the passes did between them.
    pub fn text(&self) -> String {
        let mut out = format!("before fusion\n{}\n", self.before.text());
        for applied in &self.applied {
            out += &format!("pass {}: fired {} times\n", applied.name, applied.times);
        }
        for name in &self.disabled {
            out += &format!("pass {name}: switched off\n");
        }
        out + &format!("\nafter fusion\n{}", self.after.text())
    }

    /// The graph as it is run, as a drawing.
    pub fn svg(&self, title: &str) -> String {
        self.after.svg(title)
    }
}
