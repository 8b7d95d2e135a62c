// Random MXFP4 weights of experts for emulated checks, and an expert in float64.
#pragma once
#include "gossamer/mxfp4.cuh"
#include "reference.h"

namespace mxfp4 = gossamer::mxfp4;

inline double rounded(double v) { return __bfloat162float(__float2bfloat16(static_cast<float>(v))); }
inline double e4m3(double v) { return static_cast<float>(__nv_fp8_e4m3(static_cast<float>(v))); }

// Random weights in both layouts, with their values. Scales take `spread` neighbouring powers of two.
struct Matrices {
  uint32_t rows, k;
  std::vector<uint8_t> packed;         // mxfp4-sm90-v2
  std::vector<uint8_t> codes, scales;  // as in the checkpoint
  std::vector<float> values;  // [expert][checkpoint row][k]
  Matrices(uint32_t experts, uint32_t r, uint32_t columns, bool interleaved, uint32_t spread, std::mt19937& rng)
      : rows(r), k(columns), packed(experts * mxfp4::matrix_bytes(r, columns)), codes(static_cast<size_t>(experts) * r * columns / 2), scales(codes.size() / 16), values(static_cast<size_t>(experts) * r * columns) {
    const float magnitudes[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    for (uint32_t e = 0; e < experts; ++e)
      for (uint32_t row = 0; row < rows; ++row) {
        const uint32_t strip = row / 16, q = row % 16, place = !interleaved ? q : (q & 1 ? q / 2 + 8 : q / 2), g = place % 8;
        uint8_t* tiles = &packed[((static_cast<size_t>(e) * (rows / 16) + strip) * mxfp4::tiles_of(k)) * mxfp4::kTileBytes];
        for (uint32_t block = 0; block < k / 32; ++block) {
          const uint8_t scale = static_cast<uint8_t>(122 - rng() % spread);
          const size_t at = (static_cast<size_t>(e) * rows + row) * k + block * 32;
          scales[at / 32] = scale;
          tiles[block / 2 * mxfp4::kTileBytes + mxfp4::kCodeBytes + 4 * g + place / 8 * 2 + block % 2] = scale;
          for (uint32_t i = 0; i < 32; ++i) {
            const uint32_t column = block * 32 + i, code = rng() % 16, step = column % 64 / 16, c = column % 16;
            uint32_t* words = reinterpret_cast<uint32_t*>(&tiles[column / 64 * mxfp4::kTileBytes + (g * 4 + c % 8 / 2) * 16]);
            mxfp4::place(words, static_cast<int>(step), static_cast<int>(c / 8 * 2 + place / 8), c & 1, code);
            codes[(at + i) / 2] |= static_cast<uint8_t>(code << 4 * (i & 1));
            values[at + i] = std::ldexp(magnitudes[code & 7] * (code & 8 ? -1.f : 1.f), scale - 127);
          }
        }
      }
  }
  const float* row(uint32_t expert, uint32_t r) const { return &values[(static_cast<size_t>(expert) * rows + r) * k]; }
};

// One row of a product with its bias, in float64.
inline double row_product(const Matrices& m, const std::vector<__nv_bfloat16>& bias, uint32_t expert, uint32_t row, const std::vector<double>& x) {
  double sum = value(bias[static_cast<size_t>(expert) * m.rows + row]);
  const float* const weights = m.row(expert, row);
  for (uint32_t i = 0; i < m.k; ++i) sum += x[i] * weights[i];
  return sum;
}
// What an expert makes of a token. `narrow` rounds the values between its products.
template <class Narrow>
std::vector<double> expert_output(const Matrices& gate_up, const std::vector<__nv_bfloat16>& gate_up_bias, const Matrices& down, const std::vector<__nv_bfloat16>& down_bias, uint32_t expert,
                                  const std::vector<double>& x, Narrow narrow) {
  std::vector<double> inner(down.k), result(down.rows);
  for (uint32_t c = 0; c < down.k; ++c) {
    const double gate = std::min(row_product(gate_up, gate_up_bias, expert, 2 * c, x), 7.0), up = std::clamp(row_product(gate_up, gate_up_bias, expert, 2 * c + 1, x), -7.0, 7.0);
    inner[c] = narrow((up + 1) * gate / (1 + std::exp(-1.702 * gate)));
  }
  for (uint32_t r = 0; r < down.rows; ++r) result[r] = row_product(down, down_bias, expert, r, inner);
  return result;
}
