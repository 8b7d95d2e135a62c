//! Shared-memory rings and the control channel between processes.
