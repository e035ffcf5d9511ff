// Tests of the C ABI: tensors from memory and from files.
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>

#include "abi_support.h"
#include "support.h"

namespace {

using rlt::test::Handles;
using rlt::test::NoLeaks;

TEST(abi_tensor_from_and_read) {
  const NoLeaks check;
  Handles h;
  const std::array<float, 6> data{1, 2, 3, 4, 5, 6};
  std::array<int64_t, 9> dims{2, 3};
  rlt_tensor t = 0;
  EXPECT_OK(rlt_tensor_from(data.data(), RLT_F32, dims.data(), 2, RLT_CPU, &t));
  h.keep(t);
  std::array<float, 6> back{};
  EXPECT_OK(rlt_tensor_read(t, RLT_F32, back.data(), sizeof back));
  EXPECT(back == data);
  std::array<int64_t, 6> whole{};
  EXPECT_OK(rlt_tensor_read(t, RLT_I64, whole.data(), sizeof whole));
  EXPECT_EQUAL(whole[5], 6);
  EXPECT_ERROR("24 bytes", rlt_tensor_read(t, RLT_F32, back.data(), 20));
  EXPECT_ERROR("24 bytes", rlt_tensor_read(t, RLT_F32, back.data(), -1));
  EXPECT_ERROR("element type", rlt_tensor_read(t, 99, back.data(), sizeof back));
  // A view is read in its logical order, not in memory order.
  EXPECT_OK(rlt_tensor_read(h.give(rlt::borrow(t).t()), RLT_F32, back.data(), sizeof back));
  EXPECT_EQUAL(back[1], 4.0f);
  std::array<int64_t, 8> shape{};
  int32_t ndim = -1;
  EXPECT_OK(rlt_tensor_shape(t, shape.data(), &ndim));
  EXPECT(ndim == 2 && shape[0] == 2 && shape[1] == 3);

  // An empty tensor and a scalar.
  EXPECT_OK(rlt_tensor_from(data.data(), RLT_F32, nullptr, 0, RLT_CPU, &t));
  EXPECT_EQUAL(rlt::borrow(h.keep(t)).item<float>(), 1.0f);
  dims = {0, 3};
  EXPECT_OK(rlt_tensor_from(nullptr, RLT_I64, dims.data(), 2, RLT_CPU, &t));
  EXPECT_EQUAL(rlt::borrow(h.keep(t)).numel(), 0);
  EXPECT_OK(rlt_tensor_read(t, RLT_I64, nullptr, 0));
}

TEST(abi_tensors_know_their_device) {
  const NoLeaks check;
  Handles h;
  const float data[2] = {1, 2};
  const int64_t dims[1] = {2};
  rlt_tensor t = 0;
  EXPECT_OK(rlt_tensor_from(data, RLT_F32, dims, 1, RLT_CPU, &t));
  h.keep(t);
  EXPECT(rlt::borrow(t).is_cpu());
  for (const int32_t none : {INT32_MIN, -2, 64, INT32_MAX}) {
    EXPECT_ERROR("no device " + std::to_string(none), rlt_tensor_from(data, RLT_F32, dims, 1, none, &t));
  }
}

TEST(abi_tensor_from_refuses_bad_shapes) {
  const NoLeaks check;
  const float data[4] = {0};
  rlt_tensor t = 0;
  const auto from = [&](std::vector<int64_t> dims, int32_t dtype = RLT_F32) {
    return rlt_tensor_from(data, dtype, dims.data(), static_cast<int32_t>(dims.size()), RLT_CPU, &t);
  };
  const int64_t huge = int64_t{1} << 40;
  EXPECT_ERROR("invalid shape", from({-1}));
  EXPECT_ERROR("invalid shape", from({2, INT64_MIN}));
  EXPECT_ERROR("invalid shape", from({huge, huge}));
  EXPECT_ERROR("invalid shape", from({INT64_MAX}));
  EXPECT_ERROR("invalid shape", from({INT64_MAX / 2, 1}));
  EXPECT_ERROR("", from({huge, 1 << 20}));  // a valid shape, but too large to allocate
  EXPECT_ERROR("at most 8 dimensions", from(std::vector<int64_t>(9, 1)));
  EXPECT_ERROR("at most 8 dimensions", rlt_tensor_from(data, RLT_F32, nullptr, -1, RLT_CPU, &t));
  EXPECT_ERROR("element type 6", from({1}, 6));
  EXPECT_ERROR("element type -1", from({1}, -1));
  EXPECT_EQUAL(t, rlt_tensor{0});
}

TEST(abi_tensor_write) {
  const NoLeaks check;
  Handles h;
  const rlt_tensor t = h.give(at::empty({2, 2}, at::kFloat).requires_grad_(true));
  const std::array<float, 4> data{1, 2, 3, 4};
  EXPECT_OK(rlt_tensor_write(t, data.data(), 4));
  EXPECT_EQUAL(rlt::borrow(t)[1][0].item<float>(), 3.0f);
  EXPECT_ERROR("3 values for a tensor of shape [2, 2]", rlt_tensor_write(t, data.data(), 3));
  EXPECT_ERROR("it must be contiguous, float32",
               rlt_tensor_write(h.give(rlt::borrow(t).detach().t()), data.data(), 4));
  EXPECT_ERROR("it must be contiguous, float32",
               rlt_tensor_write(h.give(at::empty({4}, at::kLong)), data.data(), 4));
  EXPECT_ERROR("it must be contiguous, float32", rlt_tensor_write(0, data.data(), 4));
}

// A temporary file, removed when its test ends.
class File {
 public:
  explicit File(const std::string& bytes) {
    const int fd = mkstemp(path_);
    EXPECT(fd >= 0 && write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    close(fd);
  }
  ~File() { unlink(path_); }
  const char* path() const { return path_; }

 private:
  char path_[32] = "/tmp/rltrain-core-XXXXXX";
};

TEST(abi_tensor_map) {
  const NoLeaks check;
  Handles h;
  const int64_t page = sysconf(_SC_PAGESIZE);
  std::string bytes(static_cast<size_t>(3 * page), '\0');
  const std::array<float, 4> data{1.5f, -2, 3, 4};
  std::memcpy(&bytes[8], data.data(), sizeof data);
  std::memcpy(&bytes[static_cast<size_t>(2 * page - 8)], data.data(), sizeof data);  // across a page boundary
  std::memcpy(&bytes[static_cast<size_t>(page + 3)], data.data(), sizeof data);      // not aligned to a float
  const uint16_t bf16 = 0x3fc0;                                                      // 1.5
  std::memcpy(&bytes[40], &bf16, sizeof bf16);
  auto file = std::make_unique<File>(bytes);
  const int64_t dims[] = {2, 2}, one[] = {1};
  rlt_tensor t = 0;
  for (const int64_t offset : {int64_t{8}, 2 * page - 8, page + 3}) {
    EXPECT_OK(rlt_tensor_map(file->path(), offset, RLT_F32, dims, 2, &t));
    h.keep(t);
    std::array<float, 4> back{};
    EXPECT_OK(rlt_tensor_read(t, RLT_F32, back.data(), sizeof back));
    EXPECT(back == data);
  }
  EXPECT_OK(rlt_tensor_map(file->path(), 40, RLT_BF16, one, 1, &t));
  float widened = 0;
  EXPECT_OK(rlt_tensor_read(h.keep(t), RLT_F32, &widened, sizeof widened));
  EXPECT_EQUAL(widened, 1.5f);
  // The last element, then one byte past the end.
  EXPECT_OK(rlt_tensor_map(file->path(), 3 * page - 4, RLT_F32, one, 1, &t));
  h.keep(t);
  EXPECT_ERROR("past the end", rlt_tensor_map(file->path(), 3 * page - 3, RLT_F32, one, 1, &t));
  EXPECT_ERROR("past the end", rlt_tensor_map(file->path(), 3 * page, RLT_F32, one, 1, &t));
  EXPECT_ERROR("past the end", rlt_tensor_map(file->path(), INT64_MAX, RLT_F32, one, 1, &t));
  EXPECT_ERROR("past the end", rlt_tensor_map(file->path(), -4, RLT_F32, one, 1, &t));
  EXPECT_ERROR("past the end", rlt_tensor_map(file->path(), INT64_MIN, RLT_F32, one, 1, &t));
  const int64_t long_dims[] = {page, 1}, negative[] = {-1}, overflow[] = {INT64_MAX, 4};
  EXPECT_ERROR("past the end", rlt_tensor_map(file->path(), 0, RLT_F32, long_dims, 2, &t));
  EXPECT_ERROR("invalid shape", rlt_tensor_map(file->path(), 0, RLT_F32, negative, 1, &t));
  EXPECT_ERROR("invalid shape", rlt_tensor_map(file->path(), 0, RLT_F32, overflow, 2, &t));
  EXPECT_ERROR("element type 99", rlt_tensor_map(file->path(), 0, 99, one, 1, &t));
  EXPECT_ERROR("at most 8 dimensions", rlt_tensor_map(file->path(), 0, RLT_F32, dims, 9, &t));
  EXPECT_ERROR("/nowhere", rlt_tensor_map("/nowhere/x", 0, RLT_F32, one, 1, &t));
  EXPECT_ERROR("/tmp", rlt_tensor_map("/tmp", 0, RLT_F32, one, 1, &t));
  // The mapping stays valid after the file is unlinked.
  EXPECT_OK(rlt_tensor_map(file->path(), 8, RLT_F32, dims, 2, &t));
  h.keep(t);
  file.reset();
  EXPECT_EQUAL(rlt::borrow(t)[0][0].item<float>(), 1.5f);
}

TEST(abi_tensor_map_of_an_empty_file) {
  const NoLeaks check;
  const File file("");
  const int64_t one[] = {1}, none[] = {0, 5};
  rlt_tensor t = 0;
  EXPECT_ERROR("past the end", rlt_tensor_map(file.path(), 0, RLT_F32, one, 1, &t));
  EXPECT_ERROR("past the end", rlt_tensor_map(file.path(), 1, RLT_F32, none, 2, &t));
  EXPECT_OK(rlt_tensor_map(file.path(), 0, RLT_F32, none, 2, &t));
  EXPECT_EQUAL(rlt::borrow(t).size(1), 5);
  rlt_tensor_free(&t, 1);
}

}  // namespace
