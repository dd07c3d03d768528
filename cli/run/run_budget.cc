// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_budget.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "core/base/limits.h"
#include "core/base/units.h"

namespace terrace::cli {
namespace {

constexpr uint64_t unknown = UINT64_MAX;
constexpr uint64_t ddr_bytes_min = 64 * mib;
constexpr uint64_t cxl_bytes_max = 1024 * gib;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// A number in a file of its own; `unknown`: there is none ("max").
uint64_t number_in(const std::string& path) {
  const std::string line = first_line(path);
  if (line.empty() || line[0] < '0' || line[0] > '9') return unknown;
  return std::strtoull(line.c_str(), nullptr, 10);
}

// The number behind `key` at a line's begin, in bytes where it says kB.
uint64_t number_behind(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    uint64_t number = 0;
    if (line.rfind(key, 0) != 0 || std::sscanf(line.c_str() + key.size(), "%*[: ]%" SCNu64, &number) != 1)
      continue;
    return line.find(" kB") == std::string::npos ? number : number * kib;
  }
  return unknown;
}

// What one group leaves: its limit less what it uses; pages of files that it can drop count as free.
uint64_t group_room(const std::string& group, const char* limit_file, const char* use_file,
                    const char* cache_key) {
  const uint64_t limit = number_in(group + "/" + limit_file);
  const uint64_t use = number_in(group + "/" + use_file);
  if (limit == unknown || use == unknown) return unknown;
  const uint64_t cache = number_behind(group + "/memory.stat", cache_key);
  const uint64_t kept = use - std::min(use, cache == unknown ? 0 : cache);
  return limit - std::min(limit, kept);
}

// The least that `path` and the groups above it leave.
uint64_t groups_room(const std::string& root, std::string path, const char* limit_file, const char* use_file,
                     const char* cache_key) {
  uint64_t least = unknown;
  for (;;) {
    least = std::min(least, group_room(root + path, limit_file, use_file, cache_key));
    if (path.empty()) return least;
    path.resize(std::min(path.rfind('/'), path.size() - 1));
  }
}

}  // namespace

uint64_t available_memory_bytes(const std::string& proc, const std::string& cgroup) {
  uint64_t least = number_behind(proc + "/meminfo", "MemAvailable");
  std::ifstream groups(proc + "/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "0::/path" (v2) or "N:memory:/path" (v1). In a container the path may be one of the host's, and what is
    // mounted is the container's own: then only the root is found.
    const size_t slash = line.find(":/");
    if (slash == std::string::npos) continue;
    std::string path = line.substr(slash + 1);
    if (path == "/") path.clear();
    if (line.rfind("0::", 0) == 0)
      least = std::min(least, groups_room(cgroup, path, "memory.max", "memory.current", "inactive_file"));
    else if (line.find(":memory:") != std::string::npos)
      least = std::min(least, groups_room(cgroup + "/memory", path, "memory.limit_in_bytes",
                                          "memory.usage_in_bytes", "total_inactive_file"));
  }
  return least == unknown ? 0 : least;
}

uint64_t default_ddr_bytes(uint64_t available_bytes) {
  return std::max(available_bytes / 2 / limits::granule_bytes * limits::granule_bytes, ddr_bytes_min);
}

const PoolInfo* roomiest(const std::vector<PoolInfo>& pools) {
  const PoolInfo* best = nullptr;
  for (const PoolInfo& pool : pools)
    if (default_cxl_bytes(pool) > 0 && (best == nullptr || pool.grantable_bytes > best->grantable_bytes))
      best = &pool;
  return best;
}

uint64_t default_cxl_bytes(const PoolInfo& pool) {
  return std::min(pool.grantable_bytes / limits::granule_bytes * limits::granule_bytes, cxl_bytes_max);
}

}  // namespace terrace::cli
