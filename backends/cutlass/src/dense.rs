//! Dense products: the tiled kernel's tactics, best guess first, and the portable one.
//!
//! Refuses nothing that `check_gemm` lets through: operands off 16-byte alignment go to the portable kernel.

use gossamer_backend_api::ops::{GemmArgs, GemmDesc};
use gossamer_backend_api::{BackendError, Launch, Layout, Tactic};
use gossamer_kernel_launch as kernels;

/// Tokens and features of a tile. Each size is two tactics: whole tiles, and the last turn's tiles cut along K.
const SIZES: [(u32, u32); 6] = [(128, 256), (128, 192), (128, 128), (64, 256), (64, 128), (64, 64)];
/// The tactic that runs the portable kernel.
const PORTABLE: u32 = 2 * SIZES.len() as u32;
/// Multiprocessors that a guess counts with; what is measured decides.
const PROCESSORS: u32 = 132;

fn name(tactic: u32) -> String {
    let Some((rows, columns)) = SIZES.get(tactic as usize / 2) else { return "portable".to_owned() };
    format!("tiled-{rows}x{columns}{}", if tactic % 2 == 1 { "-split" } else { "" })
}

/// A guess at the time of a tactic, in units of a column of a tile: turns times what a turn costs. A turn moves both operands
/// into shared memory and multiplies them; what takes longer counts, and a turn that is cut pays for adding up.
fn guess(desc: &GemmDesc, tokens: u32, tactic: u32) -> u32 {
    let (rows, columns) = SIZES[tactic as usize / 2];
    let column_tiles: u32 = desc.out_features.iter().map(|features| features.div_ceil(columns)).sum();
    let tiles = tokens.div_ceil(rows).saturating_mul(column_tiles);
    let turn = (rows * columns / 128).max((rows + columns) / 2);
    let (whole, rest) = (tiles / PROCESSORS, tiles % PROCESSORS);
    let parts = if tactic % 2 == 1 && rest > 0 { (PROCESSORS / rest).clamp(1, 4) } else { 1 };
    let adding = if parts > 1 { 16 + columns / 8 } else { 0 };
    whole.saturating_mul(turn).saturating_add(if rest > 0 { turn / parts + adding } else { 0 })
}

/// The tactics of a product, the best guess first, the portable kernel last.
pub fn tactics(desc: &GemmDesc, tokens: u32) -> Vec<Tactic> {
    let mut ids: Vec<u32> = (0..PORTABLE).collect();
    ids.sort_by_key(|tactic| guess(desc, tokens, *tactic));
    ids.push(PORTABLE);
    let tactic = |id| Tactic { id, name: name(id), layout: Layout::checkpoint(), capturable: true };
    ids.into_iter().map(tactic).collect()
}

/// The router's logits: no workspace, so tiles stay whole.
///
/// # Safety
/// As a launch of the operation.
pub unsafe fn logits(desc: &GemmDesc, args: &GemmArgs, stream: u64) -> Result<(), BackendError> {
    let whole = (0..PORTABLE).step_by(2).min_by_key(|tactic| guess(desc, args.tokens, *tactic));
    // SAFETY: handed on; whole tiles use no workspace.
    let status = unsafe { kernels::dense_gemm(desc, args, whole.unwrap_or(0), (0, 0), stream) };
    match status {
        // SAFETY: handed on.
        kernels::Status::BadShape => unsafe { kernels::portable_gemm(desc, args, stream) },
        status => status,
    }
    .into_result("launch")
}

/// # Safety
/// As `KernelBackend::launch`, with a workspace of [`kernels::tiled_gemm_workspace`].
pub unsafe fn launch(desc: &GemmDesc, args: &GemmArgs, launch: &Launch) -> Result<(), BackendError> {
    // SAFETY: handed on. The portable kernel's rows begin behind the bytes that stay zero.
    unsafe {
        match launch.tactic {
            PORTABLE => kernels::gemm(desc, args, launch.workspace + Launch::ZEROED, launch.stream),
            tactic => kernels::tiled_gemm(desc, args, tactic, launch.workspace, launch.stream),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gossamer_backend_api::DType;

    fn product(in_features: u32, out_features: [u32; 3]) -> GemmDesc {
        GemmDesc {
            in_features,
            out_features,
            activation: DType::BF16,
            out: DType::BF16,
            weight: DType::BF16,
            norm: 0,
            eps: 0.0,
            residual: 0,
            gather: 0,
        }
    }

    #[test]
    fn every_tactic_is_offered_once_under_its_own_name_and_the_portable_one_last() {
        for tokens in [1, 64, 8192] {
            let all = tactics(&product(2880, [4096, 512, 512]), tokens);
            let mut names: Vec<_> = all.iter().map(|tactic| tactic.name.clone()).collect();
            assert_eq!(names.pop().as_deref(), Some("portable"), "{tokens}");
            names.sort();
            names.dedup();
            assert_eq!(names.len(), PORTABLE as usize, "{tokens}");
        }
    }

    #[test]
    fn few_tokens_get_narrow_tiles_first_and_many_get_the_largest() {
        let first = |tokens| tactics(&product(2880, [4096, 512, 512]), tokens)[0].name.clone();
        assert!(first(64).starts_with("tiled-64x"), "{}", first(64));
        assert!(first(8192).starts_with("tiled-128x"), "{}", first(8192));
    }
}
