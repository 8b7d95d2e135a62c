// Stand-ins for warpgroup products, after the fragment and matrix layouts of the PTX manual.
#pragma once
#include "tma.cuh"

namespace gossamer::ptx {

inline uint64_t wgmma_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | (1ull << 16) | (static_cast<uint64_t>(1024 >> 4) << 32) | (1ull << 62);
}
inline uint64_t wgmma_descriptor_64(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | (1ull << 16) | (static_cast<uint64_t>(512 >> 4) << 32) | (2ull << 62);
}
inline uint64_t descriptor_plus(uint64_t descriptor, uint32_t bytes) {
  return (descriptor & 0xFFFFFFFF00000000ull) | (static_cast<uint32_t>(descriptor) + (bytes >> 4));
}

// Element (row, column) of the tile behind a descriptor; rows are the 8-row groups' direction.
inline float element(uint64_t descriptor, int row, int column, bool fp8) {
  const int row_bytes = descriptor >> 62 == 1 ? 128 : 64;
  const uint32_t start = static_cast<uint32_t>(descriptor & 0x3FFF) << 4, stride = static_cast<uint32_t>(descriptor >> 32 & 0x3FFF) << 4;
  const uint8_t* p = shared_pointer(swizzled(start + row / 8 * stride + row % 8 * row_bytes + column * (fp8 ? 1 : 2), row_bytes));
  if (!fp8) return bf16_bits(*reinterpret_cast<const uint16_t*>(p));
  __nv_fp8_e4m3 v;
  v.__x = *p;
  return static_cast<float>(v);
}

inline void execute(const Product& p) {
  std::vector<float> a(64 * p.k), b(p.columns * p.k);
  for (int r = 0; r < 64; ++r)
    for (int k = 0; k < p.k; ++k) {
      if (p.a_shared) {
        a[r * p.k + k] = element(p.a, r, k, p.fp8);
        continue;
      }
      // Warp r / 16; rows g and g + 8; two halves of k, in each a lane holds neighbouring columns.
      const int half = p.k / 2, each = half / 4, lane = r % 8 * 4 + k % half / each, reg = k / half * 2 + r % 16 / 8, in_word = k % each;
      const uint32_t word = p.a_registers[r / 16 * 32 + lane][reg];
      if (p.fp8) {
        __nv_fp8_e4m3 v;
        v.__x = static_cast<uint8_t>(word >> (8 * in_word));
        a[r * p.k + k] = static_cast<float>(v);
      } else {
        a[r * p.k + k] = bf16_bits(word >> (16 * in_word) & 0xFFFF);
      }
    }
  for (int n = 0; n < p.columns; ++n)
    for (int k = 0; k < p.k; ++k) b[n * p.k + k] = p.b_transposed ? element(p.b, k, n, p.fp8) : element(p.b, n, k, p.fp8);
  for (int r = 0; r < 64; ++r)
    for (int n = 0; n < p.columns; ++n) {
      float& d = p.d[r / 16 * 32 + r % 8 * 4 + n % 8 / 2][n / 8 * 4 + r % 16 / 8 * 2 + n % 2];
      float sum = p.accumulate ? d : 0.f;
      for (int k = 0; k < p.k; ++k) sum += a[r * p.k + k] * b[n * p.k + k];
      d = sum;
    }
}

inline void wgmma_fence() {}
inline void wgmma_commit() { self().groups.push_back(self().products); }
template <int kPending>
void wgmma_wait() {
  Thread& t = self();
  if (t.groups.size() <= kPending) return;
  const size_t wanted = t.groups[t.groups.size() - 1 - kPending];
  Warpgroup& w = block->warpgroups[thread_number() / 128];
  // A product takes effect once all threads have started it and one waits for it.
  wait_until([&] { return std::all_of(w.products.begin() + w.done, w.products.begin() + std::max(w.done, wanted), [](const Product& p) { return p.arrived == 128; }); });
  for (; w.done < wanted; ++w.done) execute(w.products[w.done]);
}
inline void start_product(float* d, const uint32_t* a_registers, uint64_t a, uint64_t b, int accumulate, int columns, int k, bool fp8, bool transposed) {
  Warpgroup& w = block->warpgroups[thread_number() / 128];
  const size_t number = self().products++;
  if (number == w.products.size()) w.products.push_back({columns, k, fp8, a_registers == nullptr, transposed, a, b, accumulate});
  Product& p = w.products[number];
  if (p.columns != columns || p.a != a || p.b != b || p.accumulate != accumulate) fail("threads of a warpgroup start different products");
  p.d[thread_number() % 128] = d;
  p.a_registers[thread_number() % 128] = a_registers;
  ++p.arrived;
  ++progress;
}
template <int kN>
struct Wgmma {
  static void bf16(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) { start_product(d, a, 0, b, accumulate, kN, 16, false, false); }
  static void e4m3(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) { start_product(d, a, 0, b, accumulate, kN, 32, true, false); }
  static void bf16_transposed(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) { start_product(d, a, 0, b, accumulate, kN, 16, false, true); }
  static void bf16_shared(float (&d)[kN / 2], uint64_t a, uint64_t b, int accumulate) { start_product(d, nullptr, a, b, accumulate, kN, 16, false, false); }
};

}  // namespace gossamer::ptx
