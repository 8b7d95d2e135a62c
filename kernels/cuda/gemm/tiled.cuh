// Dense bf16 product on warpgroup products: out[t, j] = x[t] . weight[j] + bias[j] (+ residual[t, j]), float sums.
//
// A block is persistent: warpgroup 0 produces (one thread brings boxes of 64 columns of tokens and weights into a ring of stages),
// warpgroups 1 and 2 consume, each with a part of the tile: 64 tokens of it where a tile has 128, else half of its features.
// Both operands come from shared memory. While a tile is written out, the ring already fills for the next.
//
// In pairs (clusters of two blocks, with tiles of neighbouring tokens), each block brings half of the weights for both: a stage is
// full when all three copies have arrived, and empty when the consumers of both blocks have left it.
//
// Weights of a block's first stages are requested before the wait for the previous grid.
// Tiles cut along K (schedule.cuh), where they are few: the parts of a tile are a cluster. Each block leaves its sums in its own
// shared memory, in the order of the threads' registers, and finishes a share of the tile's columns with what the others left. Else
// parts go to the workspace as floats, in the order of the threads' registers, so a warp needs
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

// Tokens and features of a tile; blocks that share weights.
template <int kM, int kN, int kBlocks>
struct Shape {
  static constexpr int kTokens = kM, kFeatures = kN, kCluster = kBlocks, kUnitTokens = kBlocks * kM;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232, kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static_assert(kProducerRegisters + 2 * kConsumerRegisters <= 3 * kLaunchRegisters, "setmaxnreg may not ask for more than the block has");
  static_assert(kM == 128 || kM == 64);
  static constexpr int kColumns = kM == 128 ? kN : kN / 2;  // of a consumer warpgroup
  static constexpr int kSums = kColumns / 2;
  static constexpr int kTokenBytes = kM * kK * 2, kWeightBytes = kN * kK * 2, kStageBytes = kTokenBytes + kWeightBytes;
  static constexpr int kFixed = kWarps * kBufferBytes + 2 * kColumns * 4 + 1024 + 256;
  static constexpr int kFit = (kMaxSharedBytes - kFixed) / kStageBytes, kStages = kFit < 12 ? kFit : 12;
  static constexpr int kSharedBytes = kStages * kStageBytes + kFixed;
  static constexpr size_t kPartBytes = static_cast<size_t>(kM) * kN * 4;
  // Bytes from a stage to a consumer warpgroup's operands.
  static constexpr int kTokenOffset = kM == 128 ? 64 * kK * 2 : 0, kWeightOffset = kM == 128 ? 0 : kColumns * kK * 2;
  static_assert(kConsumers * kSums * 4 <= kStages * kStageBytes, "the ring holds a cut tile's sums");
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
  int cluster;  // the parts of a tile are a cluster
  int float_out, vectors;  // vectors: out and residual can be moved in 16-byte pieces, segments in 128-byte chunks
};
struct Maps {
  CUtensorMap tokens, weights[3];
};

// Where a tile lies: first token, segment, first feature in it.
struct Place {
  uint32_t token, segment, feature;
};
template <class S>
__device__ __forceinline__ Place place_of(const Product& p, uint32_t tile, uint32_t rank) {
  uint32_t row, column;
  p.schedule.place(tile, row, column);
  const uint32_t segment = column >= p.first_tile[2] ? 2 : column >= p.first_tile[1] ? 1 : 0;
  return {row * S::kUnitTokens + rank * S::kTokens, segment, (column - p.first_tile[segment]) * S::kFeatures};
}

template <class S>
__device__ __forceinline__ void produce(const Maps& maps, const Product& p, uint8_t* stages, uint64_t* full, uint64_t* empty, uint32_t block, uint32_t rank) {
  const auto tokens = [&](const Place& at, uint32_t k, uint32_t stage) {
    ptx::tensor_load_2d(stages + stage * S::kStageBytes, &maps.tokens, k * kK, at.token, &full[stage]);
  };
  const auto weights = [&](const Place& at, uint32_t k, uint32_t stage) {
    ptx::barrier_expect(&full[stage], S::kStageBytes);
    uint8_t* to = stages + stage * S::kStageBytes + S::kTokenBytes;
    constexpr int kHalf = S::kFeatures / 2;
    if constexpr (S::kCluster == 1) ptx::tensor_load_2d(to, &maps.weights[at.segment], k * kK, at.feature, &full[stage]);
    else ptx::tensor_load_2d_multicast(to + rank * kHalf * kK * 2, &maps.weights[at.segment], k * kK, at.feature + rank * kHalf, &full[stage], 3);
  };
  Ring<S::kStages> ring;
  Walk walk(p.schedule, block);
  Piece piece;
  for (bool first = true; walk.next(p.schedule, piece); first = false) {
    const Place at = place_of<S>(p, piece.tile, rank);
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
template <class S>
__device__ __forceinline__ void collect(const Product& p, uint32_t block, uint32_t rank, int thread, float (&sums)[S::kSums]) {
  const int warp = thread / 32, lane = thread & 31;
  const uint32_t number = (block + (lane + 1) * p.schedule.cut_tiles) * S::kCluster + rank;
  const bool waits = lane + 1u < p.schedule.parts;
  if (waits) ptx::wait_for_bits(p.flags + number, 1u << warp);
  __syncwarp();
  if (waits) ptx::clear_bits(p.flags + number, 1u << warp);
  for (uint32_t other = 1; other < p.schedule.parts; ++other) {
    const uint32_t from = (block + other * p.schedule.cut_tiles) * S::kCluster + rank;
    const float4* part = p.parts + static_cast<size_t>(from) * (kConsumers * S::kSums / 4) + thread;
#pragma unroll
    for (int i = 0; i < S::kSums / 4; ++i) {
      const float4 v = ptx::load_past_l1(part + i * kConsumers);
      sums[4 * i] += v.x, sums[4 * i + 1] += v.y, sums[4 * i + 2] += v.z, sums[4 * i + 3] += v.w;
    }
  }
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  uint32_t word;
  memcpy(&word, &v, 4);
  return word;
}

// Writes a warp's 16 tokens x kColumns features through its buffer: 128 bytes of each token at a time, 16-byte pieces exchanged by
// the row's number, so that neither side meets in a bank. The residual comes the same way, two chunks ahead.
// Only for rows that can be moved in whole pieces: a chunk lies in the segment or outside of it.
template <class T, int kColumns>
struct Writer {
  static constexpr int kWidth = kColumns * sizeof(T) < 128 ? kColumns : 128 / static_cast<int>(sizeof(T)), kChunks = kColumns / kWidth;
  static constexpr int kElements = 16 / sizeof(T), kPieces = kWidth / kElements, kRows = 32 / kPieces, kTurns = 16 / kRows;
  static_assert(kColumns % kWidth == 0 && 32 % kPieces == 0);
  uint4 residual[2][kTurns];

  // What this lane moves between memory and the buffer.
  static __device__ size_t offset(const Product& p, const Place& at) {
    const int lane = threadIdx.x & 31;
    return static_cast<size_t>(at.token + lane / kPieces) * p.columns + p.first_column[at.segment] + at.feature + lane % kPieces * kElements;
  }
  static __device__ int rows(const Product& p, const Place& at) { return static_cast<int>(p.tokens) - static_cast<int>(at.token) - (threadIdx.x & 31) / kPieces; }
  static __device__ bool inside(const Product& p, const Place& at, int chunk) { return chunk < kChunks && at.feature + chunk * kWidth < p.features[at.segment]; }

  // NOTES: every entry is written, or the registers would be held through the products before.
  __device__ void fetch(const Product& p, const Place& at, int chunk) {
    const T* from = static_cast<const T*>(p.residual) + offset(p, at) + chunk * kWidth;
    const int left = inside(p, at, chunk) ? rows(p, at) : 0;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      residual[chunk & 1][turn] = make_uint4(0, 0, 0, 0);
      if (turn * kRows < left) residual[chunk & 1][turn] = *reinterpret_cast<const uint4*>(from + static_cast<size_t>(turn * kRows) * p.columns);
    }
  }

  template <bool kResidual>
  __device__ void write(const Product& p, const Place& at, const float (&sums)[kColumns / 2], const float* bias, uint8_t* buffer) {
    const int lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
    T* out = static_cast<T*>(p.out) + offset(p, at);
    const int left = rows(p, at);
    const auto place = [&](int turn) {
      const int row = turn * kRows + lane / kPieces;
      return buffer + row * 128 + (((lane % kPieces) ^ (row & 7)) << 4);
    };
    if constexpr (kResidual && kChunks > 1) fetch(p, at, 1);
    const int row = lane % 16;  // that this lane names for matrices
    const uint32_t matrices = ptx::shared_address(buffer) + row * 128 + (((lane / 16) ^ (row & 7)) << 4);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (!inside(p, at, chunk)) break;
      if constexpr (kResidual) {
#pragma unroll
        for (int turn = 0; turn < kTurns; ++turn) *reinterpret_cast<uint4*>(place(turn)) = residual[chunk & 1][turn];
        __syncwarp();
        if (chunk + 2 < kChunks) fetch(p, at, chunk + 2);
      }
      const auto value = [&](int j, int half) {
        const float2 b = *reinterpret_cast<const float2*>(bias + chunk * kWidth + j * 8 + 2 * t);
        const int i = (chunk * kWidth + j * 8) / 2 + 2 * half;
        return make_float2(sums[i] + b.x, sums[i + 1] + b.y);
      };
      if constexpr (sizeof(T) == 2) {
#pragma unroll
        for (int j = 0; j < kWidth / 8; j += 2) {
          uint32_t words[4];
          if constexpr (kResidual) ptx::load_matrix_x4(words, matrices ^ (j << 4));
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float2 v = value(j + i / 2, i % 2);
            if constexpr (kResidual) v.x += __uint_as_float(words[i] << 16), v.y += __uint_as_float(words[i] & 0xFFFF0000u);
            words[i] = pack(v.x, v.y);
          }
          ptx::store_matrix_x4(matrices ^ (j << 4), words);
        }
      } else {
#pragma unroll
        for (int j = 0; j < kWidth / 8; ++j)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float2* to = reinterpret_cast<float2*>(buffer + (g + 8 * half) * 128 + (((j * 2 + t / 2) ^ g) << 4) + t % 2 * 8);
            float2 v = value(j, half);
            if constexpr (kResidual) v.x += to->x, v.y += to->y;
            *to = v;
          }
      }
      __syncwarp();
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn)
        if (turn * kRows < left) *reinterpret_cast<uint4*>(out + static_cast<size_t>(turn * kRows) * p.columns + chunk * kWidth) = *reinterpret_cast<const uint4*>(place(turn));
      __syncwarp();
    }
  }
};

// The same, element by element, for any number of features and any alignment.
template <class T, int kColumns>
__device__ __forceinline__ void write_elements(const Product& p, const Place& at, const float (&sums)[kColumns / 2], const float* bias) {
  const int lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) {
    const uint32_t column = i / 4 * 8 + 2 * t + i % 2, token = at.token + g + i % 4 / 2 * 8;
    if (token >= p.tokens || at.feature + column >= p.features[at.segment]) continue;
    const size_t to = static_cast<size_t>(token) * p.columns + p.first_column[at.segment] + at.feature + column;
    float v = sums[i] + bias[column];
    if constexpr (sizeof(T) == 2) {
      if (p.residual) v += __bfloat162float(static_cast<const bf16*>(p.residual)[to]);
      static_cast<bf16*>(p.out)[to] = __float2bfloat16(v);
    } else {
      if (p.residual) v += static_cast<const float*>(p.residual)[to];
      static_cast<float*>(p.out)[to] = v;
    }
  }
}

// Finishes this block's share of a cut tile: 16 columns at a time. All blocks of the cluster come here; `ring` is free by then.
// Sums are added in order of K.
template <class S>
__device__ __forceinline__ void finish_share(const Product& p, const Place& at, int thread, const float (&sums)[S::kSums], const float* bias, float4* ring, uint8_t* buffer) {
  constexpr uint32_t kUnits = S::kColumns / 16, kMost = (kUnits + 1) / 2;  // of two parts the larger share
  const int lane = thread & 31, g = lane / 4, t = lane % 4;
  const uint32_t rank = ptx::cluster_rank(), parts = p.schedule.parts, begin = kUnits * rank / parts, end = kUnits * (rank + 1) / parts;
  ptx::named_sync(3, kConsumers);  // nobody reads the ring any more
#pragma unroll
  for (int i = 0; i < S::kSums / 4; ++i) ring[i * kConsumers + thread] = make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
  ptx::cluster_arrive();
  // What this lane moves to memory: 16 bytes of token lane / 2 of the warp's sixteen.
  const bool pieces = p.vectors && !p.float_out;
  const bool live = pieces && at.token + lane / 2 < p.tokens;
  const size_t first = static_cast<size_t>(at.token + lane / 2) * p.columns + p.first_column[at.segment] + at.feature + lane % 2 * 8;
  const auto inside = [&](uint32_t unit) { return unit < end && at.feature + unit * 16 < p.features[at.segment]; };
  uint4 residual[kMost];
#pragma unroll
  for (uint32_t i = 0; i < kMost; ++i) {
    residual[i] = make_uint4(0, 0, 0, 0);
    if (live && p.residual && inside(begin + i)) residual[i] = *reinterpret_cast<const uint4*>(static_cast<const bf16*>(p.residual) + first + (begin + i) * 16);
  }
  ptx::cluster_wait();
  // Rows of 32 bytes, their halves exchanged every four rows, so that eight rows lie in different banks.
  const auto place = [&](int row, int half) { return row * 32 + ((half ^ (row >> 2 & 1)) << 4); };
  const uint32_t matrices = ptx::shared_address(buffer) + place(lane % 16, lane / 16);
  uint4* const piece = reinterpret_cast<uint4*>(buffer + place(lane / 2, lane % 2));
  // The others' sums of the next columns are on their way while these are written: a load takes as long as from L2.
  float4 coming[Schedule::kMostParts][2];
  const auto request = [&](uint32_t unit) {
#pragma unroll
    for (uint32_t other = 0; other < Schedule::kMostParts; ++other)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (other < parts && unit < end) coming[other][half] = ptx::cluster_load(ring + (2 * unit + half) * kConsumers + thread, other);
  };
  request(begin);
#pragma unroll
  for (uint32_t i = 0; i < kMost; ++i) {
    const uint32_t unit = begin + i;
    if (!inside(unit)) break;
    float v[8] = {};
#pragma unroll
    for (uint32_t other = 0; other < Schedule::kMostParts; ++other)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4 part = coming[other][half];
        if (other < parts) v[4 * half] += part.x, v[4 * half + 1] += part.y, v[4 * half + 2] += part.z, v[4 * half + 3] += part.w;
      }
    if (i + 1 < kMost) request(unit + 1);
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] += bias[unit * 16 + j / 4 * 8 + 2 * t + j % 2];
    if (pieces) {
      uint32_t words[4] = {};
      if (p.residual) {
        *piece = residual[i];
        __syncwarp();
        ptx::load_matrix_x4(words, matrices);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) words[j] = pack(v[2 * j] + __uint_as_float(words[j] << 16), v[2 * j + 1] + __uint_as_float(words[j] & 0xFFFF0000u));
      ptx::store_matrix_x4(matrices, words);
      __syncwarp();
      if (live) *reinterpret_cast<uint4*>(static_cast<bf16*>(p.out) + first + unit * 16) = *piece;
      __syncwarp();
      continue;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t column = unit * 16 + j / 4 * 8 + 2 * t + j % 2, token = at.token + g + j % 4 / 2 * 8;
      if (token >= p.tokens || at.feature + column >= p.features[at.segment]) continue;
      const size_t to = static_cast<size_t>(token) * p.columns + p.first_column[at.segment] + at.feature + column;
      if (p.float_out) {
        static_cast<float*>(p.out)[to] = v[j] + (p.residual ? static_cast<const float*>(p.residual)[to] : 0.f);
      } else {
        static_cast<bf16*>(p.out)[to] = __float2bfloat16(v[j] + (p.residual ? __bfloat162float(static_cast<const bf16*>(p.residual)[to]) : 0.f));
      }
    }
  }
}

template <class S>
__device__ __forceinline__ void consume(const Product& p, uint8_t* stages, uint8_t* buffers, float* biases, uint64_t* full, uint64_t* empty, uint32_t block,
                                        uint32_t rank) {
  const int thread = threadIdx.x - 128, group = thread / 128, warp = thread / 32, lane = thread & 31;
  const uint32_t tokens = ptx::shared_address(stages) + group * S::kTokenOffset;
  const uint32_t weights = ptx::shared_address(stages) + S::kTokenBytes + group * S::kWeightOffset;
  uint8_t* buffer = buffers + warp * kBufferBytes;
  float* bias = biases + group * S::kColumns;
  float sums[S::kSums];
  Ring<S::kStages> ring;
  Walk walk(p.schedule, block);
  Piece piece;
  const auto release = [&](uint64_t* bar, bool condition) {
    if constexpr (S::kCluster == 1) ptx::barrier_arrive_if(bar, lane == 0 && condition);
    else ptx::cluster_arrive_if(bar, lane & 1, lane < 2 && condition);
  };
  ptx::dependency_wait();
  while (walk.next(p.schedule, piece)) {
    Place at = place_of<S>(p, piece.tile, rank);
    at.token += S::kTokens == 128 ? group * 64 : 0;
    at.feature += S::kTokens == 128 ? 0 : group * S::kColumns;
    // The bias is requested now and awaited after the products.
    uint32_t own_bias[2] = {};
    const bf16* from = p.bias[at.segment];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t c = thread % 128 + i * 128;
      if (from && (p.cluster || piece.k_begin == 0) && c < S::kColumns && at.feature + c < p.features[at.segment]) own_bias[i] = ptx::load_half(from + at.feature + c);
    }
    for (uint32_t k = piece.k_begin; k < piece.k_end; ++k) {
      ptx::barrier_wait(&full[ring.stage], ring.phase);
      const uint64_t a = ptx::wgmma_descriptor(tokens + ring.stage * S::kStageBytes), b = ptx::wgmma_descriptor(weights + ring.stage * S::kStageBytes);
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < kK / 16; ++step) ptx::Wgmma<S::kColumns>::bf16_shared(sums, a + step * 2, b + step * 2, step || k != piece.k_begin);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      release(&empty[ring.previous()], k != piece.k_begin);
      ring.next();
    }
    if constexpr (S::kCluster == 1)
      if (p.cluster) {
        at.token += warp % 4 * 16;
        ptx::wgmma_wait<0>();
        // Here the only piece of this block.
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (thread % 128 + i * 128 < S::kColumns) bias[thread % 128 + i * 128] = ptx::bf16_low(own_bias[i]);
        finish_share<S>(p, at, thread, sums, bias, reinterpret_cast<float4*>(stages), buffer);
        return;
      }
    const bool whole = p.vectors && p.residual && !p.float_out;
    Writer<bf16, S::kColumns> writer;
    at.token += warp % 4 * 16;
    if (piece.k_begin == 0 && whole) writer.fetch(p, at, 0);
    ptx::wgmma_wait<0>();
    release(&empty[ring.previous()], true);
    if (piece.k_begin) {
      const uint32_t number = block * S::kCluster + rank;
      float4* part = p.parts + static_cast<size_t>(number) * (kConsumers * S::kSums / 4) + thread;
#pragma unroll
      for (int i = 0; i < S::kSums / 4; ++i) part[i * kConsumers] = make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
      __syncwarp();
      if (lane == 0) ptx::release_bits(p.flags + number, 1u << warp);
      continue;
    }
    if (piece.k_end < p.schedule.k_tiles) collect<S>(p, block, rank, thread, sums);
    ptx::named_sync(1 + group, 128);  // all warps have written the tile before
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (thread % 128 + i * 128 < S::kColumns) bias[thread % 128 + i * 128] = ptx::bf16_low(own_bias[i]);
    ptx::named_sync(1 + group, 128);
    if (whole) {
      writer.template write<true>(p, at, sums, bias, buffer);
    } else if (!p.vectors) {
      if (p.float_out) write_elements<float, S::kColumns>(p, at, sums, bias);
      else write_elements<bf16, S::kColumns>(p, at, sums, bias);
    } else if (!p.float_out) {
      writer.template write<false>(p, at, sums, bias, buffer);
    } else {
      Writer<float, S::kColumns> wide;
      if (p.residual) {
        wide.fetch(p, at, 0);
        wide.template write<true>(p, at, sums, bias, buffer);
      } else {
        wide.template write<false>(p, at, sums, bias, buffer);
      }
    }
  }
}

template <class S>
__global__ void __launch_bounds__(kThreads, 1) tiled_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Product p) {
  uint8_t* stages = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(ptx::dynamic_shared()) + 1023) & ~static_cast<uintptr_t>(1023));
  uint8_t* buffers = stages + S::kStages * S::kStageBytes;
  float* bias = reinterpret_cast<float*>(buffers + kWarps * kBufferBytes);
  uint64_t* full = reinterpret_cast<uint64_t*>(bias + 2 * S::kColumns);
  uint64_t* empty = full + S::kStages;
  const uint32_t rank = S::kCluster == 1 ? 0 : ptx::cluster_rank();
  const uint32_t block = p.cluster ? blockIdx.x % p.schedule.parts * p.schedule.cut_tiles + blockIdx.x / p.schedule.parts : (gridDim.x - 1 - blockIdx.x) / S::kCluster;
  ptx::launch_dependents();
  if (threadIdx.x == 0) {
    ptx::tensor_prefetch_map(&maps.tokens);
    ptx::tensor_prefetch_map(&maps.weights[0]);
    for (int i = 0; i < S::kStages; ++i) ptx::barrier_init(&full[i], 1), ptx::barrier_init(&empty[i], kWarps * S::kCluster);
    ptx::barrier_init_fence();
  }
  if constexpr (S::kCluster == 1) __syncthreads();
  else ptx::cluster_sync();
  if (threadIdx.x < 128) {
    ptx::give_registers<S::kProducerRegisters>();
    if (threadIdx.x == 0) produce<S>(maps, p, stages, full, empty, block, rank);
    __syncwarp();
    if (S::kCluster == 1 && p.cluster) ptx::cluster_sync();  // with the consumers, who leave their sums
  } else {
    ptx::take_registers<S::kConsumerRegisters>();
    consume<S>(p, stages, buffers, bias, full, empty, block, rank);
  }
  if (S::kCluster > 1 || p.cluster) ptx::cluster_sync();  // no block leaves while another may still write to it or read from it
}

}  // namespace
}  // namespace gossamer::dense
