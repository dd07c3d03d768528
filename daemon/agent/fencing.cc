// SPDX-License-Identifier: Apache-2.0
#include "daemon/agent/fencing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/base/unique_fd.h"
#include "core/base/units.h"
#include "daemon/agent/guard_fence.h"
#include "daemon/log/log.h"

namespace terrace::daemon {
namespace {

// Of a file in memory, whose pages are freed one by one; of a dax device, whose driver waits for who is inside it, and
// has page-table entries of 4 KiB at worst. Nobody has measured the latter at a start, when there is none to take away.
constexpr FenceCost assumed_of_files({200 * 1000, 500 * ns_per_ms}, {200 * 1000, 20 * ns_per_ms});
constexpr FenceCost assumed_of_devices({20 * ns_per_ms, 50 * ns_per_ms}, {ns_per_ms, ns_per_ms});

// Of one truncation of a file of that size with all its pages mapped; 0: cannot be had here.
uint64_t measure_truncation(const UniqueFd& file, uint64_t bytes) {
  if (!file.valid() || ::fallocate(file.get(), 0, 0, static_cast<off_t>(bytes)) != 0) return 0;
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
  if (mapped == MAP_FAILED) return 0;
  const SystemClock clock;
  const uint64_t begin_ns = clock.now_ns();
  const bool done = ::ftruncate(file.get(), 0) == 0;
  const uint64_t took_ns = clock.now_ns() - begin_ns;
  ::munmap(mapped, bytes);
  return done ? took_ns : 0;
}

// For a GiB, by the quickest of some: what else ran at the start must not count for ever.
uint64_t measure_gib(const UniqueFd& file) {
  constexpr uint64_t bytes = Fencing::probe_bytes;
  std::array<uint64_t, 5> took{};
  for (uint64_t& one : took) one = measure_truncation(file, bytes);
  return *std::min_element(took.begin(), took.end()) * (gib / bytes);
}

void add_to(FenceLoad& load, uint64_t bytes) {
  ++load.objects;
  load.bytes += bytes;
}

void take_from(FenceLoad& load, uint64_t bytes) {
  --load.objects;
  load.bytes -= bytes;
}

}  // namespace

// Freeing pages is work of a processor, and half of them are left to what else runs, the guard and the agent.
Fencing::Fencing()
    : parallel_(std::clamp(std::thread::hardware_concurrency() / 2, 1u, fenced_at_once_max)),
      files_(assumed_of_files),
      devices_(assumed_of_devices) {}

// In the directory pages are huge ones where the kernel has some; what else there is has the 4 KiB that it falls back to.
void Fencing::measure(const std::string& directory) {
  const uint64_t there_ns =
      measure_gib(UniqueFd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)));
  const uint64_t worst_ns = measure_gib(UniqueFd(::memfd_create("fence-probe", MFD_CLOEXEC)));
  if (there_ns == 0 || worst_ns == 0) {
    log::info("how long fencing takes cannot be measured in {}: assumed", directory);
    return;
  }
  const MutexLock lock(mutex_);
  files_ = FenceCost({200 * 1000, worst_ns}, {200 * 1000, std::max<uint64_t>(there_ns, 20 * ns_per_ms)});
  log::info(
      "fencing takes {} a GiB here with pages of 4 KiB, and {} with those of {}, as measured on files of its "
      "own",
      format_duration(worst_ns / ns_per_ms * ns_per_ms), format_duration(there_ns / ns_per_ms * ns_per_ms),
      directory);
}

void Fencing::reset(const std::vector<ObservedObject>& objects) {
  const MutexLock lock(mutex_);
  objects_.clear();
  of_files_ = of_devices_ = {};
  for (const ObservedObject& object : objects)
    if (objects_.try_emplace(object.name, object.bytes).second)
      add_to(is_file(object.name) ? of_files_ : of_devices_, object.bytes);
}

void Fencing::set(const std::string& object, uint64_t bytes) {
  const MutexLock lock(mutex_);
  FenceLoad& load = is_file(object) ? of_files_ : of_devices_;
  const auto [at, fresh] = objects_.try_emplace(object, bytes);
  if (!fresh) take_from(load, std::exchange(at->second, bytes));
  add_to(load, bytes);
}

void Fencing::forget(const std::string& object) {
  const MutexLock lock(mutex_);
  const auto at = objects_.find(object);
  if (at == objects_.end()) return;
  take_from(is_file(object) ? of_files_ : of_devices_, at->second);
  objects_.erase(at);
}

void Fencing::observe(const std::string& object, uint64_t took_ns, uint64_t now_ns) {
  const MutexLock lock(mutex_);
  done_.times.add(took_ns);
  const auto at = objects_.find(object);
  if (at == objects_.end() || at->second == 0) return;  // there was nothing to take away
  cost_of(object).observe(at->second, took_ns, now_ns);
  FenceLoad& load = is_file(object) ? of_files_ : of_devices_;
  load.bytes -= std::exchange(at->second, 0);
}

void Fencing::failed() {
  const MutexLock lock(mutex_);
  ++done_.failed;
}

Fencing::Done Fencing::done() const {
  const MutexLock lock(mutex_);
  return done_;
}

FenceEstimate Fencing::estimate_of(const FenceLoad& files, const FenceLoad& devices, uint64_t now_ns) const {
  const uint64_t sum_ns = files_.of(files, now_ns) + devices_.of(devices, now_ns);
  FenceEstimate estimate{{files.objects + devices.objects, files.bytes + devices.bytes}, 0};
  const auto parallel = static_cast<uint32_t>(std::min<uint64_t>(parallel_, estimate.load.objects));
  const uint64_t hiccup_ns =
      std::max(files.objects == 0 ? 0 : files_.hiccup_ns(), devices.objects == 0 ? 0 : devices_.hiccup_ns());
  estimate.fence_ns = fence_ns_of(sum_ns, hiccup_ns, parallel);
  return estimate;
}

FenceEstimate Fencing::estimate(uint64_t now_ns) const {
  const MutexLock lock(mutex_);
  return estimate_of(of_files_, of_devices_, now_ns);
}

FenceEstimate Fencing::estimate_with(const std::string& object, uint64_t bytes, uint64_t now_ns) const {
  const MutexLock lock(mutex_);
  FenceLoad files = of_files_, devices = of_devices_;
  FenceLoad& load = is_file(object) ? files : devices;
  const auto there = objects_.find(object);
  if (there != objects_.end()) take_from(load, there->second);
  add_to(load, bytes);
  return estimate_of(files, devices, now_ns);
}

}  // namespace terrace::daemon
