// Grouped product of MXFP4 weights and tokens (bf16 or E4M3) on warpgroup products: weights are the A operand, decoded in registers
// while the last product runs; tokens are the B operand.
//
// A block is persistent and makes one piece of work after the other: kGroups x 64 weight rows by the tokens of one tile of one
// expert. A consumer warpgroup has 64 of the rows, each of its warps a strip of 16. Two warps produce, each through a ring of its
// own: weights by bulk copies of kChunk tiles of a strip, a lane per strip; tokens in boxes of 64 columns, and with a piece's first ones
// what its epilogue wants to know of each token (epilogue.cuh). Consumers take kChunk tiles of weights between two looks at a barrier;
// what is left of K after whole chunks is multiplied tile by tile. A third warp says which pieces of gate_up are stored.
//
// What decides the shape: tokens come once per kGroups x 64 rows, and narrow tiles are bound by the instructions of decoding, so that
// every instruction a tile counts and more warps help. Hence five warpgroups for narrow tiles, and fewer only where sums need their
// registers.
//
// One kernel per set of widths: the assembler keeps products of three to five widths in flight in one function, and serialises all of
// them where there are more. The sets of one product depend on nothing of each other: each lets the next one's blocks start where its
// own have left the multiprocessor. The set that most tiles are likely to be in comes first, so that launches that find nothing to do
// hide behind its work.
//
// Invariant: the first kernel of gate_up lets the next start only after its own inputs are complete (it waits for gather), and every
// later one, down's among them, starts after all blocks of the one before have started. So gate_up's have their inputs without waiting,
// and down's find in `finished` which tiles' inner activations are stored: what they wait for is made by blocks that run already.
// As kernels do not wait for kernels, the end of the last one alone says nothing about the others: what comes after down is launched
// the ordinary way, behind everything.
//
// Order of K for E4M3: a fragment register wants four neighbouring columns, and a lane of `mxfp4-sm90-v2` holds columns 2t, 2t+1,
// 2t+8, 2t+9 of a k16 step. A product does not care for the order of K as long as both operands agree, so the tokens are written
// in the order of `place_of` instead.
//
// Shared memory: [token stages][kGroupTiles][tokens][64 columns] swizzled | [weight stages][warps][kChunk] tiles of weights | table
// of magnitudes (E4M3) | barriers | what is known of each token of a tile, twice.
#pragma once
#include <cuda.h>

#include <utility>

#include "gossamer/launch.cuh"
#include "gossamer/ptx/tma.cuh"
#include "gossamer/ptx/wgmma.cuh"
#include "gossamer/ring.cuh"
#include "decode.cuh"
#include "epilogue.cuh"
#include "plan.cuh"

namespace gossamer::grouped {
namespace {

constexpr int kK = 64;     // columns of a tile
constexpr int kChunk = 5;  // tiles of a strip in one copy, which costs the copy engine about 95 cycles whatever its size
constexpr int kChunkBytes = kChunk * mxfp4::kTileBytes;

template <bool kFp8, int kSet>
struct Shape {
  // Consumer warpgroups of a block: as many as the registers for the sums of the set's widest tile allow.
  static constexpr int kWidest = widest_of(kSet), kGroups = kWidest <= 48 ? 5 : kWidest <= 96 ? 4 : kWidest <= 192 ? 3 : 2, kWarps = 4 * kGroups;
  static constexpr int kThreads = 128 * (kGroups + 1);
  // NOTES: what `setmaxnreg` hands out may not exceed the launch's registers, or the consumers wait for ever.
  static constexpr int kProducerRegisters = 32, kConsumerRegisters = kGroups == 5 ? 88 : kGroups == 4 ? 112 : kGroups == 3 ? 160 : 232;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static_assert(kProducerRegisters + kGroups * kConsumerRegisters <= (kGroups + 1) * kLaunchRegisters, "setmaxnreg may not ask for more than the block has");
  static constexpr int kElement = kFp8 ? 1 : 2;
  static constexpr int kGroupTiles = kGroups < 4 ? 1 : kChunk;  // tiles of a token stage: fewer barriers where instructions count
  static constexpr int kTokenStageBytes = kWidest * kK * kElement * kGroupTiles;
  static constexpr int kWeightStageBytes = kWarps * kChunkBytes;
  static constexpr int kWords = (kWidest + 6) / 4 * 4;  // of a tile, from 16 bytes to 16 bytes
  static constexpr int kFixed = (kFp8 ? kTableBytes : 0) + 1024 + 256 + 2 * kWords * 4;
  static constexpr int kRoom = kMaxSharedBytes - kFixed;
  static constexpr int kWeightStages = kGroups >= 4 && kRoom >= 3 * kWeightStageBytes + 2 * kTokenStageBytes ? 3 : 2;
  static constexpr int kTokenRoom = (kRoom - kWeightStages * kWeightStageBytes) / kTokenStageBytes;
  static constexpr int kTokenStages = kTokenRoom < 8 ? kTokenRoom : 8;
  static constexpr int kSharedBytes = kTokenStages * kTokenStageBytes + kWeightStages * kWeightStageBytes + kFixed;
  static_assert(kTokenStages >= (kGroupTiles == 1 ? 4 : 2) && kSharedBytes <= kMaxSharedBytes);
  static_assert((2 * (kWeightStages + kTokenStages) + 1) * 8 <= 256);
  static_assert(kTokenStageBytes % 16 == 0 && kWeightStageBytes % 16 == 0 && kWarps <= 32, "a lane per strip");
};

// A box of tokens per width of a set.
template <int kSet>
struct Maps {
  CUtensorMap of[widths_of(kSet)];
};

struct Product {
  const uint8_t* weights;
  const bf16* bias;  // [experts, rows], checkpoint order
  const TokenTile* tiles;
  const uint32_t* tile_count;
  const uint32_t* words;  // per row of the sorted order: scales (E4M3 gate_up), pairs (down), or null
  void* out;  // E4M3 for gate_up of E4M3 tokens, else bf16
  const uint8_t* maxima;      // E4M3: [experts, rows] largest scale of a row, in the layout's row order
  uint32_t strips, k_tiles, rounds, out_columns;
  int* finished;     // per tile: rounds of gate_up whose results are stored
  int rounds_before;  // down: of gate_up
  bool waits;        // for the kernel before
  float limit, alpha;
  uint32_t eight = 8;  // E4M3: see `Tables`
  // Work `i`: a tile of tokens and a round of its rows.
  __device__ __forceinline__ const TokenTile& tile_of(uint32_t i) const { return tiles[i / rounds]; }
};

// A block's warpgroups that have rows of a piece of work; of the last round's there may be fewer.
template <class S>
__device__ __forceinline__ uint32_t groups_with_rows(const Product& p, uint32_t i) {
  return min((p.strips - i % p.rounds * S::kWarps + 3) / 4, static_cast<uint32_t>(S::kGroups));
}

// What consumers and producers share.
template <bool kFp8, int kSet>
struct Shared {
  using S = Shape<kFp8, kSet>;
  uint8_t *tokens, *weights, *table;
  uint64_t *weights_full, *weights_empty, *tokens_full, *tokens_empty, *stored;
  uint32_t* words;
  __device__ explicit Shared(uint8_t* memory) {
    tokens = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(memory) + 1023) & ~static_cast<uintptr_t>(1023));
    weights = tokens + S::kTokenStages * S::kTokenStageBytes;
    table = weights + S::kWeightStages * S::kWeightStageBytes;
    weights_full = reinterpret_cast<uint64_t*>(table + (kFp8 ? kTableBytes : 0));
    weights_empty = weights_full + S::kWeightStages;
    tokens_full = weights_empty + S::kWeightStages;
    tokens_empty = tokens_full + S::kTokenStages;
    stored = tokens_empty + S::kTokenStages;
    words = reinterpret_cast<uint32_t*>(table + (kFp8 ? kTableBytes : 0) + 256);
  }
  // Of a block's `n`th piece of work, whose tile begins with sorted row `first`.
  __device__ uint32_t* words_of(uint32_t n, uint32_t first) const { return words + n % 2 * S::kWords + first % 4; }
};

// Largest scales of rows g and g + 8 of a strip (E4M3): asked for a piece of work ahead, since decoding begins with them.
struct Maxima {
  uint32_t of_g, of_g8;
};

// A piece of work that has no rows for this warpgroup.
template <bool kFp8, int kSet>
__device__ __forceinline__ void pass_tile(const Product& p, const Shared<kFp8, kSet>& shared, Ring<Shape<kFp8, kSet>::kWeightStages>& weights,
                                          Ring<Shape<kFp8, kSet>::kTokenStages>& tokens) {
  const bool speaks = (threadIdx.x & 31) == 0;
  for (uint32_t k = 0; k < p.k_tiles; ++k) {
    if (k % kChunk == 0) {
      ptx::barrier_wait(&shared.weights_full[weights.stage], weights.phase);
      ptx::barrier_arrive_if(&shared.weights_empty[weights.stage], speaks);
      weights.next();
    }
    if (k % Shape<kFp8, kSet>::kGroupTiles == 0) {
      ptx::barrier_wait(&shared.tokens_full[tokens.stage], tokens.phase);
      ptx::barrier_arrive_if(&shared.tokens_empty[tokens.stage], speaks);
      tokens.next();
    }
    __syncwarp();
  }
}

// Adds the products of a warp's strip and a tile's tokens to `sums`.
template <bool kFp8, int kSet, int kWidth>
__device__ __forceinline__ void add_products(const Product& p, Maxima maxima, const Shared<kFp8, kSet>& shared, Ring<Shape<kFp8, kSet>::kWeightStages>& weights,
                                             Ring<Shape<kFp8, kSet>::kTokenStages>& tokens, float (&sums)[kWidth / 2]) {
  using S = Shape<kFp8, kSet>;
  const int lane = threadIdx.x & 31, g = lane / 4, warp = threadIdx.x / 32;
  constexpr int kSteps = kFp8 ? 1 : 2, kTileBytes = kWidth * kK * S::kElement;  // products in half a tile; its tokens
  uint32_t a[2][kSteps][4];
  const uint32_t references = maxima.of_g * 0x0101u + maxima.of_g8 * 0x01010000u, table = ptx::shared_address(shared.table);
  const uint8_t* const codes = shared.weights + warp * kChunkBytes + lane * 16;
  const uint8_t* const scales = shared.weights + warp * kChunkBytes + mxfp4::kCodeBytes + g * 4;
  Tables tables[2];
  const auto load = [&](Piece& piece, uint32_t offset) {
    piece.codes = ptx::load_shared(codes + offset);
    piece.scales = ptx::load_shared_word(scales + offset);
  };
  // NOTES: the assembler keeps products in flight only if each A fragment has registers of its own; halves of tiles take turns.
  // Starts half a tile's products.
  const auto start = [&](auto half, const Piece& piece, uint64_t b) {
    constexpr int kHalf = decltype(half)::value;
    if constexpr (kFp8) {
      decode_e4m3<kHalf>(piece, tables[kHalf], a[kHalf][0]);
    } else {
      decode_bf16<kHalf>(piece, a[kHalf]);
    }
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {  // a step is 32 bytes of a token in either type
      const uint64_t at = b + (kHalf * kSteps + step) * 2;
      if constexpr (kFp8) ptx::Wgmma<kWidth>::e4m3(sums, a[kHalf][step], at, 1);
      else ptx::Wgmma<kWidth>::bf16(sums, a[kHalf][step], at, 1);
    }
    ptx::wgmma_commit();
  };
  const auto load_tables = [&](auto half, const Piece& piece) {
    if constexpr (kFp8) tables[decltype(half)::value].template load<decltype(half)::value>(table, references - piece.scales, p.eight);
  };
  const auto first_of_stage = [&] {
    ptx::barrier_wait(&shared.tokens_full[tokens.stage], tokens.phase);
    const uint32_t at = ptx::shared_address(shared.tokens + tokens.stage * S::kTokenStageBytes);
    return kFp8 ? ptx::wgmma_descriptor_64(at) : ptx::wgmma_descriptor(at);
  };
  const std::integral_constant<int, 0> low;
  const std::integral_constant<int, 1> high;

  uint64_t* previous = shared.tokens_empty;  // of the token stage before, whose products may be under way
  uint64_t b = 0;
  uint32_t k = 0;
  for (; k + kChunk <= p.k_tiles; k += kChunk) {
    ptx::barrier_wait(&shared.weights_full[weights.stage], weights.phase);
    const uint32_t slot = weights.stage * S::kWeightStageBytes;
    Piece piece[2];
    load(piece[0], slot);
    load_tables(low, piece[0]);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const Piece& now = piece[i & 1];
      if (i + 1 < kChunk) load(piece[(i + 1) & 1], slot + (i + 1) * mxfp4::kTileBytes);
      load_tables(high, now);
      const bool opens = i % S::kGroupTiles == 0;
      if (opens) b = first_of_stage();
      start(low, now, b + i % S::kGroupTiles * (kTileBytes / 16));
      ptx::wgmma_wait<1>();
      if (opens) {
        ptx::barrier_arrive_if(previous, (i > 0 || k > 0) && lane == 0);
        previous = &shared.tokens_empty[tokens.stage];
      }
      if (i + 1 < kChunk) load_tables(low, piece[(i + 1) & 1]);
      start(high, now, b + i % S::kGroupTiles * (kTileBytes / 16));
      ptx::wgmma_wait<1>();
      if (i % S::kGroupTiles == S::kGroupTiles - 1) tokens.next();
    }
    __syncwarp();
    ptx::barrier_arrive_if(&shared.weights_empty[weights.stage], lane == 0);
    weights.next();
  }
  ptx::wgmma_wait<0>();
  ptx::barrier_arrive_if(previous, k > 0 && lane == 0);
  if (k < p.k_tiles) {
    ptx::barrier_wait(&shared.weights_full[weights.stage], weights.phase);
    const uint32_t rest = p.k_tiles - k;
    for (uint32_t i = 0; i < rest; ++i) {
      Piece now;
      load(now, weights.stage * S::kWeightStageBytes + i * mxfp4::kTileBytes);
      load_tables(low, now);
      load_tables(high, now);
      if (S::kGroupTiles == 1 || i == 0) b = first_of_stage();
      const uint64_t at = b + (S::kGroupTiles == 1 ? 0 : i * (kTileBytes / 16));
      start(low, now, at);
      start(high, now, at);
      ptx::wgmma_wait<0>();
      if (S::kGroupTiles == 1 || i + 1 == rest) {
        ptx::barrier_arrive_if(&shared.tokens_empty[tokens.stage], lane == 0);
        tokens.next();
      }
    }
    __syncwarp();
    ptx::barrier_arrive_if(&shared.weights_empty[weights.stage], lane == 0);
    weights.next();
  }
}

// One piece of work of a warp: its strip by the tile's tokens.
template <bool kFp8, bool kGateUp, int kSet, int... kNumber>
__device__ __forceinline__ void multiply_tile(std::integer_sequence<int, kNumber...>, const Product& p, const TokenTile& tile, uint32_t strip, bool valid, Maxima maxima,
                                              uint32_t n, const Shared<kFp8, kSet>& shared, Ring<Shape<kFp8, kSet>::kWeightStages>& weights,
                                              Ring<Shape<kFp8, kSet>::kTokenStages>& tokens) {
  const int g = (threadIdx.x & 31) / 4;
  // What the epilogue needs is asked for here: there each load would be waited for. Raw bits, converted there.
  const bf16* bias = p.bias + (static_cast<size_t>(tile.expert) * p.strips + strip) * 16;
  uint32_t bias0, bias1 = 0;
  if constexpr (kGateUp) bias0 = ptx::load_word(bias + 2 * g);
  else bias0 = ptx::load_half(bias + g), bias1 = ptx::load_half(bias + g + 8);

  // NOTES: one array for all widths, set here and read below: the assembler gives sums of each width registers of their own, and does
  // not keep products in flight when all of them together are too many.
  float sums[Shape<kFp8, kSet>::kWidest / 2] = {};
  const auto of_width = [&](auto number) {
    constexpr int kWidth = narrowest_of(kSet) + decltype(number)::value * step_of(kSet);
    // NOTES: a vote tells the compiler that the warp agrees; else it keeps rings and descriptors in every lane, 20 instructions a tile.
    if (!__any_sync(~0u, tile.width == kWidth)) return false;
    add_products<kFp8, kSet, kWidth>(p, maxima, shared, weights, tokens, reinterpret_cast<float (&)[kWidth / 2]>(sums));
    return true;
  };
  (of_width(std::integral_constant<int, kNumber>()) || ...);

  const float fixed = kGateUp ? 1.f : 1.f / kInnerScale, scale0 = row_scale(maxima.of_g) * fixed, scale1 = row_scale(maxima.of_g8) * fixed;  // E4M3
  const Swiglu swiglu(p.limit, p.alpha, kFp8 ? 1.f / kInnerScale : 1.f);
  store_strip<kFp8, kGateUp, Shape<kFp8, kSet>::kWidest>(sums, shared.words_of(n, tile.first), scale0, scale1, ptx::bf16_low(bias0), kGateUp ? ptx::bf16_high(bias0) : ptx::bf16_low(bias1), swiglu,
                                                         static_cast<uint8_t*>(p.out), p.out_columns * (kFp8 && kGateUp ? 1 : 2), strip, tile, valid ? tile.count : 0);
}

template <bool kFp8, int kSet>
__device__ __forceinline__ void produce_weights(const Product& p, const Shared<kFp8, kSet>& shared, uint32_t total) {
  using S = Shape<kFp8, kSet>;
  const uint32_t lane = threadIdx.x & 31;
  Ring<S::kWeightStages> ring;
  const uint64_t policy = ptx::evict_first_policy();
  for (uint32_t i = blockIdx.x; i < total; i += gridDim.x) {
    const uint32_t strip = min(i % p.rounds * S::kWarps + lane, p.strips - 1);  // past the end: the last one again
    const bool brings = lane < 4 * groups_with_rows<S>(p, i);
    const uint8_t* source = p.weights + (static_cast<size_t>(p.tile_of(i).expert) * p.strips + strip) * p.k_tiles * mxfp4::kTileBytes;
    for (uint32_t k = 0; k < p.k_tiles; k += kChunk, source += kChunkBytes) {
      ptx::barrier_wait(&shared.weights_empty[ring.stage], ring.phase ^ 1);
      if (brings) {
        const uint32_t bytes = min(p.k_tiles - k, static_cast<uint32_t>(kChunk)) * mxfp4::kTileBytes;
        ptx::barrier_expect(&shared.weights_full[ring.stage], bytes);
        uint8_t* to = shared.weights + ring.stage * S::kWeightStageBytes + lane * kChunkBytes;
        // Wide tiles: other tiles of the expert may want the same weights soon.
        if constexpr (S::kWidest <= 96) ptx::bulk_load(to, source, bytes, &shared.weights_full[ring.stage], policy);
        else ptx::bulk_load(to, source, bytes, &shared.weights_full[ring.stage]);
      } else {
        ptx::barrier_arrive_if(&shared.weights_full[ring.stage], lane < S::kWarps);
      }
      __syncwarp();
      ring.next();
    }
  }
}

template <bool kFp8, int kSet>
__device__ __forceinline__ void produce_tokens(const Product& p, const Maps<kSet>& maps, const Shared<kFp8, kSet>& shared, uint32_t total) {
  using S = Shape<kFp8, kSet>;
  Ring<S::kTokenStages> ring;
  Ring<S::kTokenStages> began = ring;
  uint32_t n = 0;
  const bool short_pieces = p.k_tiles <= (S::kTokenStages - 1) * S::kGroupTiles;
  for (uint32_t i = blockIdx.x; i < total; i += gridDim.x, ++n) {
    // Who has consumed the first tokens of the piece before has done with the words of the one before that, whose place this one takes.
    // A piece that fills the ring waits for that anyway.
    if (n && short_pieces) ptx::barrier_wait(&shared.tokens_empty[began.stage], began.phase);
    began = ring;
    if (p.rounds_before) ptx::wait_for_count(p.finished + i / p.rounds, p.rounds_before), ptx::global_proxy_fence();
    const TokenTile tile = p.tile_of(i);
    const CUtensorMap* map = &maps.of[(tile.width - narrowest_of(kSet)) / step_of(kSet)];
    const uint32_t tile_bytes = tile.width * kK * S::kElement;
    for (uint32_t k = 0; k < p.k_tiles; k += S::kGroupTiles) {
      const uint32_t count = min(p.k_tiles - k, static_cast<uint32_t>(S::kGroupTiles));
      ptx::barrier_wait(&shared.tokens_empty[ring.stage], ring.phase ^ 1);
      const uint32_t word_bytes = p.words && k == 0 ? (tile.first % 4 + tile.width + 3) / 4 * 16 : 0;
      ptx::barrier_expect(&shared.tokens_full[ring.stage], count * tile_bytes + word_bytes);
      if (word_bytes) ptx::bulk_load(shared.words_of(n, 0), p.words + tile.first / 4 * 4, word_bytes, &shared.tokens_full[ring.stage]);
      uint8_t* to = shared.tokens + ring.stage * S::kTokenStageBytes;
      for (uint32_t box = 0; box < count; ++box) ptx::tensor_load_2d(to + box * tile_bytes, map, (k + box) * kK, tile.first, &shared.tokens_full[ring.stage]);
      ring.next();
    }
  }
}

// Says of each piece of gate_up's work that it is stored. One thread for the block: to make results visible to other multiprocessors
// takes a microsecond, in which consumers do better things. Invariant: it arrives too, and consumers arrive only when the piece before is
// complete, so that a phase of `stored` is a piece, however short pieces are and whoever is behind.
template <bool kFp8, int kSet>
__device__ __forceinline__ void announce(const Product& p, const Shared<kFp8, kSet>& shared, uint32_t total) {
  uint32_t phase = 0;
  for (uint32_t i = blockIdx.x; i < total; i += gridDim.x, phase ^= 1) {
    ptx::barrier_arrive(shared.stored);
    ptx::barrier_wait(shared.stored, phase);
    ptx::release_add(p.finished + i / p.rounds, 1);
  }
}

template <bool kFp8, bool kGateUp, int kSet>
__global__ void __launch_bounds__(Shape<kFp8, kSet>::kThreads, 1) product_kernel(const __grid_constant__ Maps<kSet> maps, const __grid_constant__ Product p) {
  using S = Shape<kFp8, kSet>;
  const Shared<kFp8, kSet> shared(ptx::dynamic_shared());
  if (p.waits) ptx::dependency_wait();
  ptx::launch_dependents();
  const uint32_t total = *p.tile_count * p.rounds;
  if (blockIdx.x >= total) return;
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kWeightStages; ++i) ptx::barrier_init(&shared.weights_full[i], S::kWarps), ptx::barrier_init(&shared.weights_empty[i], S::kWarps);
    for (int i = 0; i < S::kTokenStages; ++i) ptx::barrier_init(&shared.tokens_full[i], 1), ptx::barrier_init(&shared.tokens_empty[i], S::kWarps);
    ptx::barrier_init(shared.stored, S::kWarps + 1);
    ptx::barrier_init_fence();
  }
  if constexpr (kFp8) fill_table(shared.table, S::kThreads);
  __syncthreads();
  const int warp = threadIdx.x / 32;
  if (warp >= S::kWarps) {
    ptx::give_registers<S::kProducerRegisters>();
    if (warp == S::kWarps) produce_weights<kFp8, kSet>(p, shared, total);
    else if (threadIdx.x == 32 * (S::kWarps + 1)) produce_tokens<kFp8, kSet>(p, maps, shared, total);
    else if (kGateUp && threadIdx.x == 32 * (S::kWarps + 2)) announce<kFp8, kSet>(p, shared, total);
  } else {
    ptx::take_registers<S::kConsumerRegisters>();
    Ring<S::kWeightStages> weights;
    Ring<S::kTokenStages> tokens;
    const auto strip_of = [&](uint32_t i) { return min(i % p.rounds * S::kWarps + warp, p.strips - 1); };
    const auto maxima_of = [&](const TokenTile& tile, uint32_t strip) {
      if constexpr (!kFp8) return Maxima{};
      const uint8_t* at = p.maxima + (static_cast<size_t>(tile.expert) * p.strips + strip) * 16 + (threadIdx.x & 31) / 4;
      return Maxima{ptx::load_byte(at), ptx::load_byte(at + 8)};
    };
    TokenTile tile = p.tile_of(blockIdx.x);
    Maxima maxima = maxima_of(tile, strip_of(blockIdx.x));
    uint32_t n = 0;
    for (uint32_t i = blockIdx.x; i < total; i += gridDim.x, ++n) {
      const uint32_t following = i + gridDim.x < total ? i + gridDim.x : i;
      const TokenTile next = p.tile_of(following);
      const Maxima next_maxima = maxima_of(next, strip_of(following));
      const bool valid = i % p.rounds * S::kWarps + warp < p.strips;
      if (__any_sync(~0u, warp >= 4 * groups_with_rows<S>(p, i))) pass_tile(p, shared, weights, tokens);
      else multiply_tile<kFp8, kGateUp, kSet>(std::make_integer_sequence<int, widths_of(kSet)>(), p, tile, strip_of(i), valid, maxima, n, shared, weights, tokens);
      if constexpr (kGateUp) {
        // All lanes look before one arrives: a late one would meet the next phase.
        if (n) ptx::barrier_wait(shared.stored, (n - 1) & 1);
        __syncwarp();
        ptx::barrier_arrive_if(shared.stored, (threadIdx.x & 31) == 0);
      }
      tile = next, maxima = next_maxima;
    }
  }
}

template <bool kFp8, bool kGateUp, int kSet>
int launch_set(const Product& product, const Plan& plan, const void* tokens, uint64_t rows, uint32_t k, bool first, cudaStream_t stream) {
  using S = Shape<kFp8, kSet>;
  Maps<kSet> maps;
  for (uint32_t n = 0; n < widths_of(kSet); ++n)
    if (!ptx::make_tensor_map(&maps.of[n], kFp8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, S::kElement, tokens, rows, k,
                              narrowest_of(kSet) + n * step_of(kSet), kFp8 ? kK : 2 * kK))
      return GOSSAMER_BAD_SHAPE;
  Product p = product;
  p.tiles = plan.tiles + kSet * plan.tiles_per_set;
  p.tile_count = plan.tile_counts + kSet;
  p.rounds = (p.strips + S::kWarps - 1) / S::kWarps;
  p.finished = plan.finished + kSet * plan.tiles_per_set;
  p.rounds_before = kGateUp ? 0 : (2 * k / mxfp4::kTileRows + S::kWarps - 1) / S::kWarps;  // gate and up are rows there
  p.waits = kGateUp && first;
  return launch(product_kernel<kFp8, kGateUp, kSet>, multiprocessors(), S::kThreads, S::kSharedBytes, stream, true, maps, p);
}

// All sets that the plan may have, from the likeliest on. `mean`: tokens of an expert.
template <bool kFp8, bool kGateUp, int... kSet>
int launch_sets(std::integer_sequence<int, kSet...>, const Product& p, const Plan& plan, const void* tokens, uint64_t rows, uint32_t k, uint32_t mean, cudaStream_t stream) {
  constexpr decltype(&launch_set<kFp8, kGateUp, 0>) kLaunches[] = {launch_set<kFp8, kGateUp, kSet>...};
  const uint32_t tiles = (mean + plan.most - 1) / plan.most, likeliest = set_of(width_for((mean + tiles - 1) / tiles)), count = set_of(plan.most) + 1;
  if (const int status = kLaunches[likeliest](p, plan, tokens, rows, k, true, stream)) return status;
  for (uint32_t set = count; set--;)
    if (set != likeliest)
      if (const int status = kLaunches[set](p, plan, tokens, rows, k, false, stream)) return status;
  return GOSSAMER_OK;
}
template <bool kFp8>
using Sets = std::make_integer_sequence<int, static_cast<int>(sets_of(kFp8))>;

template <bool kFp8, bool kGateUp>
int product(const GossamerExpertsDesc& d, const GossamerExpertsArgs& a, const Plan& plan, cudaStream_t stream) {
  const GossamerExpertWeights& w = kGateUp ? a.gate_up : a.down;
  const uint32_t k = kGateUp ? d.hidden : d.intermediate, rows = kGateUp ? 2 * d.intermediate : d.hidden;
  Product p = {};
  p.weights = reinterpret_cast<const uint8_t*>(w.data);
  p.bias = reinterpret_cast<const bf16*>(w.bias);
  p.words = !kGateUp ? plan.pairs : kFp8 ? reinterpret_cast<const uint32_t*>(plan.token_scales) : nullptr;
  p.out = kGateUp ? plan.inner : reinterpret_cast<void*>(a.out);
  p.maxima = kGateUp ? plan.gate_up_maxima : plan.down_maxima;
  p.strips = rows / 16;
  p.k_tiles = static_cast<uint32_t>(mxfp4::tiles_of(k));
  p.out_columns = kGateUp ? d.intermediate : d.hidden;
  p.limit = d.limit;
  p.alpha = d.alpha;
  return launch_sets<kFp8, kGateUp>(Sets<kFp8>{}, p, plan, kGateUp ? plan.x : plan.inner, static_cast<uint64_t>(a.tokens) * d.top_k, k, mean_of(d, a.tokens), stream);
}

template <bool kFp8, bool kGateUp, int... kSet>
bool allow(std::integer_sequence<int, kSet...>) {
  return (allow_shared(product_kernel<kFp8, kGateUp, kSet>, Shape<kFp8, kSet>::kSharedBytes) && ...);
}

}  // namespace
}  // namespace gossamer::grouped
