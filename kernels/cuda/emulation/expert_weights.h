// Random MXFP4 weights of experts for emulated checks.
#pragma once
#include "emulation.h"
#include "gossamer/mxfp4.cuh"

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
