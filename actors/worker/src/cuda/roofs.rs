//! What a device's memory moves.

use super::{Buffer, CudaError, Event, Stream};

/// Bytes of each side of the copy: more than any cache holds.
const BYTES: u64 = 1 << 30;
const COPIES: u32 = 8;

/// Bytes a second, reads and writes, of a copy within the current device's memory.
pub fn copy_bandwidth() -> Result<f64, CudaError> {
    let (from, to) = (Buffer::zeroed(BYTES)?, Buffer::zeroed(BYTES)?);
    let (stream, begun, done) = (Stream::new()?, Event::new()?, Event::new()?);
    for copy in 0..=COPIES {
        // The first one warms up.
        if copy == 1 {
            begun.record(&stream)?;
        }
        // SAFETY: both buffers hold that much and live until the stream was waited for.
        unsafe { stream.copy(to.address(), from.address(), BYTES) }?;
    }
    done.record(&stream)?;
    stream.synchronize()?;
    let seconds = f64::from(done.milliseconds_since(&begun)?) * 1e-3;
    Ok(2.0 * BYTES as f64 * f64::from(COPIES) / seconds)
}
