// Records when every kernel ran, also inside CUDA graphs, in a program that was not built for it.
//
//     g++ -O2 -shared -fPIC -o trace.so kernels/profile/trace.cc -I CUPTI/include -I CUDA/include -l:libcupti.so.13 -L CUPTI/lib
//     KERNEL_TRACE=trace.tsv CUDA_INJECTION64_PATH=$PWD/trace.so PROGRAM...
//
// The driver loads the library before the program's first call. One line a kernel, in nanoseconds: start, end, blocks in x and y,
// name. Every process writes a file of its own (its id is appended). `steps.py` makes tables of it.
// Does not count bytes or operations, and costs about a microsecond a launch.
#include <cupti.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

constexpr size_t kBufferBytes = 8 << 20;
FILE* out;

void CUPTIAPI ask(uint8_t** buffer, size_t* size, size_t* most) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(64, kBufferBytes));
  *size = *buffer ? kBufferBytes : 0;
  *most = 0;
}

void CUPTIAPI take(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    // Later records only add members at the end.
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
    std::fprintf(out, "%llu\t%llu\t%d\t%d\t%s\n", static_cast<unsigned long long>(kernel->start), static_cast<unsigned long long>(kernel->end),
                 kernel->gridX, kernel->gridY, kernel->name);
  }
  std::free(buffer);
  std::fflush(out);  // a process may be killed
}

void finish() {
  cuptiActivityFlushAll(1);
  std::fclose(out);
}

}  // namespace

extern "C" int InitializeInjection() {
  const char* path = std::getenv("KERNEL_TRACE");
  out = std::fopen((std::string(path ? path : "trace.tsv") + "." + std::to_string(getpid())).c_str(), "w");
  if (!out) return 0;
  if (cuptiActivityRegisterCallbacks(ask, take) != CUPTI_SUCCESS || cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) {
    std::fprintf(stderr, "kernel trace: CUPTI refused\n");
    return 0;
  }
  cuptiActivityFlushPeriod(1000);
  std::atexit(finish);
  return 1;
}
