// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/memory.h"

#include <algorithm>
#include <deque>

#include "core/base/check.h"

namespace terrace::plan {
namespace {

// The command that says that an effect was done; nullopt for those that want no answer.
std::optional<daemon::Command> answer(const daemon::Effect& effect, uint64_t now_ns) {
  if (const auto* carve = std::get_if<daemon::CarveObject>(&effect))
    return daemon::CarveFinished{.lease = carve->lease, .status = {}, .now_ns = now_ns};
  if (const auto* fence = std::get_if<daemon::FenceObject>(&effect))
    return daemon::FenceFinished{.lease = fence->lease, .status = {}, .now_ns = now_ns};
  if (const auto* scrub = std::get_if<daemon::ScrubObject>(&effect))
    return daemon::ScrubFinished{.lease = scrub->lease, .status = {}, .now_ns = now_ns};
  return std::nullopt;
}

}  // namespace

Result<Memory> Memory::create(const MemoryOptions& options) {
  Memory memory;
  memory.name_ = options.name;
  memory.capacity_ = options.granule_bytes == 0 ? 0 : options.capacity_bytes / options.granule_bytes;
  memory.free_ = memory.capacity_;
  TERRACE_RETURN_IF_ERROR(memory.machine_.recover({}, {}, "plan", 0));
  if (memory.capacity_ == 0) return memory;

  const uint64_t devices = std::clamp<uint64_t>(options.devices, 1, memory.capacity_);
  daemon::CreatePool pool;
  pool.name = options.name;
  for (uint64_t index = 0; index < devices; ++index) {
    const uint64_t granules = memory.capacity_ / devices + (index < memory.capacity_ % devices ? 1 : 0);
    daemon::AdoptDevice device;
    device.serial = options.name + "-" + std::to_string(index);
    device.backend = "plan";
    device.capacity_bytes = granules * options.granule_bytes;
    device.granule_bytes = options.granule_bytes;
    pool.device_serials.push_back(device.serial);
    TERRACE_RETURN_IF_ERROR(memory.drive(device, 0).reply);
    memory.runs_.emplace(memory.machine_.find_device(device.serial)->id, daemon::ExtentMap(granules));
  }
  TERRACE_RETURN_IF_ERROR(memory.drive(pool, 0).reply);
  return memory;
}

daemon::Step Memory::drive(const daemon::Command& command, uint64_t now_ns) {
  daemon::Step first = machine_.apply(command);
  std::deque<daemon::Effect> open(first.effects.begin(), first.effects.end());
  for (; !open.empty(); open.pop_front()) {
    const std::optional<daemon::Command> finished = answer(open.front(), now_ns);
    if (!finished.has_value()) continue;
    daemon::Step next = machine_.apply(*finished);
    TERRACE_CHECK(next.reply.ok(), "the state machine refuses to hear that its own effect was done");
    open.insert(open.end(), next.effects.begin(), next.effects.end());
  }
  return first;
}

Result<LeaseId> Memory::take(uint64_t granules, uint64_t now_ns) {
  if (capacity_ == 0)
    return Error{
        .code = ErrorCode::capacity_exhausted, .where = "Memory::take", .detail = "there is no " + name_};
  daemon::Grant grant;
  grant.pool = name_;
  grant.tenant = "plan";
  grant.host = "plan";
  grant.bytes = granules * machine_.devices().begin()->second.granule_bytes;
  grant.persistent = true;  // the trace says when it ends; nobody renews
  grant.now_ns = now_ns;
  const daemon::Step step = drive(grant, now_ns);
  if (!step.reply.ok()) return step.reply.error();
  const auto* pending = std::get_if<daemon::GrantPending>(&*step.reply);
  TERRACE_CHECK(pending != nullptr, "a new grant without a request key is always pending first");
  const daemon::LeaseRow* lease = machine_.find_lease(pending->lease);
  TERRACE_CHECK(lease != nullptr && lease->phase == daemon::LeasePhase::active, "a carved lease is active");
  for (const daemon::Extent& extent : lease->extents) {
    const bool taken = runs_.at(extent.device).take_exact({extent.first_granule, extent.granules});
    TERRACE_CHECK(taken, "I2: the state machine granted a granule that somebody has");
    free_ -= extent.granules;
  }
  extents_max_ = std::max<uint64_t>(extents_max_, lease->extents.size());
  return lease->id;
}

void Memory::give(LeaseId id, uint64_t now_ns) {
  const daemon::LeaseRow* lease = machine_.find_lease(id);
  TERRACE_CHECK(lease != nullptr, "a lease is given back once");
  for (const daemon::Extent& extent : lease->extents) {
    const bool given = runs_.at(extent.device).give({extent.first_granule, extent.granules});
    TERRACE_CHECK(given, "a lease keeps its extents until it is given back");
    free_ += extent.granules;
  }
  daemon::Release release;
  release.lease = id;
  release.now_ns = now_ns;
  const daemon::Step step = drive(release, now_ns);
  TERRACE_CHECK(step.reply.ok() && machine_.find_lease(id) == nullptr, "a released and scrubbed lease is gone");
}

uint64_t Memory::largest_free_run() const {
  uint64_t largest = 0;
  for (const auto& [device, runs] : runs_) largest = std::max(largest, runs.largest_run());
  return largest;
}

double Memory::fragmentation() const {
  if (free_ == 0) return 0;
  uint64_t whole = 0;
  for (const auto& [device, runs] : runs_) whole += runs.largest_run();
  return 1.0 - static_cast<double>(whole) / static_cast<double>(free_);
}

std::vector<std::string> Memory::check() const {
  std::vector<std::string> problems = machine_.check_all();
  uint64_t free = 0;
  for (const auto& [device, runs] : runs_) {
    const uint64_t said = machine_.device_free_bytes(device) / machine_.find_device(device)->granule_bytes;
    free += runs.free_granules();
    if (said != runs.free_granules()) {
      problems.push_back(name_ + ": the state machine says " + std::to_string(said) + " granules are free, " +
                         "its leases leave " + std::to_string(runs.free_granules()));
    }
  }
  if (free != free_) problems.push_back(name_ + ": the count of free granules is wrong");
  return problems;
}

}  // namespace terrace::plan
