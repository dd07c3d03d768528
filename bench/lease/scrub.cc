// SPDX-License-Identifier: Apache-2.0
#include "bench/lease/scrub.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/lease/client.h"
#include "bench/lease/manager.h"
#include "core/base/units.h"
#include "core/os/erase.h"

namespace terrace::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double gib_per_s(uint64_t bytes, double seconds) {
  return static_cast<double>(bytes) / static_cast<double>(gib) / seconds;
}

// A lease of `bytes`, all of it written: returns how fast memset went over the memory once it was there.
double fill_lease(Loop& loop, Client& client, uint64_t bytes, Client::Granted& granted) {
  granted = client.grant(600 * ns_per_s, false, false, bytes).wait(loop.io.waitScope);
  const auto descriptor = granted.lease.getFd().wait(loop.io.waitScope);
  int fd = -1;
  KJ_IF_MAYBE (number, descriptor) fd = *number;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) die("a lease cannot be mapped");
  std::memset(memory, 0x5a, bytes);
  const auto begin = Clock::now();
  std::memset(memory, 0xa5, bytes);
  const double seconds = seconds_since(begin);
  ::munmap(memory, bytes);
  return gib_per_s(bytes, seconds);
}

void measure_lease(int rounds, uint64_t bytes, const std::string& memory_directory, nlohmann::json& figures) {
  const ScratchDirectory scratch(memory_directory);
  Manager manager({scratch.path(), scratch.path() + "/state", bytes});
  Loop loop;
  Client client(loop, manager.socket());
  client.open_session();
  std::vector<double> scrubs, ratios;
  for (int round = 0; round < rounds; ++round) {
    Client::Granted granted;
    const double memset_gib_per_s = fill_lease(loop, client, bytes, granted);
    const auto begin = Clock::now();
    client.release(kj::mv(granted)).wait(loop.io.waitScope);
    while (client.free_bytes() != bytes) {
    }
    scrubs.push_back(gib_per_s(bytes, seconds_since(begin)));
    ratios.push_back(scrubs.back() / memset_gib_per_s);
  }
  figures["scrub_tmpfs_gib_per_s"] = median(scrubs);
  figures["scrub_tmpfs_gib_per_s_over_memset"] = median(ratios);
}

// Memory of this process stands in for a mapped dax device.
void measure_erase(int rounds, uint64_t bytes, nlohmann::json& figures) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) die("no memory to erase");
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 0x5a, bytes);
  std::vector<double> erases, memsets, ratios;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = Clock::now();
    std::memset(memory, round, bytes);
    memsets.push_back(gib_per_s(bytes, seconds_since(begin)));
    const os::EraseOptions options{.threads = 2, .bytes_per_s = 0, .seed = static_cast<uint64_t>(round)};
    const auto erased = os::erase({static_cast<std::byte*>(memory), bytes}, options);
    if (!erased.ok()) die(erased.error().to_string());
    erases.push_back(erased->bytes_per_s / static_cast<double>(gib));
    ratios.push_back(erases.back() / memsets.back());
  }
  ::munmap(memory, bytes);
  figures["memset_gib_per_s"] = median(memsets);
  figures["scrub_gib_per_s"] = median(erases);
  figures["scrub_gib_per_s_over_memset"] = median(ratios);
}

}  // namespace

void measure_scrub(bool smoke, const std::string& memory_directory, nlohmann::json& figures) {
  measure_erase(smoke ? 3 : 9, smoke ? 64 * mib : gib, figures);
  measure_lease(smoke ? 1 : 5, smoke ? 64 * mib : gib, memory_directory, figures);
}

}  // namespace terrace::bench
