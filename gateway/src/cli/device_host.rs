//! Where a command that only asks backends opens them: on the CUDA device, where there is one and it can be opened, else on the CPUs.

use super::model_args::ModelArgs;
use gossamer_backend_api::HostServices;
use gossamer_config::{ModelConfig, ServeConfig};
use gossamer_worker::cuda::{self, Cuda};
use gossamer_worker::{ModelOptions, backends, pool};
use std::error::Error;
use std::sync::Arc;

/// A host's services, and the device whose context is current.
pub struct DeviceHost {
    /// What backends get.
    pub services: &'static HostServices,
    cuda: Option<Arc<Cuda>>,
}

impl DeviceHost {
    /// Opens the first device if there is a driver. One that cannot be opened counts as none.
    pub fn open() -> Result<Self, Box<dyn Error>> {
        let cuda = if cuda::is_present() { Cuda::open(0).ok() } else { None };
        let services = match &cuda {
            Some(cuda) => pool::start_for(1, false, Some(cuda.ordinal()))?,
            None => pool::start(1, false)?,
        };
        Ok(Self { services, cuda })
    }

    /// The device, in words.
    pub fn name(&self) -> String {
        match &self.cuda {
            Some(cuda) => format!("{} ({})", cuda.name(), cuda.driver()),
            None => format!("{}, no CUDA device", gossamer_worker::backends::cpu_name()),
        }
    }

    /// A model's options there.
    pub fn model_options(&self, config: &ServeConfig) -> ModelOptions {
        let mut options = ModelOptions::new(config, 0);
        if self.cuda.is_some() {
            options.use_device_types(config);
        }
        options
    }
}

/// Whether the first device and the backends can run a model; an error says why not.
pub fn probe(args: &ModelArgs) -> Result<(), Box<dyn Error>> {
    let config = args.config()?;
    let cuda = Cuda::open(0)?;
    let services = pool::start_for(1, false, Some(cuda.ordinal()))?;
    let open = backends::open(&config, services)?;
    let mut options = ModelOptions::new(&config, 0);
    options.use_device_types(&config);
    let (graph, _) = options.graph(&ModelConfig::load(&config.model)?, &open.backends);
    for node in graph.nodes {
        open.backends.able(&node.op.desc())?;
    }
    Ok(())
}
