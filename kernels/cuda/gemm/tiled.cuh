// Dense bf16 product on warpgroup products: out[t, j] = x[t] . weight[j] + bias[j] (+ residual[t, j]), float sums.
//
// A block is persistent: warpgroup 0 produces (one thread brings boxes of 64 columns of tokens and weights into a ring of stages),
// warpgroups 1 and 2 consume, each with a part of the tile: 64 tokens of it where a tile has 128, else half of its features.
// Both operands come from shared memory. While a tile is written out, the ring already fills for the next.
//
// Weights of a block's first stages are requested before the wait for the previous grid.
// Tiles cut along K (schedule.cuh): parts go to the workspace as floats, in the order of the threads' registers, so a warp needs
// nothing but the same warp of other blocks; it adds them in order of K, so results repeat bitwise.
//
// Refuses: gathered rows and norms (they go before), operands off 16-byte alignment. Any token count, any number of features.
//
// Shared memory: [stages][tokens | weights] swizzled | per consumer warp: 16 rows x 128 bytes of the output | bias | barriers.
#pragma once
#include <cuda.h>

#include "gossamer/backend_ops.h"
#include "gossamer/launch.cuh"
#include "gossamer/ptx/sm90.cuh"
#include "gossamer/ptx/tma.cuh"
#include "gossamer/ptx/wgmma.cuh"
#include "gossamer/ring.cuh"
#include "schedule.cuh"

namespace gossamer::dense {
namespace {

using bf16 = __nv_bfloat16;
constexpr int kK = 64, kThreads = 384, kConsumers = 256, kWarps = 8;
constexpr int kBufferBytes = 16 * 128;

template <int kM, int kN>
struct Shape {
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232, kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static_assert(kProducerRegisters + 2 * kConsumerRegisters <= 3 * kLaunchRegisters, "setmaxnreg may not ask for more than the block has");
  static_assert(kM == 128 || kM == 64);
  static constexpr int kColumns = kM == 128 ? kN : kN / 2;  // of a consumer warpgroup
  static constexpr int kSums = kColumns / 2;
  static constexpr int kTokenBytes = kM * kK * 2, kStageBytes = kTokenBytes + kN * kK * 2;
  static constexpr int kFixed = kWarps * kBufferBytes + 2 * kColumns * 4 + 1024 + 256;
  static constexpr int kFit = (kMaxSharedBytes - kFixed) / kStageBytes, kStages = kFit < 12 ? kFit : 12;
  static constexpr int kSharedBytes = kStages * kStageBytes + kFixed;
  static constexpr size_t kPartBytes = static_cast<size_t>(kM) * kN * 4;
  // Bytes from a stage to a consumer warpgroup's operands.
  static constexpr int kTokenOffset = kM == 128 ? 64 * kK * 2 : 0, kWeightOffset = kM == 128 ? 0 : kColumns * kK * 2;
  static_assert(kStages >= 4 && kStageBytes % 1024 == 0 && 2 * kStages * 8 <= 256 && kN <= 256 && kColumns % 32 == 0);
};

struct Product {
  Schedule schedule;
  const bf16* bias[3];
  const void* residual;
  void* out;
  uint32_t* flags;  // per block, a bit per consumer warp: its part is written
  float4* parts;
  uint32_t features[3], first_tile[3], first_column[3];
  uint32_t columns, tokens;
  int float_out, vectors;  // vectors: rows of out and residual can be moved in 16-byte pieces
};
struct Maps {
  CUtensorMap tokens, weights[3];
};

// Where a tile lies: first token, segment, first feature in it.
struct Place {
  uint32_t token, segment, feature;
};
template <int kM, int kN>
__device__ __forceinline__ Place place_of(const Product& p, uint32_t tile) {
  uint32_t row, column;
  p.schedule.place(tile, row, column);
  const uint32_t segment = column >= p.first_tile[2] ? 2 : column >= p.first_tile[1] ? 1 : 0;
  return {row * kM, segment, (column - p.first_tile[segment]) * kN};
}

template <int kM, int kN>
__device__ __forceinline__ void produce(const Maps& maps, const Product& p, uint8_t* stages, uint64_t* full, uint64_t* empty, uint32_t block) {
  using S = Shape<kM, kN>;
  const auto tokens = [&](const Place& at, uint32_t k, uint32_t stage) {
    ptx::tensor_load_2d(stages + stage * S::kStageBytes, &maps.tokens, k * kK, at.token, &full[stage]);
  };
  const auto weights = [&](const Place& at, uint32_t k, uint32_t stage) {
    ptx::barrier_expect(&full[stage], S::kStageBytes);
    ptx::tensor_load_2d(stages + stage * S::kStageBytes + S::kTokenBytes, &maps.weights[at.segment], k * kK, at.feature, &full[stage]);
  };
  Ring<S::kStages> ring;
  Walk walk(p.schedule, block);
  Piece piece;
  for (bool first = true; walk.next(p.schedule, piece); first = false) {
    const Place at = place_of<kM, kN>(p, piece.tile);
    uint32_t k = piece.k_begin;
    if (first) {
      const uint32_t early = min(piece.k_end - k, static_cast<uint32_t>(S::kStages));
      for (uint32_t i = 0; i < early; ++i) weights(at, k + i, i);
      ptx::dependency_wait();
      for (uint32_t i = 0; i < early; ++i) tokens(at, k + i, i), ring.next();
      k += early;
    }
    for (; k < piece.k_end; ++k) {
      ptx::barrier_wait(&empty[ring.stage], ring.phase ^ 1);
      weights(at, k, ring.stage);
      tokens(at, k, ring.stage);
      ring.next();
    }
  }
}

// Adds the other parts of a tile, in order of K. This block made the first.
template <int kSums>
__device__ __forceinline__ void collect(const Product& p, uint32_t block, int thread, float (&sums)[kSums]) {
  const int warp = thread / 32, lane = thread & 31;
  const uint32_t number = block + (lane + 1) * p.schedule.cut_tiles;
  const bool waits = lane + 1u < p.schedule.parts;
  if (waits) ptx::wait_for_bits(p.flags + number, 1u << warp);
  __syncwarp();
  if (waits) ptx::clear_bits(p.flags + number, 1u << warp);
  for (uint32_t other = 1; other < p.schedule.parts; ++other) {
    const float4* part = p.parts + static_cast<size_t>(block + other * p.schedule.cut_tiles) * (kConsumers * kSums / 4) + thread;
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
      const float4 v = ptx::load_past_l1(part + i * kConsumers);
      sums[4 * i] += v.x, sums[4 * i + 1] += v.y, sums[4 * i + 2] += v.z, sums[4 * i + 3] += v.w;
    }
  }
}

__device__ __forceinline__ void put_pair(void* at, float2 v, bf16) { *static_cast<__nv_bfloat162*>(at) = __floats2bfloat162_rn(v.x, v.y); }
__device__ __forceinline__ void put_pair(void* at, float2 v, float) { *static_cast<float2*>(at) = v; }
__device__ __forceinline__ float2 get_pair(const void* at, bf16) { return __bfloat1622float2(*static_cast<const __nv_bfloat162*>(at)); }
__device__ __forceinline__ float2 get_pair(const void* at, float) { return *static_cast<const float2*>(at); }

// A warp's 16 tokens x kColumns features, from `feature` of the segment on, through its buffer: 128 bytes of each token at a time,
// 16-byte pieces exchanged by the row's number, so that neither side meets in a bank.
template <class T, int kColumns>
__device__ __forceinline__ void write_out(const Product& p, const Place& at, const float (&sums)[kColumns / 2], const float* bias, uint8_t* buffer) {
  constexpr int kWidth = kColumns * sizeof(T) < 128 ? kColumns : 128 / static_cast<int>(sizeof(T));  // features at a time
  constexpr int kElements = 16 / sizeof(T), kPieces = kWidth / kElements, kRows = 32 / kPieces, kTurns = 16 / kRows;
  static_assert(kColumns % kWidth == 0 && 32 % kPieces == 0);
  const int lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, own_row = lane / kPieces, own_piece = lane % kPieces;
  const uint32_t features = p.features[at.segment];
  // What this lane moves between the buffer and memory: `turn` counts rows, `chunk` features.
  const auto offset = [&](int chunk, int turn) {
    return static_cast<size_t>(at.token + turn * kRows + own_row) * p.columns + p.first_column[at.segment] + at.feature + chunk * kWidth + own_piece * kElements;
  };
  const auto count = [&](int chunk, int turn) -> int {
    const uint32_t feature = at.feature + chunk * kWidth + own_piece * kElements;
    return at.token + turn * kRows + own_row < p.tokens && feature < features ? min(features - feature, kElements) : 0;
  };
  const auto place = [&](int turn) { return buffer + (turn * kRows + own_row) * 128 + ((own_piece ^ ((turn * kRows + own_row) & 7)) << 4); };
  uint4 residual[kTurns];
  const auto fetch = [&](int chunk) {
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int n = count(chunk, turn);
      const T* from = static_cast<const T*>(p.residual) + offset(chunk, turn);
      if (n == kElements && p.vectors) {
        residual[turn] = *reinterpret_cast<const uint4*>(from);
      } else {
        T piece[kElements];
#pragma unroll
        for (int i = 0; i < kElements; ++i) piece[i] = i < n ? from[i] : T(0.f);
        memcpy(&residual[turn], static_cast<const void*>(piece), 16);
      }
    }
  };
  if (p.residual) fetch(0);
#pragma unroll
  for (int chunk = 0; chunk < kColumns / kWidth; ++chunk) {
    if (p.residual) {
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) *reinterpret_cast<uint4*>(place(turn)) = residual[turn];
      __syncwarp();
      if (chunk + 1 < kColumns / kWidth) fetch(chunk + 1);
    }
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
      const int column = chunk * kWidth + j * 8;
      const float2 b = *reinterpret_cast<const float2*>(bias + column + 2 * t);
      const int byte = (j * 8 + 2 * t) * static_cast<int>(sizeof(T));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = g + 8 * half;
        uint8_t* to = buffer + row * 128 + ((byte / 16 ^ (row & 7)) << 4) + byte % 16;
        float2 v = make_float2(sums[column / 2 + 2 * half] + b.x, sums[column / 2 + 2 * half + 1] + b.y);
        if (p.residual) {
          const float2 r = get_pair(to, T(0.f));
          v.x += r.x, v.y += r.y;
        }
        put_pair(to, v, T(0.f));
      }
    }
    __syncwarp();
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int n = count(chunk, turn);
      const uint4 v = *reinterpret_cast<const uint4*>(place(turn));
      T* to = static_cast<T*>(p.out) + offset(chunk, turn);
      if (n == kElements && p.vectors) {
        *reinterpret_cast<uint4*>(to) = v;
      } else {
        T piece[kElements];
        memcpy(static_cast<void*>(piece), &v, 16);
#pragma unroll
        for (int i = 0; i < kElements; ++i)
          if (i < n) to[i] = piece[i];
      }
    }
    __syncwarp();
  }
}

template <int kM, int kN>
__device__ __forceinline__ void consume(const Product& p, const uint8_t* stages, uint8_t* buffers, float* biases, uint64_t* full, uint64_t* empty, uint32_t block) {
  using S = Shape<kM, kN>;
  const int thread = threadIdx.x - 128, group = thread / 128, warp = thread / 32, lane = thread & 31;
  const uint32_t tokens = ptx::shared_address(stages) + group * S::kTokenOffset;
  const uint32_t weights = ptx::shared_address(stages) + S::kTokenBytes + group * S::kWeightOffset;
  uint8_t* buffer = buffers + warp * kBufferBytes;
  float* bias = biases + group * S::kColumns;
  float sums[S::kSums];
  Ring<S::kStages> ring;
  Walk walk(p.schedule, block);
  Piece piece;
  ptx::dependency_wait();
  while (walk.next(p.schedule, piece)) {
    Place at = place_of<kM, kN>(p, piece.tile);
    at.token += kM == 128 ? group * 64 : 0;
    at.feature += kM == 128 ? 0 : group * S::kColumns;
    // The bias is requested now and awaited after the products.
    uint32_t own_bias[2] = {};
    const bf16* from = p.bias[at.segment];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t c = thread % 128 + i * 128;
      if (from && piece.k_begin == 0 && c < S::kColumns && at.feature + c < p.features[at.segment]) own_bias[i] = ptx::load_half(from + at.feature + c);
    }
    for (uint32_t k = piece.k_begin; k < piece.k_end; ++k) {
      ptx::barrier_wait(&full[ring.stage], ring.phase);
      const uint64_t a = ptx::wgmma_descriptor(tokens + ring.stage * S::kStageBytes), b = ptx::wgmma_descriptor(weights + ring.stage * S::kStageBytes);
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < kK / 16; ++step) ptx::Wgmma<S::kColumns>::bf16_shared(sums, a + step * 2, b + step * 2, step || k != piece.k_begin);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::barrier_arrive_if(&empty[ring.previous()], lane == 0 && k != piece.k_begin);
      ring.next();
    }
    ptx::wgmma_wait<0>();
    ptx::barrier_arrive_if(&empty[ring.previous()], lane == 0);
    if (piece.k_begin) {
      float4* part = p.parts + static_cast<size_t>(block) * (kConsumers * S::kSums / 4) + thread;
#pragma unroll
      for (int i = 0; i < S::kSums / 4; ++i) part[i * kConsumers] = make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
      __syncwarp();
      if (lane == 0) ptx::release_bits(p.flags + block, 1u << warp);
      continue;
    }
    if (piece.k_end < p.schedule.k_tiles) collect(p, block, thread, sums);
    ptx::named_sync(1 + group, 128);  // all warps have written the tile before
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (thread % 128 + i * 128 < S::kColumns) bias[thread % 128 + i * 128] = ptx::bf16_low(own_bias[i]);
    ptx::named_sync(1 + group, 128);
    at.token += warp % 4 * 16;
    if (p.float_out) write_out<float, S::kColumns>(p, at, sums, bias, buffer);
    else write_out<bf16, S::kColumns>(p, at, sums, bias, buffer);
  }
}

template <int kM, int kN>
__global__ void __launch_bounds__(kThreads, 1) tiled_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Product p) {
  using S = Shape<kM, kN>;
  uint8_t* stages = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(ptx::dynamic_shared()) + 1023) & ~static_cast<uintptr_t>(1023));
  uint8_t* buffers = stages + S::kStages * S::kStageBytes;
  float* bias = reinterpret_cast<float*>(buffers + kWarps * kBufferBytes);
  uint64_t* full = reinterpret_cast<uint64_t*>(bias + 2 * S::kColumns);
  uint64_t* empty = full + S::kStages;
  const uint32_t block = gridDim.x - 1 - blockIdx.x;
  ptx::launch_dependents();
  if (threadIdx.x == 0) {
    ptx::tensor_prefetch_map(&maps.tokens);
    ptx::tensor_prefetch_map(&maps.weights[0]);
    for (int i = 0; i < S::kStages; ++i) ptx::barrier_init(&full[i], 1), ptx::barrier_init(&empty[i], kWarps);
    ptx::barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::give_registers<S::kProducerRegisters>();
    if (threadIdx.x == 0) produce<kM, kN>(maps, p, stages, full, empty, block);
  } else {
    ptx::take_registers<S::kConsumerRegisters>();
    consume<kM, kN>(p, stages, buffers, bias, full, empty, block);
  }
}

}  // namespace
}  // namespace gossamer::dense
