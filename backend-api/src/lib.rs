//! The backend plugin ABI, the safe trait above it, and the loader.
