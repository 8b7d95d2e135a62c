//! The model graph, its fusion passes, the tuner and the kernel cache.
