// The functions of rltrain_cuda.h. The operators register themselves.
#include <ATen/ops/ones.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

#include "cuda/engine/runner.h"
#include "rltrain_cuda.h"

namespace {

int32_t fail(const std::string& text, char* message, int32_t size) {
  const std::string line = text.substr(0, text.find('\n'));
  const size_t n = std::min(line.size(), static_cast<size_t>(std::max(size, 1) - 1));
  std::memcpy(message, line.data(), n);
  message[n] = 0;
  return 1;
}

int32_t check(cudaError_t code, char* message, int32_t size) {
  return code == cudaSuccess ? 0 : fail(cudaGetErrorString(code), message, size);
}

}  // namespace

int32_t rlt_cuda_version(void) { return RLT_CUDA_VERSION; }
const char* rlt_cuda_libtorch_version(void) { return TORCH_VERSION; }

int32_t rlt_cuda_count(int32_t* count, char* message, int32_t size) {
  int n = 0;
  if (check(cudaGetDeviceCount(&n), message, size) != 0) return 1;
  *count = n;
  return n > 0 ? 0 : fail("there is no device", message, size);
}

int32_t rlt_cuda_describe(int32_t device, rlt_cuda_device* what, char* message, int32_t size) {
  cudaDeviceProp found;
  if (check(cudaGetDeviceProperties(&found, device), message, size) != 0) return 1;
  std::memset(what, 0, sizeof *what);
  std::memcpy(what->name, found.name, sizeof what->name - 1);
  what->memory = static_cast<int64_t>(found.totalGlobalMem);
  what->major = found.major;
  what->minor = found.minor;
  return 0;
}

int32_t rlt_cuda_try(int32_t device, char* message, int32_t size) {
  try {
    const c10::Device place(at::kCUDA, static_cast<c10::DeviceIndex>(device));
    const double got = at::ones({1}, at::TensorOptions(place)).add(1).item<double>();
    return got == 2 ? 0 : fail("1 + 1 is " + std::to_string(got), message, size);
  } catch (const c10::Error& e) {
    return fail(e.what_without_backtrace(), message, size);
  } catch (const std::exception& e) {
    return fail(e.what(), message, size);
  }
}

void* rlt_cuda_runner(void) { return reinterpret_cast<void*>(&rlt::cuda::make_gpu_runner); }

int32_t rlt_cuda_memory(int32_t device, int64_t* figures, char* message, int32_t size) {
  try {
    const auto index = static_cast<c10::DeviceIndex>(device);
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(index);
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    figures[0] = stats.allocated_bytes[all].current;
    figures[1] = stats.allocated_bytes[all].peak;
    figures[2] = stats.reserved_bytes[all].current;
    const auto [free, total] = c10::cuda::CUDACachingAllocator::get()->getMemoryInfo(index);
    figures[3] = static_cast<int64_t>(free);
    figures[4] = static_cast<int64_t>(total);
    return 0;
  } catch (const c10::Error& e) {
    return fail(e.what_without_backtrace(), message, size);
  } catch (const std::exception& e) {
    return fail(e.what(), message, size);
  }
}
