// The producer warpgroup of the attention kernel: takes tiles of work, brings queries, keys and values.
#pragma once
#include "prefill_types.cuh"

namespace gossamer::prefill {

__device__ __forceinline__ const uint32_t* table_of(const Params& p, const Work& w) {
  // Indexed by logical block.
  return at<uint32_t>(p.a.block_tables) + static_cast<size_t>(w.sequence) * p.a.table_stride - at<uint32_t>(p.a.first_blocks)[w.sequence];
}

// bf16 cache: one thread, boxes of one block.
template <class C>
__device__ __forceinline__ void copy_cache(const Params& p, const Work& w, const CUtensorMap* cache, const Shared<C>& s, Ring<C::kStages>& ring) {
  const uint32_t* table = table_of(p, w);
  const int rows = 2 * p.d.kv_heads * kBlockTokens, value = p.d.kv_heads * kBlockTokens, head = w.kv_head * kBlockTokens;
  const int steps = steps_of(w);
  const auto lookup = [&](int block) { return block >= w.first_block ? static_cast<int>(table[block]) * rows + head : 0; };
  int upper = lookup(w.last_block), lower = lookup(w.last_block - 1);
  for (int n = 0; n < steps; ++n) {
    const int block = w.last_block - 2 * n, next_upper = lookup(block - 2), next_lower = lookup(block - 3);
    const bool both = block > w.first_block;
    const auto fill = [&](uint8_t* tiles, uint64_t* full, uint64_t* empty, int offset) {
      uint8_t* tile = tiles + ring.stage * kTileBytes;
      ptx::barrier_wait(&empty[ring.stage], ring.phase ^ 1);
      ptx::barrier_expect(&full[ring.stage], both ? kTileBytes : kTileBytes / 2);
      if (both) ptx::tensor_load_2d(tile, cache, 0, lower + offset, &full[ring.stage]);
      ptx::tensor_load_2d(tile + kTileBytes / 2, cache, 0, upper + offset, &full[ring.stage]);
    };
    fill(s.keys, s.key_full, s.key_empty, 0);
    fill(s.values, s.value_full, s.value_empty, value);
    ring.next();
    upper = next_upper, lower = next_lower;
  }
}

// Two E4M3 codes in the upper bytes of the halves -> bf16 pair, exact (the NaN code becomes 480).
__device__ __forceinline__ uint32_t e4m3_to_bf16(uint32_t halves) {
  return ptx::multiply_bf16x2((halves & 0x80008000u) | ((halves >> 4) & 0x07F007F0u), 0x7B807B80u);  // 2^120: E4M3's bias is 7, bf16's 127
}

// E4M3 cache: the whole warpgroup. A thread brings its pieces of 16 codes through a ring of its own with asynchronous copies,
// kAhead tiles ahead, and converts them. Rows that must not be used become zeros here. A unit is one tile: keys, values, keys...
template <class C>
struct Converter {
  static constexpr int kAhead = C::kCodeStages;
  const Params& p;
  const Work& w;
  uint8_t* codes;  // this thread's 16 bytes of each row of pieces
  const uint32_t* table;
  int steps, unit = 0;       // unit: the next to be started
  uint32_t entries[2] = {};  // block ids of the step that `unit` is in, lower block first

  __device__ Converter(const Params& params, const Work& work, const Shared<C>& s)
      : p(params), w(work), codes(s.codes + threadIdx.x * 16), table(table_of(params, work)), steps(steps_of(work)) {
    look_up();
#pragma unroll 1
    for (int i = 0; i < kAhead; ++i) start();
  }
  __device__ __forceinline__ int block(int n, int half) const { return w.last_block - 2 * n - 1 + half; }
  __device__ __forceinline__ void look_up() {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (const int b = block(unit / 2, half); b >= w.first_block) entries[half] = table[b];
  }
  // One group of copies, also past the end, so that groups count units.
  __device__ __forceinline__ void start() {
    const int n = unit / 2, value = unit % 2, slot = unit % kAhead;
    if (n < steps) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // rows threadIdx.x / 4 + 32 i
        const int b = block(n, i / 2), in_block = threadIdx.x / 4 + i % 2 * 32;
        const bool valid = b >= w.first_block && b * kBlockTokens + in_block < w.kv_len;
        const uint8_t* source = at<uint8_t>(p.a.kv) + ((static_cast<size_t>(entries[i / 2]) * 2 + value) * p.d.kv_heads + w.kv_head) * (kBlockTokens * kHeadDim) +
                                in_block * kHeadDim + threadIdx.x % 4 * 16;
        ptx::copy_async<16>(codes + slot * C::kCodeBytes + i * 2048, source, valid);
      }
    }
    ptx::copy_async_commit();
    ++unit;
    if (value && n + 1 < steps) look_up();
  }
  // Converts the oldest unit into `tile`, and starts another.
  __device__ __forceinline__ void convert(uint8_t* tile) {
    ptx::copy_async_wait<kAhead - 1>();
    const uint8_t* source = codes + unit % kAhead * C::kCodeBytes;
    const int piece = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 v = ptx::load_shared(source + i * 2048);
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
      const int r = threadIdx.x / 4 + 32 * i;
#pragma unroll
      for (int h = 0; h < 2; ++h)
        *reinterpret_cast<uint4*>(tile + r * 128 + (((2 * piece + h) ^ (r & 7)) * 16)) =
            make_uint4(e4m3_to_bf16(__byte_perm(words[2 * h], 0, 0x1404)), e4m3_to_bf16(__byte_perm(words[2 * h], 0, 0x3424)),
                       e4m3_to_bf16(__byte_perm(words[2 * h + 1], 0, 0x1404)), e4m3_to_bf16(__byte_perm(words[2 * h + 1], 0, 0x3424)));
    }
    start();
  }
};

template <class C>
__device__ __forceinline__ void convert_cache(const Params& p, const Work& w, const Shared<C>& s, Ring<C::kStages>& ring) {
  Converter<C> converter(p, w, s);
  const auto fill = [&](uint8_t* tiles, uint64_t* full, uint64_t* empty) {
    ptx::barrier_wait(&empty[ring.stage], ring.phase ^ 1);
    converter.convert(tiles + ring.stage * kTileBytes);
    ptx::proxy_fence();
    __syncwarp();
    ptx::barrier_arrive_if(&full[ring.stage], threadIdx.x % 32 == 0);
  };
#pragma unroll 1
  for (int n = 0; n < converter.steps; ++n) {
    fill(s.keys, s.key_full, s.key_empty);
    fill(s.values, s.value_full, s.value_empty);
    ring.next();
  }
}

template <class C>
__device__ __forceinline__ void produce(const Params& p, const CUtensorMap* queries, const CUtensorMap* cache, const Shared<C>& s) {
  if (!C::kFp8 && threadIdx.x) return;
  const uint32_t total = s.starts[p.a.sequences] * p.d.kv_heads, query_bytes = p.positions * p.group * 128;
  Ring<C::kStages> ring;
  Ring<2> slots;
  uint32_t index = blockIdx.x;
  for (;;) {
    if (threadIdx.x == 0) {
      Work w = {};
      if (index < total) w = find(p, s.starts, index);
      ptx::barrier_wait(&s.query_empty[slots.stage], slots.phase ^ 1);
      s.work[slots.stage] = w;
      if (w.positions) {
        ptx::barrier_expect(&s.query_full[slots.stage], query_bytes);
        ptx::tensor_load_3d(s.queries + slots.stage * C::kQueryBytes, queries, 0, w.kv_head * p.group, w.first_query, &s.query_full[slots.stage]);
      } else {
        ptx::barrier_arrive(&s.query_full[slots.stage]);
      }
      index = p.counter ? gridDim.x + atomicAdd(p.counter, 1u) : total;
    }
    if constexpr (C::kFp8) {
      __syncwarp();
      ptx::named_sync(kProducers, 128);
    }
    const Work& w = s.work[slots.stage];
    if (!w.positions) return;
    if constexpr (C::kFp8) convert_cache<C>(p, w, s, ring);
    else copy_cache<C>(p, w, cache, s, ring);
    slots.next();
  }
}

}  // namespace gossamer::prefill
