// What producer and consumers of the attention kernel share: configuration, the layout of shared memory, tiles of work.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>

#include "gossamer/launch.cuh"
#include "gossamer/prefill.h"
#include "gossamer/ptx/sm90.cuh"
#include "gossamer/ptx/tma.cuh"
#include "gossamer/ptx/wgmma.cuh"

namespace gossamer::prefill {

using bf16 = __nv_bfloat16;

constexpr int kHeadDim = 64, kBlockTokens = 64, kTileBytes = kBlockTokens * kHeadDim * 2;  // keys or values of a block
constexpr float kLog2e = 1.4426950408889634f;
constexpr float kNone = -1e30f;  // below every score; finite, so that differences stay defined
constexpr float kSlack = 8.f;    // where the reference is moved, a row keeps its own unless it exceeds it by this power of two
constexpr float kLimit = 0x1p40f;  // sum of probabilities of a step from which on the reference is moved
enum Barrier { kOwn = 1, kProducers = 4 };  // named barriers; kOwn: one per consumer warpgroup

// What the producer tells the consumers about a tile.
struct Work {
  int first_query;  // row of `q`
  int positions;    // 0: no more tiles
  int position;     // of the first query in its sequence
  int kv_head;
  int first_block, last_block;  // logical
  int kv_len;
  int sequence;
  float key_scale, value_scale;  // of scores, in powers of two; of results
};

// A row of a tile: position in the tile and head in the group.
struct Row {
  uint16_t position, head;
};

template <bool kFp8V>
struct Config {
  static constexpr bool kFp8 = kFp8V;
  static constexpr bool kQueryRegisters = kFp8;  // else products read queries from shared memory, which the E4M3 form has less time for
  static constexpr int kGroups = 3, kRows = 64 * kGroups, kThreads = 128 * (kGroups + 1), kStages = 8, kQueryBytes = kRows * 128;
  static constexpr int kProducerRegisters = 32, kConsumerRegisters = 160;
  static constexpr int kStageBytes = 2 * kTileBytes;  // keys, values
  static constexpr int kCodeStages = kFp8 ? 4 : 0, kCodeBytes = kStageBytes / 2;  // E4M3 blocks on their way
  static constexpr int kSharedBytes =
      1024 + 2 * kQueryBytes + kStages * kStageBytes + kCodeStages * kCodeBytes + (GOSSAMER_PREFILL_MAX_SEQUENCES + 1) * 4 + kRows * sizeof(Row) +
      4 * sizeof(Work) + (2 * kStages + 4) * 8 + 64;
  static_assert((kStages & (kStages - 1)) == 0);
  static_assert(kSharedBytes <= kMaxSharedBytes);
  static_assert(kThreads / 32 * sizeof(uint32_t) <= 4 * sizeof(Work) && sizeof(Work) % 8 == 0);  // `work` is scratch before the first tile
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static_assert(kProducerRegisters + kGroups * kConsumerRegisters <= (kGroups + 1) * kLaunchRegisters, "setmaxnreg may not ask for more than the block has");
  static_assert(kProducerRegisters % 8 == 0 && kConsumerRegisters % 8 == 0);
};

struct Params {
  GossamerAttentionDesc d;
  GossamerAttentionArgs a;
  uint32_t group;      // query heads per KV head
  uint32_t positions;  // query positions per tile
  uint32_t* counter;   // tiles handed out beyond one per block; null: there are none
};

template <class T>
__device__ __forceinline__ const T* at(uint64_t address) {
  return reinterpret_cast<const T*>(address);
}

template <class C>
struct Shared {
  uint8_t *queries, *blocks, *codes;
  uint32_t* starts;  // [sequences + 1] tiles of one KV head before each sequence
  Work* work;        // [4]: a tile's stays until its result is stored
  Row* rows;         // [kRows]
  uint64_t *query_full, *query_empty, *full, *empty;

  __device__ explicit Shared(uint8_t* raw) {
    queries = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~static_cast<uintptr_t>(1023));
    blocks = queries + 2 * C::kQueryBytes;
    codes = blocks + C::kStages * C::kStageBytes;
    work = reinterpret_cast<Work*>(codes + C::kCodeStages * C::kCodeBytes);
    query_full = reinterpret_cast<uint64_t*>(work + 4);
    query_empty = query_full + 2;
    full = query_empty + 2;
    empty = full + C::kStages;
    rows = reinterpret_cast<Row*>(empty + C::kStages);
    starts = reinterpret_cast<uint32_t*>(rows + C::kRows);
  }
  __device__ void init() const {
    for (int i = 0; i < 2; ++i) ptx::barrier_init(&query_full[i], 1), ptx::barrier_init(&query_empty[i], 4 * C::kGroups);
    for (int i = 0; i < C::kStages; ++i) ptx::barrier_init(&full[i], C::kFp8 ? 4 : 1), ptx::barrier_init(&empty[i], 4 * C::kGroups);
    ptx::barrier_init_fence();
  }
};
// Item `number` of all that ever went through a ring of kStages is in slot `number % kStages`; this is the parity to wait for.
template <int kStages>
__device__ __forceinline__ uint32_t parity(uint32_t number) {
  return number / kStages & 1;
}

// Fills `rows`, by the whole block.
template <class C>
__device__ __forceinline__ void split_rows(const Params& p, Row* rows) {
  if (threadIdx.x < C::kRows) rows[threadIdx.x] = {static_cast<uint16_t>(threadIdx.x / p.group), static_cast<uint16_t>(threadIdx.x % p.group)};
}

// Fills `starts`, by the whole block.
__device__ __forceinline__ void count_tiles(const Params& p, uint32_t* starts, uint32_t* scratch) {
  const uint32_t* queries = at<uint32_t>(p.a.query_starts);
  const uint32_t sequences = p.a.sequences, each = (sequences + blockDim.x - 1) / blockDim.x, first = threadIdx.x * each;
  const auto tiles_of = [&](uint32_t s) { return s < sequences ? (queries[s + 1] - queries[s] + p.positions - 1) / p.positions : 0; };
  uint32_t own = 0;
  for (uint32_t i = 0; i < each; ++i) own += tiles_of(first + i);
  uint32_t sum = own;
  for (int o = 1; o < 32; o *= 2) {
    const uint32_t below = __shfl_up_sync(~0u, sum, o);
    if ((threadIdx.x & 31) >= o) sum += below;
  }
  if ((threadIdx.x & 31) == 31) scratch[threadIdx.x / 32] = sum;
  __syncthreads();
  for (uint32_t w = 0; w < threadIdx.x / 32; ++w) sum += scratch[w];
  uint32_t start = sum - own;
  for (uint32_t i = 0; i < each && first + i < sequences; ++i) {
    starts[first + i] = start;
    start += tiles_of(first + i);
  }
  if (threadIdx.x == blockDim.x - 1) starts[sequences] = sum;
  __syncthreads();
}

// Tile `index`; a sequence's last tile, which sees the most keys, comes first.
__device__ __forceinline__ Work find(const Params& p, const uint32_t* starts, uint32_t index) {
  const uint32_t row = index / p.d.kv_heads;
  uint32_t low = 0, high = p.a.sequences - 1;
  while (low < high) {
    const uint32_t middle = (low + high + 1) / 2;
    if (starts[middle] <= row) low = middle;
    else high = middle - 1;
  }
  const uint32_t tile = starts[low + 1] - 1 - row, start = at<uint32_t>(p.a.query_starts)[low], queries = at<uint32_t>(p.a.query_starts)[low + 1] - start;
  Work w;
  w.sequence = low;
  w.kv_len = at<uint32_t>(p.a.kv_lens)[low];
  w.first_query = start + tile * p.positions;
  w.positions = min(p.positions, queries - tile * p.positions);
  w.position = w.kv_len - static_cast<int>(queries) + static_cast<int>(tile * p.positions);
  w.kv_head = index % p.d.kv_heads;
  const float* scales = p.d.kv == GOSSAMER_F8E4M3 ? at<float>(p.a.kv_scales) : nullptr;
  w.key_scale = p.d.scale * kLog2e * (scales ? scales[w.kv_head] : 1.f);
  w.value_scale = scales ? scales[p.d.kv_heads + w.kv_head] : 1.f;
  w.last_block = (w.position + w.positions - 1) / kBlockTokens;
  w.first_block = p.d.window ? max(0, w.position - static_cast<int>(p.d.window) + 1) / kBlockTokens : 0;
  return w;
}

__device__ __forceinline__ int blocks_of(const Work& w) { return w.last_block - w.first_block + 1; }

}  // namespace gossamer::prefill
