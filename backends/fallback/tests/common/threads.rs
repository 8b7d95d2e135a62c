//! A host with threads, for tests and benches: `parallel_for` over threads that wait awake.

use gossamer_backend_api::HostServices;
use gossamer_backend_api::abi::RawHost;
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

type Body = unsafe extern "C" fn(*mut c_void, u32);

#[derive(Default)]
struct Shared {
    caller: Mutex<()>,
    /// Body and argument of the running job.
    job: [AtomicUsize; 2],
    /// Number of the job; threads wait for the next one.
    number: AtomicU32,
    count: AtomicU32,
    next: AtomicU32,
    /// Threads that left the job.
    left: AtomicU32,
    threads: u32,
}

impl Shared {
    fn work(&self) {
        let body = self.job[0].load(Ordering::Acquire);
        // SAFETY: the caller of `parallel_for` stored a `Body`.
        let body = unsafe { std::mem::transmute::<usize, Body>(body) };
        let argument = self.job[1].load(Ordering::Acquire) as *mut c_void;
        loop {
            let index = self.next.fetch_add(1, Ordering::AcqRel);
            if index >= self.count.load(Ordering::Acquire) {
                return;
            }
            // SAFETY: the caller waits until every thread has left.
            unsafe { body(argument, index) };
        }
    }
}

unsafe extern "C" fn parallel_for(context: *mut c_void, count: u32, body: Body, argument: *mut c_void) {
    // SAFETY: the context is a leaked `Shared`.
    let shared = unsafe { &*context.cast::<Shared>() };
    let _guard = shared.caller.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    shared.job[0].store(body as usize, Ordering::Release);
    shared.job[1].store(argument as usize, Ordering::Release);
    shared.count.store(count, Ordering::Release);
    shared.next.store(0, Ordering::Release);
    shared.left.store(0, Ordering::Release);
    shared.number.fetch_add(1, Ordering::AcqRel);
    shared.work();
    while shared.left.load(Ordering::Acquire) + 1 < shared.threads {
        std::thread::yield_now();
    }
}

unsafe extern "C" fn log(_: *mut c_void, _: u32, _: *const u8, _: usize) {}

/// Services with `threads` threads, for the life of the process.
pub fn host(threads: u32) -> HostServices {
    let shared: &'static Shared = Box::leak(Box::new(Shared { threads, ..Shared::default() }));
    for _ in 1..threads {
        std::thread::spawn(move || {
            let mut last = 0;
            loop {
                let mut waited = 0u32;
                while shared.number.load(Ordering::Acquire) == last {
                    waited += 1;
                    if waited > 2000 { std::thread::yield_now() } else { std::hint::spin_loop() }
                }
                last = last.wrapping_add(1);
                shared.work();
                shared.left.fetch_add(1, Ordering::AcqRel);
            }
        });
    }
    let raw = RawHost {
        struct_size: size_of::<RawHost>() as u32,
        threads,
        context: std::ptr::from_ref(shared).cast_mut().cast(),
        parallel_for,
        log,
        cuda_device: -1,
    };
    // SAFETY: functions and context live as long as the process.
    unsafe { HostServices::from_raw(raw) }
}
