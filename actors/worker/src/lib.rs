//! The worker: weights, KV pool, and the executors that run step plans.
