//! What `--device auto` is on this machine.
//!
//! Invariant: the process that asks opens no device: a supervisor lives as long as its workers and would hold memory there.

use clap::ValueEnum;
use gossamer_config::{Device, ServeArgs};
use gossamer_worker::cuda;
use std::ffi::OsString;
use std::process::{Command, Stdio};

/// The CUDA device where there is one and the backends can run the model there; else the CPU, after saying why.
pub fn best_device(args: &ServeArgs) -> Device {
    if !cuda::is_present() {
        return Device::Cpu;
    }
    let mut probe = Command::new("/proc/self/exe");
    probe.arg("probe-device").args(model_arguments(args)).stdin(Stdio::null());
    let reason = match probe.output() {
        Ok(output) if output.status.success() => return Device::Cuda,
        Ok(output) => match String::from_utf8_lossy(&output.stderr).trim() {
            "" => format!("the process that looked ended with {}", output.status),
            said => said.to_owned(),
        },
        Err(error) => error.to_string(),
    };
    crate::log::say(format_args!("--device auto: the CPU, because the CUDA device cannot be used: {reason}"));
    Device::Cpu
}

/// What decides whether the backends can run the model, as `probe-device` takes it.
fn model_arguments(args: &ServeArgs) -> Vec<OsString> {
    fn name<T: ValueEnum>(value: T) -> Option<OsString> {
        value.to_possible_value().map(|value| value.get_name().into())
    }
    let mut arguments = Vec::new();
    for (flag, value) in [
        ("--dtype", args.dtype.and_then(name)),
        ("--kv-cache-dtype", args.kv_cache_dtype.and_then(name)),
        ("--backend-dir", args.backend_dir.clone().map(Into::into)),
    ] {
        arguments.extend(value.into_iter().flat_map(|value| [flag.into(), value]));
    }
    arguments.extend(args.model.clone().map(Into::into));
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;
    use gossamer_config::{Dtype, resolve_on};

    #[test]
    fn the_probe_is_asked_about_the_model_and_the_types_that_are_served() {
        let folder = env!("CARGO_MANIFEST_DIR");
        let asked = |line: &[&str]| {
            let mut asked = Vec::new();
            let line = line.iter().map(Into::into);
            let best = |args: &ServeArgs| {
                asked = model_arguments(args);
                Device::Cpu
            };
            resolve_on(line, [], folder.as_ref(), best).unwrap();
            asked
        };
        assert_eq!(asked(&["--port", "0"]), Vec::<OsString>::new());
        let flags = ["--dtype", "bfloat16", "--kv-cache-dtype", "fp8", "--backend-dir", folder, folder];
        assert_eq!(asked(&flags), flags);
        assert_eq!(Dtype::Bfloat16.to_possible_value().unwrap().get_name(), "bfloat16");
    }
}
