// archs: 90a
// Grouped product of MXFP4 weights and bf16 tokens on warpgroup products: weights are the A operand, decoded in registers while
// the last product runs; tokens are the B operand, brought by the copy engine.
//
// A block makes tiles of 128 weight rows x kWidth tokens of one expert, one after the other (persistent). Warpgroup 0 produces:
// one thread fills a ring of stages, 64 columns of the tokens each, one box of the copy engine per stage (several small boxes or
// bulk copies cost it more than their bytes). Warpgroups 1 and 2 consume: each warp owns a strip of 16 weight rows and brings its
// codes through a ring of its own with asynchronous copies, so that nothing but its own counter orders them.
//
// One kernel per width (two in one function exceed what the assembler keeps in registers). The widths of one product depend on
// nothing of each other: each lets the next one's blocks start where its own have left the multiprocessor.
//
// Shared memory: [stages][kWidth tokens][128 bytes] swizzled | epilogue, a buffer per consumer warpgroup | [warps][kAhead] tiles of
// weights | barriers.
#include <cuda.h>

#include <utility>

#include "gossamer/launch.cuh"
#include "gossamer/mxfp4.cuh"
#include "gossamer/ptx/sm90.cuh"
#include "gossamer/ptx/tma.cuh"
#include "gossamer/ptx/wgmma.cuh"
#include "plan.cuh"

namespace gossamer::grouped {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kRows = 128, kK = 64, kThreads = 384;
constexpr int kAhead = 8;             // tiles of weights that a warp reads ahead
constexpr int kPitch = 72;  // elements per token in the epilogue buffer: 144 bytes, 16-byte aligned, banks spread

template <int kWidth>
struct Shape {
  // Narrow tiles leave a warp waiting for its own decoding: a second block on the multiprocessor fills in.
  static constexpr int kBlocks = kWidth <= 80 ? 2 : 1, kProducerRegisters = kBlocks == 2 ? 24 : 40, kConsumerRegisters = kBlocks == 2 ? 112 : 232;
  static constexpr int kRoom = kMaxSharedBytes / kBlocks - (kBlocks - 1) * 1024;  // the system takes 1 KB of each block's
  static constexpr int kStageBytes = kWidth * 128;
  static constexpr int kChunk = kWidth < 128 ? kWidth : 128;  // tokens that the epilogue takes at a time
  static constexpr int kEpilogueBytes = kChunk * kPitch * 2, kWeightBytes = 8 * kAhead * mxfp4::kTileBytes;
  static constexpr int kFixed = 2 * kEpilogueBytes + kWeightBytes + 1024 + 256;
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
  bf16* out;
  uint32_t rows, k_tiles, row_tiles, out_columns;
  float limit, alpha;
};

template <int kStages>
struct Ring {
  uint32_t stage = 0, phase = 0;
  __device__ void next() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
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
      const uint32_t scale = s[(r & 1) * 2 + step / 2];
      asm("mul.bf16x2 %0, %0, %1;" : "+r"(a[step][r]) : "r"(scale));
    }
  }
}

// A warp's own ring of weight tiles.
struct Weights {
  uint8_t* slots;
  int lane;

  // First byte of the strip that this warp owns in a tile of the product; a row past the end repeats the last strip.
  static __device__ const uint8_t* strip_of(const Product& p, uint32_t expert, uint32_t row_tile, int warp) {
    const uint32_t strips = p.rows / 16, strip = min(row_tile * (kRows / 16) + warp, strips - 1);
    return p.weights + (static_cast<size_t>(expert) * strips + strip) * p.k_tiles * mxfp4::kTileBytes;
  }
  // Starts the copy of tile `k`, or of nothing past the end; one group either way, so that groups count tiles.
  __device__ void start(const uint8_t* strip, uint32_t k, uint32_t slot, uint32_t k_tiles) const {
    const bool valid = k < k_tiles;
    const uint8_t* source = strip + (valid ? k : 0) * mxfp4::kTileBytes;
    uint8_t* target = slots + slot * mxfp4::kTileBytes;
    ptx::copy_async<16>(target + lane * 16, source + lane * 16, valid);
    // Lanes 0 and 1 bring the scales.
    ptx::copy_async_if(lane < 2, target + mxfp4::kCodeBytes + (lane & 1) * 16, source + mxfp4::kCodeBytes + (lane & 1) * 16, valid);
    ptx::copy_async_commit();
  }
  __device__ void start_all(const uint8_t* strip, uint32_t k_tiles) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) start(strip, i, i, k_tiles);
  }
};

// One tile of the product. `next` is the strip of the tile after it, whose first weights are started before the epilogue.
template <bool kGateUp, int kWidth>
__device__ __forceinline__ void tile_product(const Product& p, const TokenTile& tile, uint32_t row_tile, const Weights& weights, const uint8_t* own,
                                             const uint8_t* next, const uint8_t* stages, bf16* buffer, uint64_t* full, uint64_t* empty,
                                             Ring<Shape<kWidth>::kStages>& ring) {
  using S = Shape<kWidth>;
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread & 31, g = lane / 4, t = lane % 4, group = threadIdx.x / 128 - 1;
  float sums[kWidth / 2];
  uint32_t a[2][4][4];

  // NOTES: the assembler keeps products in flight only if no branch stands between two of them and each A fragment has registers
  // of its own; so the loop body is straight, two steps long, and leaves an odd step to the code after it.
  const auto multiply = [&](uint32_t (&fragment)[4][4], uint32_t k) {
    ptx::copy_async_wait<kAhead - 1>();
    __syncwarp();
    const uint8_t* slot = weights.slots + k % kAhead * mxfp4::kTileBytes;
    const uint4 codes = ptx::load_shared(slot + lane * 16);
    const uint32_t scales = ptx::load_shared_word(slot + mxfp4::kCodeBytes + g * 4);
    __syncwarp();
    weights.start(own, k + kAhead, k % kAhead, p.k_tiles);
    decode(codes, scales, fragment);
    ptx::barrier_wait(&full[ring.stage], ring.phase);
    const uint64_t b = ptx::wgmma_descriptor(ptx::shared_address(stages + ring.stage * S::kStageBytes));
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) ptx::Wgmma<kWidth>::bf16(sums, fragment[step], b + step * 2, k + step != 0);
    ptx::wgmma_commit();
  };
  const auto release_previous = [&](bool any) {
    ptx::barrier_arrive_if(&empty[ring.stage ? ring.stage - 1 : S::kStages - 1], any && lane == 0);
  };
  uint32_t k = 0;
  for (; k + 2 <= p.k_tiles; k += 2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      multiply(a[i], k + i);
      ptx::wgmma_wait<1>();
      release_previous(k + i > 0);
      ring.next();
    }
  }
  ptx::wgmma_wait<0>();
  release_previous(k > 0);
  if (k < p.k_tiles) {
    multiply(a[0], k);
    ptx::wgmma_wait<0>();
    ring.next();
    release_previous(true);
  }
  __syncwarp();
  if (next) weights.start_all(next, p.k_tiles);

  // Epilogue: rows g and g + 8 of the strip. gate_up: gate and up of one column; down: two columns.
  const uint32_t strips = p.rows / 16, strip = min(row_tile * (kRows / 16) + group * 4 + warp, strips - 1);
  const bf16* bias = p.bias + static_cast<size_t>(tile.expert) * p.rows + strip * 16;
  constexpr int kColumns = kGateUp ? 32 : 64, kPieces = kColumns / 8;  // output columns of this warpgroup, in pieces of 16 bytes
  const float b0 = __bfloat162float(bias[kGateUp ? 2 * g : g]), b1 = __bfloat162float(bias[kGateUp ? 2 * g + 1 : g + 8]);
  const uint32_t column = row_tile * (2 * kColumns) + group * kColumns + thread % kPieces * 8;
  // NOTES: the chunk is a compile-time constant, or the sums would move to local memory.
  const auto store = [&](auto constant) {
    constexpr int kFirst = decltype(constant)::value, kLast = kFirst + S::kChunk < kWidth ? kFirst + S::kChunk : kWidth;
#pragma unroll
    for (int j = kFirst / 8; j < kLast / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int token = j * 8 - kFirst + t * 2 + e;
        float v0 = sums[j * 4 + e] + b0, v1 = sums[j * 4 + 2 + e] + b1;
        if constexpr (kGateUp) {
          v0 = fminf(v0, p.limit);
          v1 = fminf(fmaxf(v1, -p.limit), p.limit);
          buffer[token * kPitch + warp * 8 + g] = __float2bfloat16((v1 + 1.f) * v0 * __fdividef(1.f, 1.f + __expf(-p.alpha * v0)));
        } else {
          buffer[token * kPitch + warp * 16 + g] = __float2bfloat16(v0);
          buffer[token * kPitch + warp * 16 + g + 8] = __float2bfloat16(v1);
        }
      }
    ptx::named_sync(1 + group, 128);
    if (column < p.out_columns)
      for (uint32_t token = thread / kPieces; token < kLast - kFirst && kFirst + token < tile.count; token += 128 / kPieces) {
        const size_t row = kGateUp ? tile.first + kFirst + token : p.pairs[tile.first + kFirst + token];
        *reinterpret_cast<uint4*>(p.out + row * p.out_columns + column) = *reinterpret_cast<const uint4*>(&buffer[token * kPitch + thread % kPieces * 8]);
      }
    ptx::named_sync(1 + group, 128);
  };
  store(std::integral_constant<int, 0>{});
  if constexpr (kWidth > S::kChunk) store(std::integral_constant<int, S::kChunk>{});
}

template <bool kGateUp, int kWidth>
__global__ void __launch_bounds__(kThreads, Shape<kWidth>::kBlocks) product_kernel(const __grid_constant__ CUtensorMap tokens, const __grid_constant__ Product p) {
  using S = Shape<kWidth>;
  extern __shared__ uint8_t raw[];
  uint8_t* stages = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~static_cast<uintptr_t>(1023));
  bf16* epilogue = reinterpret_cast<bf16*>(stages + S::kStages * S::kStageBytes);
  uint8_t* slots = stages + S::kStages * S::kStageBytes + 2 * S::kEpilogueBytes;
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
  __syncthreads();
  Ring<S::kStages> ring;
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::kProducerRegisters));
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
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kConsumerRegisters));
    const int group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 - 4;
    bf16* buffer = epilogue + group * S::kChunk * kPitch;
    const Weights weights = {slots + warp * kAhead * mxfp4::kTileBytes, static_cast<int>(threadIdx.x & 31)};
    const auto strip_of = [&](uint32_t i) { return Weights::strip_of(p, p.tiles[i / p.row_tiles].expert, i % p.row_tiles, warp); };
    const uint8_t* own = strip_of(blockIdx.x);
    weights.start_all(own, p.k_tiles);
    for (uint32_t i = blockIdx.x; i < total; i += gridDim.x) {
      const uint8_t* next = i + gridDim.x < total ? strip_of(i + gridDim.x) : nullptr;
      tile_product<kGateUp, kWidth>(p, p.tiles[i / p.row_tiles], i % p.row_tiles, weights, own, next, stages, buffer, full, empty, ring);
      own = next;
    }
  }
}

size_t aligned(size_t bytes) { return (bytes + 1023) / 1024 * 1024; }

Plan carve(const GossamerExpertsDesc& d, uint32_t tokens, void* workspace, size_t* bytes) {
  const size_t pairs = static_cast<size_t>(tokens) * d.top_k;
  uint8_t* p = static_cast<uint8_t*>(workspace);
  size_t used = 0;
  const auto take = [&](size_t n) {
    uint8_t* here = p + used;
    used += aligned(n);
    return here;
  };
  Plan plan;
  plan.total = reinterpret_cast<uint32_t*>(take(4));
  plan.tile_counts = reinterpret_cast<uint32_t*>(take(kClasses * 4));
  plan.tiles_per_class = most_tiles(d, tokens);
  plan.tiles = reinterpret_cast<TokenTile*>(take(kClasses * plan.tiles_per_class * sizeof(TokenTile)));
  plan.pairs = reinterpret_cast<uint32_t*>(take(pairs * 4));
  plan.x = reinterpret_cast<bf16*>(take(pairs * d.hidden * 2));
  plan.inner = reinterpret_cast<bf16*>(take(pairs * d.intermediate * 2));
  if (bytes) *bytes = used;
  return plan;
}

template <bool kGateUp, int kClass>
int width(const Product& product, const Plan& plan, const void* tokens, uint64_t rows, uint32_t k, cudaStream_t stream) {
  constexpr int kWidth = width_of(kClass);
  CUtensorMap map;
  if (!ptx::make_tensor_map(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, tokens, rows, k, kWidth)) return GOSSAMER_BAD_SHAPE;
  Product p = product;
  p.tiles = plan.tiles + kClass * plan.tiles_per_class;
  p.tile_count = plan.tile_counts + kClass;
  const bool first = kClass == kClasses - 1;
  return launch(product_kernel<kGateUp, kWidth>, multiprocessors() * Shape<kWidth>::kBlocks, kThreads, Shape<kWidth>::kSharedBytes, stream, !first, map, p);
}

// Widths from the widest down, as far as there are enough tokens for one.
template <bool kGateUp, int... kClass>
int widths(std::integer_sequence<int, kClass...>, const Product& p, const Plan& plan, const void* tokens, uint64_t rows, uint32_t k, cudaStream_t stream) {
  int status = GOSSAMER_OK;
  (void)((status = width<kGateUp, static_cast<int>(kClasses) - 1 - kClass>(p, plan, tokens, rows, k, stream), status == GOSSAMER_OK) && ...);
  return status;
}
using Classes = std::make_integer_sequence<int, static_cast<int>(kClasses)>;

template <bool kGateUp>
int product(const GossamerExpertsDesc& d, const GossamerExpertsArgs& a, const Plan& plan, cudaStream_t stream) {
  const GossamerExpertWeights& w = kGateUp ? a.gate_up : a.down;
  const uint32_t k = kGateUp ? d.hidden : d.intermediate, rows = kGateUp ? 2 * d.intermediate : d.hidden;
  const Product p = {
      reinterpret_cast<const uint8_t*>(w.data),
      reinterpret_cast<const bf16*>(w.bias),
      nullptr,
      nullptr,
      plan.pairs,
      kGateUp ? plan.inner : reinterpret_cast<bf16*>(a.out),
      rows,
      static_cast<uint32_t>(mxfp4::tiles_of(k)),
      (rows + kRows - 1) / kRows,
      kGateUp ? d.intermediate : d.hidden,
      d.limit,
      d.alpha,
  };
  return widths<kGateUp>(Classes{}, p, plan, kGateUp ? plan.x : plan.inner, static_cast<uint64_t>(a.tokens) * d.top_k, k, stream);
}

template <bool kGateUp, int... kClass>
bool prepare(std::integer_sequence<int, kClass...>) {
  return (allow_shared(product_kernel<kGateUp, width_of(kClass)>, Shape<width_of(kClass)>::kSharedBytes) && ...);
}

}  // namespace
}  // namespace gossamer::grouped

extern "C" size_t gossamer_grouped_workspace(const GossamerExpertsDesc* d, unsigned tokens, int) {
  size_t bytes;
  gossamer::grouped::carve(*d, tokens, nullptr, &bytes);
  return bytes;
}

extern "C" int gossamer_grouped_experts(const GossamerExpertsDesc* d, const GossamerExpertsArgs* a, int tactic, void* workspace, size_t workspace_bytes,
                                        cudaStream_t stream) {
  using namespace gossamer::grouped;
  if (tactic != GOSSAMER_GROUPED_BF16) return GOSSAMER_BAD_TACTIC;
  if (d->hidden % 32 || d->intermediate % 32 || d->local_experts > kMaxExperts || d->activation != GOSSAMER_BF16) return GOSSAMER_BAD_SHAPE;
  if (!a->tokens) return GOSSAMER_OK;
  size_t needed;
  const Plan plan = carve(*d, a->tokens, workspace, &needed);
  if (workspace_bytes < needed) return GOSSAMER_BAD_SHAPE;
  plan_kernel<<<1, 1024, 0, stream>>>(*d, *a, plan);
  gather_kernel<<<a->tokens * d->top_k, 128, 0, stream>>>(*d, *a, plan);
  if (cudaGetLastError() != cudaSuccess) return GOSSAMER_LAUNCH_FAILED;
  if (const int status = product<true>(*d, *a, plan, stream)) return status;
  return product<false>(*d, *a, plan, stream);
}

extern "C" int gossamer_grouped_prepare(void) {
  using namespace gossamer::grouped;
  return prepare<true>(Classes{}) && prepare<false>(Classes{}) ? GOSSAMER_OK : GOSSAMER_LAUNCH_FAILED;
}
