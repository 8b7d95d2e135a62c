// What the kernels of decoding fix of attention's shape.
#pragma once

namespace gossamer::attention {

constexpr int kHeads = 8;  // query heads of a KV head, at most
constexpr int kDim = 64, kPage = 64;

}  // namespace gossamer::attention
