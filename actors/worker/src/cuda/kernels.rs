//! The worker's one kernel of its own: moves 32-bit numbers between places that lists name, so that drawn tokens are
//! kept where the next step finds them without the host. As PTX, which the driver compiles for whatever device is there.
//!
//! On devices since Hopper it starts while the kernel before it ends, and lets the next one start: it lies between two steps of one
//! sequence, where every start counts.

use super::{CudaError, Stream, check};
use cudarc::driver::sys;
use std::ffi::{CString, c_void};

/// `for i in 0..count: to[to_index[i]] = from[from_index[i]]`.
const PTX: &str = r"
.version VERSION
.target TARGET
.address_size 64
.visible .entry gossamer_move(.param .u64 to, .param .u64 to_index, .param .u64 from, .param .u64 from_index,
                              .param .u32 count)
{
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .b64 %a<12>;
    EARLY
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r3, %r0, %r1, %r2;
    ld.param.u32 %r4, [count];
    setp.ge.u32 %p, %r3, %r4;
    @%p bra DONE;
    ld.param.u64 %a0, [to];
    ld.param.u64 %a1, [to_index];
    ld.param.u64 %a2, [from];
    ld.param.u64 %a3, [from_index];
    mul.wide.u32 %a4, %r3, 4;
    add.u64 %a5, %a1, %a4;
    ld.global.u32 %r5, [%a5];
    add.u64 %a6, %a3, %a4;
    ld.global.u32 %r6, [%a6];
    mul.wide.u32 %a7, %r6, 4;
    add.u64 %a8, %a2, %a7;
    ld.global.u32 %r7, [%a8];
    mul.wide.u32 %a9, %r5, 4;
    add.u64 %a10, %a0, %a9;
    st.global.u32 [%a10], %r7;
DONE:
    ret;
}
";
const THREADS: u32 = 128;

fn ptx(early: bool) -> String {
    let [version, target, start] = if early {
        ["7.8", "sm_90", "griddepcontrol.launch_dependents;\n    griddepcontrol.wait;"]
    } else {
        ["7.0", "sm_80", ""]
    };
    PTX.replace("VERSION", version).replace("TARGET", target).replace("EARLY", start)
}

/// The kernel, loaded.
#[derive(Debug)]
pub struct Moves {
    function: sys::CUfunction,
    early: bool,
}

// SAFETY: a function handle may be used from any thread.
unsafe impl Send for Moves {}

/// One list of moves.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    /// `[]` u32.
    pub to: u64,
    /// `[count]` u32: places in `to`.
    pub to_index: u64,
    /// `[]` u32.
    pub from: u64,
    /// `[count]` u32: places in `from`.
    pub from_index: u64,
    /// Numbers to move.
    pub count: u32,
}

impl Moves {
    /// Loads the kernel into the current context.
    pub fn load() -> Result<Self, CudaError> {
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (mut device, mut major) = (0, 0);
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        // SAFETY: places for two numbers; a context is current.
        unsafe {
            check("cuCtxGetDevice", sys::cuCtxGetDevice(&mut device))?;
            check("cuDeviceGetAttribute", sys::cuDeviceGetAttribute(&mut major, attribute, device))?;
        }
        let early = major >= 9;
        let source = CString::new(ptx(early)).unwrap_or_default();
        // SAFETY: a terminated PTX text and places for handles; the module is never unloaded.
        unsafe {
            check("cuModuleLoadData", sys::cuModuleLoadData(&mut module, source.as_ptr().cast()))?;
            check(
                "cuModuleGetFunction",
                sys::cuModuleGetFunction(&mut function, module, c"gossamer_move".as_ptr()),
            )?;
        }
        Ok(Self { function, early })
    }

    /// Enqueues the moves. The places written must differ.
    ///
    /// # Safety
    /// The lists are valid for `count`, and so is every place that they name.
    pub unsafe fn enqueue(&self, stream: &Stream, moves: Move) -> Result<(), CudaError> {
        if moves.count == 0 {
            return Ok(());
        }
        let Move { mut to, mut to_index, mut from, mut from_index, mut count } = moves;
        let mut parameters: [*mut c_void; 5] = [
            (&raw mut to).cast(),
            (&raw mut to_index).cast(),
            (&raw mut from).cast(),
            (&raw mut from_index).cast(),
            (&raw mut count).cast(),
        ];
        // SAFETY: plain data that the driver reads; all that is not set below may be zero.
        let (mut config, mut attribute): (sys::CUlaunchConfig, sys::CUlaunchAttribute) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        (config.gridDimX, config.gridDimY, config.gridDimZ) = (count.div_ceil(THREADS), 1, 1);
        (config.blockDimX, config.blockDimY, config.blockDimZ) = (THREADS, 1, 1);
        config.hStream = stream.handle();
        attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
        config.attrs = &raw mut attribute;
        config.numAttrs = u32::from(self.early);
        // SAFETY: the parameters are those of the kernel above, copied by the call; the addresses are the caller's.
        check("cuLaunchKernelEx", unsafe {
            sys::cuLaunchKernelEx(&config, self.function, parameters.as_mut_ptr(), std::ptr::null_mut())
        })
    }
}
