// Stand-ins for tensor maps: boxes with zeros outside the tensor, in the swizzle of the box's row.
#pragma once
#include "sm90.cuh"

namespace gossamer::ptx {

struct Tensor {
  const uint8_t* base;
  uint64_t sizes[3], strides[3];  // elements; bytes
  uint32_t box[3];
  int element;
};
static_assert(sizeof(Tensor) <= sizeof(CUtensorMap));

// Where byte `offset` of a swizzled tile at `address` lies: the 16-byte piece is exchanged by bits further up.
inline uint32_t swizzled(uint32_t address, int row_bytes) { return address ^ (row_bytes == 128 ? (address >> 7 & 7) << 4 : (address >> 7 & 3) << 4); }

// `window`: the shared memory that gets it, of this block or of another one of its cluster; `bar` lies there too.
inline void tensor_load(void* dst, const CUtensorMap* map, const int (&at)[3], uint64_t* bar, uint8_t* window = dynamic_window()) {
  Tensor t;
  std::memcpy(&t, map, sizeof t);
  const uint32_t row_bytes = t.box[0] * t.element, target = shared_address(dst);
  if (target % (row_bytes * 8)) fail("a box is not aligned to its swizzle");
  if (target + row_bytes * t.box[1] * t.box[2] > kSharedBytes) fail("a box outside shared memory");
  const int x0 = at[0], y0 = at[1], z0 = at[2];
  block->engine.push_back([=] {
    uint32_t offset = target;
    for (uint32_t z = 0; z < t.box[2]; ++z)
      for (uint32_t y = 0; y < t.box[1]; ++y)
        for (uint32_t x = 0; x < t.box[0]; ++x, offset += t.element) {
          const int64_t px = x0 + int64_t{x}, py = y0 + int64_t{y}, pz = z0 + int64_t{z};
          const bool inside = px >= 0 && py >= 0 && pz >= 0 && px < int64_t(t.sizes[0]) && py < int64_t(t.sizes[1]) && pz < int64_t(t.sizes[2]);
          uint8_t* to = window + swizzled(offset, static_cast<int>(row_bytes));
          if (inside) std::memcpy(to, t.base + px * t.strides[0] + py * t.strides[1] + pz * t.strides[2], t.element);
          else std::memset(to, 0, t.element);
        }
    Barrier& b = barrier(bar);
    b.bytes -= static_cast<int32_t>(row_bytes * t.box[1] * t.box[2]);
    barrier_settle(b);
  });
}
inline void tensor_load_2d(void* dst, const CUtensorMap* map, int x, int y, uint64_t* bar) { tensor_load(dst, map, {x, y, 0}, bar); }
inline void tensor_load_2d_multicast(void* dst, const CUtensorMap* map, int x, int y, uint64_t* bar, uint16_t blocks) {
  for (uint32_t rank = 0; rank < 16; ++rank)
    if (blocks >> rank & 1) tensor_load(dst, map, {x, y, 0}, of_rank(bar, rank), of_rank(dynamic_window(), rank));
}
inline void tensor_load_3d(void* dst, const CUtensorMap* map, int x, int y, int z, uint64_t* bar) { tensor_load(dst, map, {x, y, z}, bar); }
inline void tensor_prefetch_map(const CUtensorMap*) {}

inline bool tensor_encoder() { return true; }
inline bool make_tensor_map(CUtensorMap* map, CUtensorMapDataType, int element, const void* address, uint64_t rows, uint64_t columns, uint32_t box_rows,
                            int row_bytes = 128) {
  const Tensor t = {static_cast<const uint8_t*>(address),
                    {columns, rows, 1},
                    {static_cast<uint64_t>(element), columns * element, 0},
                    {static_cast<uint32_t>(row_bytes / element), box_rows, 1},
                    element};
  std::memcpy(map, &t, sizeof t);
  return columns * element % 16 == 0 && reinterpret_cast<uintptr_t>(address) % 16 == 0 && box_rows <= 256;
}
inline bool make_tensor_map_3d(CUtensorMap* map, const void* address, uint64_t z, uint64_t y, uint64_t stride_z, uint32_t box_z, uint32_t box_y) {
  const Tensor t = {static_cast<const uint8_t*>(address), {64, y, z}, {2, 128, stride_z * 2}, {64, box_y, box_z}, 2};
  std::memcpy(map, &t, sizeof t);
  return stride_z * 2 % 16 == 0 && reinterpret_cast<uintptr_t>(address) % 16 == 0 && box_z <= 256 && box_y <= 256;
}

}  // namespace gossamer::ptx
