//! The benchmark client: serve, latency and their reports.
