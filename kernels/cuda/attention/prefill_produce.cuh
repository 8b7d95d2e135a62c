// The producer warpgroup of the attention kernel: takes tiles of work, brings queries, keys and values.
#pragma once
#include "prefill_types.cuh"

namespace gossamer::prefill {

__device__ __forceinline__ const uint32_t* table_of(const Params& p, const Work& w) {
  // Indexed by logical block.
  return at<uint32_t>(p.a.block_tables) + static_cast<size_t>(w.sequence) * p.a.table_stride - at<uint32_t>(p.a.first_blocks)[w.sequence];
}

// bf16 cache: one thread, boxes of one block. `number` counts blocks.
template <class C>
__device__ __forceinline__ void copy_cache(const Params& p, const Work& w, const CUtensorMap* cache, const Shared<C>& s, uint32_t& number) {
  const uint32_t* table = table_of(p, w);
  const int rows = 2 * p.d.kv_heads * kBlockTokens, value = p.d.kv_heads * kBlockTokens, head = w.kv_head * kBlockTokens;
  const auto look_up = [&](int block) { return block >= w.first_block ? static_cast<int>(table[block]) * rows + head : 0; };
  int row = look_up(w.last_block);
  for (int block = w.last_block; block >= w.first_block; --block, ++number) {
    const int next = look_up(block - 1), stage = number % C::kStages;
    uint8_t* tile = s.blocks + stage * C::kStageBytes;
    ptx::barrier_wait(&s.empty[stage], parity<C::kStages>(number) ^ 1);
    ptx::barrier_expect(&s.full[stage], C::kStageBytes);
    ptx::tensor_load_2d(tile, cache, 0, row, &s.full[stage]);
    ptx::tensor_load_2d(tile + kTileBytes, cache, 0, row + value, &s.full[stage]);
    row = next;
  }
}

// Two E4M3 codes in the upper bytes of the halves -> bf16 pair, exact (the NaN code becomes 480).
__device__ __forceinline__ uint32_t e4m3_to_bf16(uint32_t halves) {
  return ptx::multiply_bf16x2((halves & 0x80008000u) | ((halves >> 4) & 0x07F007F0u), 0x7B807B80u);  // 2^120: E4M3's bias is 7, bf16's 127
}

// E4M3 cache: the whole warpgroup. A thread brings its pieces of 16 codes through a ring of its own with asynchronous copies,
// kAhead blocks ahead, and converts them. Rows that must not be used become zeros here.
template <class C>
struct Converter {
  static constexpr int kAhead = C::kCodeStages;
  const Params& p;
  const Work& w;
  uint8_t* codes;  // this thread's 16 bytes of each row of pieces
  const uint32_t* table;
  int coming, ahead = 0;  // the next block to be started, and how many were
  uint32_t entry = 0;     // its id

  __device__ Converter(const Params& params, const Work& work, const Shared<C>& s)
      : p(params), w(work), codes(s.codes + threadIdx.x * 16), table(table_of(params, work)), coming(work.last_block) {
    look_up();
#pragma unroll 1
    for (int i = 0; i < kAhead; ++i) start();
  }
  __device__ __forceinline__ void look_up() {
    if (coming >= w.first_block) entry = table[coming];
  }
  // One group of copies, also past the end, so that groups count blocks.
  __device__ __forceinline__ void start() {
    if (coming >= w.first_block) {
      const size_t head = static_cast<size_t>(kBlockTokens) * kHeadDim;
      const uint8_t* source = at<uint8_t>(p.a.kv) + (static_cast<size_t>(entry) * 2 * p.d.kv_heads + w.kv_head) * head + threadIdx.x * 16;
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // keys and values, rows threadIdx.x / 4 and + 32
        const bool valid = coming * kBlockTokens + static_cast<int>(threadIdx.x / 4) + i % 2 * 32 < w.kv_len;
        ptx::copy_async<16>(codes + ahead % kAhead * C::kCodeBytes + i * 2048, source + i / 2 * p.d.kv_heads * head + i % 2 * 2048, valid);
      }
    }
    ptx::copy_async_commit();
    ++ahead, --coming;
    look_up();
  }
  // Converts the oldest block into `tile`, and starts another.
  __device__ __forceinline__ void convert(uint8_t* tile) {
    ptx::copy_async_wait<kAhead - 1>();
    const uint8_t* source = codes + ahead % kAhead * C::kCodeBytes;
    const int piece = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 v = ptx::load_shared(source + i * 2048);
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
      const int r = threadIdx.x / 4 + 32 * (i % 2);
#pragma unroll
      for (int h = 0; h < 2; ++h)
        *reinterpret_cast<uint4*>(tile + i / 2 * kTileBytes + r * 128 + (((2 * piece + h) ^ (r & 7)) * 16)) =
            make_uint4(e4m3_to_bf16(__byte_perm(words[2 * h], 0, 0x1404)), e4m3_to_bf16(__byte_perm(words[2 * h], 0, 0x3424)),
                       e4m3_to_bf16(__byte_perm(words[2 * h + 1], 0, 0x1404)), e4m3_to_bf16(__byte_perm(words[2 * h + 1], 0, 0x3424)));
    }
    start();
  }
};

template <class C>
__device__ __forceinline__ void convert_cache(const Params& p, const Work& w, const Shared<C>& s, uint32_t& number) {
  Converter<C> converter(p, w, s);
#pragma unroll 1
  for (int i = blocks_of(w); i > 0; --i, ++number) {
    const int stage = number % C::kStages;
    ptx::barrier_wait(&s.empty[stage], parity<C::kStages>(number) ^ 1);
    converter.convert(s.blocks + stage * C::kStageBytes);
    ptx::proxy_fence();
    __syncwarp();
    ptx::barrier_arrive_if(&s.full[stage], threadIdx.x % 32 == 0);
  }
}

template <class C>
__device__ __forceinline__ void produce(const Params& p, const CUtensorMap* queries, const CUtensorMap* cache, const Shared<C>& s) {
  if (!C::kFp8 && threadIdx.x) return;
  const uint32_t total = s.starts[p.a.sequences] * p.d.kv_heads, query_bytes = p.positions * p.group * 128;
  uint32_t number = 0, index = blockIdx.x;
  for (uint32_t tile = 0;; ++tile) {
    const uint32_t slot = tile % 2;
    if (threadIdx.x == 0) {
      Work w = {};
      if (index < total) w = find(p, s.starts, index);
      ptx::barrier_wait(&s.query_empty[slot], parity<2>(tile) ^ 1);
      s.work[tile % 4] = w;
      if (w.positions) {
        ptx::barrier_expect(&s.query_full[slot], query_bytes);
        ptx::tensor_load_3d(s.queries + slot * C::kQueryBytes, queries, 0, w.kv_head * p.group, w.first_query, &s.query_full[slot]);
      } else {
        ptx::barrier_arrive(&s.query_full[slot]);
      }
      index = p.counter ? gridDim.x + atomicAdd(p.counter, 1u) : total;
    }
    if constexpr (C::kFp8) {
      __syncwarp();
      ptx::named_sync(kProducers, 128);
    }
    const Work& w = s.work[tile % 4];
    if (!w.positions) return;
    if constexpr (C::kFp8) convert_cache<C>(p, w, s, number);
    else copy_cache<C>(p, w, cache, s, number);
  }
}

}  // namespace gossamer::prefill
