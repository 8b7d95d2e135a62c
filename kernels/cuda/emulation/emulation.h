// Runs this folder's kernels on a CPU: every CUDA thread of a block is a fiber, and the instructions behind `gossamer/ptx` have
// stand-ins with the meaning that the PTX manual gives them. It checks indices, layouts and the protocol between warps (a lost
// arrival is reported as such) where there is no GPU. It says nothing about time, registers, or memory ordering between warps.
//
// Copies of the copy engine, what is sent to another block's barrier, and warpgroup products take effect as late as they may: a copy
// at some later turn of the scheduler, a product at the wait for it. So a missing wait shows as a wrong result.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace emulation {

struct Product {  // one warpgroup product: what its 128 threads brought
  int columns, k;
  bool fp8, a_shared, b_transposed;
  uint64_t a, b;
  int accumulate, arrived = 0;
  float* d[128];
  const uint32_t* a_registers[128];
};
struct Warpgroup {
  std::vector<Product> products;
  size_t done = 0;
};
struct Warp {
  int arrived = 0;
  uint32_t generation = 0;
  uint32_t values[2][32];
};
struct Thread {
  ucontext_t context;  // for the first turn; later ones go by `resume`, which leaves the signal mask alone and so needs no system call
  jmp_buf resume;
  bool started = false;
  std::unique_ptr<uint8_t[]> stack;
  uint3 index;
  bool finished = false;
  size_t products = 0;               // started by this thread
  std::vector<size_t> groups;        // `products` at each commit
  std::vector<std::function<void()>> copies;  // cp.async not yet done
  std::vector<size_t> copy_groups;
  uint32_t cluster_generation = 0;  // of the cluster's barrier when this thread arrived
};
struct Named {
  int arrived = 0;
  uint32_t generation = 0;
};

inline uint32_t schedule_seed = 1;  // who has the next turn

struct Cluster;

struct Block {
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  Named named[16];
  std::vector<std::function<void()>> engine;  // copies under way
  std::mt19937 rng{schedule_seed};
  std::unique_ptr<uint8_t[]> shared_owner;
  uint8_t* shared = nullptr;     // dynamic
  uint8_t* variables = nullptr;  // a place among the shared variables
  Cluster* cluster = nullptr;
  uint32_t rank = 0;  // in the cluster
  bool begun = false, ended = false;
  jmp_buf turn_over;
  Thread* current = nullptr;
  std::function<void()> body;
  uint64_t seen = 0;
  int idle = 0;
};
struct Cluster {
  std::vector<Block*> blocks;
  size_t arrived = 0;
  uint32_t generation = 0;
};

// Blocks that run at once have a system thread each, of which one runs at a time: so shared variables are thread-local ones.
inline thread_local Block* block = nullptr;
inline thread_local uint3 block_index;
inline thread_local uint8_t shared_variables;
inline dim3 grid_size, block_size;
inline uint64_t progress;  // of all blocks
constexpr size_t kSharedBytes = 256 * 1024;

inline Thread& self() { return *block->current; }
inline int thread_number() { return static_cast<int>(block->current->index.x); }
[[noreturn]] inline void fail(const char* what) {
  std::printf("FAIL emulation: %s (block %u, thread %d)\n", what, block_index.x, block && block->current ? thread_number() : -1);
  std::fflush(stdout);
  std::_Exit(1);
}
__attribute__((noinline)) inline void yield() {
  if (!_setjmp(block->current->resume)) _longjmp(block->turn_over, 1);
}
__attribute__((noinline)) inline void give_turn(Thread& t) {
  block->current = &t;
  if (_setjmp(block->turn_over)) return;
  if (t.started) _longjmp(t.resume, 1);
  t.started = true;
  setcontext(&t.context);
}
template <class F>
void wait_until(F done) {
  while (!done()) yield();
  ++progress;
}
inline void enter() {
  block->body();
  block->current->finished = true;
  ++progress;
  yield();
}

inline void begin(Block& b, int threads, const std::function<void()>& body) {
  b.body = body;
  b.variables = &shared_variables;
  b.shared_owner.reset(new uint8_t[2 * kSharedBytes]);
  b.shared = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(b.shared_owner.get()) + kSharedBytes - 1) / kSharedBytes * kSharedBytes);
  std::memset(b.shared, 0xFF, kSharedBytes);  // NaN
  b.shared += 16;                             // dynamic shared memory is aligned to 16 bytes and no more
  b.warps.resize((threads + 31) / 32);
  b.warpgroups.resize((threads + 127) / 128);
  for (int i = 0; i < threads; ++i) {
    b.threads.push_back(std::make_unique<Thread>());
    Thread& t = *b.threads.back();
    t.index = {static_cast<unsigned>(i), 0, 0};
    constexpr size_t kStack = 64 * 1024;
    t.stack.reset(new uint8_t[kStack]);
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.get();
    t.context.uc_stack.ss_size = kStack;
    t.context.uc_link = nullptr;  // a thread that has finished gets no more turns
    makecontext(&t.context, enter, 0);
  }
}
// A turn of every thread of the block that this system thread runs; false when all have finished.
inline bool turn(Block& b) {
  bool any = false;
  b.begun = true;
  const size_t start = b.rng() % b.threads.size();
  for (size_t i = 0; i < b.threads.size(); ++i) {
    Thread& t = *b.threads[(start + i) % b.threads.size()];
    if (t.finished) continue;
    any = true;
    give_turn(t);
  }
  if (!b.engine.empty() && b.rng() % 3 == 0) {
    const size_t i = b.rng() % b.engine.size();
    b.engine[i]();
    b.engine.erase(b.engine.begin() + i);
    ++progress;
  }
  b.idle = progress == b.seen && b.engine.empty() ? b.idle + 1 : 0;
  b.seen = progress;
  // Other blocks may be slow.
  if (b.idle > (b.cluster ? 5000 : 50) && any) fail("every thread waits: a barrier lacks an arrival");
  return any || !b.engine.empty();
}

// --- warps ---------------------------------------------------------------------------------------------------------------
// All 32 lanes bring a value; `use` reads them.
template <class F>
auto warp_collective(uint32_t value, F use) {
  Warp& w = block->warps[thread_number() / 32];
  const uint32_t generation = w.generation, side = generation & 1;
  w.values[side][thread_number() % 32] = value;
  if (++w.arrived == 32) w.arrived = 0, ++w.generation;
  else wait_until([&] { return w.generation != generation; });
  return use(w.values[side]);
}
inline void named_barrier(int id, int threads, bool wait) {
  Named& n = block->named[id];
  const uint32_t generation = n.generation;
  if (++n.arrived == threads) n.arrived = 0, ++n.generation, ++progress;
  else if (n.arrived > threads) fail("a named barrier has too many arrivals");
  else if (wait) wait_until([&] { return n.generation != generation; });
}

inline void for_each_block(dim3 grid, const std::function<void(uint3)>& f) {
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) f({x, y, z});
}
// One block after the other.
template <class... P, class... A>
void run_grid(void (*kernel)(P...), dim3 grid, dim3 threads, A... args) {
  grid_size = grid, block_size = threads;
  for_each_block(grid, [&](uint3 index) {
    Block b;
    block = &b, block_index = index;
    begin(b, static_cast<int>(threads.x), [&] { kernel(args...); });
    while (turn(b)) {
    }
    block = nullptr;
  });
}
// All blocks at once, in clusters of neighbours. Any of them may have the next turn, and one of them begins when the others can do no
// more, and has few turns then: who does not wait for it will be too early.
template <class... P, class... A>
void run_together(void (*kernel)(P...), dim3 grid, dim3 threads, int cluster, A... args) {
  grid_size = grid, block_size = threads;
  std::vector<uint3> indices;
  for_each_block(grid, [&](uint3 index) { indices.push_back(index); });
  if (grid.x % cluster) fail("a grid is not made of whole clusters");
  std::vector<Block> blocks(indices.size());
  std::vector<Cluster> clusters(indices.size() / cluster);
  for (size_t i = 0; i < blocks.size(); ++i) {
    blocks[i].rank = static_cast<uint32_t>(i % cluster), blocks[i].cluster = &clusters[i / cluster];
    clusters[i / cluster].blocks.push_back(&blocks[i]);
  }
  std::mutex mutex;
  std::vector<std::condition_variable> turns(blocks.size());
  std::mt19937 rng{schedule_seed};
  const size_t slow = rng() % blocks.size();
  size_t now = slow ? 0 : blocks.size() - 1, left = blocks.size();
  const auto others_wait = [&] {
    for (size_t i = 0; i < blocks.size(); ++i)
      if (i != slow && !blocks[i].ended && blocks[i].idle < 3) return false;
    return true;
  };
  const auto is_held_back = [&](size_t i) { return i == slow && left > 1 && (blocks[i].begun ? rng() % 8 != 0 : !others_wait()); };
  std::vector<std::thread> system_threads;
  for (size_t i = 0; i < blocks.size(); ++i)
    system_threads.emplace_back([&, i] {
      std::unique_lock<std::mutex> lock(mutex);
      Block& b = blocks[i];
      block = &b, block_index = indices[i];
      begin(b, static_cast<int>(threads.x), [&] { kernel(args...); });
      for (bool any = true; any;) {
        turns[i].wait(lock, [&] { return now == i; });
        any = turn(b);
        b.ended = !any;
        left -= !any;
        do now = rng() % blocks.size();
        while (left && (blocks[now].ended || is_held_back(now)));
        turns[now].notify_one();
      }
    });
  for (std::thread& t : system_threads) t.join();
}

// --- checks --------------------------------------------------------------------------------------------------------------
// A seed of its own for every run, told so that the run can be repeated with it as GOSSAMER_SEED.
inline uint32_t new_seed() {
  const char* const given = std::getenv("GOSSAMER_SEED");
  const uint32_t seed = given ? static_cast<uint32_t>(std::strtoul(given, nullptr, 10)) : std::random_device{}();
  schedule_seed = seed;
  std::printf("seed %u\n", seed);
  return seed;
}
// Says how a check ended; its exit status.
inline int verdict(bool ok) {
  std::printf(ok ? "all checks passed\n" : "FAILED\n");
  return !ok;
}

}  // namespace emulation

#define threadIdx (::emulation::self().index)
#define blockIdx (::emulation::block_index)
#define gridDim (::emulation::grid_size)
#define blockDim (::emulation::block_size)
#undef __shared__
#define __shared__ static thread_local
#undef __forceinline__
#define __forceinline__ inline
#undef __noinline__
#define __noinline__
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

using std::max;
using std::min;
inline uint32_t min(uint32_t a, int b) { return std::min(a, static_cast<uint32_t>(b)); }

// Every lane's value of another lane, words of it one after the other.
template <class T, class From>
T emulation_shuffle(T v, From from) {
  uint32_t words[sizeof(T) / 4];
  static_assert(sizeof words == sizeof(T));
  std::memcpy(words, &v, sizeof v);
  for (uint32_t& word : words) word = emulation::warp_collective(word, [&](const uint32_t* all) { return all[from(emulation::thread_number() % 32)]; });
  std::memcpy(&v, words, sizeof v);
  return v;
}
template <class T>
T __shfl_xor_sync(unsigned, T v, int lanes) {
  return emulation_shuffle(v, [=](int lane) { return lane ^ lanes; });
}
template <class T>
T __shfl_up_sync(unsigned, T v, int lanes) {
  return emulation_shuffle(v, [=](int lane) { return lane >= lanes ? lane - lanes : lane; });
}
template <class T>
T __shfl_sync(unsigned, T v, int from) {
  return emulation_shuffle(v, [=](int) { return from & 31; });
}
inline uint32_t __reduce_min_sync(unsigned, uint32_t v) {
  return emulation::warp_collective(v, [](const uint32_t* all) { return *std::min_element(all, all + 32); });
}
inline uint32_t __reduce_max_sync(unsigned, uint32_t v) {
  return emulation::warp_collective(v, [](const uint32_t* all) { return *std::max_element(all, all + 32); });
}
inline bool __any_sync(unsigned, bool v) {
  return emulation::warp_collective(v, [](const uint32_t* all) { return std::any_of(all, all + 32, [](uint32_t x) { return x; }); });
}
inline uint32_t __ballot_sync(unsigned, bool v) {
  return emulation::warp_collective(v, [](const uint32_t* all) {
    uint32_t bits = 0;
    for (int i = 0; i < 32; ++i) bits |= all[i] << i;
    return bits;
  });
}
inline int __popc(uint32_t v) { return __builtin_popcount(v); }
inline int __ffs(uint32_t v) { return __builtin_ffs(static_cast<int>(v)); }
inline void __syncwarp() { emulation::warp_collective(0, [](const uint32_t*) { return 0; }); }
inline void __syncthreads() { emulation::named_barrier(0, static_cast<int>(emulation::block_size.x), true); }
inline int __syncthreads_or(int v) {
  static thread_local int any;  // of the block that runs
  __syncthreads();
  any = 0;
  __syncthreads();
  any |= v != 0;
  __syncthreads();
  return any;
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint64_t>(a) * b >> 32; }
inline uint32_t __float2uint_rz(float v) { return !(v > 0) ? 0 : v >= 4294967296.f ? ~0u : static_cast<uint32_t>(v); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t nibble = selector >> (4 * i) & 15, byte = bytes >> (8 * (nibble & 7)) & 255;
    out |= (nibble & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
  }
  return out;
}
inline uint32_t __vmaxu4(uint32_t a, uint32_t b) {
  uint32_t out = 0;
  for (int i = 0; i < 32; i += 8) out |= std::max(a >> i & 255, b >> i & 255) << i;
  return out;
}
inline uint32_t __vcmpeq4(uint32_t a, uint32_t b) {
  uint32_t out = 0;
  for (int i = 0; i < 32; i += 8) out |= ((a >> i ^ b >> i) & 255 ? 0u : 255u) << i;
  return out;
}
template <class To, class From>
To emulation_bits(From v) {
  To out;
  std::memcpy(static_cast<void*>(&out), &v, sizeof out);
  return out;
}
inline float __uint_as_float(uint32_t v) { return emulation_bits<float>(v); }
inline uint32_t __float_as_uint(float v) { return emulation_bits<uint32_t>(v); }
inline float __int_as_float(int v) { return emulation_bits<float>(v); }
inline int __float_as_int(float v) { return emulation_bits<int>(v); }
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcg(T* p, T v) {
  *p = v;
}
inline void __threadfence() {}
inline size_t __cvta_generic_to_shared(const void*) { emulation::fail("an instruction in assembly"); }
inline void __nanosleep(unsigned) { emulation::yield(); }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
template <class T, class V>
T atomicAdd(T* p, V v) {
  const T before = *p;
  *p += v;
  return before;
}
template <class T>
T atomicOr(T* p, T v) {
  const T before = *p;
  *p |= v;
  return before;
}
template <class T>
T atomicMax(T* p, T v) {
  const T before = *p;
  *p = std::max(before, v);
  return before;
}
