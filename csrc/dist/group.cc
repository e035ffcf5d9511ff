#include "dist/group.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <mutex>

#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace rlt::dist {
namespace {

using Gloo = c10d::ProcessGroupGloo;
using Work = c10::intrusive_ptr<c10d::Work>;

// Objects of these classes are made here and used in libtorch, so their sizes must be those in libtorch's
// code, although the stub headers leave out members. One of Gloo's is a mutex, which arm64 has larger.
static_assert(sizeof(Gloo) == 448 + sizeof(std::mutex) && sizeof(Gloo::Options) == 176,
              "ProcessGroupGloo of this libtorch has another size");

// Floats per all-reduce: enough to keep the network busy, few enough to have several in flight.
constexpr int64_t kBucket = 4 << 20;

// The concatenated gradients of some parameters, in flight.
struct Bucket {
  std::vector<at::Tensor> params;
  std::vector<at::Tensor> flat;  // one tensor, in the list that c10d expects
  Work work;
};

int64_t bytes_of(const at::Tensor& t) { return t.numel() * static_cast<int64_t>(sizeof(float)); }

at::Tensor zeros(int64_t n) {
  at::Tensor t = at::empty({n}, at::kFloat);
  std::memset(t.data_ptr<float>(), 0, bytes_of(t));
  return t;
}

// Uses memcpy, because this thread does not compute: an ATen operator would start a pool of compute threads
// for it.
Bucket fill(std::vector<at::Tensor> params, int64_t n) {
  at::Tensor flat = zeros(n);
  auto* at = flat.data_ptr<float>();
  for (const at::Tensor& p : params) {
    if (const at::Tensor& grad = p.grad(); grad.defined())
      std::memcpy(at, grad.data_ptr<float>(), bytes_of(p));
    at += p.numel();
  }
  return {std::move(params), {flat}, {}};
}

void check(const at::Tensor& p) {
  const at::Tensor& grad = p.grad();
  TORCH_CHECK(p.scalar_type() == at::kFloat && p.device().is_cpu(),
              "gradients must be fp32 on the CPU to be summed");
  TORCH_CHECK(!grad.defined() || (grad.is_contiguous() && grad.numel() == p.numel()),
              "a gradient is not dense");
}

// libtorch's FlightRecorder adds a group to a std::map of the process when the group starts its first call,
// and looks it up at each later one, without a lock.
std::mutex starting;

}  // namespace

struct Group::Connections {
  c10::intrusive_ptr<Gloo> gloo;
  int size;

  // Collective calls, started one at a time.
  Work allreduce(std::vector<at::Tensor>& tensors) {
    const std::lock_guard<std::mutex> lock(starting);
    return gloo->allreduce(tensors);
  }
  Work allgather(at::Tensor& all, at::Tensor& own) {
    const std::lock_guard<std::mutex> lock(starting);
    return gloo->_allgather_base(all, own);
  }
};

Group::Group(const c10::intrusive_ptr<Store>& store, const std::string& address, int rank, int size,
             std::chrono::milliseconds timeout) {
  auto options = Gloo::Options::create(timeout);
  options->devices.push_back(Gloo::createDeviceForHostname(address));
  auto gloo = c10::make_intrusive<Gloo>(store, rank, size, options);
  connections_ = std::make_unique<Connections>(Connections{std::move(gloo), size});
}

Group::~Group() = default;

void Group::sum_grads(const std::vector<at::Tensor>& params) {
  at::Tensor there = zeros(static_cast<int64_t>(params.size()));  // processes that have each gradient
  std::vector<Bucket> buckets;
  std::vector<at::Tensor> next;
  int64_t floats = 0;
  for (size_t i = 0; i < params.size(); ++i) {
    check(params[i]);
    if (params[i].grad().defined()) there.data_ptr<float>()[i] = 1;
    next.push_back(params[i]);
    floats += params[i].numel();
    if (floats < kBucket && i + 1 < params.size()) continue;
    buckets.push_back(fill(std::move(next), floats));
    buckets.back().work = connections_->allreduce(buckets.back().flat);
    next.clear();
    floats = 0;
  }
  std::vector<at::Tensor> counts{there};
  connections_->allreduce(counts)->wait();
  const auto* has = there.data_ptr<float>();
  for (Bucket& bucket : buckets) {
    bucket.work->wait();
    const auto* from = bucket.flat[0].data_ptr<float>();
    for (at::Tensor& p : bucket.params) {
      if (*has++ > 0) {
        if (!p.grad().defined()) p.mutable_grad() = at::empty(p.sizes(), at::kFloat);
        std::memcpy(p.mutable_grad().data_ptr<float>(), from, bytes_of(p));
      }
      from += p.numel();
    }
  }
}

void Group::gather(const void* data, int64_t bytes, void* all) {
  at::Tensor own = at::empty({bytes}, at::kByte);
  at::Tensor joined = at::empty({connections_->size * bytes}, at::kByte);
  std::memcpy(own.data_ptr<uint8_t>(), data, bytes);
  connections_->allgather(joined, own)->wait();
  std::memcpy(all, joined.data_ptr<uint8_t>(), joined.numel());
}

}  // namespace rlt::dist
