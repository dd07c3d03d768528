// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/region/region_plan.h"

#include <algorithm>
#include <array>

#include "core/base/units.h"

namespace terrace::daemon {
namespace {

constexpr const char* where = "create a region";
constexpr std::array<unsigned, 8> possible_ways{1, 2, 3, 4, 6, 8, 12, 16};
constexpr unsigned granularity_min = 256, granularity_max = 16384;
// Of few memdevs every order is tried; 4 have 24.
constexpr size_t permuted_max = 4;

Error refuse(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = where, .detail = std::move(detail)};
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

const CxlMemdev* find_memdev(const CxlView& view, const std::string& serial) {
  for (const CxlMemdev& one : view.memdevs)
    if (one.serial == serial) return &one;
  return nullptr;
}

// The position of the window's target that leads to the memdev; -1: none does.
int target_of(const CxlRoot& root, const std::string& serial) {
  for (size_t i = 0; i < root.targets.size(); ++i)
    if (std::find(root.targets[i].begin(), root.targets[i].end(), serial) != root.targets[i].end())
      return static_cast<int>(i);
  return -1;
}

const CxlRegion* region_of(const CxlView& view, const std::string& serial) {
  for (const CxlRegion& region : view.regions)
    if (std::find(region.memdevs.begin(), region.memdevs.end(), serial) != region.memdevs.end()) return &region;
  return nullptr;
}

Status check_request(const RegionRequest& request) {
  const auto ways = static_cast<unsigned>(request.memdevs.size());
  if (std::find(possible_ways.begin(), possible_ways.end(), ways) == possible_ways.end()) {
    return refuse(ErrorCode::invalid_argument, "CXL interleaves over 1, 2, 3, 4, 6, 8, 12 or 16 memdevs, not " +
                                                   std::to_string(ways) +
                                                   "; make several regions, and put them in one pool");
  }
  for (size_t i = 0; i < ways; ++i)
    if (std::find(request.memdevs.begin(), request.memdevs.begin() + static_cast<std::ptrdiff_t>(i),
                  request.memdevs[i]) != request.memdevs.begin() + static_cast<std::ptrdiff_t>(i))
      return refuse(ErrorCode::invalid_argument, "memdev " + request.memdevs[i] + " is named twice");
  const unsigned granularity = request.granularity_bytes;
  if (granularity != 0 &&
      (!is_power_of_two(granularity) || granularity < granularity_min || granularity > granularity_max)) {
    return refuse(ErrorCode::invalid_argument,
                  "the granularity of interleaving is 256, 512, 1024, 2048, 4096, "
                  "8192 or 16384 bytes, not " +
                      std::to_string(granularity));
  }
  if (request.bytes % (region_unit_bytes * ways) != 0) {
    return refuse(ErrorCode::invalid_argument, "a region over " + std::to_string(ways) +
                                                   (ways == 1 ? " memdev" : " memdevs") + " is a multiple of " +
                                                   format_size(region_unit_bytes * ways) + ", which " +
                                                   format_size(request.bytes) + " is not");
  }
  return {};
}

// All there, free, and of one kind; `share` becomes what each of them has.
Status check_memdevs(const RegionRequest& request, const CxlView& view, bool& ram, uint64_t& share) {
  std::vector<std::string> there;
  for (const CxlMemdev& one : view.memdevs) there.push_back(one.serial);
  std::vector<const CxlMemdev*> memdevs;
  for (const std::string& serial : request.memdevs) {
    const CxlMemdev* memdev = find_memdev(view, serial);
    if (memdev == nullptr)
      return refuse(ErrorCode::not_found, "there is no memdev " + serial + "; there are: " + listed(there));
    memdevs.push_back(memdev);
  }
  ram = memdevs.front()->pmem_bytes == 0;
  share = UINT64_MAX;
  for (const CxlMemdev* memdev : memdevs) {
    if ((memdev->pmem_bytes == 0) != ram) {
      return refuse(ErrorCode::invalid_argument, "memdev " + memdevs.front()->serial + " is " +
                                                     (ram ? "volatile" : "persistent") + " and " +
                                                     memdev->serial + " is not; a region is of one kind");
    }
    if (memdev->free_decoders == 0) {
      const CxlRegion* region = region_of(view, memdev->serial);
      return refuse(ErrorCode::busy, "memdev " + memdev->serial + " has no free decoder" +
                                         (region == nullptr ? std::string() : ": " + region->name + " has it") +
                                         "; a memdev is in one region, `terrace region list` shows which");
    }
    share = std::min(share, ram ? memdev->ram_free_bytes : memdev->pmem_free_bytes);
  }
  share = share / region_unit_bytes * region_unit_bytes;
  const uint64_t wanted = request.bytes / memdevs.size();
  if (share == 0 || wanted > share) {
    return refuse(ErrorCode::capacity_exhausted,
                  "the memdevs have " + format_size(share) + " each free for a region" +
                      (wanted > share ? ", and " + format_size(wanted) + " are needed"
                                      : ": regions are made of units of " + format_size(region_unit_bytes)));
  }
  if (wanted != 0) share = wanted;
  return {};
}

// Why the window cannot have the region; empty: it can.
std::string unfit(const CxlRoot& root, const RegionRequest& request, bool ram, uint64_t bytes) {
  if (!(ram ? root.ram : root.pmem))
    return std::string("takes no ") + (ram ? "volatile" : "persistent") + " memory";
  std::vector<size_t> below(root.targets.size());
  for (const std::string& serial : request.memdevs) {
    const int target = target_of(root, serial);
    if (target < 0) return "does not lead to memdev " + serial;
    ++below[static_cast<size_t>(target)];
  }
  for (const size_t count : below)
    if (count * below.size() != request.memdevs.size()) {
      return "interleaves over " + std::to_string(below.size()) +
             " host bridges, and needs equally many memdevs below each";
    }
  if (root.free_bytes < bytes)
    return "has " + format_size(root.free_bytes) + " of addresses left, and " + format_size(bytes) +
           " are needed";
  if (root.targets.size() > 1 && request.granularity_bytes != 0 &&
      request.granularity_bytes != root.granularity) {
    return "interleaves its host bridges by " + std::to_string(root.granularity) +
           " bytes, and the region must have that granularity, too";
  }
  return {};
}

// Position p of a region lies below target p modulo their number.
std::vector<std::string> by_targets(const CxlRoot& root, const std::vector<std::string>& memdevs) {
  std::vector<std::vector<std::string>> below(root.targets.size());
  for (const std::string& serial : memdevs)
    below[static_cast<size_t>(target_of(root, serial))].push_back(serial);
  std::vector<std::string> order;
  for (size_t i = 0; i < memdevs.size(); ++i) order.push_back(below[i % below.size()][i / below.size()]);
  return order;
}

std::vector<unsigned> granularities(const CxlRoot& root, const RegionRequest& request) {
  if (request.granularity_bytes != 0) return {request.granularity_bytes};
  const unsigned own = std::clamp(root.granularity, granularity_min, granularity_max);
  if (root.targets.size() > 1 || request.memdevs.size() == 1) return {own};
  std::vector<unsigned> all;
  for (unsigned one = granularity_max; one >= granularity_min; one /= 2) all.push_back(one);
  return all;
}

void add_attempts(const CxlRoot& root, const RegionRequest& request, std::vector<RegionAttempt>& attempts) {
  const auto add = [&](RegionAttempt attempt) {
    if (std::find(attempts.begin(), attempts.end(), attempt) == attempts.end())
      attempts.push_back(std::move(attempt));
  };
  const std::vector<unsigned> all = granularities(root, request);
  for (const unsigned granularity : all) add({root.name, request.memdevs, granularity});
  for (const unsigned granularity : all) add({root.name, by_targets(root, request.memdevs), granularity});
  if (request.memdevs.size() > permuted_max) return;
  std::vector<std::string> order = request.memdevs;
  std::sort(order.begin(), order.end());
  do {
    add({root.name, order, all.back()});
  } while (std::next_permutation(order.begin(), order.end()));
}

}  // namespace

Result<RegionPlan> plan_region(const RegionRequest& request, const CxlView& view) {
  TERRACE_RETURN_IF_ERROR(check_request(request));
  RegionPlan plan;
  uint64_t share = 0;
  TERRACE_RETURN_IF_ERROR(check_memdevs(request, view, plan.ram, share));
  plan.bytes = share * request.memdevs.size();
  std::string reasons;
  bool room = false;
  for (const CxlRoot& root : view.roots) {
    const std::string reason = unfit(root, request, plan.ram, plan.bytes);
    if (reason.empty()) {
      add_attempts(root, request, plan.attempts);
    } else {
      reasons += (reasons.empty() ? "" : "; ") + root.name + " " + reason;
      room = room || reason.find(" left, and ") != std::string::npos;
    }
  }
  if (!plan.attempts.empty()) return plan;
  if (view.roots.empty()) reasons = "the firmware describes none";
  return refuse(
      room ? ErrorCode::capacity_exhausted : ErrorCode::invalid_argument,
      "no window of CXL addresses can have that region: " + reasons +
          (request.memdevs.size() > 1
               ? ". Memdevs of one region share a window; those of others make regions of their own, which "
                 "may be in one pool"
               : ""));
}

Error explain_refusal(const Error& refusal, const RegionRequest& request, const CxlView& view) {
  if (refusal.code == ErrorCode::corrupt || refusal.where != std::string_view("CxlKernel")) return refusal;
  Error error = refusal;
  // Not `unsupported`, by which a kind of memory says that it makes no regions at all.
  error.code = ErrorCode::io_error;
  for (const CxlRoot& root : view.roots)
    for (const std::string& serial : request.memdevs) {
      const int target = target_of(root, serial);
      if (target < 0) continue;
      for (const std::string& neighbour : root.targets[static_cast<size_t>(target)]) {
        const CxlRegion* region = region_of(view, neighbour);
        if (region == nullptr) continue;
        error.detail +=
            ". Memdev " + serial + " is below the same host bridge as " + neighbour + ", which is in " +
            region->name +
            ": one region per host bridge on this platform. Put both into one region, or one of them "
            "below another host bridge";
        error.code = ErrorCode::busy;
        return error;
      }
    }
  if (request.memdevs.size() > 1) {
    error.detail +=
        ". The kernel refused these memdevs in every order and granularity tried: at each switch and host "
        "bridge equally many must be below each port";
  }
  return error;
}

}  // namespace terrace::daemon
