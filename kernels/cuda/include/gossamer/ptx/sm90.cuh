// Thin wrappers over PTX: barriers, bulk copies, dependent launch, matrix instructions. One instruction each, no policy.
#pragma once
#include <cuda_bf16.h>
#include <cstdint>

namespace gossamer::ptx {

// The block's dynamic shared memory under a name; what the compiler knows of its alignment shows in the code.
#define GOSSAMER_DYNAMIC_SHARED(type, alignment, name) extern __shared__ __align__(alignment) type name[]
// Its address, for kernels that align it by themselves.
__device__ __forceinline__ uint8_t* dynamic_shared() {
  extern __shared__ uint8_t memory[];
  return memory;
}
__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// --- programmatic dependent launch ---------------------------------------------------------------------------------------
// Waits until every grid this one depends on has finished and its writes are visible.
__device__ __forceinline__ void dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next grid start once every block of this one has said so (or ended).
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// --- shared memory by 32-bit address -------------------------------------------------------------------------------------
// Volatile, so that they stay behind the barrier wait that guards their data. (Loads through generic pointers make the
// compiler rebuild the window's base in the loop.)
__device__ __forceinline__ uint4 shared_load4(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}
__device__ __forceinline__ uint32_t shared_load(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}

// --- mbarrier ------------------------------------------------------------------------------------------------------------
__device__ __forceinline__ void barrier_init(uint64_t* bar, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_arrive(uint64_t* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
// The same where `condition` holds, without a branch.
__device__ __forceinline__ void barrier_arrive_if(uint64_t* bar, bool condition) {
  asm volatile("{\n .reg .pred p;\n setp.ne.u32 p, %1, 0;\n @p mbarrier.arrive.shared::cta.b64 _, [%0];\n}\n" ::"r"(shared_address(bar)),
               "r"(static_cast<uint32_t>(condition))
               : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t* bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes) : "memory");
}
__device__ __forceinline__ bool barrier_test(uint64_t* bar, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(shared_address(bar)), "r"(parity)
      : "memory");
  return done != 0;
}
// Does not block.
__device__ __forceinline__ bool barrier_poll(uint64_t* bar, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n .reg .pred p;\n mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(shared_address(bar)), "r"(parity)
      : "memory");
  return done != 0;
}
// The same on 32-bit addresses.
__device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile(
        "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(bar), "r"(parity)
        : "memory");
  } while (!done);
}
// GOSSAMER_SPIN_LIMIT (checks only): a wait that long ends the kernel with an error, so that a lost arrival is no hang.
template <class Test>
__device__ __forceinline__ void spin_until(Test test) {
#ifdef GOSSAMER_SPIN_LIMIT
  for (uint32_t i = 0; !test(); ++i)
    if (i == GOSSAMER_SPIN_LIMIT) asm volatile("trap;");
#else
  while (!test()) {
  }
#endif
}
__device__ __forceinline__ void barrier_wait(uint64_t* bar, uint32_t parity) {
  spin_until([&] { return barrier_test(bar, parity); });
}
// Orders this thread's ordinary accesses to shared memory before those of the copy engine and of warpgroup products.
__device__ __forceinline__ void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Orders what this thread knows of in global memory before what it lets the copy engine read there.
__device__ __forceinline__ void global_proxy_fence() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
// Counts this warp in without waiting; the others of `threads` wait in named_sync.
__device__ __forceinline__ void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
// Named barrier among `threads` threads of the block.
__device__ __forceinline__ void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// --- bulk copy engine ----------------------------------------------------------------------------------------------------
__device__ __forceinline__ uint64_t evict_first_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// 16-byte aligned, a multiple of 16 bytes; completes on `bar`.
__device__ __forceinline__ void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* bar, uint64_t policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                   shared_address(dst)),
               "l"(src), "r"(bytes), "r"(shared_address(bar)), "l"(policy)
               : "memory");
}
// The same without a policy.
__device__ __forceinline__ void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(dst)), "l"(src), "r"(bytes),
               "r"(shared_address(bar))
               : "memory");
}
__device__ __forceinline__ void bulk_load(uint32_t dst, const void* src, uint32_t bytes, uint32_t bar, uint64_t policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(dst), "l"(src), "r"(bytes),
               "r"(bar), "l"(policy)
               : "memory");
}

// --- flags in global memory ----------------------------------------------------------------------------------------------
__device__ __forceinline__ void release_add(int* p, int v) { asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
__device__ __forceinline__ int acquire_load(const int* p) {
  int v;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
// Waits until so much was added.
__device__ __forceinline__ void wait_for_count(const int* p, int count) {
  spin_until([&] { return acquire_load(p) >= count; });
}
// Both at once: what was there before. Behind a block barrier it releases what the block's other threads wrote too.
__device__ __forceinline__ int arrive_add(int* p, int v) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(v) : "memory");
  return before;
}

// Sets bits when all that this thread knows of is visible to the device.
__device__ __forceinline__ void release_bits(uint32_t* p, uint32_t bits) { asm volatile("red.release.gpu.global.or.b32 [%0], %1;" ::"l"(p), "r"(bits) : "memory"); }
__device__ __forceinline__ void clear_bits(uint32_t* p, uint32_t bits) { asm volatile("red.relaxed.gpu.global.and.b32 [%0], %1;" ::"l"(p), "r"(~bits) : "memory"); }
__device__ __forceinline__ void wait_for_bits(const uint32_t* p, uint32_t bits) {
  spin_until([&] { return (static_cast<uint32_t>(acquire_load(reinterpret_cast<const int*>(p))) & bits) == bits; });
}

// --- arithmetic ----------------------------------------------------------------------------------------------------------
// 2^x; results below the normal range are zero.
__device__ __forceinline__ float exp2_flushed(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / x to one unit in the last place, likewise.
__device__ __forceinline__ float reciprocal_flushed(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// log2(x), to 2^-22 near 1 and relative to that elsewhere; zero and what is below the normal range give minus infinity.
__device__ __forceinline__ float log2_flushed(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The product of two bf16 pairs; subnormal operands count in full.
__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t c;
  asm("mul.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

// Bytes of (high, low) picked by the four low nibbles of `selector`, each below 8. (`__byte_perm` would mask the selector first.)
__device__ __forceinline__ uint32_t pick_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t v;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(low), "r"(high), "r"(selector));
  return v;
}
// a | (b & mask), as one instruction.
__device__ __forceinline__ uint32_t merge_bits(uint32_t a, uint32_t b, uint32_t mask) {
  uint32_t v;
  asm("lop3.b32 %0, %1, %2, %3, 0xF8;" : "=r"(v) : "r"(a), "r"(b), "r"(mask));
  return v;
}
// The bits of `a` where `mask` is set, else those of `b`, as one instruction.
__device__ __forceinline__ uint32_t choose_bits(uint32_t mask, uint32_t a, uint32_t b) {
  uint32_t v;
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(v) : "r"(mask), "r"(a), "r"(b));
  return v;
}

// The value that all lanes of the warp have, in a way that lets the compiler know that they do.
__device__ __forceinline__ int uniform(int v) {
  int same;
  asm volatile("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(same) : "r"(v));
  return same;
}

// --- registers of a warpgroup's threads ----------------------------------------------------------------------------------
template <int kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// --- clusters ------------------------------------------------------------------------------------------------------------
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Arrives at the same barrier of block `rank` of the cluster where `condition` holds, without a branch.
// NOTES: no `.release.cluster`: it becomes a fence that waits for everything under way, 0.7 us each; what the copy engine may
// overwrite has been read by finished products.
__device__ __forceinline__ void cluster_arrive_if(uint64_t* bar, uint32_t rank, bool condition) {
  asm volatile(
      "{\n .reg .pred p;\n .reg .u32 remote;\n setp.ne.u32 p, %2, 0;\n mapa.shared::cluster.u32 remote, %0, %1;\n"
      " @p mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(shared_address(bar)),
      "r"(rank), "r"(static_cast<uint32_t>(condition))
      : "memory");
}
// The first half of cluster_sync.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// Arrives without the fence that `release` is, which waits for all loads under way; for when nothing was written yet.
__device__ __forceinline__ void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
// The other half.
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Stores to the same shared address of block `rank` of the cluster that count as bytes of its barrier at the same address as `bar`:
// whoever waits there sees them. No fence, no barrier of the whole cluster.
__device__ __forceinline__ uint32_t mapped(const void* local, uint32_t rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(local)), "r"(rank));
  return remote;
}
__device__ __forceinline__ void cluster_send(float* local, uint64_t* bar, uint32_t rank, float v) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(mapped(local, rank)), "f"(v), "r"(mapped(bar, rank)) : "memory");
}
__device__ __forceinline__ void cluster_send(float2* local, uint64_t* bar, uint32_t rank, float2 v) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1,%2}, [%3];" ::"r"(mapped(local, rank)), "f"(v.x), "f"(v.y), "r"(mapped(bar, rank)) : "memory");
}
__device__ __forceinline__ void cluster_send(float4* local, uint64_t* bar, uint32_t rank, float4 v) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(mapped(local, rank)), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w),
               "r"(mapped(bar, rank))
               : "memory");
}
// Store to the same shared address of block `rank` of the cluster.
__device__ __forceinline__ void cluster_store(float* local, uint32_t rank, float v) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(mapped(local, rank)), "f"(v) : "memory");
}
// Load from the same shared address of block `rank` of the cluster.
__device__ __forceinline__ float4 cluster_load(const float4* local, uint32_t rank) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(mapped(local, rank)) : "memory");
  return v;
}

// --- loads ---------------------------------------------------------------------------------------------------------------
// Read once, not kept in L1.
__device__ __forceinline__ uint4 load_streaming(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
__device__ __forceinline__ uint2 load_streaming_pair(const void* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
// Towards L2, without a result.
__device__ __forceinline__ void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
// Past L1: what other multiprocessors wrote in this launch.
__device__ __forceinline__ float4 load_past_l1(const float4* p) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
  return v;
}
// Constant data for later: volatile, as are the conversions below, so that the compiler cannot pull the use up to the load.
__device__ __forceinline__ uint32_t load_word(const void* p) {
  uint32_t v;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ uint32_t load_half(const void* p) {
  uint16_t v;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ uint32_t load_byte(const void* p) {
  uint32_t v;
  asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
// Two floats as a bf16 pair, the first in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
__device__ __forceinline__ float bf16_low(uint32_t pair) {
  uint32_t v;
  asm volatile("shl.b32 %0, %1, 16;" : "=r"(v) : "r"(pair));
  return __uint_as_float(v);
}
__device__ __forceinline__ float bf16_high(uint32_t pair) {
  uint32_t v;
  asm volatile("and.b32 %0, %1, 0xffff0000;" : "=r"(v) : "r"(pair));
  return __uint_as_float(v);
}
__device__ __forceinline__ void load_matrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
// The same, each matrix turned.
__device__ __forceinline__ void load_matrix_x4_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Four 8x8 matrices of 16-bit elements, fragments to rows: the inverse of load_matrix_x4.
__device__ __forceinline__ void store_matrix_x4(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

// --- asynchronous copies (cp.async) --------------------------------------------------------------------------------------
// Copies kBytes (4, 8 or 16) past L1, or writes zeros when not `valid`.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* dst, const void* src, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(dst)), "l"(src), "n"(kBytes), "r"(valid ? kBytes : 0) : "memory");
}
// 16 bytes that are read once, by the lanes where `condition` holds, without a branch.
__device__ __forceinline__ void copy_async_if(bool condition, uint32_t dst, const void* src, uint64_t policy) {
  asm volatile("{\n .reg .pred p;\n setp.ne.u32 p, %2, 0;\n @p cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %3;\n}\n" ::"r"(dst), "l"(src),
               "r"(static_cast<uint32_t>(condition)), "l"(policy)
               : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ uint4 load_shared(const void* p) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(shared_address(p)));
  return v;
}
// `address` in the shared window.
__device__ __forceinline__ uint2 load_shared_pair(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
  return v;
}
__device__ __forceinline__ uint32_t load_shared_word(const void* p) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(shared_address(p)));
  return v;
}

// --- matrix instructions -------------------------------------------------------------------------------------------------
// C[16 x 8] += A[16 x 16] B[16 x 8], bf16 operands, float accumulators.
__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same into a fresh accumulator.
__device__ __forceinline__ void mma_bf16_zero(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.f));
}

// The same on f16 operands.
__device__ __forceinline__ void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// C[16 x 8] += A[16 x 32] B[32 x 8], E4M3 operands, float accumulators.
__device__ __forceinline__ void mma_e4m3(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// An 8 x 8 matrix of 16-bit elements turned: a lane has two neighbouring ones of row lane / 4, before and after.
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t v) {
  uint32_t turned;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(v));
  return turned;
}

// --- conversions ---------------------------------------------------------------------------------------------------------
// Two E4M3 codes (low 16 bits) to an f16 pair, exact.
__device__ __forceinline__ uint32_t e4m3_to_f16(uint32_t codes) {
  uint32_t v;
  asm("{\n .reg .b16 h;\n cvt.u16.u32 h, %1;\n cvt.rn.f16x2.e4m3x2 %0, h;\n}" : "=r"(v) : "r"(codes));
  return v;
}
// Two floats to E4M3 codes, saturating; `low` in the low byte.
__device__ __forceinline__ uint16_t floats_to_e4m3(float low, float high) {
  uint16_t v;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(v) : "f"(high), "f"(low));
  return v;
}

}  // namespace gossamer::ptx
