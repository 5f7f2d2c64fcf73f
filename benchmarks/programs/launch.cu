// SPDX-License-Identifier: Apache-2.0
// What a kernel launch costs the launching thread, by the runtime and by the driver's entry points as
// the runtime finds them; and how many bytes the driver writes for each pointer attribute.  Prints
// one line of JSON.  Built by interpose.py; run with and without the proxy.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

namespace {

constexpr int kBatches = 500;
constexpr int kLaunches = 100;  // well below what a stream holds, so that no launch waits
constexpr int kWarmups = 50;

__global__ void touch(float* out, const float* a, const float* b, int n) {
  if (n > 0 && threadIdx.x == 0 && blockIdx.x == 0) out[0] = a[0] + b[0];
}

double now_ns() {
  timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1e9 + at.tv_nsec;
}

void check(int status, const char* what) {
  if (status == 0) return;
  std::fprintf(stderr, "%s failed with %d\n", what, status);
  std::exit(1);
}

// Nanoseconds a launch: the median and the tenth percentile of the batches' means.
template <class Launch>
void measure(const char* name, const Launch& launch) {
  std::vector<double> means;
  for (int batch = -kWarmups; batch < kBatches; ++batch) {
    const double begin = now_ns();
    for (int i = 0; i < kLaunches; ++i) launch();
    const double mean = (now_ns() - begin) / kLaunches;
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    if (batch >= 0) means.push_back(mean);
  }
  std::sort(means.begin(), means.end());
  std::printf("\"%s_ns\": %.1f, \"%s_p10_ns\": %.1f, ", name, means[means.size() / 2], name,
              means[means.size() / 10]);
}

using GetAttribute = CUresult (*)(void*, CUpointer_attribute, CUdeviceptr);

// How far the driver writes: where two fills leave different bytes, it wrote nothing.
int written(GetAttribute get, int attribute, CUdeviceptr address) {
  unsigned char first[32];
  unsigned char second[32];
  std::memset(first, 0xaa, sizeof(first));
  std::memset(second, 0x55, sizeof(second));
  const auto which = static_cast<CUpointer_attribute>(attribute);
  if (get(first, which, address) != CUDA_SUCCESS) return -1;
  if (get(second, which, address) != CUDA_SUCCESS) return -1;
  int bytes = 0;
  for (int i = 0; i < 32; ++i) {
    if (first[i] == second[i]) bytes = i + 1;
  }
  return bytes;
}

}  // namespace

int main() {
  float* memory = nullptr;
  check(cudaMalloc(&memory, 4096), "cudaMalloc");
  float *out = memory, *a = memory + 64, *b = memory + 128;
  int n = 1;
  void* parameters[] = {&out, &a, &b, &n};
  cudaFunction_t found = nullptr;
  check(cudaGetFuncBySymbol(&found, reinterpret_cast<const void*>(touch)), "cudaGetFuncBySymbol");
  const auto function = reinterpret_cast<CUfunction>(found);
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult status;
  check(cudaGetDriverEntryPointByVersion("cuLaunchKernel", &entry, 12000, cudaEnableDefault, &status),
        "cudaGetDriverEntryPointByVersion");
  const auto launch = reinterpret_cast<decltype(&cuLaunchKernel)>(entry);
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  const auto get = reinterpret_cast<GetAttribute>(dlsym(library, "cuPointerGetAttribute"));

  std::printf("{");
  measure("runtime", [&] { touch<<<1, 32>>>(out, a, b, n); });
  measure("driver", [&] {
    launch(function, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr);
  });
  const auto calls =
      reinterpret_cast<unsigned long (*)(const char*)>(dlsym(library, "penstock_proxy_entry_calls"));
  const unsigned long seen =
      calls == nullptr ? 0
                       : calls("cuLaunchKernel") + calls("cuLaunchKernel_ptsz") +
                             calls("cuLaunchKernelEx") + calls("cuLaunchKernelEx_ptsz");
  std::printf("\"launches\": %d, \"launches_seen\": %lu, \"attribute_bytes\": {",
              2 * (kBatches + kWarmups) * kLaunches, seen);
  for (int attribute = 1; attribute <= 21; ++attribute) {
    std::printf("%s\"%d\": %d", attribute == 1 ? "" : ", ", attribute,
                written(get, attribute, reinterpret_cast<CUdeviceptr>(memory)));
  }
  std::printf("}}\n");
  return 0;
}
