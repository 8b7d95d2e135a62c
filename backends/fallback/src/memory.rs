//! Typed views of the addresses that cross the border, and a bump allocator over the host's workspace.
//!
//! The same layout function measures (no base) and places (a base), so that `workspace()` and `launch` cannot disagree.

use gossamer_backend_api::BackendError;

/// Alignment of every buffer in the workspace: one cache line.
const ALIGN: u64 = 64;

/// An address that tasks share. Whoever dereferences it vouches for its extent.
pub struct Ptr<T>(*mut T);

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Ptr<T> {}

// SAFETY: an address; every use of it is unsafe and justified there.
unsafe impl<T> Send for Ptr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Ptr<T> {}

impl<T> Ptr<T> {
    /// The pointer at an address of the border.
    pub fn new(address: u64) -> Self {
        Self(std::ptr::with_exposed_provenance_mut(address as usize))
    }

    /// A pointer of this process.
    pub fn from_mut(pointer: *mut T) -> Self {
        Self(pointer)
    }

    /// Whether the address is "absent".
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The raw pointer, `offset` elements on.
    #[inline(always)]
    pub fn at(self, offset: usize) -> *mut T {
        self.0.wrapping_add(offset)
    }

    /// The address `offset` elements on.
    #[inline(always)]
    pub fn offset(self, offset: usize) -> Self {
        Self(self.at(offset))
    }

    /// `len` elements from `offset`.
    ///
    /// # Safety
    /// They are initialised, and nobody writes them meanwhile.
    #[inline(always)]
    pub unsafe fn slice<'a>(self, offset: usize, len: usize) -> &'a [T] {
        // SAFETY: by the caller.
        unsafe { std::slice::from_raw_parts(self.at(offset), len) }
    }

    /// `len` elements from `offset`, to write.
    ///
    /// # Safety
    /// They are valid memory that nobody else uses meanwhile.
    #[inline(always)]
    pub unsafe fn slice_mut<'a>(self, offset: usize, len: usize) -> &'a mut [T] {
        // SAFETY: by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.at(offset), len) }
    }
}

/// A bump allocator that only hands out addresses.
pub struct Arena {
    base: u64,
    used: u64,
}

impl Arena {
    /// Places buffers from `base` on; 0 to measure.
    pub fn new(base: u64) -> Self {
        Self { base, used: 0 }
    }

    /// Takes room for `count` elements.
    pub fn take<T>(&mut self, count: usize) -> Ptr<T> {
        let at = self.base.wrapping_add(self.used);
        self.used += (count as u64 * size_of::<T>() as u64).next_multiple_of(ALIGN);
        Ptr::new(at)
    }

    /// Bytes taken so far.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Fails when the host gave less than was taken.
    pub fn check(&self, given: u64) -> Result<(), BackendError> {
        if self.used > given || (self.used > 0 && self.base == 0) {
            return Err(BackendError::failed(
                "launch",
                format!("expected a workspace of {} bytes, got {given}; ask workspace() again", self.used),
            ));
        }
        Ok(())
    }
}
