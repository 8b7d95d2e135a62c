// archs: 90a 100a
// Fused MXFP4 experts for 1..64 tokens: one persistent grid streams the weights of the touched experts, gate_up then down,
// at memory speed; a second, small grid adds up the four results of each token and the residual.
//
// Work: every (group, strip) pair of a matrix, where a group is one expert with at most 8 of its tokens and a strip is 16
// rows; the pairs are dealt to the blocks in equal runs. In a block (one a multiprocessor):
//   12 or 16 consumers   warps in consumers / split rows; the `split` warps of a row share a strip along K; each keeps its own ring of
//                       bulk copies full, across strips, groups and both matrices, so that nothing else can hold it up
//   4 filler warps       bring the tokens of the next groups into shared memory (two buffers, B-fragment order), publish
//                       finished gate_up groups and wait for those that down needs
// Up to 8 tokens, gate_up has one phase that holds every token, filled while the routing is computed.
// Arithmetic: mma.m16n8k16, weights as A (codes to bf16 by masks, unscaled), tokens as B (times 2^100), block scales applied
// to the accumulators (layout note (b) in LAYOUTS.md).
//
// Invariant: the grid is at most one block per multiprocessor and dependents start only when all blocks run, so that a
// block may wait for activations of another.
// Invariant: the order of every sum is fixed by shapes and routing, never by timing: results are bitwise repeatable.
// Refuses: more than 64 tokens, hidden or intermediate above 2880 or off the multiples of 32.
#include <cuda_bf16.h>

#include "gossamer/launch.cuh"
#include "gossamer/mxfp4.cuh"
#include "gossamer/ptx/sm90.cuh"
#include "plan.cuh"
#include "tile.cuh"

namespace gossamer::moe::few {  // few.cu
void prepare();
int run(const GossamerMoeArgs&, cudaStream_t);
}  // namespace gossamer::moe::few

namespace gossamer::moe {
namespace {

constexpr int kRowBarrier = 1, kFillerBarrier = 15;  // named barriers: 0 the block, 1..8 split rows, 15 fillers
constexpr int kMinSharedBytes = 116 * 1024;  // more than half of a multiprocessor's: never two blocks on one

// Walks the chunks of one consumer, kStages ahead of its arithmetic, and requests them.
template <int kStages, int kChunk>
struct Copies {
  static constexpr int kStageBytes = kChunk * mxfp4::kTileBytes;
  const uint8_t* source;  // next chunk
  uint64_t policy;
  uint32_t ring, full;  // shared addresses
  int left, tail;       // chunks of this strip's part not yet requested (0: all is requested); bytes of its last chunk
  int matrix, pair, strip, group, stage;

  // At the next strip from `pair` on in `matrix`, or the first of the next matrix, that has work for this warp.
  __device__ __forceinline__ void seek(const GossamerMoeArgs& p, const Control& c, int warp) {
    left = 0;
    for (; matrix < 2; pair = -1, ++matrix) {
      const Share& s = c.share[matrix];
      const Place place = c.place[matrix][warp];
      if (place.chunk_begin == place.chunk_end) continue;
      if (pair < 0) {
        pair = s.begin + place.row;
        group = s.begin_group;
        strip = s.begin_strip + place.row;
      } else {
        pair += s.rows;
        strip += s.rows;
      }
      if (pair >= s.end) continue;
      while (strip >= s.strips) strip -= s.strips, ++group;
      left = place.chunk_end - place.chunk_begin;
      tail = min(kChunk, s.tiles - (place.chunk_end - 1) * kChunk) * mxfp4::kTileBytes;
      const size_t tile = (static_cast<size_t>(c.table.group[group].expert) * s.strips + strip) * s.tiles + place.chunk_begin * kChunk;
      source = static_cast<const uint8_t*>(matrix ? p.down : p.gate_up) + tile * mxfp4::kTileBytes;
      return;
    }
  }
  __device__ __forceinline__ void next(const GossamerMoeArgs& p, const Control& c, int warp, bool leader) {
    if (left == 0) return;
    if (leader) {
      const uint32_t bytes = left == 1 ? tail : kStageBytes, bar = full + stage * 8;
      ptx::barrier_expect(bar, bytes);
      ptx::bulk_load(ring + stage * kStageBytes, source, bytes, bar, policy);
    }
    source += kStageBytes;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (--left == 0) seek(p, c, warp);
  }
};

// One token into B-fragment order, times 2^100.
__device__ __forceinline__ void fill_column(const __nv_bfloat16* token, uint8_t* column, int k, int tiles, int thread) {
  const uint4* source = reinterpret_cast<const uint4*>(token);
  constexpr int kMost = (kMaxTiles * 8 + kFillerThreads - 1) / kFillerThreads;
  uint4 x[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int v = thread + i * kFillerThreads;
    x[i] = v * 8 < k ? __ldcg(source + v) : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int v = thread + i * kFillerThreads;
    if (v >= tiles * 8) break;
    store_eight(column, v, times_2_100(x[i]));
  }
}

// Whether gate_up has one phase that holds every token of the step (column = token).
__device__ __forceinline__ bool all_tokens_fit(const GossamerMoeArgs& p) { return p.tokens <= kGroupTokens; }

// Fillers wait long; spinning would take issue slots from the consumers: one warp looks now and then, the others block.
__device__ __forceinline__ void wait_asleep(uint64_t* bar, uint32_t parity, int thread, int nanoseconds) {
  if (thread < 32)
    while (!ptx::barrier_poll(bar, parity)) __nanosleep(nanoseconds);
  ptx::named_sync(kFillerBarrier, kFillerThreads);
}

// Token columns, phase by phase: a phase is as many whole groups as fit one buffer.
__device__ __noinline__ void fill(const GossamerMoeArgs& p, Control& c, uint8_t* columns, int capacity, int thread, int* ready, const __nv_bfloat16* activations) {
  // Invariant: consumers and fillers count the same phases; a matrix of which this block does nothing has none.
  const RouteTable& table = c.table;
  const int buffer_bytes = capacity * column_bytes(max(c.share[0].tiles, c.share[1].tiles));
  int phase = 0, published = 0, publish_group = c.share[0].begin_group, gate_up_phases = 0;
  // Says, for the oldest unpublished gate_up phase (whose consumers have all left it), how many strips of each group are done.
  auto publish = [&]() {
    const Share& s = c.share[0];
    int held = 0;
    const int first = publish_group;
    while (publish_group * s.strips < s.end && (all_tokens_fit(p) || publish_group == first || held + table.group[publish_group].count <= capacity)) {
      held += table.group[publish_group].count;
      if (thread == 0) ptx::release_add(ready + publish_group, min(s.end, (publish_group + 1) * s.strips) - max(s.begin, publish_group * s.strips));
      ++publish_group;
    }
    ++published;
  };
  for (int matrix = 0; matrix < 2; ++matrix) {
    const Share& s = c.share[matrix];
    const int k = matrix ? p.intermediate : p.hidden_size;
    if (matrix) {
      gate_up_phases = phase;
      while (published < gate_up_phases) {
        wait_asleep(&c.columns_empty[published & 1], (published >> 1) & 1, thread, 100);
        publish();
      }
    }
    if (!matrix && all_tokens_fit(p)) {  // filled before the routing was known
      if (s.begin == s.end) continue;
      if (thread == 0) c.phase_end[0] = s.end;
      ptx::barrier_arrive(&c.columns_full[0]);
      ++phase;
      continue;
    }
    int group0 = s.begin_group;
    while (s.begin < s.end && group0 * s.strips < s.end) {
      int group1 = group0, held = 0;
      while (group1 * s.strips < s.end && (group1 == group0 || held + table.group[group1].count <= capacity)) held += table.group[group1++].count;
      if (phase >= 2) {
        wait_asleep(&c.columns_empty[phase & 1], ((phase - 2) >> 1) & 1, thread, 1000);
        if (!matrix) publish();
      }
      if (matrix) {
        for (int g = group0 + thread; g < group1; g += kFillerThreads)
          while (ptx::acquire_load(ready + g) < c.share[0].strips) __nanosleep(20);
        ptx::named_sync(kFillerBarrier, kFillerThreads);
      }
      uint8_t* buffer = columns + (phase & 1) * buffer_bytes;
      int at = 0;
      for (int g = group0; g < group1; ++g) {
        const int n = table.group[g].count;
        if (thread == 0) c.column_of_group[matrix][g] = static_cast<uint8_t>(at);
        for (int j = 0; j < n; ++j, ++at) {
          const int slot = table.group[g].slots[j];
          fill_column(matrix ? activations + static_cast<size_t>(slot) * k : static_cast<const __nv_bfloat16*>(p.normed) + static_cast<size_t>(slot / kTopK) * k,
                      buffer + at * column_bytes(s.tiles), k, s.tiles, thread);
        }
      }
      if (thread == 0) c.phase_end[phase & 1] = min(s.end, group1 * s.strips);
      ptx::barrier_arrive(&c.columns_full[phase & 1]);
      ++phase;
      group0 = group1;
    }
  }
}

template <int kStages, int kChunk>
__device__ __forceinline__ void consume(const GossamerMoeArgs& p, Control& c, Copies<kStages, kChunk>& copies, const uint8_t* columns, int capacity, int* ready, __nv_bfloat16* activations, float* sums) {
  constexpr int kStageBytes = kChunk * mxfp4::kTileBytes;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const RouteTable& table = c.table;
  const int buffer_bytes = capacity * column_bytes(max(c.share[0].tiles, c.share[1].tiles));
  const uint32_t columns_at = ptx::shared_address(columns), code_at = copies.ring + 16 * lane, scale_at = copies.ring + mxfp4::kCodeBytes + 4 * g;
  int stage = 0, phase = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (int down = 0; down < 2; ++down) {
    const Share s = c.share[down];
    const Place place = c.place[down][warp];
    const int row = place.row, part = place.part, chunk_begin = place.chunk_begin, chunk_end = place.chunk_end;
    const bool by_token = !down && all_tokens_fit(p);
    int pair = s.begin + row, group = s.begin_group, strip = s.begin_strip + row;
    int open_end = s.begin;
    // Rows are formed anew for each matrix, so that buffers must start alike.
    int turn = 0;
    bool opened = false;
    auto leave = [&]() {
      __syncwarp();
      if (lane == 0) ptx::barrier_arrive(&c.columns_empty[phase & 1]);
      ++phase;
    };
#pragma unroll 1
    while (true) {
      while (pair >= open_end && open_end < s.end) {
        if (opened) leave();
        ptx::barrier_wait(&c.columns_full[phase & 1], (phase >> 1) & 1);
        open_end = c.phase_end[phase & 1];
        opened = true;
      }
      if (pair >= s.end) break;
      while (strip >= s.strips) strip -= s.strips, ++group;
      const Group& members = table.group[group];
      const int n = members.count;
      // An unused column of B repeats the last token; its sums are dropped.
      const int member = min(g, n - 1);
      const int at_column = by_token ? members.slots[member] / kTopK : c.column_of_group[down][group] + member;
      uint32_t column = columns_at + (phase & 1) * buffer_bytes + at_column * column_bytes(s.tiles) + chunk_begin * (kChunk * 128) + t * 16;
      uint32_t bias0 = 0, bias1 = 0;  // bf16 bits, converted after the loop: an earlier use would wait for memory here
      if (part == 0) {
        const size_t at = static_cast<size_t>(members.expert) * (s.strips * 16) + strip * 16;
        if (!down) {
          bias0 = ptx::load_word(static_cast<const __nv_bfloat16*>(p.gate_up_bias) + at + 2 * g);
        } else if (p.down_bias) {
          bias0 = ptx::load_half(static_cast<const __nv_bfloat16*>(p.down_bias) + at + g);
          bias1 = ptx::load_half(static_cast<const __nv_bfloat16*>(p.down_bias) + at + g + 8);
        }
      }
      float acc[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll 1
      for (int chunk = chunk_begin; chunk < chunk_end; ++chunk, column += kChunk * 128) {
        const int count = s.tiles - chunk * kChunk;
        const uint32_t code = code_at + stage * kStageBytes, scale = scale_at + stage * kStageBytes;
        ptx::barrier_wait(copies.full + stage * 8, parity);
        Operands o[2];
        if (count >= kChunk) {
          o[0].load(code, scale, column);
#pragma unroll
          for (int i = 0; i < kChunk; ++i) {
            if (i + 1 < kChunk) o[(i + 1) & 1].load(code + (i + 1) * mxfp4::kTileBytes, scale + (i + 1) * mxfp4::kTileBytes, column + (i + 1) * 128);
            multiply(o[i & 1], acc);
          }
        } else {
#pragma unroll 1
          for (int i = 0; i < count; ++i) {
            o[0].load(code + i * mxfp4::kTileBytes, scale + i * mxfp4::kTileBytes, column + i * 128);
            multiply(o[0], acc);
          }
        }
        __syncwarp();
        copies.next(p, c, warp, lane == 0);
        if (++stage == kStages) stage = 0, parity ^= 1;
      }

      // Sum over the row's warps, in the order of the parts. Two buffers: a warp is at most one strip ahead of the reader.
      if (s.split > 1) {
        if (part) c.partials[turn][warp][lane] = make_float4(acc[0], acc[1], acc[2], acc[3]);
        ptx::named_sync(kRowBarrier + row, s.split * 32);
        if (part == 0)
          for (int i = 1; i < s.split; ++i) {
            const float4 o = c.partials[turn][warp + i][lane];
            acc[0] += o.x;
            acc[1] += o.y;
            acc[2] += o.z;
            acc[3] += o.w;
          }
        turn ^= 1;
      }
      if (part == 0) {
        const float add0 = ptx::bf16_low(bias0), add1 = down ? ptx::bf16_low(bias1) : ptx::bf16_high(bias0);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (2 * t + j >= n) continue;
          const int slot = members.slots[2 * t + j];
          const float y0 = fmaf(acc[j], kUnscale, add0), y1 = fmaf(acc[2 + j], kUnscale, add1);
          if (!down) {
            const float gate = fminf(y0, p.swiglu_limit), up = fminf(fmaxf(y1, -p.swiglu_limit), p.swiglu_limit);
            const float value = __fdividef((up + 1.f) * gate, 1.f + __expf(-p.swiglu_alpha * gate));
            activations[static_cast<size_t>(slot) * p.intermediate + strip * 8 + g] = __float2bfloat16(value);
          } else {
            float* to = sums + static_cast<size_t>(slot) * p.hidden_size + strip * 16 + g;
            const float weight = table.weights[slot];
            __stcg(to, weight * y0);
            __stcg(to + 8, weight * y1);
          }
        }
      }
      pair += s.rows;
      strip += s.rows;
    }
    if (opened) leave();
  }
}

template <int kConsumers, int kStages, int kChunk>
__global__ void __launch_bounds__(32 * kConsumers + kFillerThreads, 1) experts_kernel(const __grid_constant__ GossamerMoeArgs p, int capacity) {
  constexpr int kStageBytes = kChunk * mxfp4::kTileBytes;
  GOSSAMER_DYNAMIC_SHARED(uint8_t, 128, shared);
  uint8_t* const ring = shared;
  Control& c = *reinterpret_cast<Control*>(shared + kConsumers * kStages * kStageBytes);
  uint8_t* const columns = shared + kConsumers * kStages * kStageBytes + kControlBytes;
  const int warp = threadIdx.x / 32;
  const Workspace ws = workspace_of(p.tokens, p.hidden_size, p.intermediate);
  uint8_t* const workspace = static_cast<uint8_t*>(p.workspace);

  if (threadIdx.x < kConsumers * kStages) {
    ptx::barrier_init(&c.full[threadIdx.x / kStages][threadIdx.x % kStages], 1);
  } else if (threadIdx.x < kConsumers * kStages + 2) {
    ptx::barrier_init(&c.columns_full[threadIdx.x - kConsumers * kStages], kFillerThreads);
    ptx::barrier_init(&c.columns_empty[threadIdx.x - kConsumers * kStages], kConsumers);
  }
  ptx::barrier_init_fence();
  // One token on a rank with all experts has four groups, whatever they are: the shares need not wait for the routing.
  const bool shares_known = p.tokens == 1 && p.experts_local == p.experts && p.logits;
  if (shares_known) {
    if (warp == 0) share_of(c.share[0], c.place[0], kConsumers, kChunk, kTopK, 2 * p.intermediate, p.hidden_size);
    if (warp == 1) share_of(c.share[1], c.place[1], kConsumers, kChunk, kTopK, p.hidden_size, p.intermediate);
  }
  ptx::dependency_wait();
  ptx::launch_dependents();
  for (int i = threadIdx.x; i < 2 * kMaxExperts; i += blockDim.x) c.table.members[i / 2][i % 2] = 0;
  if (p.tokens > 1) __syncthreads();
  if (!all_tokens_fit(p)) {
    route_tokens(c.table, p, warp, blockDim.x / 32);
  } else if (warp < kConsumers) {
    route_tokens(c.table, p, warp, kConsumers);
  } else {
    const int tiles = mxfp4::tiles_of(p.hidden_size);
    for (int token = 0; token < p.tokens; ++token)
      fill_column(static_cast<const __nv_bfloat16*>(p.normed) + static_cast<size_t>(token) * p.hidden_size, columns + token * column_bytes(tiles), p.hidden_size, tiles,
                  threadIdx.x - 32 * kConsumers);
  }
  route_groups(c.table, p);  // begins and ends with a block barrier
  if (!shares_known) {
    if (warp == 0) share_of(c.share[0], c.place[0], kConsumers, kChunk, c.table.groups, 2 * p.intermediate, p.hidden_size);
    if (warp == 1) share_of(c.share[1], c.place[1], kConsumers, kChunk, c.table.groups, p.hidden_size, p.intermediate);
    __syncthreads();
  }
  if (blockIdx.x == 0 && threadIdx.x < p.tokens) reinterpret_cast<uint32_t*>(workspace + ws.valid)[threadIdx.x] = c.table.ids[threadIdx.x];

  __nv_bfloat16* const activations = reinterpret_cast<__nv_bfloat16*>(workspace + ws.activations);
  if (warp >= kConsumers) {
    fill(p, c, columns, capacity, threadIdx.x - 32 * kConsumers, reinterpret_cast<int*>(workspace + ws.ready), activations);
    return;
  }
  Copies<kStages, kChunk> copies = {};
  copies.ring = ptx::shared_address(ring + warp * kStages * kStageBytes);
  copies.full = ptx::shared_address(c.full[warp]);
  copies.policy = ptx::evict_first_policy();
  copies.pair = -1;
  copies.seek(p, c, warp);
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) copies.next(p, c, warp, (threadIdx.x & 31) == 0);
  consume<kStages, kChunk>(p, c, copies, columns, capacity, reinterpret_cast<int*>(workspace + ws.ready), activations, reinterpret_cast<float*>(workspace + ws.partials));
}

// out = residual + sum of the four weighted expert outputs, in slot order; four columns a thread.
__global__ void __launch_bounds__(256) finalize_kernel(const __grid_constant__ GossamerMoeArgs p) {
  const Workspace ws = workspace_of(p.tokens, p.hidden_size, p.intermediate);
  const int token = blockIdx.y, column = (blockIdx.x * 256 + threadIdx.x) * 4;
  ptx::launch_dependents();
  ptx::dependency_wait();
  uint8_t* workspace = static_cast<uint8_t*>(p.workspace);
  if (blockIdx.x == 0 && token == 0 && threadIdx.x < kMaxGroups) reinterpret_cast<int*>(workspace + ws.ready)[threadIdx.x] = 0;
  if (column >= p.hidden_size) return;
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
  Kernel kernel;
  int (*bytes)(int, int);
  int threads;
};
template <int kConsumers, int kStages, int kChunk>
Tactic tactic() {
  return {experts_kernel<kConsumers, kStages, kChunk>, shared_bytes<kConsumers, kStages, kChunk>, 32 * kConsumers + kFillerThreads};
}
const Tactic kTactics[] = {tactic<12, 3, 5>(), tactic<12, 4, 5>(), tactic<16, 2, 5>(), tactic<16, 3, 5>(), tactic<12, 2, 9>()};
constexpr int kPersistent = sizeof(kTactics) / sizeof(kTactics[0]);
static_assert(kPersistent + 1 == GOSSAMER_MOE_TACTICS);

bool prepared = false;

}  // namespace

bool prepare_experts() {
  for (const Tactic& t : kTactics)
    if (!allow_shared(t.kernel, kMaxSharedBytes)) return false;
  few::prepare();
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
  if (p->tactic == kPersistent) return few::run(*p, stream);
  const int capacity = p->tokens == 1 ? 2 : p->tokens < kGroupTokens ? p->tokens : kGroupTokens;
  const int tiles = mxfp4::tiles_of(p->hidden_size > p->intermediate ? p->hidden_size : p->intermediate);
  const Tactic& t = kTactics[p->tactic < 0 ? (p->tokens <= 32 ? 2 : 0) : p->tactic];
  const int bytes = t.bytes(capacity, tiles);
  if (bytes > kMaxSharedBytes) return GOSSAMER_BAD_TACTIC;
  int status = launch(t.kernel, dim3(multiprocessors()), dim3(t.threads), bytes < kMinSharedBytes ? kMinSharedBytes : bytes, stream, true, *p, capacity);
  if (status == GOSSAMER_OK) status = launch(finalize_kernel, dim3((p->hidden_size + 1023) / 1024, p->tokens), dim3(256), 0, stream, true, *p);
  return status;
}
