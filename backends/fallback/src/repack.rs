//! Repacking to the one layout of this backend, `checkpoint`: a copy of the slice, rows and columns close together.
//!
//! For MXFP4 the codes of all experts come first, `[E, rows, columns / 32, 16]`, then their scales, `[E, rows, columns /
//! 32]`. Whole tensors need no repacking: kernels read the mapped file.

use crate::memory::Ptr;
use crate::pool::Pool;
use gossamer_backend_api::{BackendError, DType, Layout, RepackSource};

/// Bytes of a block of 32 MXFP4 codes.
const BLOCK_BYTES: usize = 16;

/// Bytes of the slice; `None` for other layouts, types, or slices outside the tensor.
pub fn packed_size(layout: &Layout, source: &RepackSource) -> Option<u64> {
    let (rows, columns) = (source.row_range, source.column_range);
    let inside =
        rows.0.checked_add(rows.1)? <= source.rows && columns.0.checked_add(columns.1)? <= source.columns;
    if layout.0 != Layout::CHECKPOINT || !inside {
        return None;
    }
    let elements = u64::from(source.experts) * u64::from(rows.1) * u64::from(columns.1);
    match source.dtype {
        DType::F32 | DType::BF16 => Some(source.dtype.bytes(elements)),
        DType::MXFP4 if [columns.0, columns.1, source.columns].iter().all(|size| size.is_multiple_of(32)) => {
            Some(elements / 2 + elements / 32)
        }
        _ => None,
    }
}

/// Copies `row_bytes` of each row, from `skip` bytes into it.
unsafe fn copy_rows(
    pool: &Pool,
    source: &RepackSource,
    from: u64,
    stride: usize,
    part: (usize, usize),
    to: Ptr<u8>,
) {
    let from = Ptr::<u8>::new(from);
    let (first, count) = (source.row_range.0 as usize, source.row_range.1 as usize);
    pool.run(source.experts as usize * count, |_, index| {
        let row = index / count * source.rows as usize + first + index % count;
        // SAFETY: by the caller: the row is in the tensor, its part in the row, and its copy in `to`.
        unsafe {
            let part_of_row = from.slice(row * stride + part.0, part.1);
            to.slice_mut(index * part.1, part.1).copy_from_slice(part_of_row);
        }
    });
}

/// Copies the slice.
///
/// # Safety
/// As `KernelBackend::repack`.
pub unsafe fn repack(
    pool: &Pool,
    layout: &Layout,
    source: &RepackSource,
    out: u64,
) -> Result<(), BackendError> {
    let Some(bytes) = packed_size(layout, source) else {
        let message =
            format!("expected layout {} and a slice inside the tensor, got {source:?}", Layout::CHECKPOINT);
        return Err(BackendError::failed("repack", message));
    };
    let (columns, (first, count)) = (source.columns as usize, source.column_range);
    let (first, count) = (first as usize, count as usize);
    let out = Ptr::new(out);
    // SAFETY: handed on from this function's contract; the parts lie in their rows.
    unsafe {
        if source.dtype == DType::MXFP4 {
            let blocks = |columns: usize| columns / 32;
            let codes = (blocks(first) * BLOCK_BYTES, blocks(count) * BLOCK_BYTES);
            copy_rows(pool, source, source.data, blocks(columns) * BLOCK_BYTES, codes, out);
            let scales = bytes as usize / (BLOCK_BYTES + 1);
            let to = out.offset(bytes as usize - scales);
            copy_rows(pool, source, source.scales, blocks(columns), (blocks(first), blocks(count)), to);
        } else {
            let size = source.dtype.bytes(1) as usize;
            copy_rows(pool, source, source.data, columns * size, (first * size, count * size), out);
        }
    }
    Ok(())
}
