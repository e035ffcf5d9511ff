// A device's utilisation, from the driver's NVML library. It comes with every driver, and is loaded on first
// use.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>

#include "rltrain_cuda.h"

namespace {

// The parts of nvml.h that are used here.
using Device = struct nvmlDevice*;
struct Utilization {
  unsigned gpu, memory;  // percent
};

struct Nvml {
  int (*init)() = nullptr;
  int (*by_bus)(const char*, Device*) = nullptr;
  int (*utilization)(Device, Utilization*) = nullptr;
  bool ready = false;

  Nvml() {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) return;
    init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    by_bus =
        reinterpret_cast<int (*)(const char*, Device*)>(dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
    utilization =
        reinterpret_cast<int (*)(Device, Utilization*)>(dlsym(library, "nvmlDeviceGetUtilizationRates"));
    ready = init != nullptr && by_bus != nullptr && utilization != nullptr && init() == 0;
  }
};

int32_t fail(const char* text, char* message, int32_t size) {
  std::snprintf(message, static_cast<size_t>(size), "%s", text);
  return 1;
}

}  // namespace

int32_t rlt_cuda_use(int32_t device, int32_t* percent, char* message, int32_t size) {
  static const Nvml nvml;
  if (!nvml.ready) return fail("the driver's libnvidia-ml.so.1 does not open", message, size);
  // NVML numbers devices differently from CUDA, so they are matched by PCI bus id.
  char bus[32];
  if (const cudaError_t code = cudaDeviceGetPCIBusId(bus, sizeof bus, device); code != cudaSuccess) {
    return fail(cudaGetErrorString(code), message, size);
  }
  Device found = nullptr;
  Utilization now{};
  if (nvml.by_bus(bus, &found) != 0 || nvml.utilization(found, &now) != 0) {
    return fail("the driver does not tell how busy it is", message, size);
  }
  percent[0] = static_cast<int32_t>(now.gpu);
  percent[1] = static_cast<int32_t>(now.memory);
  return 0;
}
