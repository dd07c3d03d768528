// SPDX-License-Identifier: Apache-2.0
// Objects that are resized, handed over and copied, and work that a crash cuts off.
#include <algorithm>
#include <cerrno>

#include "core/base/limits.h"
#include "tests/sim/manager/sim_backend.h"

namespace terrace::sim {
namespace {

Error failure(ErrorCode code, const char* where) {
  return Error{.code = code, .os_errno = EIO, .where = where, .detail = "simulated"};
}

}  // namespace

Status SimBackend::resize(const daemon::ResizeObject& effect) {
  constexpr const char* where = "SimBackend::resize";
  Object* object = find(effect.object);
  const uint64_t from = effect.from_bytes / limits::granule_bytes;
  const uint64_t to = effect.to_bytes / limits::granule_bytes;
  if (object == nullptr || (object->mapped != from && object->mapped != to))
    return failure(ErrorCode::busy, where);
  if (object->mapped == to) return {};
  if (strikes(environment_.faults().change_failure_percent))
    return failure(ErrorCode::capacity_exhausted, where);
  if (to > from) {
    const std::vector<Granule> granules = granules_of(effect.extents);
    if (on_lost_device(granules)) return failure(ErrorCode::unavailable, where);
    if (!fresh(effect.object, granules, from)) return failure(ErrorCode::already_exists, where);
    for (size_t i = from; i < granules.size(); ++i) owner_[granules[i]] = objects_.at(effect.object);
    object->granules = granules;
  } else {
    if (!in_place_) clear(object->granules, to);
    object->granules.resize(to);
  }
  object->mapped = to;
  return {};
}

// From the end, granule by granule: the new object has it, then the old holder loses it.
Status SimBackend::rebind_some(const daemon::RebindObject& effect, uint64_t granules) {
  constexpr const char* where = "SimBackend::rebind";
  Object* from = find(effect.from);
  Object* to = find(effect.to);
  if (from == nullptr) {
    if (to != nullptr && to->missing == 0 && to->mapped != 0) return {};
    return failure(ErrorCode::corrupt, where);
  }
  if (to == nullptr) {
    const Incarnation incarnation = next_incarnation_++;
    objects_[effect.to] = incarnation;
    to = &incarnations_[incarnation];
    from = find(effect.from);
    to->granules = granules_of(effect.extents);
    to->missing = to->granules.size();
  }
  if (to->missing > from->mapped) return failure(ErrorCode::corrupt, where);
  if (on_lost_device(to->granules)) return failure(ErrorCode::io_error, where);
  for (; to->missing > 0 && granules > 0; --granules) {
    owner_[to->granules[--to->missing]] = objects_.at(effect.to);
    if (!environment_.planted(Plant::soft_rebind)) from->mapped = to->missing;
  }
  if (to->missing > 0) return failure(ErrorCode::io_error, where);
  to->mapped = to->granules.size();
  from->shut = true;
  objects_.erase(effect.from);
  return {};
}

Status SimBackend::rebind(const daemon::RebindObject& effect) {
  const uint64_t granules = effect.bytes / limits::granule_bytes;
  const bool fails = strikes(environment_.faults().change_failure_percent);
  return rebind_some(effect, fails ? environment_.prng().below(granules) : granules + 1);
}

Status SimBackend::copy(const std::string& from_name, const std::string& to_name) {
  constexpr const char* where = "SimBackend::copy";
  const Object* from = find(from_name);
  const Object* to = find(to_name);
  if (from == nullptr || to == nullptr || from->mapped != to->mapped || from->mapped == 0 ||
      on_lost_device(from->granules) || on_lost_device(to->granules))
    return failure(ErrorCode::corrupt, where);
  const bool fails = strikes(environment_.faults().change_failure_percent);
  const size_t count = fails ? environment_.prng().below(from->mapped) : from->mapped;
  if (environment_.planted(Plant::skip_copy)) return {};
  for (size_t i = 0; i < count; ++i) {
    const auto stamp = memory_.find(from->granules[i]);
    if (stamp != memory_.end()) memory_[to->granules[i]] = stamp->second;
  }
  if (fails) return failure(ErrorCode::io_error, where);
  return {};
}

void SimBackend::cut_off(const daemon::Effect& effect) {
  Prng& prng = environment_.prng();
  const bool done = prng.chance(1, 2);
  if (const auto* carving = std::get_if<daemon::CarveObject>(&effect)) {
    if (done) (void)carve(*carving);  // an orphan, or nothing
  } else if (const auto* fencing = std::get_if<daemon::FenceObject>(&effect)) {
    if (done) (void)fence(fencing->object);
  } else if (const auto* resizing = std::get_if<daemon::ResizeObject>(&effect)) {
    if (done) (void)resize(*resizing);
  } else if (const auto* rebinding = std::get_if<daemon::RebindObject>(&effect)) {
    (void)rebind_some(*rebinding, prng.below(rebinding->bytes / limits::granule_bytes + 2));
  } else if (const auto* scrubbing = std::get_if<daemon::ScrubObject>(&effect)) {
    if (in_place_) {
      const uint64_t granules = scrubbing->bytes / limits::granule_bytes;
      if (granules == 0) return;
      const uint64_t count = prng.below(granules + 1);
      (void)erase(*scrubbing, granules - count, count);
    } else if (prng.chance(1, 3)) {
      (void)scrub(scrubbing->object);
    } else if (const Object* object = find(scrubbing->object); object != nullptr) {
      clear(object->granules, prng.below(object->granules.size() + 1));
    }
  }
}

}  // namespace terrace::sim
