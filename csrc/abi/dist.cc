#include <memory>

#include "abi/abi.h"
#include "dist/group.h"
#include "dist/store.h"

struct rlt_store {
  c10::intrusive_ptr<rlt::dist::Store> store;
};

struct rlt_group {
  rlt::dist::Group group;
};

rlt_error* rlt_store_open(const char* host, int32_t port, int32_t listen_fd, const char* prefix,
                          int32_t timeout_ms, rlt_store** store) {
  return rlt::guard([&] {
    TORCH_CHECK(port > 0 && port < 65536, "port ", port, " is not in 1 to 65535");
    auto made = c10::make_intrusive<rlt::dist::Store>(host, static_cast<uint16_t>(port), listen_fd, prefix,
                                                      std::chrono::milliseconds(timeout_ms));
    *store = std::make_unique<rlt_store>(rlt_store{std::move(made)}).release();
  });
}

rlt_error* rlt_store_set(rlt_store* store, const char* key, const char* value) {
  return rlt::guard([&] { store->store->c10d::Store::set(key, value); });
}

rlt_error* rlt_store_get(rlt_store* store, const char* key, int32_t timeout_ms, char* value, int32_t room) {
  return rlt::guard([&] {
    store->store->wait({key}, std::chrono::milliseconds(timeout_ms));
    const std::string found = store->store->get_to_str(key);
    TORCH_CHECK(static_cast<int64_t>(found.size()) < room, "the value of ", key, " has ", found.size(),
                " bytes, room for ", room - 1);
    found.copy(value, found.size());
    value[found.size()] = 0;
  });
}

void rlt_store_free(rlt_store* store) {
  if (store != nullptr) store->store->leave();
  delete store;
}

rlt_error* rlt_group_new(rlt_store* store, const char* address, int32_t rank, int32_t size,
                         int32_t timeout_ms, rlt_group** group) {
  return rlt::guard([&] {
    *group = new rlt_group{{store->store, address, rank, size, std::chrono::milliseconds(timeout_ms)}};
  });
}

rlt_error* rlt_group_sum_grads(rlt_group* group, const rlt_tensor* params, int32_t n) {
  return rlt::guard([&] {
    std::vector<at::Tensor> tensors;
    for (int32_t i = 0; i < n; ++i) {
      tensors.push_back(rlt::borrow(params[i]));
      TORCH_CHECK(tensors.back().defined(), "parameter ", i, " is an undefined tensor");
    }
    group->group.sum_grads(tensors);
  });
}

rlt_error* rlt_group_gather(rlt_group* group, const void* data, int64_t bytes, void* all) {
  return rlt::guard([&] { group->group.gather(data, bytes, all); });
}

void rlt_group_free(rlt_group* group) { delete group; }
