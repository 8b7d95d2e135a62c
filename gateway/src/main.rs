//! The `gossamer` binary.

fn main() {}
