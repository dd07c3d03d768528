// SPDX-License-Identifier: Apache-2.0
// What it costs to fetch a replica that is there: over an uncontended mutex, which a hit takes; and what a
// fetch of one that is not costs the thread that asks.
#include <algorithm>
#include <cstdio>
#include <mutex>
#include <string>

#include "bench/tensor_device/support.h"
#include "terrace/device_replicas.h"

namespace terrace::bench {
namespace {

constexpr uint64_t tensors = 1000;
constexpr uint64_t bytes = 64 * kib;

double mutex_ns(uint64_t times) {
  std::mutex mutex;
  volatile uint64_t count = 0;
  return seconds([&] {
           for (uint64_t round = 0; round < times; ++round) {
             const std::lock_guard lock(mutex);
             count = count + 1;
           }
         }) *
         1e9 / static_cast<double>(times);
}

}  // namespace

void measure_replicas(const std::shared_ptr<DeviceMemory>& device, const Sizes& sizes, nlohmann::json& out) {
  const std::vector<std::byte> host(bytes);
  const auto replicas = must(DeviceReplicas::make(device, {.budget_bytes = tensors * bytes}));
  const auto source = [&](uint64_t id) {
    return ReplicaSource{.id = id, .name = "h.0.attn.c_proj.weight", .bytes = host, .version_now = {}};
  };
  for (uint64_t id = 0; id < tensors; ++id) must(must(replicas->fetch(source(id), 2)).ready().wait());
  std::vector<double> hit_ns, lock_ns, miss_us;
  for (int round = 0; round < sizes.rounds; ++round) {
    lock_ns.push_back(mutex_ns(sizes.hits));
    hit_ns.push_back(seconds([&] {
                       for (uint64_t hit = 0; hit < sizes.hits; ++hit) {
                         const Replica replica = must(replicas->fetch(source(hit * 7919 % tensors), 2));
                       }
                     }) *
                     1e9 / static_cast<double>(sizes.hits));
  }
  // A new version: the buffer is used again, the copy is begun.
  for (uint64_t version = 4; version < 4 + 2 * static_cast<uint64_t>(sizes.rounds); version += 2) {
    for (uint64_t id = 0; id < std::min<uint64_t>(tensors, 200); ++id) {
      Replica replica;
      miss_us.push_back(seconds([&] { replica = must(replicas->fetch(source(id), version)); }) * 1e6);
      must(replica.ready().wait());
    }
  }
  std::printf("%-34s %8.1f ns    %5.1f uncontended mutexes\n", "a hit, pinned and let go", median(hit_ns),
              median(hit_ns) / median(lock_ns));
  std::printf("%-34s %8.2f us\n", "a miss, until the copy is begun", median(miss_us));
  out["replica_hit_ns"] = median(hit_ns);
  out["replica_hit_over_mutex"] = median(hit_ns) / median(lock_ns);
  out["replica_miss_begun_us"] = median(miss_us);
}

}  // namespace terrace::bench
