//! Device memory, and host memory that the device can copy from and to without a stop in between.

use super::{CudaError, check};
use cudarc::driver::sys;
use std::ffi::c_void;

/// Device memory in one piece.
#[derive(Debug)]
pub struct Buffer {
    address: u64,
    bytes: u64,
}

impl Buffer {
    /// Allocates; what is in it is undefined.
    pub fn new(bytes: u64) -> Result<Self, CudaError> {
        let mut address = 0;
        let bytes = bytes.max(1);
        // SAFETY: a place for an address.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes as usize) })?;
        Ok(Self { address, bytes })
    }

    /// Allocates and fills with zeros, before it returns.
    pub fn zeroed(bytes: u64) -> Result<Self, CudaError> {
        let buffer = Self::new(bytes)?;
        // SAFETY: the range is this buffer; the null stream is waited for.
        unsafe {
            check("cuMemsetD8", sys::cuMemsetD8_v2(buffer.address, 0, buffer.bytes as usize))?;
            check("cuCtxSynchronize", sys::cuCtxSynchronize())?;
        }
        Ok(buffer)
    }

    /// Address of the first byte; aligned to 256.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies from the host and waits.
    pub fn upload(&mut self, offset: u64, bytes: &[u8]) -> Result<(), CudaError> {
        assert!(offset + bytes.len() as u64 <= self.bytes, "a copy must stay inside its buffer");
        // SAFETY: both ranges are valid for the length.
        check("cuMemcpyHtoD", unsafe {
            sys::cuMemcpyHtoD_v2(self.address + offset, bytes.as_ptr().cast(), bytes.len())
        })
    }
}

/// Copies `bytes.len()` bytes from a device address and waits.
///
/// # Safety
/// The address is valid for that many bytes.
pub unsafe fn download(address: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
    // SAFETY: handed on.
    unsafe {
        check("cuCtxSynchronize", sys::cuCtxSynchronize())?;
        check("cuMemcpyDtoH", sys::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, bytes.len()))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the address came from `cuMemAlloc`. A failure at the end of the process has no one to hear it.
        let _ = unsafe { sys::cuMemFree_v2(self.address) };
    }
}

/// Page-locked host memory.
#[derive(Debug)]
pub struct Pinned {
    data: *mut u8,
    bytes: usize,
}

// SAFETY: the memory is owned and has no ties to a thread.
unsafe impl Send for Pinned {}
// SAFETY: shared access only reads.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Allocates.
    pub fn new(bytes: usize) -> Result<Self, CudaError> {
        let mut data: *mut c_void = std::ptr::null_mut();
        let bytes = bytes.max(1);
        // SAFETY: a place for a pointer.
        check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut data, bytes, 0) })?;
        // SAFETY: the driver gave `bytes` writable bytes; zeroed so that reads before the first copy are defined.
        unsafe { std::ptr::write_bytes(data.cast::<u8>(), 0, bytes) };
        Ok(Self { data: data.cast(), bytes })
    }

    /// The bytes. Copies that are still under way may change them.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: owned, initialised memory of that size; callers wait for copies before they read.
        unsafe { std::slice::from_raw_parts(self.data, self.bytes) }
    }

    /// The bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `cuMemHostAlloc`.
        let _ = unsafe { sys::cuMemFreeHost(self.data.cast()) };
    }
}
