//! Admission, batching, KV blocks and the token log: pure, without processes.
