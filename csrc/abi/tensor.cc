#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "abi/abi.h"

namespace rlt {
namespace {

c10::IntArrayRef shape(const int64_t* dims, int32_t ndim) {
  TORCH_CHECK(ndim >= 0 && ndim <= 8, "a tensor has at most 8 dimensions, got ", ndim);
  return {dims, static_cast<size_t>(ndim)};
}

int64_t byte_size(c10::IntArrayRef dims, at::ScalarType type) {
  int64_t bytes = static_cast<int64_t>(c10::elementSize(type));
  for (const int64_t d : dims) {
    TORCH_CHECK(d >= 0 && !__builtin_mul_overflow(bytes, d, &bytes), "invalid shape ", dims);
  }
  return bytes;
}

at::Tensor map_file(const char* path, int64_t offset, at::ScalarType type, c10::IntArrayRef dims) {
  const int64_t bytes = byte_size(dims, type);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  TORCH_CHECK(fd >= 0, "open ", path, ": ", std::strerror(errno));
  struct stat info {};
  const bool fits =
      fstat(fd, &info) == 0 && offset >= 0 && offset <= info.st_size && bytes <= info.st_size - offset;
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t lead = offset % page;
  void* base = MAP_FAILED;
  if (fits && bytes > 0) {
    base = mmap(nullptr, static_cast<size_t>(lead + bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE, fd,
                offset - lead);
  }
  const int cause = errno;
  close(fd);
  TORCH_CHECK(fits, path, ": ", bytes, " bytes at offset ", offset, " are past the end of the file");
  if (bytes == 0) return at::empty(dims, type);
  TORCH_CHECK(base != MAP_FAILED, "map ", path, ": ", std::strerror(cause));
  const auto length = static_cast<size_t>(lead + bytes);
  return at::from_blob(
      static_cast<char*>(base) + lead, dims, [base, length](void*) { munmap(base, length); }, type);
}

}  // namespace
}  // namespace rlt

rlt_error* rlt_tensor_from(const void* data, int32_t dtype, const int64_t* dims, int32_t ndim, int32_t device,
                           rlt_tensor* t) {
  return rlt::guard([&] {
    const c10::Device place = rlt::device_of(device);
    const auto type = rlt::scalar_type(dtype);
    const auto bytes = rlt::byte_size(rlt::shape(dims, ndim), type);
    // Pinned memory makes the copy to a GPU asynchronous.
    at::Tensor made =
        at::empty(rlt::shape(dims, ndim), at::TensorOptions(type).pinned_memory(place.is_cuda()));
    if (bytes > 0) std::memcpy(made.mutable_data_ptr(), data, static_cast<size_t>(bytes));
    *t = rlt::give(made.to(place, /*non_blocking=*/true));
  });
}

rlt_error* rlt_tensor_map(const char* path, int64_t offset, int32_t dtype, const int64_t* dims, int32_t ndim,
                          rlt_tensor* t) {
  return rlt::guard(
      [&] { *t = rlt::give(rlt::map_file(path, offset, rlt::scalar_type(dtype), rlt::shape(dims, ndim))); });
}

rlt_error* rlt_tensor_read(rlt_tensor t, int32_t dtype, void* data, int64_t bytes) {
  return rlt::guard([&] {
    const at::NoGradGuard no_grad;
    const auto type = rlt::scalar_type(dtype);
    const at::Tensor dense = rlt::borrow(t).detach().to(at::kCPU, type).contiguous();
    TORCH_CHECK(static_cast<int64_t>(dense.nbytes()) == bytes, "read: the tensor has ", dense.nbytes(),
                " bytes, the buffer ", bytes);
    if (bytes > 0) std::memcpy(data, dense.const_data_ptr(), static_cast<size_t>(bytes));
  });
}

rlt_error* rlt_tensor_shape(rlt_tensor t, int64_t* dims, int32_t* ndim) {
  return rlt::guard([&] {
    const at::Tensor tensor = rlt::borrow(t);
    TORCH_CHECK(tensor.dim() <= 8, "a tensor has at most 8 dimensions, this one ", tensor.dim());
    *ndim = static_cast<int32_t>(tensor.dim());
    for (int32_t i = 0; i < *ndim; ++i) dims[i] = tensor.size(i);
  });
}

rlt_error* rlt_tensor_write(rlt_tensor t, const float* data, int64_t count) {
  return rlt::guard([&] {
    const at::NoGradGuard no_grad;
    at::Tensor target = rlt::borrow(t);
    TORCH_CHECK(target.scalar_type() == at::kFloat && target.is_contiguous() && target.numel() == count,
                "write: ", count, " values for a tensor of shape ", target.sizes(), " and type ",
                target.scalar_type(), "; it must be contiguous, float32 and of as many values");
    target.copy_(at::from_blob(const_cast<float*>(data), target.sizes(), at::kFloat));
  });
}

rlt_error* rlt_tensor_require_grad(rlt_tensor t) {
  return rlt::guard([&] { rlt::borrow(t).requires_grad_(true); });
}

rlt_error* rlt_tensor_grad(rlt_tensor t, rlt_tensor* grad) {
  return rlt::guard([&] { *grad = rlt::give(rlt::borrow(t).grad()); });
}

rlt_error* rlt_tensor_zero_grad(const rlt_tensor* ts, int32_t n) {
  return rlt::guard([&] {
    for (int32_t i = 0; i < n; ++i) rlt::borrow(ts[i]).mutable_grad().reset();
  });
}

rlt_error* rlt_tensor_backward(rlt_tensor loss) {
  return rlt::guard([&] { rlt::borrow(loss).backward(); });
}
