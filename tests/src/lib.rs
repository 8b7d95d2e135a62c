//! End-to-end, golden, fault and compatibility tests.
