//! Streams, events and captured graphs.

use super::{CudaError, Pinned, check};
use cudarc::driver::sys::{self, CUresult};

/// A queue of work on the device, apart from the null stream.
#[derive(Debug)]
pub struct Stream(sys::CUstream);

// SAFETY: a stream handle may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Makes a stream.
    pub fn new() -> Result<Self, CudaError> {
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a place for a handle.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
        Ok(Self(stream))
    }

    /// The handle as it crosses the backend border.
    pub fn raw(&self) -> u64 {
        self.0 as u64
    }

    /// Waits for everything enqueued so far.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: a live stream.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.0) })
    }

    /// Lets what is enqueued from now on begin when the event's stream has passed it.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: both handles are live.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.0, event.0, 0) })
    }

    /// Enqueues a copy of the first `bytes` bytes of `from` to the device.
    ///
    /// # Safety
    /// `to` is valid for `bytes`; `from` stays unchanged until the copy is done.
    pub unsafe fn upload(&self, to: u64, from: &Pinned, bytes: usize) -> Result<(), CudaError> {
        assert!(bytes <= from.bytes().len(), "a copy must stay inside its buffer");
        // SAFETY: handed on.
        check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(to, from.bytes().as_ptr().cast(), bytes, self.0)
        })
    }

    /// Enqueues a copy of `bytes` bytes from the device into the beginning of `to`.
    ///
    /// # Safety
    /// `from` is valid for `bytes`; nobody reads `to` until the copy is done.
    pub unsafe fn download(&self, to: &mut Pinned, from: u64, bytes: usize) -> Result<(), CudaError> {
        let to = &mut to.bytes_mut()[..bytes];
        // SAFETY: handed on.
        check("cuMemcpyDtoHAsync", unsafe {
            sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, bytes, self.0)
        })
    }

    /// Enqueues a copy within the device's memory.
    ///
    /// # Safety
    /// Both addresses are valid for `bytes` until the copy is done; the ranges do not overlap.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), CudaError> {
        // SAFETY: handed on.
        check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes as usize, self.0) })
    }

    /// Records what `body` enqueues as a graph instead of running it. `Ok(None)`: `body` failed; nothing was recorded.
    pub fn capture<E>(
        &self,
        body: impl FnOnce() -> Result<(), E>,
    ) -> Result<Result<Executable, E>, CudaError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a live stream on which nobody captures: one thread launches.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(self.0, mode) })?;
        let done = body();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the capture began above.
        let ended = check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(self.0, &mut graph) });
        if let Err(error) = done {
            if !graph.is_null() {
                // SAFETY: a graph that nothing else refers to.
                unsafe { sys::cuGraphDestroy(graph) };
            }
            return Ok(Err(error));
        }
        ended?;
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph is whole; it is not needed once it was instantiated.
        let made = check("cuGraphInstantiate", unsafe {
            sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0)
        });
        // SAFETY: as above.
        unsafe { sys::cuGraphDestroy(graph) };
        made.map(|()| Ok(Executable(executable)))
    }

    /// Enqueues a captured graph.
    pub fn launch(&self, graph: &Executable) -> Result<(), CudaError> {
        // SAFETY: both handles are live.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph.0, self.0) })
    }

    pub(super) fn handle(&self) -> sys::CUstream {
        self.0
    }
}

/// A graph that can be launched. What it points at must outlive its launches.
#[derive(Debug)]
pub struct Executable(sys::CUgraphExec);

// SAFETY: launched from the one thread that holds it.
unsafe impl Send for Executable {}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: made by `capture`; the driver keeps what a running launch needs.
        let _ = unsafe { sys::cuGraphExecDestroy(self.0) };
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Event(sys::CUevent);

// SAFETY: an event handle may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// Makes an event that keeps the time.
    pub fn new() -> Result<Self, CudaError> {
        Self::with_flags(sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// Makes an event that does not, which costs the device less.
    pub fn untimed() -> Result<Self, CudaError> {
        Self::with_flags(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn with_flags(flags: sys::CUevent_flags) -> Result<Self, CudaError> {
        let mut event = std::ptr::null_mut();
        // SAFETY: a place for a handle.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags as u32) })?;
        Ok(Self(event))
    }

    /// Puts the event at the present end of a stream.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both handles are live.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.0, stream.handle()) })
    }

    /// Whether the stream has passed the event.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        // SAFETY: a live event.
        match unsafe { sys::cuEventQuery(self.0) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => check("cuEventQuery", status).map(|()| true),
        }
    }

    /// Waits until the stream has passed the event.
    pub fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: a live event.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.0) })
    }

    /// Milliseconds from `earlier` to this event; both are done.
    pub fn milliseconds_since(&self, earlier: &Event) -> Result<f32, CudaError> {
        let mut milliseconds = 0.0;
        // SAFETY: a place for a number, two live events.
        check("cuEventElapsedTime", unsafe {
            sys::cuEventElapsedTime_v2(&mut milliseconds, earlier.0, self.0)
        })?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `new`.
        let _ = unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}
