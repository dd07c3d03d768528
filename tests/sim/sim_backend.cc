#include "tests/sim/sim_backend.h"

#include <algorithm>

#include "core/base/limits.h"

namespace terrace::sim {
namespace {

Error failure(ErrorCode code, const char* where) {
  return Error{.code = code, .os_errno = 5, .where = where, .detail = "simulated"};
}

}  // namespace

SimBackend::Object SimBackend::make(const daemon::CarveObject& effect) const {
  Object object;
  for (const daemon::Extent& extent : effect.extents) {
    for (uint64_t i = 0; i < extent.granules; ++i) {
      object.granules.emplace_back(extent.device.value, extent.first_granule + i);
    }
  }
  return object;
}

bool SimBackend::overlaps(const std::vector<Granule>& granules, std::string* other) const {
  for (const auto& [name, incarnation] : objects_) {
    for (const Granule& granule : incarnations_.at(incarnation).granules) {
      if (std::find(granules.begin(), granules.end(), granule) == granules.end()) continue;
      *other = name;
      return true;
    }
  }
  return false;
}

Status SimBackend::carve(const daemon::CarveObject& effect) {
  if (environment_.chance_percent(environment_.faults().carve_failure_percent)) {
    return failure(ErrorCode::capacity_exhausted, "SimBackend::carve");
  }
  Object object = make(effect);
  std::string other;
  if (overlaps(object.granules, &other)) {
    environment_.fail("double grant: %s is carved from granules that object %s still has",
                      effect.object.c_str(), other.c_str());
    return failure(ErrorCode::already_exists, "SimBackend::carve");
  }
  const Incarnation incarnation = next_incarnation_++;
  for (const Granule& granule : object.granules) owner_[granule] = incarnation;
  objects_[effect.object] = incarnation;
  incarnations_[incarnation] = std::move(object);
  return {};
}

Status SimBackend::fence(const std::string& object) {
  const auto at = objects_.find(object);
  if (at == objects_.end() || environment_.planted(Plant::skip_fence)) return {};
  const uint32_t failures = environment_.faults().fence_failure_per_mille;
  if (failures != 0 && environment_.prng().chance(failures, 1000)) {
    if (environment_.planted(Plant::lying_fence)) return {};
    return failure(ErrorCode::io_error, "SimBackend::fence");
  }
  incarnations_.at(at->second).fenced = true;
  return {};
}

void SimBackend::erase(const Object& object, uint64_t granules) {
  for (uint64_t i = 0; i < granules; ++i) memory_.erase(object.granules[i]);
}

Status SimBackend::scrub(const std::string& object) {
  const auto at = objects_.find(object);
  if (at == objects_.end() || environment_.planted(Plant::lazy_scrub)) return {};
  const Object& scrubbed = incarnations_.at(at->second);
  const uint32_t failures = environment_.faults().scrub_failure_per_mille;
  if (failures != 0 && environment_.prng().chance(failures, 1000)) {
    erase(scrubbed, environment_.prng().below(scrubbed.granules.size()));
    return failure(ErrorCode::io_error, "SimBackend::scrub");
  }
  if (!environment_.planted(Plant::skip_scrub)) erase(scrubbed, scrubbed.granules.size());
  objects_.erase(at);
  return {};
}

void SimBackend::cut_off(const daemon::Effect& effect) {
  Prng& prng = environment_.prng();
  if (const auto* carving = std::get_if<daemon::CarveObject>(&effect)) {
    if (prng.chance(1, 2)) (void)carve(*carving);  // an orphan, or nothing
  } else if (const auto* fencing = std::get_if<daemon::FenceObject>(&effect)) {
    if (prng.chance(1, 2)) (void)fence(fencing->object);
  } else if (const auto* scrubbing = std::get_if<daemon::ScrubObject>(&effect)) {
    const auto at = objects_.find(scrubbing->object);
    if (at == objects_.end()) return;
    if (prng.chance(1, 3)) {
      (void)scrub(scrubbing->object);
    } else {
      const Object& object = incarnations_.at(at->second);
      erase(object, prng.below(object.granules.size() + 1));
    }
  }
}

std::vector<std::pair<std::string, uint64_t>> SimBackend::list() const {
  std::vector<std::pair<std::string, uint64_t>> listed;
  for (const auto& [name, incarnation] : objects_) {
    const Object& object = incarnations_.at(incarnation);
    listed.emplace_back(name, object.fenced ? 0 : object.granules.size() * limits::granule_bytes);
  }
  return listed;
}

std::optional<Incarnation> SimBackend::open(const std::string& object) const {
  const auto at = objects_.find(object);
  if (at == objects_.end()) return std::nullopt;
  return at->second;
}

Access SimBackend::write(Incarnation mapping, uint64_t granule, uint64_t tag) {
  const auto at = incarnations_.find(mapping);
  if (at == incarnations_.end() || at->second.fenced) return Access::sigbus;
  const Granule& place = at->second.granules.at(granule);
  memory_[place] = tag;
  if (owner_.at(place) != mapping) {
    environment_.fail(
        "two writers: the mapping of epoch %llu reached granule %llu of device %llu after it was "
        "given to somebody else",
        static_cast<unsigned long long>(tag), static_cast<unsigned long long>(place.second),
        static_cast<unsigned long long>(place.first));
  }
  return Access::done;
}

Access SimBackend::read(Incarnation mapping, uint64_t granule, uint64_t* tag) const {
  const auto at = incarnations_.find(mapping);
  if (at == incarnations_.end() || at->second.fenced) return Access::sigbus;
  const auto written = memory_.find(at->second.granules.at(granule));
  *tag = written == memory_.end() ? 0 : written->second;
  return Access::done;
}

uint64_t SimBackend::granules_of(Incarnation mapping) const {
  const auto at = incarnations_.find(mapping);
  return at == incarnations_.end() ? 0 : at->second.granules.size();
}

void SimBackend::reboot() {
  objects_.clear();
  incarnations_.clear();
  memory_.clear();
  owner_.clear();
}

}  // namespace terrace::sim
