// Grouped product of MXFP4 weights and tokens (bf16 or E4M3) on warpgroup products: weights are the A operand, decoded in registers
// while the last product runs; tokens are the B operand, brought by the copy engine.
//
// A block makes tiles of 128 weight rows x kWidth tokens of one expert, one after the other (persistent). Warpgroup 0 produces:
// one thread fills a ring of stages, 64 columns of the tokens each, one box of the copy engine per stage (several small boxes or
// bulk copies cost it more than their bytes). Warpgroups 1 and 2 consume: each warp owns a strip of 16 weight rows and brings its
// codes through a ring of its own with asynchronous copies, so that nothing but its own counter orders them.
//
// One kernel per width (two in one function exceed what the assembler keeps in registers). The widths of one product depend on
// nothing of each other: each lets the next one's blocks start where its own have left the multiprocessor.
//
// E4M3 weights: an E4M3 number holds E2M1 x 2^(6 + s - m) exactly while the block's scale s is at most 14 below the row's largest, m
// (what is smaller is below 2^-14 of the row's largest weight). The row's 2^(m - 133) goes on the sum. A table of the eight
// magnitudes per distance m - s makes the conversion one PRMT for four codes; its subnormal entries are exact too.
//
// Order of K for E4M3: a fragment register wants four neighbouring columns, and a lane of `mxfp4-sm90-v1` holds columns 2t, 2t+1,
// 2t+8, 2t+9 of a k16 step. A product does not care for the order of K as long as both operands agree, so the tokens are written
// in the order of `place_of` instead.
//
// Shared memory: [stages][kWidth tokens][64 columns] swizzled | table of magnitudes (E4M3) | epilogue, a buffer per consumer
// warpgroup | a word per token for each of them | [warps][kAhead] tiles of weights | barriers.
#pragma once
#include <cuda.h>

#include <utility>

#include "gossamer/launch.cuh"
#include "gossamer/mxfp4.cuh"
#include "gossamer/ptx/sm90.cuh"
#include "gossamer/ptx/tma.cuh"
#include "gossamer/ptx/wgmma.cuh"
#include "gossamer/ring.cuh"
#include "plan.cuh"

namespace gossamer::grouped {
namespace {

constexpr int kRows = 128, kK = 64, kThreads = 384;
constexpr int kAhead = 8;             // tiles of weights that a warp reads ahead
constexpr int kPitch = 72;  // elements per token in the epilogue buffer: 144 bytes, 16-byte aligned, banks spread

template <bool kFp8, int kWidth>
struct Shape {
  // Narrow tiles wait for their own decoding (490 cycles a step where two warps a scheduler could issue in 300): two blocks share a
  // multiprocessor there. NOTES: what `setmaxnreg` hands out may not exceed the launch's registers, or the consumers wait for ever.
  static constexpr int kBlocks = kWidth <= (kFp8 ? 96 : 80) ? 2 : 1;  // a bf16 tile of 96 would exceed 104 registers
  static constexpr int kProducerRegisters = kBlocks == 2 ? 24 : 40, kConsumerRegisters = kBlocks == 2 ? 104 : 232;
  static constexpr int kLaunchRegisters = 65536 / (kBlocks * kThreads) / 8 * 8;
  static_assert(kProducerRegisters + 2 * kConsumerRegisters <= 3 * kLaunchRegisters, "setmaxnreg may not ask for more than the block has");
  static constexpr int kRoom = kMaxSharedBytes / kBlocks - (kBlocks - 1) * 1024;  // the system takes 1 KB of each block's
  static constexpr int kStageBytes = kWidth * kK * (kFp8 ? 1 : 2), kTableBytes = kFp8 ? 2048 : 0;
  static constexpr int kChunk = kWidth < 128 ? kWidth : 128;  // tokens that the epilogue takes at a time
  static constexpr int kEpilogueBytes = kChunk * kPitch * 2, kWeightBytes = 8 * kAhead * mxfp4::kTileBytes;
  static constexpr int kSideBytes = kWidth * 4;
  static constexpr int kFixed = kTableBytes + 2 * (kEpilogueBytes + kSideBytes) + kWeightBytes + 1024 + 256;
  static constexpr int kStages = (kRoom - kFixed) / kStageBytes < 8 ? (kRoom - kFixed) / kStageBytes : 8;
  static constexpr int kSharedBytes = kStages * kStageBytes + kFixed;
  static_assert(kStageBytes % 1024 == 0, "stages keep the swizzle's alignment");
  static_assert(kStages >= 4 && kSharedBytes <= kRoom && 2 * kStages * 8 <= 256);
  static_assert(kEpilogueBytes % 16 == 0 && kChunk % 8 == 0 && kWidth % 8 == 0 && kWidth <= 2 * kChunk);
};

struct Product {
  const uint8_t* weights;
  const bf16* bias;  // [experts, rows], checkpoint order
  const TokenTile* tiles;
  const uint32_t* tile_count;
  const uint32_t* pairs;
  void* out;  // E4M3 for gate_up of E4M3 tokens, else bf16
  const uint8_t* maxima;      // E4M3: [experts, rows] largest scale of a row, in the layout's row order
  const float* token_scales;  // E4M3 gate_up: per row of the sorted order
  uint32_t rows, k_tiles, row_tiles, out_columns;
  float limit, alpha;
};

// One word of four scales and four words of codes -> the A fragments of four k16 steps.
__device__ __forceinline__ void decode(const uint4& codes, uint32_t scales, uint32_t (&a)[4][4]) {
  const uint32_t biased = scales + mxfp4::kScaleBias;
  const uint32_t s[4] = {mxfp4::scale_pair<0>(biased), mxfp4::scale_pair<1>(biased), mxfp4::scale_pair<2>(biased), mxfp4::scale_pair<3>(biased)};
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    mxfp4::codes_to_bf16(words[step], a[step]);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      a[step][r] = ptx::multiply_bf16x2(a[step][r], s[(r & 1) * 2 + step / 2]);
    }
  }
}

// 2^(m - 133) for a row whose largest scale is m.
__device__ __forceinline__ float row_scale(uint32_t m) { return __uint_as_float((m > 6 ? m - 6 : 0) << 23); }

// --- E4M3 ----------------------------------------------------------------------------------------------------------------
// Byte b of entry d: E2M1 magnitude b times 2^(6 - d), exact while d <= 14. Filled by the whole block.
__device__ __forceinline__ void fill_table(uint8_t* table) {
  for (int i = threadIdx.x; i < 2048; i += kThreads) {
    const int code = i % 8, magnitude2 = code < 4 ? code : code < 6 ? 2 * code - 4 : 4 * code - 16;  // twice the magnitude: 0 1 2 3 4 6 8 12
    table[i] = __nv_cvt_float_to_fp8(ldexpf(static_cast<float>(magnitude2), 5 - i / 8), __NV_SATFINITE, __NV_E4M3);
  }
}

// Four codes of a row: magnitudes in the nibbles of bytes 0 and 2 of `u`.
__device__ __forceinline__ uint32_t magnitudes(uint32_t u, const uint2& table) { return ptx::pick_bytes(table.x, table.y, ptx::pick_bytes(u, 0, 0x4420)); }

// The A fragments of two k32 steps. `distances`: row maximum minus scale, a byte per (row, block of 32) as in the layout.
__device__ __forceinline__ void decode_e4m3(const uint4& codes, uint32_t distances, uint32_t table, uint32_t (&a)[2][4]) {
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const uint2 low = ptx::load_shared_pair(table + __byte_perm(distances, 0, 0x4440 + step) * 8);
    const uint2 high = ptx::load_shared_pair(table + __byte_perm(distances, 0, 0x4442 + step) * 8);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t w = words[step * 2 + i];
      // Bytes 0..3: columns 2t + 8, 2t, 2t + 9, 2t + 1 of the k16 step.
      const uint32_t below = magnitudes(ptx::merge_bits(w & 0x00070007u, w >> 2, 0x00700070u), low);
      a[step][2 * i] = ptx::merge_bits(ptx::merge_bits(below, w, 0x80008000u), w >> 7, 0x00800080u);
      const uint32_t above = magnitudes(ptx::merge_bits((w >> 9) & 0x00070007u, w << 1, 0x00700070u), high);
      a[step][2 * i + 1] = ptx::merge_bits(ptx::merge_bits(above, w << 3, 0x80008000u), w >> 6, 0x00800080u);
    }
  }
}

// A warp's own ring of weight tiles, seen by one lane: a tile is 32 pieces of 16 bytes of codes and two of scales, which lanes 0
// and 1 bring, each right behind its codes' address.
struct Weights {
  uint8_t *codes, *scales;  // this lane's codes, and its row's scales, in the first slot
  uint32_t lane;

  __device__ Weights(uint8_t* slots, uint32_t lane_number)
      : codes(slots + lane_number * 16), scales(slots + mxfp4::kCodeBytes + lane_number / 4 * 4), lane(lane_number) {}
  // This lane's first byte of the strip that its warp owns in a tile of the product; a row past the end repeats the last strip.
  __device__ const uint8_t* strip_of(const Product& p, uint32_t expert, uint32_t row_tile, int warp) const {
    const uint32_t strips = p.rows / 16, strip = min(row_tile * (kRows / 16) + warp, strips - 1);
    return p.weights + (static_cast<size_t>(expert) * strips + strip) * p.k_tiles * mxfp4::kTileBytes + lane * 16;
  }
  // Starts the copy of a tile into the slot at `offset`, or of nothing; one group either way, so that groups count tiles.
  __device__ void start(const uint8_t* source, uint32_t offset, bool valid) const {
    ptx::copy_async<16>(codes + offset, source, valid);
    ptx::copy_async_if(lane < 2, codes + offset + mxfp4::kCodeBytes, source + mxfp4::kCodeBytes, valid);
    ptx::copy_async_commit();
  }
  __device__ void start_all(const uint8_t* strip, uint32_t k_tiles) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) start(strip + i * mxfp4::kTileBytes, i * mxfp4::kTileBytes, i < k_tiles);
  }
};
static_assert(kAhead % 2 == 0, "two steps of the loop take neighbouring slots");

// One tile of the product. `next` is the strip of the tile after it, whose first weights are started before the epilogue.
template <bool kFp8, bool kGateUp, int kWidth>
__device__ __forceinline__ void tile_product(const Product& p, const TokenTile& tile, uint32_t row_tile, const Weights& weights, const uint8_t* own,
                                             const uint8_t* next, const uint8_t* stages, uint32_t table, uint8_t* buffer, uint32_t* side, uint64_t* full, uint64_t* empty,
                                             Ring<Shape<kFp8, kWidth>::kStages>& ring) {
  using S = Shape<kFp8, kWidth>;
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread & 31, g = lane / 4, t = lane % 4, group = threadIdx.x / 128 - 1;
  constexpr int kSteps = kFp8 ? 2 : 4;  // products per stage
  float sums[kWidth / 2];
  uint32_t a[2][kSteps][4];
  const uint32_t strips = p.rows / 16, strip = min(row_tile * (kRows / 16) + group * 4 + warp, strips - 1);
  uint32_t max0 = 0, max1 = 0;  // largest scales of rows g and g + 8
  if constexpr (kFp8) {
    const uint8_t* maxima = p.maxima + static_cast<size_t>(tile.expert) * p.rows + strip * 16;
    max0 = maxima[g], max1 = maxima[g + 8];
  }
  const uint32_t references = max0 * 0x0101u + max1 * 0x01010000u;
  // What the epilogue needs is asked for here: there each load would be waited for.
  const bf16* bias = p.bias + static_cast<size_t>(tile.expert) * p.rows + strip * 16;
  const float b0 = __bfloat162float(bias[kGateUp ? 2 * g : g]), b1 = __bfloat162float(bias[kGateUp ? 2 * g + 1 : g + 8]);
  // Per token: the scale of a quantised one, or the row of the output.
  constexpr bool kNeedsSide = kFp8 || !kGateUp;
  constexpr int kSides = (kWidth + 127) / 128;
  uint32_t sides[kSides];
#pragma unroll
  for (int i = 0; i < kSides; ++i) {
    const uint32_t token = thread + i * 128;
    if (kNeedsSide && token < tile.count) sides[i] = kGateUp ? __float_as_uint(p.token_scales[tile.first + token]) : p.pairs[tile.first + token];
    else sides[i] = 0;
  }

  // NOTES: the assembler keeps products in flight only if no branch stands between two of them and each A fragment has registers
  // of its own; so the loop body is straight, two steps long, and leaves an odd step to the code after it.
  const uint8_t* source = own + kAhead * mxfp4::kTileBytes;
  uint32_t offset = 0;  // of the slot in turn
  uint64_t* previous = empty;
  const auto multiply = [&](uint32_t (&fragment)[kSteps][4], uint32_t k, uint32_t slot) {
    ptx::copy_async_wait<kAhead - 1>();
    __syncwarp();
    const uint4 codes = ptx::load_shared(weights.codes + offset + slot * mxfp4::kTileBytes);
    const uint32_t scales = ptx::load_shared_word(weights.scales + offset + slot * mxfp4::kTileBytes);
    __syncwarp();
    weights.start(source + slot * mxfp4::kTileBytes, offset + slot * mxfp4::kTileBytes, k + kAhead < p.k_tiles);
    if constexpr (kFp8) decode_e4m3(codes, references - scales, table, fragment);
    else decode(codes, scales, fragment);
    ptx::barrier_wait(&full[ring.stage], ring.phase);
    const uint32_t tokens = ptx::shared_address(stages + ring.stage * S::kStageBytes);
    const uint64_t b = kFp8 ? ptx::wgmma_descriptor_64(tokens) : ptx::wgmma_descriptor(tokens);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {  // a step is 32 bytes of a token in either type
      if constexpr (kFp8) ptx::Wgmma<kWidth>::e4m3(sums, fragment[step], b + step * 2, step != 0 || k != 0);
      else ptx::Wgmma<kWidth>::bf16(sums, fragment[step], b + step * 2, step != 0 || k != 0);
    }
    ptx::wgmma_commit();
  };
  // Hands back the stage before, whose product is done.
  const auto release_previous = [&](bool any) {
    ptx::barrier_arrive_if(previous, any && lane == 0);
    previous = &empty[ring.stage];
  };
  uint32_t k = 0;
  for (; k + 2 <= p.k_tiles; k += 2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      multiply(a[i], k + i, i);
      ptx::wgmma_wait<1>();
      release_previous(i > 0 || k > 0);
      ring.next();
    }
    source += 2 * mxfp4::kTileBytes;
    offset = offset == (kAhead - 2) * mxfp4::kTileBytes ? 0 : offset + 2 * mxfp4::kTileBytes;
  }
  ptx::wgmma_wait<0>();
  release_previous(k > 0);
  if (k < p.k_tiles) {
    multiply(a[0], k, 0);
    ptx::wgmma_wait<0>();
    previous = &empty[ring.stage];
    ring.next();
    release_previous(true);
  }
  __syncwarp();
  if (next) weights.start_all(next, p.k_tiles);

  // Epilogue: rows g and g + 8 of the strip. gate_up: gate and up of one column; down: two columns.
  constexpr bool kFp8Out = kFp8 && kGateUp;
  constexpr int kColumns = kGateUp ? 32 : 64;  // output columns of this warpgroup, in pieces of 16 bytes
  constexpr int kElement = kFp8Out ? 1 : 2, kPieces = kColumns * kElement / 16, kPitchBytes = kFp8Out ? 48 : kPitch * 2;
  const float fixed = kGateUp ? 1.f : 1.f / kInnerScale, scale0 = row_scale(max0) * fixed, scale1 = row_scale(max1) * fixed;  // E4M3
  if constexpr (kNeedsSide) {
#pragma unroll
    for (int i = 0; i < kSides; ++i)
      if (thread + i * 128 < kWidth) side[thread + i * 128] = sides[i];
    if constexpr (kGateUp) ptx::named_sync(1 + group, 128);
  }
  const uint32_t column = row_tile * (2 * kColumns) + group * kColumns + thread % kPieces * (16 / kElement);
  // NOTES: the chunk is a compile-time constant, or the sums would move to local memory.
  const auto store = [&](auto constant) {
    constexpr int kFirst = decltype(constant)::value, kLast = kFirst + S::kChunk < kWidth ? kFirst + S::kChunk : kWidth;
#pragma unroll
    for (int j = kFirst / 8; j < kLast / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int token = j * 8 - kFirst + t * 2 + e;
        uint8_t* line = buffer + token * kPitchBytes;
        float v0 = sums[j * 4 + e], v1 = sums[j * 4 + 2 + e];
        if constexpr (kFp8) {
          const float of_token = kGateUp ? __uint_as_float(side[kFirst + token]) : 1.f;
          v0 *= scale0 * of_token, v1 *= scale1 * of_token;
        }
        v0 += b0, v1 += b1;
        if constexpr (kGateUp) {
          v0 = fminf(v0, p.limit);
          v1 = fminf(fmaxf(v1, -p.limit), p.limit);
          const float inner = (v1 + 1.f) * v0 * __fdividef(1.f, 1.f + __expf(-p.alpha * v0));
          if constexpr (kFp8Out) line[warp / 2 * 16 + place_of(warp % 2 * 8 + g)] = __nv_cvt_float_to_fp8(inner * kInnerScale, __NV_SATFINITE, __NV_E4M3);
          else reinterpret_cast<bf16*>(line)[warp * 8 + g] = __float2bfloat16(inner);
        } else {
          reinterpret_cast<bf16*>(line)[warp * 16 + g] = __float2bfloat16(v0);
          reinterpret_cast<bf16*>(line)[warp * 16 + g + 8] = __float2bfloat16(v1);
        }
      }
    ptx::named_sync(1 + group, 128);
    if (column < p.out_columns)
      for (uint32_t token = thread / kPieces; token < kLast - kFirst && kFirst + token < tile.count; token += 128 / kPieces) {
        const size_t row = kGateUp ? tile.first + kFirst + token : side[kFirst + token];
        *reinterpret_cast<uint4*>(static_cast<uint8_t*>(p.out) + (row * p.out_columns + column) * kElement) =
            *reinterpret_cast<const uint4*>(buffer + token * kPitchBytes + thread % kPieces * 16);
      }
    ptx::named_sync(1 + group, 128);
  };
  store(std::integral_constant<int, 0>{});
  if constexpr (kWidth > S::kChunk) store(std::integral_constant<int, S::kChunk>{});
}

template <bool kFp8, bool kGateUp, int kWidth>
__global__ void __launch_bounds__(kThreads, Shape<kFp8, kWidth>::kBlocks) product_kernel(const __grid_constant__ CUtensorMap tokens, const __grid_constant__ Product p) {
  using S = Shape<kFp8, kWidth>;
  uint8_t* stages = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(ptx::dynamic_shared()) + 1023) & ~static_cast<uintptr_t>(1023));
  uint8_t* table = stages + S::kStages * S::kStageBytes;
  uint8_t* epilogue = table + S::kTableBytes;
  uint8_t* sides = epilogue + 2 * S::kEpilogueBytes;
  uint8_t* slots = sides + 2 * S::kSideBytes;
  uint64_t* full = reinterpret_cast<uint64_t*>(slots + S::kWeightBytes);
  uint64_t* empty = full + S::kStages;
  // The first kernel of a product starts when its inputs are complete, and the others only after it has started: no wait here.
  ptx::launch_dependents();
  const uint32_t total = *p.tile_count * p.row_tiles;
  if (blockIdx.x >= total) return;
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) ptx::barrier_init(&full[i], 1), ptx::barrier_init(&empty[i], 8);
    ptx::barrier_init_fence();
  }
  if constexpr (kFp8) fill_table(table);
  __syncthreads();
  Ring<S::kStages> ring;
  if (threadIdx.x < 128) {
    ptx::give_registers<S::kProducerRegisters>();
    if (threadIdx.x == 0) {
      ptx::tensor_prefetch_map(&tokens);
      for (uint32_t i = blockIdx.x; i < total; i += gridDim.x) {
        const uint32_t first = p.tiles[i / p.row_tiles].first;
        for (uint32_t k = 0; k < p.k_tiles; ++k) {
          ptx::barrier_wait(&empty[ring.stage], ring.phase ^ 1);
          ptx::barrier_expect(&full[ring.stage], S::kStageBytes);
          ptx::tensor_load_2d(stages + ring.stage * S::kStageBytes, &tokens, k * kK, first, &full[ring.stage]);
          ring.next();
        }
      }
    }
  } else {
    ptx::take_registers<S::kConsumerRegisters>();
    const int group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 - 4;
    uint8_t* buffer = epilogue + group * S::kEpilogueBytes;
    uint32_t* side = reinterpret_cast<uint32_t*>(sides + group * S::kSideBytes);
    const Weights weights(slots + warp * kAhead * mxfp4::kTileBytes, threadIdx.x & 31);
    const auto strip_of = [&](uint32_t i) { return weights.strip_of(p, p.tiles[i / p.row_tiles].expert, i % p.row_tiles, warp); };
    const uint8_t* own = strip_of(blockIdx.x);
    weights.start_all(own, p.k_tiles);
    for (uint32_t i = blockIdx.x; i < total; i += gridDim.x) {
      const uint8_t* next = i + gridDim.x < total ? strip_of(i + gridDim.x) : nullptr;
      tile_product<kFp8, kGateUp, kWidth>(p, p.tiles[i / p.row_tiles], i % p.row_tiles, weights, own, next, stages, ptx::shared_address(table), buffer, side,
                                          full, empty, ring);
      own = next;
    }
  }
}

template <bool kFp8, bool kGateUp, int kClass>
int width(const Product& product, const Plan& plan, const void* tokens, uint64_t rows, uint32_t k, cudaStream_t stream) {
  constexpr int kWidth = width_of(kClass);
  CUtensorMap map;
  if (!ptx::make_tensor_map(&map, kFp8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kFp8 ? 1 : 2, tokens, rows, k, kWidth, kFp8 ? kK : 2 * kK))
    return GOSSAMER_BAD_SHAPE;
  Product p = product;
  p.tiles = plan.tiles + kClass * plan.tiles_per_class;
  p.tile_count = plan.tile_counts + kClass;
  const bool first = kClass == kClasses - 1;
  using S = Shape<kFp8, kWidth>;
  return launch(product_kernel<kFp8, kGateUp, kWidth>, multiprocessors() * S::kBlocks, kThreads, S::kSharedBytes, stream, !first, map, p);
}

// Widths from the widest down, as far as there are enough tokens for one.
template <bool kFp8, bool kGateUp, int... kClass>
int widths(std::integer_sequence<int, kClass...>, const Product& p, const Plan& plan, const void* tokens, uint64_t rows, uint32_t k, cudaStream_t stream) {
  int status = GOSSAMER_OK;
  (void)((status = width<kFp8, kGateUp, static_cast<int>(kClasses) - 1 - kClass>(p, plan, tokens, rows, k, stream), status == GOSSAMER_OK) && ...);
  return status;
}
using Classes = std::make_integer_sequence<int, static_cast<int>(kClasses)>;

template <bool kFp8, bool kGateUp>
int product(const GossamerExpertsDesc& d, const GossamerExpertsArgs& a, const Plan& plan, cudaStream_t stream) {
  const GossamerExpertWeights& w = kGateUp ? a.gate_up : a.down;
  const uint32_t k = kGateUp ? d.hidden : d.intermediate, rows = kGateUp ? 2 * d.intermediate : d.hidden;
  const Product p = {
      reinterpret_cast<const uint8_t*>(w.data),
      reinterpret_cast<const bf16*>(w.bias),
      nullptr,
      nullptr,
      plan.pairs,
      kGateUp ? plan.inner : reinterpret_cast<void*>(a.out),
      kGateUp ? plan.gate_up_maxima : plan.down_maxima,
      plan.token_scales,
      rows,
      static_cast<uint32_t>(mxfp4::tiles_of(k)),
      (rows + kRows - 1) / kRows,
      kGateUp ? d.intermediate : d.hidden,
      d.limit,
      d.alpha,
  };
  return widths<kFp8, kGateUp>(Classes{}, p, plan, kGateUp ? plan.x : plan.inner, static_cast<uint64_t>(a.tokens) * d.top_k, k, stream);
}

template <bool kFp8, bool kGateUp, int... kClass>
bool allow(std::integer_sequence<int, kClass...>) {
  return (allow_shared(product_kernel<kFp8, kGateUp, width_of(kClass)>, Shape<kFp8, width_of(kClass)>::kSharedBytes) && ...);
}

}  // namespace
}  // namespace gossamer::grouped
