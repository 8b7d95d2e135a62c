// archs: 90a 100a
// Fused MXFP4 experts for 1..64 tokens: gate_up and down stream the weights of the touched experts at memory speed, a third
// small grid adds up the four results of each token and the residual.
//
// Work: every (group, strip) pair, where a group is one expert with at most 8 of its tokens and a strip is 16 rows of its
// matrix; the pairs are dealt to the blocks in equal runs. In a block, 12 warps form 12 / kSplit rows; the kSplit warps of a
// row share a strip along K. Each warp has its own ring of bulk copies, so no barrier stands between memory and arithmetic.
// Arithmetic: mma.m16n8k16, weights as A (codes to bf16 by masks, unscaled), tokens as B (times 2^100), block scales applied
// to the accumulators (layout note (b) in LAYOUTS.md).
// Order of sums is fixed by the shapes and the routing, never by timing: results are bitwise repeatable.
// Refuses: more than 64 tokens, hidden or intermediate above 2880 or off the multiples of 32 (rows: 16).
#include <cuda_bf16.h>

#include "gossamer/launch.cuh"
#include "gossamer/mxfp4.cuh"
#include "gossamer/ptx/sm90.cuh"
#include "route.cuh"

namespace gossamer::moe {
namespace {

constexpr int kWarps = 12;
constexpr int kThreads = 32 * kWarps;
constexpr int kMaxTiles = 45;
constexpr float kUnscale = 0x1p26f;  // 2^126 of the codes over 2^100 of the tokens

struct Workspace {  // offsets in bytes
  size_t valid, activations, partials, total;
};
__host__ __device__ inline Workspace workspace_of(int tokens, int hidden, int intermediate) {
  Workspace w;
  w.valid = 0;
  w.activations = w.valid + kMaxTokens * kTopK;
  w.partials = w.activations + (static_cast<size_t>(tokens) * kTopK * intermediate * 2 + 255) / 256 * 256;
  w.total = w.partials + static_cast<size_t>(tokens) * kTopK * hidden * 4;
  return w;
}

// Shared memory: ring [12][stages][tiles of a chunk], token columns, partial sums, routing table, barriers.
template <int kSplit, int kChunk, int kStages>
struct Shared {
  static constexpr int kRows = kWarps / kSplit;
  static constexpr int kStageBytes = kChunk * mxfp4::kTileBytes;
  static constexpr int kRing = kWarps * kStages * kStageBytes;
  static constexpr int kPartials = 2 * kRows * (kSplit - 1) * 512;
  static constexpr int kBarriers = kWarps * kStages * 8;
  static constexpr int kTable = (sizeof(RouteTable) + 15) / 16 * 16;
  static int bytes(int capacity, int tiles) { return kRing + kPartials + kTable + kBarriers + capacity * tiles * 128; }
};

// What one tile needs in registers: codes, scales, token columns. Loaded one tile ahead of its use.
struct Operands {
  uint4 codes, b0, b1;
  uint32_t scales;
  __device__ __forceinline__ void load(const uint8_t* tile, const uint4* column, int half, int lane) {
    codes = reinterpret_cast<const uint4*>(tile)[lane];
    scales = *reinterpret_cast<const uint32_t*>(tile + mxfp4::kCodeBytes + 4 * (lane >> 2));
    b0 = column[0];
    b1 = column[half];
  }
};
__device__ __forceinline__ void multiply(const Operands& o, float (&acc)[4]) {
  uint32_t a[4][4];
  float c[4], d[4];
  mxfp4::codes_to_bf16(o.codes.x, a[0]);
  mxfp4::codes_to_bf16(o.codes.y, a[1]);
  mxfp4::codes_to_bf16(o.codes.z, a[2]);
  mxfp4::codes_to_bf16(o.codes.w, a[3]);
  ptx::mma_bf16_zero(c, a[0], o.b0.x, o.b0.y);
  ptx::mma_bf16_zero(d, a[2], o.b1.x, o.b1.y);
  ptx::mma_bf16(c, a[1], o.b0.z, o.b0.w);
  ptx::mma_bf16(d, a[3], o.b1.z, o.b1.w);
  const float s0 = mxfp4::scale_float<0>(o.scales), s1 = mxfp4::scale_float<1>(o.scales);
  const float s2 = mxfp4::scale_float<2>(o.scales), s3 = mxfp4::scale_float<3>(o.scales);
  acc[0] = fmaf(c[0], s0, acc[0]);
  acc[1] = fmaf(c[1], s0, acc[1]);
  acc[2] = fmaf(c[2], s2, acc[2]);
  acc[3] = fmaf(c[3], s2, acc[3]);
  acc[0] = fmaf(d[0], s1, acc[0]);
  acc[1] = fmaf(d[1], s1, acc[1]);
  acc[2] = fmaf(d[2], s3, acc[2]);
  acc[3] = fmaf(d[3], s3, acc[3]);
}

template <bool kDown, int kSplit, int kChunk, int kStages>
__global__ void __launch_bounds__(kThreads, 2) experts_kernel(const __grid_constant__ GossamerMoeArgs p, int capacity) {
  using S = Shared<kSplit, kChunk, kStages>;
  static_assert(kWarps % kSplit == 0 && S::kStageBytes % 16 == 0);
  extern __shared__ __align__(128) uint8_t shared[];
  uint8_t* ring = shared;
  float4* partials = reinterpret_cast<float4*>(shared + S::kRing);
  RouteTable& table = *reinterpret_cast<RouteTable*>(shared + S::kRing + S::kPartials);
  uint64_t* barriers = reinterpret_cast<uint64_t*>(shared + S::kRing + S::kPartials + S::kTable);
  uint4* columns = reinterpret_cast<uint4*>(shared + S::kRing + S::kPartials + S::kTable + S::kBarriers);

  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int row = warp / kSplit, part = warp % kSplit;
  const int k = kDown ? p.intermediate : p.hidden_size;
  const int rows_out = kDown ? p.hidden_size : 2 * p.intermediate;
  const int strips = rows_out / 16, tiles = mxfp4::tiles_of(k);
  const Workspace ws = workspace_of(p.tokens, p.hidden_size, p.intermediate);
  uint8_t* const workspace = static_cast<uint8_t*>(p.workspace);
  __nv_bfloat16* const activations = reinterpret_cast<__nv_bfloat16*>(workspace + ws.activations);
  float* const sums = reinterpret_cast<float*>(workspace + ws.partials);

  uint64_t* const full = barriers + warp * kStages;
  if (lane < kStages) ptx::barrier_init(full + lane, 1);
  ptx::barrier_init_fence();
  __syncwarp();
  const uint64_t policy = ptx::evict_first_policy();

  // Invariant: gate_up says launch_dependents only after its own wait, so that the routing inputs, written before gate_up
  // began, are visible to down before down's wait.
  if (!kDown) ptx::dependency_wait();
  ptx::launch_dependents();
  route_block(table, p);

  const int total = table.groups * strips;
  const int begin = static_cast<int>(static_cast<long long>(total) * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(static_cast<long long>(total) * (blockIdx.x + 1) / gridDim.x);
  const int tile_begin = tiles * part / kSplit, tile_end = tiles * (part + 1) / kSplit;
  const int chunks_per_strip = (tile_end - tile_begin + kChunk - 1) / kChunk;

  // The copy cursor runs kStages chunks ahead of the arithmetic.
  const uint8_t* const matrix = static_cast<const uint8_t*>(kDown ? p.down : p.gate_up);
  int copy_pair = begin + row, copy_chunk = 0, copy_stage = 0;
  int copy_group = copy_pair / strips, copy_strip = copy_pair - copy_group * strips;
  auto copy_next = [&]() {
    if (copy_pair >= end || chunks_per_strip == 0) return;
    if (lane == 0) {
      const int first = tile_begin + copy_chunk * kChunk;
      const uint32_t bytes = min(kChunk, tile_end - first) * mxfp4::kTileBytes;
      const size_t tile = (static_cast<size_t>(table.group[copy_group].expert) * strips + copy_strip) * tiles + first;
      ptx::barrier_expect(full + copy_stage, bytes);
      ptx::bulk_load(ring + (warp * kStages + copy_stage) * S::kStageBytes, matrix + tile * mxfp4::kTileBytes, bytes, full + copy_stage, policy);
    }
    copy_stage = copy_stage + 1 == kStages ? 0 : copy_stage + 1;
    if (++copy_chunk == chunks_per_strip) {
      copy_chunk = 0;
      copy_pair += S::kRows;
      copy_strip += S::kRows;
      while (copy_strip >= strips) {
        copy_strip -= strips;
        ++copy_group;
      }
    }
  };
#pragma unroll
  for (int i = 0; i < kStages; ++i) copy_next();

  if (kDown) ptx::dependency_wait();

  if (kDown && blockIdx.x == 0 && threadIdx.x < p.tokens)
    reinterpret_cast<uint32_t*>(workspace + ws.valid)[threadIdx.x] = table.ids[threadIdx.x];
  int pair = begin + row, stage = 0, turn = 0;
  uint32_t parity = 0;
  const __nv_bfloat162 up100 = __float2bfloat162_rn(0x1p100f);
  int phase_begin = begin;
  while (phase_begin < end) {
    // A phase: as many whole groups as fit the token columns (in shared memory, in B-fragment order).
    const int group0 = phase_begin / strips;
    int group1 = group0, held = 0;
    while (group1 * strips < end && (group1 == group0 || held + table.group[group1].count <= capacity)) held += table.group[group1++].count;
    const int phase_end = min(end, group1 * strips);
    if (phase_begin != begin) __syncthreads();  // the previous phase has read its columns
    {
      const int vectors = tiles * 8;
      uint4* base = columns;
      for (int gi = group0; gi < group1; ++gi) {
        const int n = table.group[gi].count;
        for (int j = 0; j < n; ++j) {
          const int slot = table.group[gi].slots[j];
          const __nv_bfloat16* source = kDown ? activations + static_cast<size_t>(slot) * k
                                              : static_cast<const __nv_bfloat16*>(p.normed) + static_cast<size_t>(slot / kTopK) * k;
          for (int v = threadIdx.x; v < vectors; v += kThreads) {
            uint4 x = v * 8 < k ? __ldcg(reinterpret_cast<const uint4*>(source) + v) : make_uint4(0, 0, 0, 0);
            __nv_bfloat162* pairs = reinterpret_cast<__nv_bfloat162*>(&x);
#pragma unroll
            for (int i = 0; i < 4; ++i) pairs[i] = __hmul2(pairs[i], up100);
            // vector v = (tile, k16 step, upper or lower 8 columns); its word i belongs to lane column t = i
            const int step = (v >> 1) & 3;
            uint32_t* to = reinterpret_cast<uint32_t*>(base + (((v >> 3) * 2 + (step >> 1)) * n + j) * 4) + (step & 1) * 2 + (v & 1);
            to[0] = x.x;
            to[4] = x.y;
            to[8] = x.z;
            to[12] = x.w;
          }
        }
        base += n * tiles * 8;
      }
    }
    __syncthreads();

    const uint4* base = columns;
    int base_group = group0;
    for (; pair < phase_end; pair += S::kRows) {
      const int group = pair / strips, strip = pair - group * strips;
      while (base_group < group) base += table.group[base_group++].count * tiles * 8;
      const int n = table.group[group].count, expert = table.group[group].expert;
      const int token_lane = min(g, n - 1) * 4 + t;  // an unused column of B repeats the last token; its sums are dropped
      float bias0 = 0.f, bias1 = 0.f;
      if (part == 0) {
        if (!kDown) {
          const __nv_bfloat162 b = *reinterpret_cast<const __nv_bfloat162*>(static_cast<const __nv_bfloat16*>(p.gate_up_bias) + static_cast<size_t>(expert) * rows_out + strip * 16 + 2 * g);
          bias0 = __low2float(b);
          bias1 = __high2float(b);
        } else if (p.down_bias) {
          const __nv_bfloat16* b = static_cast<const __nv_bfloat16*>(p.down_bias) + static_cast<size_t>(expert) * rows_out + strip * 16 + g;
          bias0 = __bfloat162float(b[0]);
          bias1 = __bfloat162float(b[8]);
        }
      }
      float acc[4] = {0.f, 0.f, 0.f, 0.f};
      for (int chunk = 0; chunk < chunks_per_strip; ++chunk) {
        const int first = tile_begin + chunk * kChunk, count = min(kChunk, tile_end - first);
        const uint8_t* tile = ring + (warp * kStages + stage) * S::kStageBytes;
        const uint4* column = base + first * 8 * n + token_lane;  // (tile, half, token, t)
        ptx::barrier_wait(full + stage, parity);
        Operands o[2];
        o[0].load(tile, column, 4 * n, lane);
        if (count == kChunk) {
#pragma unroll
          for (int i = 0; i < kChunk; ++i) {
            if (i + 1 < kChunk) o[(i + 1) & 1].load(tile + (i + 1) * mxfp4::kTileBytes, column + (i + 1) * 8 * n, 4 * n, lane);
            multiply(o[i & 1], acc);
          }
        } else {
#pragma unroll 1
          for (int i = 0; i < count; ++i) {
            o[0].load(tile + i * mxfp4::kTileBytes, column + i * 8 * n, 4 * n, lane);
            multiply(o[0], acc);
          }
        }
        __syncwarp();
        copy_next();
        if (++stage == kStages) {
          stage = 0;
          parity ^= 1;
        }
      }

      // Sum over the row's warps, in the order of the parts. Two buffers: a warp is at most one strip ahead of the reader.
      if (kSplit > 1) {
        float4* buffer = partials + (turn * S::kRows + row) * (kSplit - 1) * 32;
        turn ^= 1;
        if (part) buffer[(part - 1) * 32 + lane] = make_float4(acc[0], acc[1], acc[2], acc[3]);
        ptx::named_sync(1 + row, kSplit * 32);
        if (part) continue;
#pragma unroll
        for (int i = 0; i < kSplit - 1; ++i) {
          const float4 o = buffer[i * 32 + lane];
          acc[0] += o.x;
          acc[1] += o.y;
          acc[2] += o.z;
          acc[3] += o.w;
        }
      }
      const Group& members = table.group[group];
      if (!kDown) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (2 * t + j >= n) continue;
          const float gate = fminf(fmaf(acc[j], kUnscale, bias0), p.swiglu_limit);
          const float up = fminf(fmaxf(fmaf(acc[2 + j], kUnscale, bias1), -p.swiglu_limit), p.swiglu_limit);
          const float value = (up + 1.f) * gate / (1.f + __expf(-p.swiglu_alpha * gate));
          activations[static_cast<size_t>(members.slots[2 * t + j]) * p.intermediate + strip * 8 + g] = __float2bfloat16(value);
        }
      } else {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (2 * t + j >= n) continue;
          const int slot = members.slots[2 * t + j];
          float* to = sums + static_cast<size_t>(slot) * rows_out + strip * 16 + g;
          const float weight = table.weights[slot];
          __stcg(to, weight * fmaf(acc[j], kUnscale, bias0));
          __stcg(to + 8, weight * fmaf(acc[2 + j], kUnscale, bias1));
        }
      }
    }
    phase_begin = phase_end;
  }
}

// out = residual + sum of the four weighted expert outputs, in slot order; four columns a thread.
__global__ void __launch_bounds__(256) finalize_kernel(const __grid_constant__ GossamerMoeArgs p) {
  const Workspace ws = workspace_of(p.tokens, p.hidden_size, p.intermediate);
  const int token = blockIdx.y, column = (blockIdx.x * 256 + threadIdx.x) * 4;
  ptx::launch_dependents();
  if (column >= p.hidden_size) return;
  ptx::dependency_wait();
  const uint8_t* workspace = static_cast<const uint8_t*>(p.workspace);
  const uint32_t ids = __ldcg(reinterpret_cast<const uint32_t*>(workspace + ws.valid) + token);
  const float* sums = reinterpret_cast<const float*>(workspace + ws.partials);
  float4 v[kTopK];
#pragma unroll
  for (int s = 0; s < kTopK; ++s)
    v[s] = ((ids >> (8 * s)) & 255u) != kNoExpert
               ? __ldcg(reinterpret_cast<const float4*>(sums + static_cast<size_t>(token * kTopK + s) * p.hidden_size + column))
               : make_float4(0.f, 0.f, 0.f, 0.f);
  const size_t at = static_cast<size_t>(token) * p.hidden_size + column;
  uint2 r = p.residual ? *reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(p.residual) + at) : make_uint2(0, 0);
  const float2 r0 = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162*>(&r.x)), r1 = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162*>(&r.y));
  const __nv_bfloat162 o0 = __floats2bfloat162_rn(r0.x + ((v[0].x + v[1].x) + (v[2].x + v[3].x)), r0.y + ((v[0].y + v[1].y) + (v[2].y + v[3].y)));
  const __nv_bfloat162 o1 = __floats2bfloat162_rn(r1.x + ((v[0].z + v[1].z) + (v[2].z + v[3].z)), r1.y + ((v[0].w + v[1].w) + (v[2].w + v[3].w)));
  uint2 o;
  *reinterpret_cast<__nv_bfloat162*>(&o.x) = o0;
  *reinterpret_cast<__nv_bfloat162*>(&o.y) = o1;
  *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p.output) + at) = o;
}

using Kernel = void (*)(GossamerMoeArgs, int);
struct Tactic {
  Kernel gate_up, down;
  int (*bytes)(int, int);
  int blocks;  // a multiprocessor
};
template <int kSplit, int kChunk, int kStages>
Tactic tactic(int blocks) {
  return {experts_kernel<false, kSplit, kChunk, kStages>, experts_kernel<true, kSplit, kChunk, kStages>, Shared<kSplit, kChunk, kStages>::bytes, blocks};
}
// Split along K, tiles a copy, stages of the ring; blocks a multiprocessor.
const Tactic kTactics[] = {tactic<3, 5, 3>(1), tactic<3, 5, 2>(1), tactic<6, 4, 3>(1), tactic<1, 5, 3>(1), tactic<1, 5, 4>(1), tactic<1, 3, 3>(2), tactic<3, 3, 3>(2)};
static_assert(sizeof(kTactics) / sizeof(kTactics[0]) == GOSSAMER_MOE_TACTICS);

int default_tactic(int tokens) { return tokens <= 8 ? 0 : 3; }

bool prepared = false;

}  // namespace

bool prepare_experts() {
  for (const Tactic& t : kTactics)
    if (!allow_shared(t.gate_up, kMaxSharedBytes) || !allow_shared(t.down, kMaxSharedBytes)) return false;
  return prepared = true;
}

}  // namespace gossamer::moe

extern "C" size_t gossamer_moe_workspace(int tokens, int hidden_size, int intermediate) {
  return gossamer::moe::workspace_of(tokens, hidden_size, intermediate).total;
}

extern "C" int gossamer_moe(const GossamerMoeArgs* p, cudaStream_t stream) {
  using namespace gossamer;
  using namespace gossamer::moe;
  const bool shape_ok = p->tokens >= 1 && p->tokens <= kMaxTokens && p->experts >= kTopK && p->experts <= kMaxExperts &&
                        p->experts_local >= 1 && p->experts_local <= kMaxExperts && p->expert_begin >= 0 &&
                        p->expert_begin + p->experts_local <= p->experts && p->hidden_size > 0 && p->hidden_size % 32 == 0 &&
                        p->intermediate > 0 && p->intermediate % 32 == 0 && mxfp4::tiles_of(p->hidden_size) <= kMaxTiles &&
                        mxfp4::tiles_of(p->intermediate) <= kMaxTiles &&
                        p->workspace_bytes >= gossamer_moe_workspace(p->tokens, p->hidden_size, p->intermediate);
  if (!shape_ok) return GOSSAMER_BAD_SHAPE;
  if (p->tactic < -1 || p->tactic >= GOSSAMER_MOE_TACTICS) return GOSSAMER_BAD_TACTIC;
  if (!prepared) return GOSSAMER_NOT_PREPARED;
  const Tactic& t = kTactics[p->tactic < 0 ? default_tactic(p->tokens) : p->tactic];
  const int capacity = p->tokens == 1 ? 2 : p->tokens < kGroupTokens ? p->tokens : kGroupTokens;
  const dim3 grid(multiprocessors() * t.blocks), block(kThreads);
  int status = launch(t.gate_up, grid, block, t.bytes(capacity, mxfp4::tiles_of(p->hidden_size)), stream, true, *p, capacity);
  if (status == GOSSAMER_OK) status = launch(t.down, grid, block, t.bytes(capacity, mxfp4::tiles_of(p->intermediate)), stream, true, *p, capacity);
  if (status == GOSSAMER_OK) status = launch(finalize_kernel, dim3((p->hidden_size + 1023) / 1024, p->tokens), dim3(256), 0, stream, true, *p);
  return status;
}
