//! The messages that cross process borders, and their encoding.
