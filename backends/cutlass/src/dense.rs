//! Dense products: the tiled kernel's tactics, best guess first, and the portable one.
//!
//! Refuses nothing that `check_gemm` lets through: operands off 16-byte alignment go to the portable kernel.

use gossamer_backend_api::ops::{GemmArgs, GemmDesc};
use gossamer_backend_api::{BackendError, Launch, Layout, Tactic};
use gossamer_kernel_launch as kernels;

/// A size of tile. Each is two tactics: whole tiles, and the last turn's tiles cut along K.
struct Size {
    /// Tokens and features of a tile.
    tile: (u32, u32),
    /// Blocks that share weights.
    pair: u32,
    /// Nanoseconds of 64 columns of K, of writing a tile, and of adding the parts of a cut one, as fitted on an H200.
    step: u32,
    write: u32,
    add: u32,
}

const fn size(tile: (u32, u32), pair: u32, [step, write, add]: [u32; 3]) -> Size {
    Size { tile, pair, step, write, add }
}

/// As numbered in `dense.h`.
const SIZES: [Size; 8] = [
    size((128, 256), 1, [690, 3000, 4000]),
    size((128, 192), 1, [530, 2200, 3500]),
    size((128, 128), 1, [350, 1500, 2800]),
    size((64, 256), 1, [350, 1500, 2800]),
    size((64, 128), 1, [235, 900, 1800]),
    size((64, 64), 1, [150, 600, 1300]),
    size((128, 256), 2, [670, 3000, 4000]),
    size((128, 192), 2, [510, 2200, 3500]),
];
/// Tiles of 64 tokens and 64 features, cut.
const SMALLEST_CUT: u32 = 2 * 5 + 1;
/// Beyond, the router has whole tiles enough.
const MOST_CUT_TOKENS: u32 = 2048;
/// The tactic that runs the portable kernel.
const PORTABLE: u32 = 2 * SIZES.len() as u32;
/// Multiprocessors that a guess counts with; what is measured decides.
const PROCESSORS: u32 = 132;

fn name(tactic: u32) -> String {
    let Some(size) = SIZES.get(tactic as usize / 2) else { return "portable".to_owned() };
    let pair = if size.pair > 1 { "-pair" } else { "" };
    let split = if tactic % 2 == 1 { "-split" } else { "" };
    format!("tiled-{}x{}{pair}{split}", size.tile.0, size.tile.1)
}

/// A guess at the nanoseconds of a tactic: turns over the multiprocessors, times what a turn takes. A step is a fifth faster
/// where few multiprocessors share the L2.
fn guess(desc: &GemmDesc, tokens: u32, tactic: u32) -> u64 {
    let size = &SIZES[tactic as usize / 2];
    let units = PROCESSORS / size.pair;
    let column_tiles: u32 = desc.out_features.iter().map(|features| features.div_ceil(size.tile.1)).sum();
    let tiles = u64::from(tokens.div_ceil(size.tile.0 * size.pair)) * u64::from(column_tiles);
    let busy = (tiles * u64::from(size.pair)).min(u64::from(PROCESSORS));
    let steps = u64::from(desc.in_features.div_ceil(64));
    let products =
        steps * u64::from(size.step) * (4 * u64::from(PROCESSORS) + busy) / (5 * u64::from(PROCESSORS));
    let (whole, rest) = (tiles / u64::from(units), tiles % u64::from(units));
    let turn = products + u64::from(size.write);
    let last = match rest {
        0 => 0,
        rest if tactic % 2 == 1 => match (u64::from(units) / rest).min(steps / 6).min(4) {
            0 | 1 => turn,
            parts => products / parts + u64::from(size.write) + u64::from(size.add) * (2 + parts) / 4,
        },
        _ => turn,
    };
    whole * turn + last
}

/// The tactics of a product, the best guess first, the portable kernel last.
pub fn tactics(desc: &GemmDesc, tokens: u32) -> Vec<Tactic> {
    let mut ids: Vec<u32> = (0..PORTABLE).collect();
    ids.sort_by_key(|tactic| guess(desc, tokens, *tactic));
    ids.push(PORTABLE);
    let tactic = |id| Tactic { id, name: name(id), layout: Layout::checkpoint(), capturable: true };
    ids.into_iter().map(tactic).collect()
}

/// The router's logits, without a workspace: smallest tiles cut into parts where those can be clusters, which need none; else whole
/// tiles.
///
/// # Safety
/// As a launch of the operation.
pub unsafe fn logits(desc: &GemmDesc, args: &GemmArgs, stream: u64) -> Result<(), BackendError> {
    let whole = (0..PORTABLE).step_by(2).min_by_key(|tactic| guess(desc, args.tokens, *tactic));
    let cut = (args.tokens <= MOST_CUT_TOKENS).then_some(SMALLEST_CUT);
    for tactic in cut.into_iter().chain(whole) {
        // SAFETY: handed on; what needs a workspace refuses.
        match unsafe { kernels::dense_gemm(desc, args, tactic, (0, 0), stream) } {
            kernels::Status::BadShape => (),
            status => return status.into_result("launch"),
        }
    }
    // SAFETY: handed on.
    unsafe { kernels::portable_gemm(desc, args, stream) }.into_result("launch")
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
    fn the_first_guess_is_what_was_measured_fast_or_close_to_it() {
        let first = |desc: &GemmDesc, tokens| tactics(desc, tokens)[0].name.clone();
        let (qkv, router) = (product(2880, [4096, 512, 512]), product(2880, [128, 0, 0]));
        assert!(first(&qkv, 64).starts_with("tiled-64x"), "{}", first(&qkv, 64));
        assert!(first(&qkv, 8192).starts_with("tiled-128x"), "{}", first(&qkv, 8192));
        // One or two tiles: cut, they keep more than two multiprocessors busy.
        assert_eq!(first(&router, 64), "tiled-64x64-split");
        assert_eq!(name(SMALLEST_CUT), "tiled-64x64-split");
    }

    #[test]
    fn a_guess_grows_with_the_tokens() {
        let desc = product(4096, [2880, 0, 0]);
        for tactic in 0..PORTABLE {
            let at = |tokens| guess(&desc, tokens, tactic);
            assert!(at(64) < at(4096) && at(4096) < at(65536), "{}", name(tactic));
            assert!(at(u32::MAX) > at(65536), "{}", name(tactic));
        }
    }
}
