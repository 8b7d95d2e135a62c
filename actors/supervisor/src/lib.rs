//! The supervision tree: child processes, heartbeats, restarts and drain.
