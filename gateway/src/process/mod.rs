//! What the executable does as a process: the supervisor, or one of its children.

mod api_server;
mod device;
mod link;
mod model;
mod serve;

pub use device::best_device;
pub use serve::{DEMO_MODEL, demo_model, run_serve};

use gossamer_supervisor::{ChildContext, ChildRole, TreeError, child_main};
use std::process::ExitCode;
use thiserror::Error;

/// Why a child gave up.
#[derive(Debug, Error)]
enum ChildError {
    #[error(transparent)]
    ApiServer(#[from] api_server::ApiServerError),
    #[error(transparent)]
    Tree(#[from] TreeError),
}

/// Runs as a child if the supervisor started this process as one. `arguments` are those behind the program's name.
pub fn run_child(arguments: &[String]) -> Option<ExitCode> {
    child_main(arguments, |context: ChildContext| -> Result<(), ChildError> {
        crate::log::start(&context.config.log, Some(context.role.to_string()));
        match context.role {
            ChildRole::ApiServer(_) => Ok(api_server::run(context)?),
            ChildRole::Scheduler => Ok(gossamer_scheduler::process::serve(context)?),
            ChildRole::Worker(_) => Ok(gossamer_worker::process::run(context)?),
        }
    })
}
