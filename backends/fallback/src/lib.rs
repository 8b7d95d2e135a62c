//! The portable backend: always correct, the oracle of the others.
