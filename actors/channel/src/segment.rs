//! A piece of shared memory with a stamp: the one module that knows the `shared_memory` crate.
//!
//! A segment is created under a name, pre-allocated, stamped, and opened by a peer either by that name or, also once it
//! is unlinked, by its handle: `/proc/<owner>/fd/<number>`, which needs no name that could outlive the process. An owner
//! that stays alive while others come and go makes segments without a name and hands out handles. Those live in /dev/shm
//! like the others, or, where that is too small or absent (containers give it 64 MB by default), in anonymous memory, which
//! nothing limits but memory itself.
//!
//! Invariant: the magic word is stored last (release) and read first (acquire), so that a peer that sees it sees the
//! whole header and the zeroed rest.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use shared_memory::{Shmem, ShmemConf, ShmemError};

use crate::names;

/// `gossamer` in ASCII, read as a little-endian word.
const MAGIC: u64 = u64::from_le_bytes(*b"gossamer");
/// Version of the header below; a change of it is a change of this number.
const VERSION: u64 = 1;
/// The header fills one pair of cache lines.
const HEADER_BYTES: usize = 128;
const HANDLE_PREFIX: &str = "/proc/";
/// Largest segment that anonymous memory is used for in place of /dev/shm: several times what a ring takes. Reserving it has no
/// limit of its own, so that a wrong size would end the process instead of being an error.
const MOST_ANONYMOUS: usize = 64 << 20;

// Words of the header.
const WORD_MAGIC: usize = 0;
const WORD_VERSION: usize = 1;
const WORD_LAYOUT: usize = 2;
const WORD_EPOCH: usize = 3;
const WORD_BYTES: usize = 4;
const WORD_OWNER: usize = 5;

/// What a segment is to be.
#[derive(Debug, Clone, Copy)]
pub struct SegmentSpec<'a> {
    /// Shown in the name, for people; letters and digits.
    pub label: &'a str,
    /// Bytes of payload.
    pub bytes: usize,
    /// Hash of the payload's layout (see [`layout_hash`]); the peer must expect the same.
    pub layout: u64,
    /// Which incarnation of a channel this is: a restarted peer gets a new segment with a higher one.
    pub epoch: u64,
}

/// Why a segment could not be created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// /dev/shm has no room for it.
    #[error(
        "expected {needed} free bytes in /dev/shm for segment `{label}`, got {free}; \
         enlarge it (for a container: --shm-size)"
    )]
    NoSpace {
        /// The segment's label.
        label: String,
        /// Bytes the segment takes.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// A payload of no bytes.
    #[error("expected a payload of at least one byte for segment `{label}`, got none")]
    Empty {
        /// The segment's label.
        label: String,
    },
    /// The system refused.
    #[error("cannot create shared memory `{label}`: {reason}")]
    System {
        /// The segment's label.
        label: String,
        /// What the system said.
        reason: String,
    },
}

/// Why a segment could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No such segment, or no right to open it.
    #[error("cannot open shared memory `{name}`: {reason}; its owner may be dead")]
    System {
        /// Name or handle.
        name: String,
        /// What the system said.
        reason: String,
    },
    /// The file is shorter than its header or than the header says.
    #[error("expected `{name}` to hold {expected} bytes, got {got}")]
    Truncated {
        /// Name or handle.
        name: String,
        /// Bytes expected.
        expected: u64,
        /// Bytes there.
        got: u64,
    },
    /// Not a finished segment of this program.
    #[error("expected the magic word {MAGIC:#x} at the start of `{name}`, got {got:#x}")]
    NotOurs {
        /// Name or handle.
        name: String,
        /// The word found.
        got: u64,
    },
    /// Written by another version of this program.
    #[error("expected segment version {VERSION} in `{name}`, got {got}; both sides must be the same build")]
    Version {
        /// Name or handle.
        name: String,
        /// The version found.
        got: u64,
    },
    /// The payload is something else than the caller expects.
    #[error("expected layout {expected:#x} in `{name}`, got {got:#x}; both sides must be the same build")]
    Layout {
        /// Name or handle.
        name: String,
        /// The hash expected.
        expected: u64,
        /// The hash found.
        got: u64,
    },
}

/// FNV-1a of a text that describes a layout: field names, widths and the version of the meaning.
pub const fn layout_hash(description: &str) -> u64 {
    let bytes = description.as_bytes();
    let (mut hash, mut i) = (0xcbf2_9ce4_8422_2325_u64, 0);
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0100_0000_01b3);
        i += 1;
    }
    hash
}

enum Mapping {
    /// Made or opened by name.
    Named(Shmem),
    /// Made without a name, or opened by handle.
    Handle { base: NonNull<u8>, bytes: usize },
}

/// A mapped, checked segment. Its words may be written by another process at any time.
pub struct Segment {
    mapping: Mapping,
    /// Keeps the memory reachable for handles after the unlink; also what pre-allocation works on.
    file: OwnedFd,
    name: String,
    /// Whether the name may still exist and is ours to remove.
    linked: AtomicBool,
    base: NonNull<u8>,
    payload_bytes: usize,
    epoch: u64,
}

// SAFETY: the mapping is plain memory that stays put until drop, and it is only ever reached through shared atomics;
// the pointers inside are why this is not derived.
unsafe impl Send for Segment {}
// SAFETY: as above; every method takes `&self` and touches the memory atomically.
unsafe impl Sync for Segment {}

impl Segment {
    /// Creates, pre-allocates and stamps a segment under a name; its payload is zero.
    pub fn create(spec: &SegmentSpec<'_>) -> Result<Self, CreateError> {
        let total = total_bytes(spec)?;
        let name = names::fresh(spec.label);
        // Dropping `shmem` on any error below removes the name.
        let shmem = ShmemConf::new()
            .os_id(&name)
            .size(total)
            .create()
            .map_err(|e| failed(spec, format!("{} ({e})", os_reason(&e))))?;
        let file = open_file(&names::path(&name)).map_err(|e| failed(spec, e))?;
        preallocate(spec, &file, total)?;
        let base = NonNull::new(shmem.as_ptr()).ok_or_else(|| failed(spec, "mapped at address zero"))?;
        let segment = Self {
            mapping: Mapping::Named(shmem),
            file,
            name,
            linked: AtomicBool::new(true),
            base,
            payload_bytes: total - HEADER_BYTES,
            epoch: spec.epoch,
        };
        segment.stamp(spec, total);
        Ok(segment)
    }

    /// As [`Self::create`], without a name: peers open it by its [`handle`](Self::handle). There is no moment at which
    /// a killed owner could leave anything behind.
    ///
    /// Where the system cannot make files without names, a name exists for an instant; the sweep knows it.
    pub fn create_unnamed(spec: &SegmentSpec<'_>) -> Result<Self, CreateError> {
        Self::create_unnamed_in(names::SHM_DIR.as_ref(), spec)
    }

    fn create_unnamed_in(directory: &Path, spec: &SegmentSpec<'_>) -> Result<Self, CreateError> {
        let total = total_bytes(spec)?;
        let error = match Self::create_file_in(directory, spec, total) {
            Ok(segment) => return Ok(segment),
            Err(error) if total > MOST_ANONYMOUS => return Err(error),
            Err(error) => error,
        };
        static SAID: Once = Once::new();
        SAID.call_once(|| tracing::info!("{error}; anonymous memory is used instead"));
        // The first error says what to do; that this did not work either is no better advice.
        let file = memfd_create(spec.label, MemfdFlags::CLOEXEC).map_err(|_| error)?;
        Self::from_file(spec, file, total)
    }

    fn create_file_in(directory: &Path, spec: &SegmentSpec<'_>, total: usize) -> Result<Self, CreateError> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::EXCL | OFlags::CLOEXEC;
        match rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => Self::from_file(spec, file, total),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let segment = Self::create(spec)?;
                segment.unlink();
                Ok(segment)
            }
            Err(e) => Err(failed(spec, format!("{}: {e}", directory.display()))),
        }
    }

    /// A segment in an empty file that has no name.
    fn from_file(spec: &SegmentSpec<'_>, file: OwnedFd, total: usize) -> Result<Self, CreateError> {
        preallocate(spec, &file, total)?;
        let base = map(&file, total).map_err(|e| failed(spec, e))?;
        let segment = Self {
            mapping: Mapping::Handle { base, bytes: total },
            name: handle(&file),
            file,
            linked: AtomicBool::new(false),
            base,
            payload_bytes: total - HEADER_BYTES,
            epoch: spec.epoch,
        };
        segment.stamp(spec, total);
        Ok(segment)
    }

    fn stamp(&self, spec: &SegmentSpec<'_>, total: usize) {
        let header = self.header();
        header[WORD_VERSION].store(VERSION, Ordering::Relaxed);
        header[WORD_LAYOUT].store(spec.layout, Ordering::Relaxed);
        header[WORD_EPOCH].store(spec.epoch, Ordering::Relaxed);
        header[WORD_BYTES].store(total as u64, Ordering::Relaxed);
        header[WORD_OWNER].store(u64::from(std::process::id()), Ordering::Relaxed);
        header[WORD_MAGIC].store(MAGIC, Ordering::Release);
    }

    /// Opens a segment by its name or handle and checks its stamp.
    pub fn open(name: &str, layout: u64) -> Result<Self, OpenError> {
        let system = |reason: String| OpenError::System { name: name.to_owned(), reason };
        if !name.starts_with(HANDLE_PREFIX) && name.contains('/') {
            return Err(system("expected a plain name or a handle".into()));
        }
        let (mapping, file, base, bytes) = if name.starts_with(HANDLE_PREFIX) {
            let file = open_file(name.as_ref()).map_err(|e| system(e.to_string()))?;
            let bytes = rustix::fs::fstat(&file).map_err(|e| system(e.to_string()))?.st_size as usize;
            check_size(name, HEADER_BYTES as u64, bytes as u64)?;
            let base = map(&file, bytes).map_err(|e| system(e.to_string()))?;
            (Mapping::Handle { base, bytes }, file, base, bytes)
        } else {
            let file = open_file(&names::path(name)).map_err(|e| system(e.to_string()))?;
            let bytes = rustix::fs::fstat(&file).map_err(|e| system(e.to_string()))?.st_size as u64;
            check_size(name, HEADER_BYTES as u64, bytes)?;
            let shmem = ShmemConf::new()
                .os_id(name)
                .open()
                .map_err(|e| system(format!("{} ({e})", os_reason(&e))))?;
            let base = NonNull::new(shmem.as_ptr()).ok_or_else(|| system("mapped at address zero".into()))?;
            // Opened twice, by name: the one that is shorter counts, should the file have changed in between.
            let bytes = shmem.len().min(bytes as usize);
            (Mapping::Named(shmem), file, base, bytes)
        };
        let payload_bytes = bytes.saturating_sub(HEADER_BYTES) / 8 * 8;
        let mut segment = Self {
            mapping,
            file,
            name: name.to_owned(),
            linked: AtomicBool::new(!name.starts_with(HANDLE_PREFIX)),
            base,
            payload_bytes,
            epoch: 0,
        };
        segment.epoch = segment.check(layout, bytes as u64)?;
        Ok(segment)
    }

    fn check(&self, layout: u64, bytes: u64) -> Result<u64, OpenError> {
        let name = || self.name.clone();
        let header = self.header();
        let magic = header[WORD_MAGIC].load(Ordering::Acquire);
        if magic != MAGIC {
            return Err(OpenError::NotOurs { name: name(), got: magic });
        }
        let version = header[WORD_VERSION].load(Ordering::Relaxed);
        if version != VERSION {
            return Err(OpenError::Version { name: name(), got: version });
        }
        let got = header[WORD_LAYOUT].load(Ordering::Relaxed);
        if got != layout {
            return Err(OpenError::Layout { name: name(), expected: layout, got });
        }
        let expected = header[WORD_BYTES].load(Ordering::Relaxed);
        if expected != bytes {
            return Err(OpenError::Truncated { name: name(), expected, got: bytes });
        }
        Ok(header[WORD_EPOCH].load(Ordering::Relaxed))
    }

    /// Name, or handle if it was opened by one.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What another process of this user can open the segment by, as long as this process lives and keeps the
    /// segment, whether it is unlinked or not.
    pub fn handle(&self) -> String {
        handle(&self.file)
    }

    /// The incarnation that the creator stamped.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Removes the name; the memory lives on while someone has it mapped. Any side may call it, any number of times.
    pub fn unlink(&self) {
        if self.linked.swap(false, Ordering::AcqRel) {
            // The other side may have been first.
            let _ = std::fs::remove_file(names::path(&self.name));
        }
    }

    /// The payload as 64-bit words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `base + HEADER_BYTES` is 8-aligned (mappings are page-aligned), `payload_bytes` are mapped for as
        // long as `self` lives, and atomics may be written by others while a shared reference exists.
        unsafe {
            std::slice::from_raw_parts(
                self.base.as_ptr().add(HEADER_BYTES).cast::<AtomicU64>(),
                self.payload_bytes / 8,
            )
        }
    }

    /// The payload as 32-bit words. A place is used either as a 64-bit or as a 32-bit word, never as both.
    pub fn half_words(&self) -> &[AtomicU32] {
        // SAFETY: as for `words`; the length is a multiple of 8.
        unsafe {
            std::slice::from_raw_parts(
                self.base.as_ptr().add(HEADER_BYTES).cast::<AtomicU32>(),
                self.payload_bytes / 4,
            )
        }
    }

    fn header(&self) -> &[AtomicU64] {
        // SAFETY: `HEADER_BYTES` at the page-aligned base are mapped: `create` maps more, `open` checked the size.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast::<AtomicU64>(), HEADER_BYTES / 8) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        match &mut self.mapping {
            Mapping::Named(shmem) => {
                // The crate removes the name of segments it created, unless told that it is not the owner; a name
                // removed before might by now be somebody else's.
                if !self.linked.load(Ordering::Acquire) {
                    shmem.set_owner(false);
                }
            }
            Mapping::Handle { base, bytes } => {
                // SAFETY: exactly the mapping made in `open`; all references into it borrowed `self`.
                let unmapped = unsafe { rustix::mm::munmap(base.as_ptr().cast(), *bytes) };
                if let Err(error) = unmapped {
                    tracing::warn!(%error, "cannot unmap a shared-memory segment");
                }
            }
        }
    }
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segment")
            .field("name", &self.name)
            .field("payload_bytes", &self.payload_bytes)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

fn check_size(name: &str, expected: u64, got: u64) -> Result<(), OpenError> {
    if got < expected {
        return Err(OpenError::Truncated { name: name.to_owned(), expected, got });
    }
    Ok(())
}

fn open_file(path: &Path) -> std::io::Result<OwnedFd> {
    File::options().read(true).write(true).open(path).map(OwnedFd::from)
}

fn handle(file: &OwnedFd) -> String {
    format!("{HANDLE_PREFIX}{}/fd/{}", std::process::id(), file.as_raw_fd())
}

fn map(file: &OwnedFd, bytes: usize) -> rustix::io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address the kernel chooses; it aliases nothing of this process, and other processes'
    // writes are met with atomics alone.
    let base = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file,
            0,
        )
    }?;
    NonNull::new(base.cast()).ok_or(Errno::FAULT)
}

fn failed(spec: &SegmentSpec<'_>, reason: impl ToString) -> CreateError {
    CreateError::System { label: spec.label.to_owned(), reason: reason.to_string() }
}

fn total_bytes(spec: &SegmentSpec<'_>) -> Result<usize, CreateError> {
    if spec.bytes == 0 {
        return Err(CreateError::Empty { label: spec.label.to_owned() });
    }
    let total = spec.bytes.checked_next_multiple_of(8).and_then(|bytes| bytes.checked_add(HEADER_BYTES));
    total
        .filter(|&bytes| i64::try_from(bytes).is_ok())
        .ok_or_else(|| failed(spec, format!("{} bytes are more than a file can hold", spec.bytes)))
}

/// Reserves every page now, so that a full /dev/shm is an error here and not a SIGBUS at the first touch.
fn preallocate(spec: &SegmentSpec<'_>, file: &OwnedFd, total: usize) -> Result<(), CreateError> {
    let reserve = || rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, total as u64);
    rustix::io::retry_on_intr(reserve).map_err(|e| match e {
        Errno::NOSPC => CreateError::NoSpace {
            label: spec.label.to_owned(),
            needed: total as u64,
            free: rustix::fs::fstatvfs(file).map(|s| s.f_bavail * s.f_frsize).unwrap_or(0),
        },
        other => failed(spec, format!("reserving {total} bytes: {other}")),
    })
}

/// The crate's messages name no reason; the system's error number does.
fn os_reason(error: &ShmemError) -> String {
    match error {
        ShmemError::MapCreateFailed(code)
        | ShmemError::MapOpenFailed(code)
        | ShmemError::UnknownOsError(code) => std::io::Error::from_raw_os_error(*code as i32).to_string(),
        _ => "shared memory is not usable".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_dev_shm_a_segment_is_anonymous_memory_that_others_open_by_its_handle() {
        let spec = SegmentSpec { label: "anonymous", bytes: 4096, layout: 7, epoch: 3 };
        let missing = Path::new("/nonexistent");
        let made = Segment::create_unnamed_in(missing, &spec).unwrap();
        made.words()[5].store(11, Ordering::Relaxed);
        let opened = Segment::open(&made.handle(), 7).unwrap();
        assert_eq!((opened.epoch(), opened.words().len()), (3, 512));
        assert_eq!(opened.words()[5].load(Ordering::Relaxed), 11);
        opened.words()[6].store(12, Ordering::Relaxed);
        assert_eq!(made.words()[6].load(Ordering::Relaxed), 12);
        // It is truly not in /dev/shm.
        let link = std::fs::read_link(made.handle()).unwrap();
        assert!(link.to_string_lossy().starts_with("/memfd:anonymous"), "{link:?}");
        // Nobody may take all of the memory by a slip.
        let huge = SegmentSpec { bytes: MOST_ANONYMOUS, ..spec };
        let error = Segment::create_unnamed_in(missing, &huge).unwrap_err().to_string();
        assert!(error.contains("/nonexistent"), "{error}");
    }
}
