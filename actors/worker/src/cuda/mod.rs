//! A CUDA device through the driver: context, memory, streams, events, graphs.
//!
//! Plain owners of driver handles, no more: what runs on them is the executor's. The driver is loaded at run time, so the
//! same binary runs where there is none. Plugins link the CUDA runtime statically; they meet this code in the device's
//! primary context, which [`Cuda::open`] retains and [`Cuda::make_current`] makes current on a thread.
//!
//! Invariant: every call checks the driver's answer. Handles live as long as their context, which lives as long as the
//! process: a device context is never released.

mod memory;
mod roofs;
mod stream;

pub use memory::{Buffer, Pinned, download};
pub use roofs::copy_bandwidth;
pub use stream::{Event, Executable, Stream};

use cudarc::driver::sys::{self, CUresult};
use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;
use thiserror::Error;

/// Why the device did not do something.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CudaError {
    /// There is no driver on this machine.
    #[error("no NVIDIA driver is installed here (libcuda was not found); use --device cpu")]
    NoDriver,
    /// There is a driver, but no device of that number.
    #[error(
        "expected CUDA device {ordinal}, the driver offers {count}; use --device cpu or lower the number of workers"
    )]
    NoDevice {
        /// The device asked for.
        ordinal: u32,
        /// Devices there are.
        count: u32,
    },
    /// The driver refused.
    #[error("{call}: {message} (CUDA error {code})")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// What it means.
        message: String,
        /// Its number.
        code: u32,
    },
}

impl From<CudaError> for std::io::Error {
    fn from(error: CudaError) -> Self {
        std::io::Error::other(error)
    }
}

/// Turns the driver's answer into a result.
pub(crate) fn check(call: &'static str, status: CUresult) -> Result<(), CudaError> {
    if status == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: `text` is a place for a pointer; the driver's strings live for ever.
    let known =
        unsafe { sys::cuGetErrorString(status, &mut text) } == CUresult::CUDA_SUCCESS && !text.is_null();
    let message = if known {
        // SAFETY: the driver wrote a pointer to a terminated string.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    } else {
        "unknown error".to_owned()
    };
    Err(CudaError::Driver { call, message, code: status as u32 })
}

/// A device with its primary context.
#[derive(Debug)]
pub struct Cuda {
    context: sys::CUcontext,
    ordinal: u32,
    name: String,
    driver: String,
}

// SAFETY: a context handle may be used from any thread; the fields are never written after `open`.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

/// Whether a driver can be loaded here.
pub fn is_present() -> bool {
    // SAFETY: loading the driver runs its constructors, which is what any user of it does.
    unsafe { sys::is_culib_present() }
}

impl Cuda {
    /// Opens a device and makes its context current on this thread.
    pub fn open(ordinal: u32) -> Result<Arc<Self>, CudaError> {
        if !is_present() {
            return Err(CudaError::NoDriver);
        }
        let (mut count, mut device, mut version): (c_int, c_int, c_int) = (0, 0, 0);
        let mut context = std::ptr::null_mut();
        let mut name = [0 as c_char; 128];
        // SAFETY: all pointers are places of the types that the driver documents; the driver is there.
        unsafe {
            check("cuInit", sys::cuInit(0))?;
            check("cuDeviceGetCount", sys::cuDeviceGetCount(&mut count))?;
            if ordinal >= count as u32 {
                return Err(CudaError::NoDevice { ordinal, count: count as u32 });
            }
            check("cuDeviceGet", sys::cuDeviceGet(&mut device, ordinal as c_int))?;
            check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device))?;
            check("cuDriverGetVersion", sys::cuDriverGetVersion(&mut version))?;
            check("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut context, device))?;
        }
        // SAFETY: the driver terminated the name inside the array.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let driver = format!("CUDA {}.{}", version / 1000, version % 1000 / 10);
        let cuda = Arc::new(Self { context, ordinal, name, driver });
        cuda.make_current()?;
        Ok(cuda)
    }

    /// Makes the context current on the calling thread.
    pub fn make_current(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained for the life of the process.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    /// Number of the device.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Name of the device, such as `NVIDIA H200`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the driver supports, such as `CUDA 13.0`.
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// Free and total bytes of the device's memory.
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: two places for numbers.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_an_error_that_says_what_to_do() {
        // With a driver the number of the device is what is wrong.
        let error = Cuda::open(10_000).unwrap_err();
        match is_present() {
            false => assert_eq!(error, CudaError::NoDriver),
            true => assert!(!matches!(error, CudaError::NoDriver), "{error}"),
        }
        if !matches!(error, CudaError::Driver { .. }) {
            assert!(error.to_string().contains("--device cpu"), "{error}");
        }
    }
}
