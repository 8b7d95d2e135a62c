// archs: 90a
// Fused MXFP4 experts for 1 to 8 tokens: routing, gate_up, SwiGLU, down, weighted sum and residual in one persistent grid.
//
// What bounds a layer of one token is not its 53 MB (11.4 us) but what lies around them: the routing before the first byte, the wait
// of down for everybody's activations, the last sums, a second grid. So:
//   - Every warp knows its own jobs (few.cuh) and keeps a ring of copies full across both matrices: while blocks wait for each other
//     between the two, down's weights arrive.
//   - The two blocks of a cluster own output strips over all experts and finish them, each half of the rows: no second grid.
//
// Invariant: all clusters of the grid are resident at once and dependents start only when all blocks run, so that a block may wait
// for activations of another.
// Invariant: the order of every sum is fixed by shapes and routing, never by timing: results are bitwise repeatable.
// Refuses: more than 8 tokens, K above 2880, shapes that do not fit.
#include <cuda_bf16.h>

#include "gossamer/launch.cuh"
#include "gossamer/ptx/sm90.cuh"
#include "few.cuh"
#include "gossamer/clock.cuh"
#include "gossamer/ring.cuh"
#include "tile.cuh"

namespace gossamer::moe::few {
namespace {

// Words of the workspace's zeroed region, behind `ready` of the other tactics: blocks that arrived, and that saw all arrive.
constexpr int kArrived = 192, kLeft = 224;

// Marks of its clock, in order.
enum { kRouted = clocks::kWaited + 1, kRequested, kPlaced, kGateUpDone, kBlockDone, kAllDone, kActivationsPlaced, kDownDone };

// Tiles under way, of a warp: more would be faster alone and slower among its neighbours, which want the multiprocessor's memory divided
// otherwise. By copies of all lanes, since one bulk copy holds the copy engine for 95 clocks whatever its size.
constexpr int kStages = 3, kChunk = 3, kStageBytes = kChunk * mxfp4::kTileBytes;

struct Control {
  Job jobs[kWarps][kMaxJobs];
  RouteTable table;
};
constexpr int kControlBytes = (sizeof(Control) + 127) / 128 * 128;

struct Sizes {  // of the parts of shared memory
  int columns, sums;
  int gate_up_column, down_column;  // one token's or slot's
};

// The copies of a warp's jobs, requested ahead of its products.
struct Copies {
  const GossamerMoeArgs& p;
  const Job* jobs;
  uint32_t ring;  // shared address of this warp's
  uint64_t policy;
  Counts count = {};
  const uint8_t* source = nullptr;
  int job = -1, left = 0;  // tiles left of the job
  Ring<kStages> at = {};

  __device__ __forceinline__ void seek() {
    if (++job >= count.all) return;
    left = jobs[job].tiles;
    source = static_cast<const uint8_t*>(job < count.gate_up ? p.gate_up : p.down) + static_cast<size_t>(jobs[job].tile) * mxfp4::kTileBytes;
  }
  // Requests the next chunk, if there is one. Every call is a group of copies, so that the ring's stages can be counted.
  __device__ __forceinline__ void next() {
    if (left > 0) {
      const int bytes = min(left, kChunk) * mxfp4::kTileBytes, lane_at = 16 * (threadIdx.x & 31);
#pragma unroll
      for (int i = 0; i < (kStageBytes + 511) / 512; ++i)
        ptx::copy_async_if(i * 512 + lane_at < bytes, ring + at.stage * kStageBytes + i * 512 + lane_at, source + i * 512 + lane_at, policy);
      source += bytes;
      left -= min(left, kChunk);
      at.next();
      if (left == 0) seek();
    }
    ptx::copy_async_commit();
  }
};

// Sums of one job: a strip's 16 rows by the group's tokens. `column`: this lane's part of its token's column.
__device__ __forceinline__ void multiply_job(int tiles, uint32_t column, Copies& copies, Ring<kStages>& at, float (&acc)[4]) {
  const uint32_t lane = threadIdx.x & 31, code_at = copies.ring + 16 * lane, scale_at = copies.ring + mxfp4::kCodeBytes + 4 * (lane / 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) acc[i] = 0.f;
#pragma unroll 1
  for (int left = tiles; left > 0; left -= kChunk, column += kChunk * 128) {
    const uint32_t code = code_at + at.stage * kStageBytes, scale = scale_at + at.stage * kStageBytes;
    ptx::copy_async_wait<kStages - 1>();
    __syncwarp();
    Operands o[2];
    o[0].load(code, scale, column);
    if (left >= kChunk) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        if (i + 1 < kChunk) o[(i + 1) & 1].load(code + (i + 1) * mxfp4::kTileBytes, scale + (i + 1) * mxfp4::kTileBytes, column + (i + 1) * 128);
        multiply(o[i & 1], acc);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kChunk - 1; ++i) {
        if (i >= left) break;
        if (i + 1 < left) o[(i + 1) & 1].load(code + (i + 1) * mxfp4::kTileBytes, scale + (i + 1) * mxfp4::kTileBytes, column + (i + 1) * 128);
        multiply(o[i & 1], acc);
      }
    }
    __syncwarp();
    copies.next();
    at.next();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) acc[i] *= kUnscale;
}

// Routing of one token, by one warp. (By all, every multiprocessor would read the same lines twelve times: 2 us.)
__device__ __forceinline__ void route_one(RouteTable& table, const GossamerMoeArgs& p) {
  route_tokens(table, p, 0, 1);
  __syncwarp();
  const uint32_t packed = table.ids[0];
  if ((threadIdx.x & 31) == 0) {
    int groups = 0;
#pragma unroll
    for (int k = 0; k < kTopK; ++k) {
      const uint32_t e = (packed >> (8 * k)) & 255u;
      if (e != kNoExpert) table.group[groups++] = {static_cast<uint16_t>(e), 1, {static_cast<uint8_t>(k)}};
    }
    table.groups = groups;
  }
}

template <bool kOneToken>
__global__ void __launch_bounds__(kThreads, 1) few_kernel(const __grid_constant__ GossamerMoeArgs p, const __grid_constant__ Sizes sizes) {
  clocks::Clock clock(clocks::kFew);
  GOSSAMER_DYNAMIC_SHARED(uint8_t, 128, shared);
  uint8_t* const ring = shared;
  uint8_t* const columns = ring + kWarps * kStages * kStageBytes;
  float* const sums = reinterpret_cast<float*>(columns + sizes.columns);  // [block of the cluster][owned strip][slot][8 rows]
  Control& c = *reinterpret_cast<Control*>(columns + sizes.columns + sizes.sums);
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int rank = static_cast<int>(ptx::cluster_rank()), tokens = kOneToken ? 1 : p.tokens, slots = tokens * kTopK;
  const Shape s = shape_of(p.hidden_size, p.intermediate);
  const Part part(s, rank);
  const Workspace ws = workspace_of(tokens, p.hidden_size, p.intermediate);
  uint8_t* const workspace = static_cast<uint8_t*>(p.workspace);
  int* const arrived = reinterpret_cast<int*>(workspace + ws.ready) + kArrived;
  __nv_bfloat16* const activations = reinterpret_cast<__nv_bfloat16*>(workspace + ws.activations);

  if (tokens > 1)
    for (int i = threadIdx.x; i < 2 * kMaxExperts; i += kThreads) c.table.members[i / 2][i % 2] = 0;
  Copies copies = {p, c.jobs[warp], ptx::shared_address(ring + warp * kStages * kStageBytes), ptx::evict_first_policy()};
  // One token on a rank with all experts has four groups, whatever they are: the jobs need not wait for the routing.
  Job job = {};
  if (tokens == 1) copies.count = plan(job, s, part, kTopK);
  __syncthreads();
  ptx::dependency_wait();
  ptx::launch_dependents();
  clock.mark(clocks::kWaited);

  // The tokens' values are under way while the routing is found.
  uint4 x[kMaxTokens];
#pragma unroll
  for (int i = 0; i < kMaxTokens; ++i)
    x[i] = i < tokens && threadIdx.x * 8 < p.hidden_size ? __ldcg(reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.normed) + static_cast<size_t>(i) * p.hidden_size) + threadIdx.x)
                                                           : make_uint4(0, 0, 0, 0);
  if (tokens == 1) {
    if (warp == 0) route_one(c.table, p);
    __syncthreads();
  } else {
    route_tokens(c.table, p, warp, kWarps);
    route_groups(c.table, p);  // begins and ends with a block barrier
  }
  clock.mark(kRouted);
  if (tokens > 1 || c.table.groups != kTopK) copies.count = plan(job, s, part, c.table.groups);
  if (lane < copies.count.all) {
    const bool down = lane >= copies.count.gate_up;
    job.tile += c.table.group[job.group].expert * (down ? s.down_strips * s.down_tiles : s.gate_up_strips * s.gate_up_tiles);
    c.jobs[warp][lane] = job;
  }
  __syncwarp();
  copies.seek();
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) copies.next();
  clock.mark(kRequested);
#pragma unroll
  for (int i = 0; i < kMaxTokens; ++i)
    if (i < tokens && threadIdx.x < s.gate_up_tiles * 8) store_eight(columns + i * sizes.gate_up_column, threadIdx.x, times_2_100(x[i]));
  __syncthreads();
  clock.mark(kPlaced);

  Ring<kStages> stage;
  int at = 0;
  float acc[4];
  const uint32_t columns_at = ptx::shared_address(columns) + t * 16;
#pragma unroll 1
  for (; at < copies.count.gate_up; ++at) {
    const Job now = c.jobs[warp][at];
    const Group& group = c.table.group[now.group];
    const int n = group.count;
    // An unused column of B repeats the last token; its sums are dropped.
    const int token = group.slots[min(g, n - 1)] / kTopK;
    // bf16 bits, converted after the products: an earlier use would wait for memory here
    const uint32_t bias = ptx::load_word(static_cast<const __nv_bfloat16*>(p.gate_up_bias) + (static_cast<size_t>(group.expert) * s.gate_up_strips + now.strip) * 16 + 2 * g);
    multiply_job(now.tiles, columns_at + token * sizes.gate_up_column, copies, stage, acc);
    const float gate_bias = ptx::bf16_low(bias), up_bias = ptx::bf16_high(bias);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (2 * t + j >= n) continue;
      const float gate = fminf(acc[j] + gate_bias, p.swiglu_limit), up = fminf(fmaxf(acc[2 + j] + up_bias, -p.swiglu_limit), p.swiglu_limit);
      const float value = __fdividef((up + 1.f) * gate, 1.f + __expf(-p.swiglu_alpha * gate));
      activations[static_cast<size_t>(group.slots[2 * t + j]) * p.intermediate + now.strip * 8 + g] = __float2bfloat16(value);
    }
  }
  clock.mark(kGateUpDone);

  // All activations: every block's. A release waits for its thread's loads, so biases and residual are asked for behind it.
  __syncthreads();
  clock.mark(kBlockDone);
  if (threadIdx.x == 0) ptx::release_add(arrived, 1);

  // What the last sums need besides, under way meanwhile.
  const int out_token = threadIdx.x / 64, out_strip = threadIdx.x / 8 % 8, out_row = threadIdx.x % 8;  // owned strips are at most eight
  const int column = (part.own + out_strip) * 16 + rank * 8 + out_row;
  uint32_t residual[2] = {}, bias[2][kTopK] = {};
  constexpr int kRound = kThreads / 64;  // tokens finished at once
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = out_token + i * kRound;
    if (token >= tokens || out_strip >= part.owned) continue;
    const uint32_t ids = c.table.ids[token];
    if (p.residual) residual[i] = static_cast<const uint16_t*>(p.residual)[static_cast<size_t>(token) * p.hidden_size + column];
#pragma unroll
    for (int k = 0; k < kTopK; ++k) {
      const uint32_t e = (ids >> (8 * k)) & 255u;
      if (e != kNoExpert && p.down_bias) bias[i][k] = ptx::load_half(static_cast<const __nv_bfloat16*>(p.down_bias) + static_cast<size_t>(e) * p.hidden_size + column);
    }
  }

  if (threadIdx.x == 0) ptx::wait_for_count(arrived, static_cast<int>(gridDim.x));
  __syncthreads();
  clock.mark(kAllDone);
  // This block's half of K, of every slot.
  constexpr int kAtOnce = kThreads / kHalfEights, kBatch = 8;
  const int eight = threadIdx.x % kHalfEights, value_at = part.tile * 8 + eight;
#pragma unroll 1
  for (int first = threadIdx.x / kHalfEights; first < slots; first += kAtOnce * kBatch) {
    uint4 y[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int slot = first + i * kAtOnce;
      y[i] = slot < slots && value_at * 8 < p.intermediate && ((c.table.ids[slot / kTopK] >> (slot % kTopK * 8)) & 255u) != kNoExpert
                 ? __ldcg(reinterpret_cast<const uint4*>(activations + static_cast<size_t>(slot) * p.intermediate) + value_at)
                 : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (first + i * kAtOnce < slots && eight < part.tiles * 8) store_eight(columns + (first + i * kAtOnce) * sizes.down_column, eight, times_2_100(y[i]));
  }
  __syncthreads();
  clock.mark(kActivationsPlaced);
  // The last block to have seen all leaves both counts as they were.
  if (threadIdx.x == 0 && atomicAdd(arrived + (kLeft - kArrived), 1) == static_cast<int>(gridDim.x) - 1) arrived[0] = arrived[kLeft - kArrived] = 0;

#pragma unroll 1
  for (; at < copies.count.all; ++at) {
    const Job now = c.jobs[warp][at];
    const Group& group = c.table.group[now.group];
    const int n = group.count;
    multiply_job(now.tiles, columns_at + group.slots[min(g, n - 1)] * sizes.down_column, copies, stage, acc);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (2 * t + j >= n) continue;
      float* to = sums + ((rank * part.owned + now.strip - part.own) * slots + group.slots[2 * t + j]) * 8 + g;
      ptx::cluster_store(to, 0, acc[j]);
      ptx::cluster_store(to, 1, acc[2 + j]);
    }
  }
  clock.mark(kDownDone);
  ptx::cluster_sync();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = out_token + i * kRound;
    if (token >= tokens || out_strip >= part.owned) continue;
    const uint32_t ids = c.table.ids[token];
    float v[kTopK];
#pragma unroll
    for (int k = 0; k < kTopK; ++k) {
      v[k] = 0.f;
      if (((ids >> (8 * k)) & 255u) == kNoExpert) continue;
      const float* from = sums + (out_strip * slots + token * kTopK + k) * 8 + out_row;
      v[k] = c.table.weights[token * kTopK + k] * (from[0] + from[part.owned * slots * 8] + ptx::bf16_low(bias[i][k]));
    }
    static_cast<__nv_bfloat16*>(p.output)[static_cast<size_t>(token) * p.hidden_size + column] = __float2bfloat16(ptx::bf16_low(residual[i]) + ((v[0] + v[1]) + (v[2] + v[3])));
  }
}

int blocks = 0;  // of the grid, all resident at once; 0 where the device does not run this kernel

}  // namespace

void prepare() {
  blocks = 0;
  if (allow_shared(few_kernel<true>, kMaxSharedBytes) && allow_shared(few_kernel<false>, kMaxSharedBytes)) {
    const int one = resident_clusters(few_kernel<true>, dim3(kThreads), kCluster, kMaxSharedBytes), more = resident_clusters(few_kernel<false>, dim3(kThreads), kCluster, kMaxSharedBytes);
    blocks = kCluster * (one < more ? one : more);
  }
  cudaGetLastError();
}

int run(const GossamerMoeArgs& p, cudaStream_t stream) {
  if (blocks == 0 || p.tokens > kMaxTokens) return GOSSAMER_BAD_TACTIC;
  const Shape s = shape_of(p.hidden_size, p.intermediate);
  const int groups = p.tokens * kTopK < p.experts_local ? p.tokens * kTopK : p.experts_local;
  Sizes sizes = {};
  sizes.gate_up_column = column_bytes(s.gate_up_tiles);
  sizes.down_column = column_bytes((s.down_tiles + 1) / kCluster);
  const int tokens = p.tokens * sizes.gate_up_column, slots = p.tokens * kTopK * sizes.down_column;
  sizes.columns = tokens > slots ? tokens : slots;
  sizes.sums = kCluster * most_owned(s, blocks) * p.tokens * kTopK * 8 * 4;
  const int bytes = kWarps * kStages * kStageBytes + sizes.columns + sizes.sums + kControlBytes;
  if (bytes > kMaxSharedBytes || most_owned(s, blocks) > kMaxOwned || s.down_tiles < kCluster || most_jobs(s, groups, blocks) > kMaxJobs) return GOSSAMER_BAD_TACTIC;
  return launch_cluster(p.tokens == 1 ? few_kernel<true> : few_kernel<false>, dim3(blocks), dim3(kThreads), kCluster, bytes, stream, true, p, sizes);
}

}  // namespace gossamer::moe::few
