// archs: 80 90a 100a
// Sums over ranks through regions that every rank has mapped, alone or with residual and RMSNorm. Ranks push: what a rank has to say is
// written into the others' memory, so that nobody waits for a read to come back over the link.
//
// Few tokens (one shot): every rank sends its rows to all others; each adds up all rows. More (two shots): row r belongs to one rank; it gets
// all ranks' parts, adds them up, and sends the sum to all. No multicast; plain stores and flags.
//
// Region: counters (GOSSAMER_REGION_HEADER bytes), then two halves of data. Launch e uses half e % 2.
//
// Invariants:
// - A launch is counted in the region by its last block, so that a captured launch can be replayed; flags hold the launch's number and only
//   rise. A block signals the blocks of its own number on other ranks, which work on the same rows.
// - Before a rank writes into a half at launch e + 2, it has seen a flag of every rank at launch e + 1 and that kernel has ended; so
//   everybody has ended launch e, which read the half.
// - Sums are taken in the order of ranks, in float, and rounded once: the same bits on every rank, one shot or two, norm or none.
#include "../portable/common.cuh"

namespace gossamer::exchange {
namespace {

using portable::at;
using portable::bf16;

constexpr uint32_t kMostBlocks = 128, kMostRanks = GOSSAMER_MOST_RANKS;
constexpr unsigned long long kPatience = 20ull * 1000 * 1000 * 1000;  // nanoseconds

struct Header {
  uint32_t launches;  // ended
  uint32_t finished;  // blocks of the launch under way
  uint32_t unused[62];
  uint32_t flags[2][kMostRanks][kMostBlocks];  // step, sender, block
};
static_assert(sizeof(Header) <= GOSSAMER_REGION_HEADER);

struct Params {
  uint8_t* regions[kMostRanks];
  size_t half;  // bytes
  uint4 *x, *residual, *out;
  const uint4* weight;
  uint32_t rank, ranks, tokens, chunks;  // chunks of eight in a row
  float eps;
};

__device__ __forceinline__ void signal(uint32_t* flag, uint32_t number) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(number) : "memory");
}
// A rank that does not come is an error of the whole group: nothing sensible can be computed without it.
__device__ __forceinline__ void await(const uint32_t* flag, uint32_t number) {
  unsigned long long start = 0;
  for (uint32_t turn = 0;; ++turn) {
    uint32_t seen;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    if (static_cast<int32_t>(seen - number) >= 0) return;
    if (turn % 1024 != 1023) continue;
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    if (!start) start = now;
    if (now - start > kPatience) __trap();
  }
}

// One launch as a block sees it.
struct Launch {
  const Params& p;
  Header* own;
  uint32_t number;

  __device__ explicit Launch(const Params& params) : p(params), own(reinterpret_cast<Header*>(params.regions[params.rank])) {
    number = *reinterpret_cast<volatile uint32_t*>(&own->launches) + 1;
  }
  __device__ uint4* data(uint32_t rank) const {
    return reinterpret_cast<uint4*>(p.regions[rank] + GOSSAMER_REGION_HEADER + (number & 1) * p.half);
  }
  // What this block has written to others is there for them; what theirs have written is there for it.
  __device__ void meet(uint32_t step) const {
    __syncthreads();
    if (threadIdx.x < p.ranks && threadIdx.x != p.rank) {
      signal(&reinterpret_cast<Header*>(p.regions[threadIdx.x])->flags[step][p.rank][blockIdx.x], number);
      await(&own->flags[step][threadIdx.x][blockIdx.x], number);
    }
    __syncthreads();
  }
  __device__ void end() const {
    __syncthreads();
    if (threadIdx.x) return;
    if (atomicAdd(&own->finished, 1u) + 1 < gridDim.x) return;
    own->finished = 0;
    own->launches = number;
  }
};

// The sum of a chunk over ranks, rounded. `part(r)` is rank r's.
template <class Part>
__device__ __forceinline__ uint4 sum_of(const Params& p, const Part& part) {
  float sum[8] = {}, v[8];
  for (uint32_t r = 0; r < p.ranks; ++r) {
    portable::unpack(part(r), v);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] += v[j];
  }
  return portable::pack8(sum);
}

// Does with the sum of a row's chunk what the operation is for. All threads of the block.
template <bool kNorm>
__device__ __forceinline__ void finish(const Params& p, size_t row, uint32_t chunk, bool live, uint4 sum, float* scratch) {
  const size_t place = row * p.chunks + chunk;
  if constexpr (!kNorm) {
    if (live) p.x[place] = sum;
    return;
  }
  float v[8] = {}, w[8], square = 0;
  if (live) {
    float s[8];
    portable::unpack(p.residual[place], v);
    portable::unpack(sum, s);
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] += s[j];
    const uint4 rounded = portable::pack8(v);
    p.residual[place] = rounded;
    portable::unpack(rounded, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) square += v[j] * v[j];
  }
  square = portable::block_reduce(square, scratch, 0.f, [](float a, float b) { return a + b; });
  const float scale = rsqrtf(square / (8 * p.chunks) + p.eps);
  if (!live) return;
  portable::unpack(p.weight[chunk], w);
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] = v[j] * scale * w[j];
  p.out[place] = portable::pack8(v);
}

// A block per row, a thread per chunk.
template <bool kNorm>
__global__ void __launch_bounds__(1024) one_shot_kernel(const __grid_constant__ Params p) {
  __shared__ float scratch[32];
  const Launch launch(p);
  const uint32_t row = blockIdx.x, chunk = threadIdx.x;
  const bool live = chunk < p.chunks;
  const size_t place = static_cast<size_t>(row) * p.chunks + chunk, all = static_cast<size_t>(p.tokens) * p.chunks;
  const uint4 mine = live ? p.x[place] : uint4{};
  for (uint32_t i = 1; i < p.ranks; ++i) {
    const uint32_t to = (p.rank + i) % p.ranks;
    if (live) launch.data(to)[p.rank * all + place] = mine;
  }
  launch.meet(0);
  const uint4* got = launch.data(p.rank);
  uint4 sum{};
  if (live) sum = sum_of(p, [&](uint32_t r) { return r == p.rank ? mine : __ldcg(got + r * all + place); });
  finish<kNorm>(p, row, chunk, live, sum, scratch);
  launch.end();
}

// Block b has rows b, b + blocks, ... of every rank's share.
template <bool kNorm>
__global__ void __launch_bounds__(1024) two_shot_kernel(const __grid_constant__ Params p) {
  __shared__ float scratch[32];
  const Launch launch(p);
  const uint32_t chunk = threadIdx.x, share = (p.tokens + p.ranks - 1) / p.ranks;
  const bool live = chunk < p.chunks;
  const auto rows_of = [&](uint32_t rank) { return min(share, p.tokens > rank * share ? p.tokens - rank * share : 0u); };
  const auto place = [&](size_t row) { return row * p.chunks + chunk; };
  const size_t sums = static_cast<size_t>(p.ranks) * share * p.chunks;  // parts come first in a half, then sums
  for (uint32_t i = 1; i < p.ranks; ++i) {
    const uint32_t to = (p.rank + i) % p.ranks;
    uint4* parts = launch.data(to) + place(static_cast<size_t>(p.rank) * share);
    for (uint32_t row = blockIdx.x; row < rows_of(to); row += gridDim.x)
      if (live) parts[static_cast<size_t>(row) * p.chunks] = p.x[place(to * share + row)];
  }
  launch.meet(0);
  const uint4* parts = launch.data(p.rank);
  for (uint32_t row = blockIdx.x; row < rows_of(p.rank); row += gridDim.x) {
    const size_t whole = p.rank * share + row;
    uint4 sum{};
    if (live) {
      sum = sum_of(p, [&](uint32_t r) { return r == p.rank ? p.x[place(whole)] : __ldcg(parts + place(static_cast<size_t>(r) * share + row)); });
      for (uint32_t i = 1; i < p.ranks; ++i) launch.data((p.rank + i) % p.ranks)[sums + place(whole)] = sum;
    }
    finish<kNorm>(p, whole, chunk, live, sum, scratch);
  }
  launch.meet(1);
  for (uint32_t i = 1; i < p.ranks; ++i) {
    const uint32_t from = (p.rank + i) % p.ranks;
    for (uint32_t row = blockIdx.x; row < rows_of(from); row += gridDim.x) {
      const size_t whole = from * share + row;
      const uint4 sum = live ? __ldcg(launch.data(p.rank) + sums + place(whole)) : uint4{};
      finish<kNorm>(p, whole, chunk, live, sum, scratch);
    }
  }
  launch.end();
}

template <bool kNorm>
int start(const GossamerAllReduceDesc& d, const GossamerAllReduceArgs& a, Params p, cudaStream_t stream) {
  const bool ranks = d.ranks >= 2 && d.ranks <= kMostRanks && a.rank < d.ranks;
  if (!ranks || d.hidden % 8 || d.hidden > 8192 || d.activation != GOSSAMER_BF16 || !portable::aligned16(a.x)) return GOSSAMER_BAD_SHAPE;
  if (!a.tokens) return GOSSAMER_OK;
  for (uint32_t r = 0; r < d.ranks; ++r) {
    if (!a.regions[r] || a.regions[r] % 256) return GOSSAMER_BAD_SHAPE;
    p.regions[r] = reinterpret_cast<uint8_t*>(a.regions[r]);
  }
  p.x = reinterpret_cast<uint4*>(a.x);
  p.rank = a.rank, p.ranks = d.ranks, p.tokens = a.tokens, p.chunks = d.hidden / 8;
  p.half = a.region_bytes < GOSSAMER_REGION_HEADER ? 0 : (a.region_bytes - GOSSAMER_REGION_HEADER) / 2 / 256 * 256;
  const uint32_t share = (a.tokens + d.ranks - 1) / d.ranks;
  const bool once = a.tokens <= GOSSAMER_ONE_SHOT_TOKENS;
  const size_t rows = once ? static_cast<size_t>(d.ranks) * a.tokens : static_cast<size_t>(d.ranks) * share + a.tokens;
  if (rows * d.hidden * sizeof(bf16) > p.half) return GOSSAMER_BAD_SHAPE;
  const uint32_t threads = (p.chunks + 31) / 32 * 32;
  if (once) one_shot_kernel<kNorm><<<a.tokens, threads, 0, stream>>>(p);
  else two_shot_kernel<kNorm><<<share < kMostBlocks ? share : kMostBlocks, threads, 0, stream>>>(p);
  return portable::launched();
}

}  // namespace
}  // namespace gossamer::exchange

extern "C" int gossamer_all_reduce(const GossamerAllReduceDesc* d, const GossamerAllReduceArgs* a, cudaStream_t stream) {
  return gossamer::exchange::start<false>(*d, *a, {}, stream);
}

extern "C" int gossamer_all_reduce_norm(const GossamerAllReduceNormDesc* d, const GossamerAllReduceNormArgs* a, cudaStream_t stream) {
  using gossamer::portable::aligned16;
  if (!aligned16(a->residual) || !aligned16(a->weight) || !aligned16(a->out)) return GOSSAMER_BAD_SHAPE;
  gossamer::exchange::Params p = {};
  p.residual = reinterpret_cast<uint4*>(a->residual);
  p.weight = reinterpret_cast<const uint4*>(a->weight);
  p.out = reinterpret_cast<uint4*>(a->out);
  p.eps = d->eps;
  return gossamer::exchange::start<true>(d->reduce, a->reduce, p, stream);
}
