// archs: 90a
// When the blocks of a decode layer's kernels start, pass their marks and end: `layer_clock OUT [TOKENS] [apart]` writes a line a
// block, which kernels/profile/layer.py makes a table of; with `apart`, rotary embedding is a kernel of its own. The kernels are
// compiled again here, with their clocks; that costs a few microseconds a layer.
#define GOSSAMER_CLOCK
#include "../gemm/tiny.cu"
#include "../attention/rope.cu"
#include "../attention/decode.cu"
#include "../moe/router.cu"
#include "../moe/few.cu"
#include "layer_chain.h"

using namespace harness;

int main(int argc, char** argv) {
  if (argc < 2) {
    std::printf("usage: layer_clock OUT [TOKENS] [apart]\n");
    return 2;
  }
  const int tokens = argc > 2 ? std::atoi(argv[2]) : 1;
  const bool inside = argc < 4 || std::string(argv[3]) != "apart";
  if (tokens < 1 || tokens > LayerChain::kMostTokens) {
    std::printf("expected 1 to %d tokens, got %s\n", LayerChain::kMostTokens, argv[2]);
    return 2;
  }
  constexpr int layers = 36;
  REQUIRE_OK(gossamer_prepare());
  const LayerChain chain(layers);
  LayerChain::Batch batch(tokens);
  // Passes over the layers one after the other, the three included that graph_time runs before it measures.
  constexpr int kPasses = 4;
  const double us = graph_time([&](cudaStream_t stream) { chain.run(batch, inside, stream); }, kPasses - 3, 0);
  std::printf("%d tokens, %d layers, with clocks: %.2f us a layer\n", tokens, layers, us / layers);
  unsigned count;
  CHECK(cudaMemcpyFromSymbol(&count, gossamer::clocks::record_count, sizeof count));
  std::vector<gossamer::clocks::Record> records(std::min(count, gossamer::clocks::kMost));
  CHECK(cudaMemcpyFromSymbol(records.data(), gossamer::clocks::records, records.size() * sizeof records[0]));
  FILE* const file = std::fopen(argv[1], "w");
  if (!file) {
    std::printf("cannot write %s\n", argv[1]);
    return 1;
  }
  std::fprintf(file, "layers\t%d\n", kPasses * layers);
  const char* const names[gossamer::clocks::kKernels] = {"tiny", "rope", "attention", "router", "experts"};
  for (const auto& r : records) {
    const char* const name = r.kernel != gossamer::clocks::kTiny ? names[r.kernel] : r.rows == LayerChain::kQkv ? "qkv" : "o";
    std::fprintf(file, "%s\t%u", name, r.started);
    for (uint32_t mark : r.marks) std::fprintf(file, "\t%u", mark);
    std::fprintf(file, "\t%u\n", r.ended);
  }
  std::fclose(file);
  std::printf("%zu blocks in %s\n", records.size(), argv[1]);
  return 0;
}
