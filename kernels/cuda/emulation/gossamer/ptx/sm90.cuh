// Stand-ins for the wrappers of the same name.
#pragma once
#include "../../emulation.h"

namespace gossamer::ptx {

using namespace emulation;

#define GOSSAMER_DYNAMIC_SHARED(type, alignment, name) type* const name = reinterpret_cast<type*>(::gossamer::ptx::dynamic_shared())
inline uint8_t* dynamic_shared() { return block->shared; }
// Dynamic shared memory comes first in the window. Shared variables, which are thread-local ones here and so lie together, have the
// window's upper half.
inline uint8_t* dynamic_window() { return reinterpret_cast<uint8_t*>(reinterpret_cast<uintptr_t>(block->shared) / kSharedBytes * kSharedBytes); }
inline uint32_t shared_address(const void* p) {
  const intptr_t dynamic = static_cast<const uint8_t*>(p) - dynamic_window(), variable = static_cast<const uint8_t*>(p) - block->variables;
  return dynamic >= 0 && dynamic < static_cast<intptr_t>(kSharedBytes) ? static_cast<uint32_t>(dynamic) : 0xC0000000u + static_cast<uint32_t>(variable);
}
inline uint8_t* shared_pointer(uint32_t address) {
  if (address >= 0x80000000u) return block->variables + static_cast<int32_t>(address - 0xC0000000u);
  if (address >= kSharedBytes) fail("an address outside shared memory");
  return dynamic_window() + address;
}

inline void dependency_wait() {}
inline void launch_dependents() {}

// --- mbarrier ---
struct Barrier {
  uint8_t count;
  int8_t pending;
  uint16_t phase;
  int32_t bytes;
};
static_assert(sizeof(Barrier) == 8);
inline Barrier& barrier(uint64_t* p) { return *reinterpret_cast<Barrier*>(p); }
inline void barrier_settle(Barrier& b) {
  if (b.pending < 0) fail("an mbarrier has too many arrivals");
  if (b.pending == 0 && b.bytes == 0) b.pending = static_cast<int8_t>(b.count), ++b.phase;
  ++progress;
}
inline void barrier_init(uint64_t* p, uint32_t arrivals) { barrier(p) = {static_cast<uint8_t>(arrivals), static_cast<int8_t>(arrivals), 0, 0}; }
inline void barrier_init_fence() {}
inline void barrier_arrive(uint64_t* p) { --barrier(p).pending, barrier_settle(barrier(p)); }
inline void barrier_arrive_if(uint64_t* p, bool condition) {
  if (condition) barrier_arrive(p);
}
inline void barrier_expect(uint64_t* p, uint32_t bytes) { barrier(p).bytes += static_cast<int32_t>(bytes), barrier_arrive(p); }
inline void barrier_expect(uint32_t p, uint32_t bytes) { barrier_expect(reinterpret_cast<uint64_t*>(shared_pointer(p)), bytes); }
inline bool barrier_poll(uint64_t* p, uint32_t parity) { return (barrier(p).phase & 1) != parity; }
inline void barrier_wait(uint64_t* p, uint32_t parity) {
  wait_until([&] { return barrier_poll(p, parity); });
}
inline void barrier_wait(uint32_t p, uint32_t parity) { barrier_wait(reinterpret_cast<uint64_t*>(shared_pointer(p)), parity); }
inline void proxy_fence() {}
inline void global_proxy_fence() {}
inline void named_sync(int id, int threads) { named_barrier(id, threads, true); }
inline void named_arrive(int id, int threads) { named_barrier(id, threads, false); }

// --- clusters ---
inline uint32_t cluster_rank() { return block->cluster ? block->rank : 0; }
inline void cluster_arrive() {
  Cluster* const c = block->cluster;
  if (!c) fail("a cluster's barrier outside a cluster");
  self().cluster_generation = c->generation;
  if (++c->arrived == c->blocks.size() * block->threads.size()) c->arrived = 0, ++c->generation, ++progress;
}
inline void cluster_arrive_relaxed() { cluster_arrive(); }
inline void cluster_wait() {
  wait_until([] { return block->cluster->generation != self().cluster_generation; });
}
inline void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
inline const Block* peer(uint32_t rank) {
  if (!block->cluster || rank >= block->cluster->blocks.size()) fail("a block outside the cluster");
  const Block* const other = block->cluster->blocks[rank];
  if (!other->begun) fail("shared memory of a block that has not begun");
  if (other->ended) fail("shared memory of a block that has ended");
  return other;
}
// The same place in the shared memory of another block.
template <class T>
T* of_rank(T* local, uint32_t rank) {
  const Block* const other = peer(rank);
  const uint32_t address = shared_address(local);
  if (address >= 0x80000000u) return reinterpret_cast<T*>(other->variables + static_cast<int32_t>(address - 0xC0000000u));
  return reinterpret_cast<T*>(other->shared + (reinterpret_cast<const uint8_t*>(local) - block->shared));
}
inline void cluster_arrive_if(uint64_t* bar, uint32_t rank, bool condition) {
  if (condition) barrier_arrive(of_rank(bar, rank));
}
template <class T>
void cluster_send(T* local, uint64_t* bar, uint32_t rank, T v) {
  T* const to = of_rank(local, rank);
  uint64_t* const full = of_rank(bar, rank);
  block->engine.push_back([=] {
    peer(rank);
    *to = v;
    Barrier& b = barrier(full);
    b.bytes -= static_cast<int32_t>(sizeof v);
    barrier_settle(b);
  });
}
inline void cluster_store(float* local, uint32_t rank, float v) { *of_rank(local, rank) = v; }
inline float4 cluster_load(const float4* local, uint32_t rank) { return *of_rank(local, rank); }

// --- cp.async ---
template <int kBytes>
void copy_async(void* dst, const void* src, bool valid) {
  if (reinterpret_cast<uintptr_t>(dst) % kBytes || (valid && reinterpret_cast<uintptr_t>(src) % kBytes)) fail("an asynchronous copy is not aligned");
  self().copies.push_back([=] {
    if (valid) std::memcpy(dst, src, kBytes);
    else std::memset(dst, 0, kBytes);
  });
}
inline void copy_async_if(bool condition, uint32_t dst, const void* src, uint64_t) {
  if (condition) copy_async<16>(shared_pointer(dst), src, true);
}
inline void copy_async_commit() { self().copy_groups.push_back(self().copies.size()); }
template <int kPending>
void copy_async_wait() {
  Thread& t = self();
  if (t.copy_groups.size() <= kPending) return;
  const size_t groups = t.copy_groups.size() - kPending, copies = t.copy_groups[groups - 1];
  for (size_t i = 0; i < copies; ++i) t.copies[i]();
  t.copies.erase(t.copies.begin(), t.copies.begin() + copies);
  t.copy_groups.erase(t.copy_groups.begin(), t.copy_groups.begin() + groups);
  for (size_t& g : t.copy_groups) g -= copies;
}

// --- bulk copies ---
inline uint64_t evict_first_policy() { return 0; }
inline void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* bar, uint64_t = 0) {
  if (reinterpret_cast<uintptr_t>(dst) % 16 || reinterpret_cast<uintptr_t>(src) % 16 || bytes % 16) fail("a bulk copy is not aligned");
  block->engine.push_back([=] {
    std::memcpy(dst, src, bytes);
    Barrier& b = barrier(bar);
    b.bytes -= static_cast<int32_t>(bytes);
    barrier_settle(b);
  });
}
inline void bulk_load(uint32_t dst, const void* src, uint32_t bytes, uint32_t bar, uint64_t) {
  bulk_load(shared_pointer(dst), src, bytes, reinterpret_cast<uint64_t*>(shared_pointer(bar)));
}

// --- global memory ---
inline void prefetch_l2(const void* p) { (void)*static_cast<const volatile uint8_t*>(p); }
inline uint4 load_streaming(const void* p) {
  if (reinterpret_cast<uintptr_t>(p) % 16) fail("a load is not aligned");
  return *static_cast<const uint4*>(p);
}
inline uint2 load_streaming_pair(const void* p) {
  if (reinterpret_cast<uintptr_t>(p) % 8) fail("a load is not aligned");
  return *static_cast<const uint2*>(p);
}
inline uint32_t load_word(const void* p) { return *static_cast<const uint32_t*>(p); }
inline uint32_t load_byte(const void* p) { return *static_cast<const uint8_t*>(p); }
inline void release_bits(uint32_t* p, uint32_t bits) { *p |= bits; }
inline void clear_bits(uint32_t* p, uint32_t bits) { *p &= ~bits; }
inline void wait_for_bits(const uint32_t* p, uint32_t bits) {
  // Where blocks run one after the other, what is awaited is there or never comes.
  if ((*p & bits) != bits && !block->cluster) fail("a flag is awaited that no earlier block has set");
  wait_until([&] { return (*p & bits) == bits; });
}
inline void release_add(int* p, int v) { *p += v, ++progress; }
// Who asks again and again lets others run.
inline int acquire_load(const int* p) {
  yield();
  return *p;
}
inline void wait_for_count(const int* p, int count) {
  if (*p < count && !block->cluster) fail("a count is awaited that no earlier block has reached");
  wait_until([&] { return *p >= count; });
}
inline int arrive_add(int* p, int v) {
  const int before = *p;
  *p += v, ++progress;
  return before;
}
inline float4 load_past_l1(const float4* p) { return *p; }
inline uint32_t load_half(const void* p) { return *static_cast<const uint16_t*>(p); }

// --- shared memory, arithmetic, registers ---
inline uint4 load_shared(const void* p) { return *static_cast<const uint4*>(p); }
inline uint4 shared_load4(uint32_t address) { return *reinterpret_cast<const uint4*>(shared_pointer(address)); }
inline uint32_t shared_load(uint32_t address) { return *reinterpret_cast<const uint32_t*>(shared_pointer(address)); }
inline uint32_t load_shared_word(const void* p) { return *static_cast<const uint32_t*>(p); }
inline uint2 load_shared_pair(uint32_t address) { return *reinterpret_cast<const uint2*>(shared_pointer(address)); }
// Lanes 8m..8m+7 name the rows of matrix m; a lane holds two neighbouring elements of row lane / 4.
inline uint32_t* matrix_word(uint32_t address, int m) {
  const int lane = thread_number() % 32;
  const uint32_t row = warp_collective(address, [&](const uint32_t* all) { return all[m * 8 + lane / 4]; });
  if (row % 16) fail("a matrix row is not aligned");
  return reinterpret_cast<uint32_t*>(shared_pointer(row)) + lane % 4;
}
inline void load_matrix_x4(uint32_t (&r)[4], uint32_t address) {
  for (int m = 0; m < 4; ++m) r[m] = *matrix_word(address, m);
}
inline uint32_t transpose_matrix(uint32_t v) {
  const int lane = thread_number() % 32, g = lane / 4, t = lane % 4;
  return warp_collective(v, [&](const uint32_t* all) {
    const auto at = [&](int row, int column) { return all[4 * row + column / 2] >> 16 * (column % 2) & 0xFFFF; };
    return at(2 * t, g) | at(2 * t + 1, g) << 16;
  });
}
inline void load_matrix_x4_transposed(uint32_t (&r)[4], uint32_t address) {
  load_matrix_x4(r, address);
  for (uint32_t& word : r) word = transpose_matrix(word);
}
inline void store_matrix_x4(uint32_t address, const uint32_t (&r)[4]) {
  for (int m = 0; m < 4; ++m) *matrix_word(address, m) = r[m];
}
inline float exp2_flushed(float x) {
  const float y = std::exp2(x);
  return y < 1.17549435e-38f ? 0.f : y;
}
inline float reciprocal_flushed(float x) {
  const float y = 1 / x;
  return std::abs(y) < 1.17549435e-38f ? 0.f : y;
}
inline float log2_flushed(float x) { return std::log2(x); }
inline float bf16_bits(uint32_t half) { return emulation_bits<float>(half << 16); }
inline float bf16_low(uint32_t pair) { return bf16_bits(pair & 0xFFFF); }
inline float bf16_high(uint32_t pair) { return bf16_bits(pair >> 16); }
inline uint32_t pack_bf16(float low, float high) {
  return emulation_bits<uint16_t>(__float2bfloat16(low)) | static_cast<uint32_t>(emulation_bits<uint16_t>(__float2bfloat16(high))) << 16;
}
inline uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  const auto one = [](uint32_t x, uint32_t y) { return emulation_bits<uint16_t>(__float2bfloat16(bf16_bits(x & 0xFFFF) * bf16_bits(y & 0xFFFF))); };
  return one(a, b) | static_cast<uint32_t>(one(a >> 16, b >> 16)) << 16;
}
inline uint32_t pick_bytes(uint32_t low, uint32_t high, uint32_t selector) { return __byte_perm(low, high, selector); }
inline uint32_t choose_bits(uint32_t mask, uint32_t a, uint32_t b) { return (a & mask) | (b & ~mask); }
inline uint32_t merge_bits(uint32_t a, uint32_t b, uint32_t mask) { return a | (b & mask); }
// --- fragments: after the PTX manual. `rows` of A and C are g and g + 8, of B and columns of C 2t and 2t + 1 ---
inline uint16_t floats_to_e4m3(float low, float high) {
  return static_cast<uint16_t>(__nv_fp8_e4m3(low).__x | __nv_fp8_e4m3(high).__x << 8);
}
inline float e4m3_value(uint32_t code) {
  __nv_fp8_e4m3 v;
  v.__x = static_cast<uint8_t>(code);
  return static_cast<float>(v);
}
inline float f16_value(uint32_t half) { return __half2float(emulation_bits<__half>(static_cast<uint16_t>(half))); }
inline uint32_t e4m3_to_f16(uint32_t codes) {
  const auto one = [](uint32_t code) { return static_cast<uint32_t>(emulation_bits<uint16_t>(__float2half(e4m3_value(code & 255)))); };
  return one(codes) | one(codes >> 8) << 16;
}
// `value(word, i)` is element i of `kEach` in a register.
template <int kEach, class Value>
void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Value value) {
  const int lane = thread_number() % 32, g = lane / 4, t = lane % 4;
  float add[4] = {};
  uint32_t words[6][32];
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  for (int r = 0; r < 6; ++r) warp_collective(mine[r], [&](const uint32_t* all) { return std::copy(all, all + 32, words[r]) - words[r]; });
  for (int half = 0; half < 2; ++half)  // of k
    for (int quad = 0; quad < 4; ++quad)
      for (int i = 0; i < kEach; ++i)
        for (int e = 0; e < 4; ++e) add[e] += value(words[2 * half + e / 2][4 * g + quad], i) * value(words[4 + half][4 * (2 * t + e % 2) + quad], i);
  for (int e = 0; e < 4; ++e) c[e] += add[e];
}
inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma<2>(c, a, b0, b1, [](uint32_t w, int i) { return bf16_bits(w >> 16 * i & 0xFFFF); });
}
inline void mma_bf16_zero(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  for (float& v : c) v = 0;
  mma_bf16(c, a, b0, b1);
}
inline void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma<2>(c, a, b0, b1, [](uint32_t w, int i) { return f16_value(w >> 16 * i & 0xFFFF); });
}
inline void mma_e4m3(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma<4>(c, a, b0, b1, [](uint32_t w, int i) { return e4m3_value(w >> 8 * i & 255); });
}
inline int uniform(int v) {
  return warp_collective(static_cast<uint32_t>(v), [&](const uint32_t* all) {
    if (std::any_of(all, all + 32, [&](uint32_t x) { return x != static_cast<uint32_t>(v); })) fail("lanes differ in a value that all share");
    return v;
  });
}
template <int>
void give_registers() {}
template <int>
void take_registers() {}

}  // namespace gossamer::ptx
