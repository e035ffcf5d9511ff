// Process groups, with a thread in place of each process.
#include <ATen/ops/full.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "abi_support.h"

namespace {

using rlt::test::Handles;
using rlt::test::NoLeaks;
using rlt::test::text_of;

constexpr int kTimeout = 20000;

// Opens a listening socket on the loopback interface and stores its port.
int listen_on_loopback(int32_t* port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT(fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(fd, 16) == 0);
  EXPECT(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  *port = ntohs(address.sin_port);
  return fd;
}

bool accepts(int32_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const bool accepted = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return accepted;
}

// What a rank does with its group. Returns the text of its first error.
using Body = std::string (*)(rlt_group* group, int rank, int size);

std::string join(int rank, int size, int fd, int32_t port, Body body) {
  rlt_store* store = nullptr;
  rlt_group* group = nullptr;
  std::string text =
      text_of(rlt_store_open("127.0.0.1", port, rank == 0 ? fd : -1, "test", kTimeout, &store));
  if (text.empty()) text = text_of(rlt_group_new(store, "127.0.0.1", rank, size, kTimeout, &group));
  if (text.empty()) {
    const char here = static_cast<char>(rank);
    std::vector<char> all(size);
    text = text_of(rlt_group_gather(group, &here, 1, all.data()));
  }
  rlt_store_free(store);
  if (text.empty()) text = body(group, rank, size);
  rlt_group_free(group);
  return text;
}

void run(int size, Body body) {
  int32_t port = 0;
  const int fd = listen_on_loopback(&port);
  std::vector<std::string> texts(size);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] { texts[rank] = join(rank, size, fd, port, body); });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const std::string& text : texts) EXPECT_EQUAL(text, "");
  EXPECT(!accepts(port));
}

// The first calls of groups that are of one process change a list of libtorch's.
TEST(groups_start_at_the_same_time) {
  constexpr int kThreads = 4, kGroups = 24;
  std::vector<std::string> texts(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&texts, t] {
      for (int i = 0; i < kGroups && texts[t].empty(); ++i) {
        int32_t port = 0;
        const int fd = listen_on_loopback(&port);
        texts[t] = join(0, 1, fd, port, [](rlt_group*, int, int) { return std::string(); });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) EXPECT_EQUAL(text, "");
}

TEST(gather_is_in_the_order_of_ranks) {
  run(3, [](rlt_group* group, int rank, int size) {
    const int64_t own[2] = {rank, 10 * rank};
    std::vector<int64_t> all(2 * size);
    const std::string text = text_of(rlt_group_gather(group, own, sizeof own, all.data()));
    for (int i = 0; i < size; ++i) EXPECT(all[2 * i] == i && all[2 * i + 1] == 10 * i);
    return text;
  });
}

TEST(gradients_are_summed_where_any_process_has_them) {
  NoLeaks leaks;
  run(2, [](rlt_group* group, int rank, int) {
    Handles handles;
    std::vector<at::Tensor> params;
    std::vector<rlt_tensor> given;
    for (int64_t n : {3, 5 << 20, 2, 4}) {
      params.push_back(at::full({n}, 1.0, at::kFloat).requires_grad_());
      given.push_back(handles.give(params.back()));
    }
    params[0].mutable_grad() = at::full({3}, 1.0 + rank, at::kFloat);
    params[1].mutable_grad() = at::full({5 << 20}, 0.5, at::kFloat);
    if (rank == 1) params[2].mutable_grad() = at::full({2}, 7.0, at::kFloat);
    const std::string text = text_of(rlt_group_sum_grads(group, given.data(), 4));
    EXPECT(params[0].grad().data_ptr<float>()[2] == 3);
    EXPECT(params[1].grad().data_ptr<float>()[(5 << 20) - 1] == 1);
    EXPECT(params[2].grad().defined() && params[2].grad().data_ptr<float>()[1] == 7);
    EXPECT(!params[3].grad().defined());
    return text;
  });
}

TEST(store_has_texts_and_bounds) {
  int32_t port = 0;
  const int fd = listen_on_loopback(&port);
  rlt_store* store = nullptr;
  EXPECT_OK(rlt_store_open("127.0.0.1", port, fd, "a", kTimeout, &store));
  EXPECT_OK(rlt_store_set(store, "key", "value"));
  char value[6];
  EXPECT_OK(rlt_store_get(store, "key", kTimeout, value, sizeof value));
  EXPECT_EQUAL(std::string(value), "value");
  EXPECT_ERROR("5 bytes", rlt_store_get(store, "key", kTimeout, value, 5));
  EXPECT(rlt::test::text_of(rlt_store_get(store, "other", 50, value, sizeof value)) != "");
  EXPECT_ERROR("port 0", rlt_store_open("127.0.0.1", 0, -1, "a", kTimeout, &store));
  rlt_store_free(store);
  rlt_store_free(nullptr);
  rlt_group_free(nullptr);
}

}  // namespace
