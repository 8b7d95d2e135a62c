//! The harmony chat format: renderer and streaming parser.
