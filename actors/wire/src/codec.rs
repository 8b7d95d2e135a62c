//! Encoding: bincode's standard configuration behind three functions, so that no other crate names it.

use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;

/// The largest message a reader accepts: a 131072-token prompt with room to spare.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// Why a message could not be written or read.
#[derive(Debug, Error)]
pub enum WireError {
    /// The value could not be encoded.
    #[error("cannot encode the message: {0}")]
    Encode(#[from] bincode::error::EncodeError),
    /// The bytes are not a message of the expected type.
    #[error("cannot decode a message of {len} bytes: {source}")]
    Decode {
        /// Length of the bytes that were offered.
        len: usize,
        /// What the decoder found.
        source: bincode::error::DecodeError,
    },
    /// A message was followed by more bytes.
    #[error("expected one message of {used} bytes, got {len} bytes")]
    TrailingBytes {
        /// Bytes that the message took.
        used: usize,
        /// Bytes that were offered.
        len: usize,
    },
}

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<MAX_MESSAGE_BYTES>()
}

/// Encodes one message into a new buffer.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, WireError> {
    Ok(bincode::serde::encode_to_vec(message, config())?)
}

/// Encodes one message into `buffer`, whose old content is dropped and whose capacity is reused.
pub fn encode_into<T: Serialize>(message: &T, buffer: &mut Vec<u8>) -> Result<(), WireError> {
    buffer.clear();
    bincode::serde::encode_into_std_write(message, buffer, config())?;
    Ok(())
}

/// Decodes exactly one message.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    let (message, used) = bincode::serde::decode_from_slice(bytes, config())
        .map_err(|source| WireError::Decode { len: bytes.len(), source })?;
    if used != bytes.len() {
        return Err(WireError::TrailingBytes { used, len: bytes.len() });
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FromScheduler, StepPlan, ToScheduler};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = decode::<ToScheduler>(&bytes);
            let _ = decode::<FromScheduler>(&bytes);
            let _ = decode::<StepPlan>(&bytes);
        }
    }

    #[test]
    fn trailing_bytes_are_an_error() {
        let mut bytes = encode(&7u32).unwrap();
        bytes.push(0);
        let error = decode::<u32>(&bytes).unwrap_err();
        assert!(matches!(error, WireError::TrailingBytes { used: 1, len: 2 }), "{error}");
    }

    #[test]
    fn a_length_beyond_the_bytes_is_an_error_and_allocates_nothing() {
        // A vector whose length prefix claims 2^40 elements.
        let bytes = [253, 0, 0, 0, 0, 0, 1, 0, 0];
        assert!(decode::<Vec<u64>>(&bytes).is_err());
    }
}
