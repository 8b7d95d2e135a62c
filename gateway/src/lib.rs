//! The HTTP service and the gossamer binary.
