// archs: 100a
// COMPILED, NEVER RUN: the inner loop of the grouped experts on Blackwell's tensor cores, which multiply MXFP4 by MXFP8 themselves, scales and
// all. Written after the PTX ISA and checked by the compiler alone; no backend offers it.
//
// A block multiplies 128 rows of an expert's weights (A) by up to 128 of its tokens (B). Sums lie in tensor memory: lane = row of weights,
// column = token. Warps 0-3 bring operands to shared memory and at the end take the sums out; one thread of warp 4 starts the products.
#include "gossamer/blackwell.h"
#include "gossamer/launch.cuh"
#include "gossamer/ptx/sm100.cuh"

namespace gossamer::blackwell {
namespace {

constexpr int kRows = 128, kTokens = 128, kK = 128, kStages = 4;
constexpr int kProducers = 128, kThreads = kProducers + 32;
constexpr int kBlock = 32, kSteps = kK / kBlock;  // a product instruction takes one block of 32 columns

// Shared memory of a stage. A and B: rows of 128 bytes, swizzled: 16-byte piece p of row r lies at place p ^ (r % 8). E2M1 codes lie sixteen to
// a piece, in its first eight bytes, as kind::mxf8f6f4 wants them.
constexpr int kRowBytes = 128, kGroupBytes = 8 * kRowBytes;
constexpr int kABytes = kRows * kRowBytes, kBBytes = kTokens * kRowBytes;
// Scales of 128 rows and four blocks: row r, block b at byte r % 32 * 16 + r / 32 * 4 + b.
constexpr int kScaleBytes = 512;
constexpr int kStageBytes = kABytes + kBBytes + 2 * kScaleBytes;
constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // the base is brought to 1024
static_assert(kStageBytes % 1024 == 0 && kSharedBytes <= kMaxSharedBytes);

// Tensor memory: columns of sums, then of each stage's scales, four and four.
constexpr uint32_t kScaleColumns = kTokens, kColumns = 256;
static_assert(kScaleColumns + kStages * 8 <= kColumns);

struct Barriers {
  uint64_t full[kStages], empty[kStages], done;
};

__device__ __forceinline__ uint32_t piece(uint32_t base, uint32_t row, uint32_t at) { return base + row * kRowBytes + ((at ^ (row & 7)) * 16); }

// Starts the copies of one stage. A thread has one row of weights and one token.
__device__ __forceinline__ void copy_stage(const GossamerScaledProductArgs& a, const GossamerScaledTile& tile, uint32_t row0, uint32_t k0, uint32_t stage) {
  const uint32_t r = threadIdx.x, blocks = a.k / kBlock, first = k0 / kBlock;
  const uint32_t row = row0 + r;
  const bool live_row = row < a.rows, live_token = r < tile.count;
  const size_t weight = static_cast<size_t>(tile.expert) * a.rows + (live_row ? row : 0), token = tile.first + (live_token ? r : 0);
  const uint8_t* codes = static_cast<const uint8_t*>(a.codes) + weight * (a.k / 2);
  const uint8_t* x = static_cast<const uint8_t*>(a.x) + token * a.k;
#pragma unroll
  for (uint32_t p = 0; p < kRowBytes / 16; ++p) {
    // Piece p is columns 16 p and on, of E2M1 and of E4M3 alike.
    const uint32_t column = k0 + 16 * p;
    const bool inside = column < a.k;
    ptx::copy_async_or_zero<8>(piece(stage, r, p), codes + (inside ? column / 2 : 0), live_row && inside);
    ptx::copy_async_or_zero<16>(piece(stage + kABytes, r, p), x + (inside ? column : 0), live_token && inside);
  }
  // Scales of four blocks are one word where they all exist; a factor of zero (2^-127) for what is outside is as good as any: its codes are 0.
  uint32_t of_row = 0, of_token = 0;
  const uint8_t* row_scales = static_cast<const uint8_t*>(a.scales) + weight * blocks;
  const uint8_t* token_scales = static_cast<const uint8_t*>(a.x_scales) + token * blocks;
#pragma unroll
  for (uint32_t b = 0; b < kSteps; ++b) {
    if (first + b >= blocks) continue;
    if (live_row) of_row |= static_cast<uint32_t>(row_scales[first + b]) << (8 * b);
    if (live_token) of_token |= static_cast<uint32_t>(token_scales[first + b]) << (8 * b);
  }
  const uint32_t at = stage + kABytes + kBBytes + r % 32 * 16 + r / 32 * 4;
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(of_row) : "memory");
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at + kScaleBytes), "r"(of_token) : "memory");
  ptx::copy_async_commit();
}

__device__ __forceinline__ void produce(const GossamerScaledProductArgs& a, const GossamerScaledTile& tile, uint32_t row0, uint32_t base, Barriers& bars) {
  const uint32_t stages = (a.k + kK - 1) / kK;
  constexpr uint32_t kAhead = kStages - 1;  // copies under way
  for (uint32_t i = 0; i < stages + kAhead; ++i) {
    if (i < stages) {
      const uint32_t slot = i % kStages;
      ptx::barrier_wait(&bars.empty[slot], (i / kStages & 1) ^ 1);
      copy_stage(a, tile, row0, i * kK, base + slot * kStageBytes);
    } else {
      ptx::copy_async_commit();  // an empty group, so that the count below holds
    }
    if (i < kAhead) continue;
    ptx::copy_async_wait<static_cast<int>(kAhead)>();
    ptx::proxy_fence();
    ptx::barrier_arrive(&bars.full[(i - kAhead) % kStages]);
  }
}

// One thread. Copies of scales and products of one thread run in the order in which it starts them.
__device__ __forceinline__ void multiply(uint32_t k, uint32_t base, uint32_t sums, Barriers& bars) {
  constexpr uint32_t kInstruction = ptx::block_scaled_instruction(ptx::kE2m1, ptx::kE4m3, kTokens);
  const uint32_t stages = (k + kK - 1) / kK;
  for (uint32_t i = 0; i < stages; ++i) {
    const uint32_t slot = i % kStages, stage = base + slot * kStageBytes;
    ptx::barrier_wait(&bars.full[slot], i / kStages & 1);
    ptx::tensor_fence_after();
    const uint32_t of_a = sums + kScaleColumns + slot * 8, of_b = of_a + 4;
    ptx::tensor_copy_scales(of_a, ptx::matrix_descriptor(stage + kABytes + kBBytes, 128, 0));
    ptx::tensor_copy_scales(of_b, ptx::matrix_descriptor(stage + kABytes + kBBytes + kScaleBytes, 128, 0));
    const uint64_t a = ptx::matrix_descriptor(stage, kGroupBytes, 2), b = ptx::matrix_descriptor(stage + kABytes, kGroupBytes, 2);
#pragma unroll
    for (uint32_t step = 0; step < kSteps; ++step) {
      // 32 columns are two pieces: 32 bytes on inside the swizzled row, two in the descriptor's units.
      ptx::block_scaled_mma(sums, a + 2 * step, b + 2 * step, ptx::with_scales(kInstruction, step), of_a, of_b, i > 0 || step > 0);
    }
    ptx::tensor_commit(&bars.empty[slot]);
  }
  ptx::tensor_commit(&bars.done);
}

// A thread has one row of weights and walks over the tokens.
__device__ __forceinline__ void take_out(const GossamerScaledProductArgs& a, const GossamerScaledTile& tile, uint32_t row0, uint32_t sums) {
  const uint32_t row = row0 + threadIdx.x;
  const bool live = row < a.rows;
  const float bias = live ? __bfloat162float(static_cast<const __nv_bfloat16*>(a.bias)[static_cast<size_t>(tile.expert) * a.rows + row]) : 0.f;
  const uint32_t lanes = sums + ((threadIdx.x / 32 * 32) << 16);  // lane in the upper half of an address
  for (uint32_t t = 0; t < tile.count; t += 8) {
    uint32_t v[8];
    ptx::tensor_memory_load8(v, lanes + t);
    ptx::tensor_memory_load_wait();
#pragma unroll
    for (uint32_t j = 0; j < 8; ++j)
      if (live && t + j < tile.count)
        static_cast<__nv_bfloat16*>(a.out)[static_cast<size_t>(tile.first + t + j) * a.rows + row] = __float2bfloat16(__uint_as_float(v[j]) + bias);
  }
}

__global__ void __launch_bounds__(kThreads, 1) scaled_product_kernel(const __grid_constant__ GossamerScaledProductArgs a) {
  __shared__ Barriers bars;
  __shared__ uint32_t tensor_memory;
  const uint32_t base = (ptx::shared_address(ptx::dynamic_shared()) + 1023) / 1024 * 1024, warp = threadIdx.x / 32, row0 = blockIdx.x * kRows;
  const GossamerScaledTile tile = a.tiles[blockIdx.y];
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) ptx::barrier_init(&bars.full[i], kProducers), ptx::barrier_init(&bars.empty[i], 1);
    ptx::barrier_init(&bars.done, 1);
    ptx::barrier_init_fence();
  }
  if (warp == 4) ptx::tensor_memory_take(&tensor_memory, kColumns);
  ptx::tensor_fence_before();
  __syncthreads();
  ptx::tensor_fence_after();
  const uint32_t sums = tensor_memory;
  if (warp < 4) {
    produce(a, tile, row0, base, bars);
    ptx::barrier_wait(&bars.done, 0);
    ptx::tensor_fence_after();
    take_out(a, tile, row0, sums);
    ptx::tensor_fence_before();
  } else if (threadIdx.x == kProducers) {
    multiply(a.k, base, sums, bars);
  }
  __syncthreads();
  __syncwarp();
  if (warp == 4) ptx::tensor_memory_give(sums, kColumns);
}

}  // namespace
}  // namespace gossamer::blackwell

extern "C" int gossamer_scaled_prepare(void) {
  using namespace gossamer::blackwell;
  return gossamer::allow_shared(scaled_product_kernel, kSharedBytes) ? GOSSAMER_OK : GOSSAMER_LAUNCH_FAILED;
}

extern "C" int gossamer_scaled_product(const GossamerScaledProductArgs* args, cudaStream_t stream) {
  using namespace gossamer::blackwell;
  if (!args->rows || !args->k || args->k % kBlock) return GOSSAMER_BAD_SHAPE;
  if (!args->tile_count) return GOSSAMER_OK;
  const dim3 grid((args->rows + kRows - 1) / kRows, args->tile_count);
  return gossamer::launch(scaled_product_kernel, grid, kThreads, kSharedBytes, stream, false, *args);
}
