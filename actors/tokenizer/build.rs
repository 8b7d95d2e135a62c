//! Packs the o200k_harmony vocabulary that tiktoken-rs embeds into one block, which the program includes.
//!
//! tiktoken-rs builds its tables with hundreds of thousands of allocations and hundreds of pattern clones, a
//! third of a second of CPU in each process that needs them. The block is read in milliseconds.
//!
//! Format: for each id from 0 on, the length of its bytes as a little-endian u16 (bit 15: special token), then
//! the bytes.

use std::error::Error;
use std::path::PathBuf;

const VOCAB_SIZE: u32 = 201_088;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let source = tiktoken_rs::o200k_harmony()?;
    let special = source.special_tokens();
    let mut block = Vec::new();
    for id in 0..VOCAB_SIZE {
        // Ids that the vocabulary leaves out have no bytes.
        let bytes = source.decode_bytes(&[id]).unwrap_or_default();
        let is_special = std::str::from_utf8(&bytes).is_ok_and(|name| special.contains(name));
        let length = u16::try_from(bytes.len())? | (u16::from(is_special) << 15);
        block.extend_from_slice(&length.to_le_bytes());
        block.extend_from_slice(&bytes);
    }
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("o200k_harmony.bin"), block)?;
    std::fs::write(out.join("o200k_pattern.txt"), tiktoken_rs::O200K_BASE_PAT_STR)?;
    Ok(())
}
