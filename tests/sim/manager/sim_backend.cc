// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/manager/sim_backend.h"

#include <algorithm>
#include <cerrno>

#include "core/base/limits.h"

namespace terrace::sim {
namespace {

unsigned long long number(uint64_t value) {
  return value;
}

Error failure(ErrorCode code, const char* where) {
  return Error{.code = code, .os_errno = EIO, .where = where, .detail = "simulated"};
}

}  // namespace

SimBackend::SimBackend(Environment& environment)
    : environment_(environment), in_place_(environment.prng().chance(1, 2)) {}

std::vector<SimBackend::Granule> SimBackend::granules_of(const std::vector<daemon::Extent>& extents) {
  std::vector<Granule> granules;
  for (const daemon::Extent& extent : extents) {
    for (uint64_t i = 0; i < extent.granules; ++i)
      granules.emplace_back(extent.device.value, extent.first_granule + i);
  }
  return granules;
}

SimBackend::Object* SimBackend::find(const std::string& object) {
  const auto at = objects_.find(object);
  return at == objects_.end() ? nullptr : &incarnations_.at(at->second);
}

bool SimBackend::on_lost_device(const std::vector<Granule>& granules) const {
  if (lost_.empty()) return false;
  return std::any_of(granules.begin(), granules.end(), [this](const Granule& granule) {
    const auto serial = serials_.find(granule.first);
    return serial != serials_.end() && lost_.contains(serial->second);
  });
}

bool SimBackend::fresh(const std::string& object, const std::vector<Granule>& granules, size_t from) {
  for (size_t i = from; i < granules.size(); ++i) {
    if (const auto stamp = memory_.find(granules[i]); stamp != memory_.end()) {
      environment_.fail(
          "scrub: object %s is made of granule %llu of device %llu, which still has stale bytes of "
          "lease %llu",
          object.c_str(), number(granules[i].second), number(granules[i].first), number(stamp->second >> 32));
      return false;
    }
  }
  for (const auto& [name, incarnation] : objects_) {
    if (name == object) continue;
    const std::vector<Granule>& theirs = incarnations_.at(incarnation).granules;
    for (size_t i = from; i < granules.size(); ++i) {
      if (std::find(theirs.begin(), theirs.end(), granules[i]) == theirs.end()) continue;
      environment_.fail("double grant: object %s is made of granules that object %s still has", object.c_str(),
                        name.c_str());
      return false;
    }
  }
  return true;
}

void SimBackend::clear(const std::vector<Granule>& granules, size_t from) {
  for (size_t i = from; i < granules.size(); ++i) memory_.erase(granules[i]);
}

// --- the manager's side -----------------------------------------------------------------------------

Status SimBackend::carve(const daemon::CarveObject& effect) {
  if (strikes(environment_.faults().carve_failure_percent))
    return failure(ErrorCode::capacity_exhausted, "SimBackend::carve");
  Object object;
  object.granules = granules_of(effect.extents);
  object.mapped = object.granules.size();
  if (on_lost_device(object.granules)) return failure(ErrorCode::unavailable, "SimBackend::carve");
  if (!fresh(effect.object, object.granules, 0)) return failure(ErrorCode::already_exists, "SimBackend::carve");
  const Incarnation incarnation = next_incarnation_++;
  for (const Granule& granule : object.granules) owner_[granule] = incarnation;
  objects_[effect.object] = incarnation;
  incarnations_[incarnation] = std::move(object);
  return {};
}

Status SimBackend::fence(const std::string& name) {
  Object* object = find(name);
  if (object == nullptr) return {};
  if (environment_.planted(Plant::skip_fence)) {
    object->shut = true;
    return {};
  }
  const uint32_t failures = environment_.faults().fence_failure_per_mille;
  if (failures != 0 && environment_.prng().chance(failures, 1000)) {
    object->shut = environment_.planted(Plant::lying_fence);
    if (object->shut) return {};
    return failure(ErrorCode::io_error, "SimBackend::fence");
  }
  object->mapped = 0;
  object->shut = true;
  return {};
}

void SimBackend::pretend_fence(const std::string& name) {
  if (Object* object = find(name); object != nullptr) object->shut = true;
}

Status SimBackend::erase(const daemon::ScrubObject& job, uint64_t first, uint64_t count) {
  const std::vector<Granule> all = granules_of(job.extents);
  const std::vector<Granule> granules(all.begin() + static_cast<std::ptrdiff_t>(first),
                                      all.begin() + static_cast<std::ptrdiff_t>(first + count));
  const uint32_t failures = environment_.faults().scrub_failure_per_mille;
  if (on_lost_device(granules) || (failures != 0 && environment_.prng().chance(failures, 1000)))
    return failure(ErrorCode::io_error, "SimBackend::erase");
  if (environment_.planted(Plant::lazy_scrub)) return {};
  if (!environment_.planted(Plant::skip_scrub)) clear(granules, 0);
  if (Object* object = find(job.object); object != nullptr && object->granules.size() > first)
    object->granules.resize(first);  // what is erased is given up piece by piece
  return {};
}

Status SimBackend::scrub(const std::string& name) {
  Object* object = find(name);
  if (object == nullptr || environment_.planted(Plant::lazy_scrub)) return {};
  if (on_lost_device(object->granules)) return failure(ErrorCode::io_error, "SimBackend::scrub");
  const uint32_t failures = environment_.faults().scrub_failure_per_mille;
  if (failures != 0 && environment_.prng().chance(failures, 1000)) {
    if (!object->granules.empty()) clear(object->granules, environment_.prng().below(object->granules.size()));
    return failure(ErrorCode::io_error, "SimBackend::scrub");
  }
  if (!environment_.planted(Plant::skip_scrub)) clear(object->granules, 0);
  objects_.erase(name);
  return {};
}

void SimBackend::destroy(const std::string& name) {
  Object* object = find(name);
  if (object == nullptr) return;
  object->mapped = 0;
  object->shut = true;
  clear(object->granules, 0);
  objects_.erase(name);
}

std::vector<std::pair<std::string, uint64_t>> SimBackend::list() const {
  std::vector<std::pair<std::string, uint64_t>> listed;
  for (const auto& [name, incarnation] : objects_) {
    const Object& object = incarnations_.at(incarnation);
    const uint64_t granules =
        object.missing != 0 ? object.granules.size() + object.missing : object.mapped;  // as emulated_move.cc
    listed.emplace_back(name, granules * limits::granule_bytes);
  }
  return listed;
}

bool SimBackend::on_known_devices(Incarnation incarnation, const daemon::StateMachine& machine) const {
  const std::vector<Granule>& granules = incarnations_.at(incarnation).granules;
  return std::all_of(granules.begin(), granules.end(), [&](const Granule& granule) {
    return machine.find_device(DeviceId{granule.first}) != nullptr;
  });
}

// --- a holder's side --------------------------------------------------------------------------------

std::optional<Incarnation> SimBackend::open(const std::string& object) const {
  const auto at = objects_.find(object);
  if (at == objects_.end()) return std::nullopt;
  return at->second;
}

Access SimBackend::write(Incarnation mapping, uint64_t granule, uint64_t stamp) {
  const auto at = incarnations_.find(mapping);
  if (at == incarnations_.end() || granule >= at->second.mapped || on_lost_device(at->second.granules))
    return Access::sigbus;
  if (at->second.shut) {
    environment_.fail("fenced writer: lease %llu writes through a mapping whose fence was reported",
                      number(stamp >> 32));
    return Access::done;
  }
  const Granule& place = at->second.granules.at(granule);
  memory_[place] = stamp;
  if (owner_.at(place) != mapping) {
    environment_.fail(
        "two writers: the mapping of lease %llu reached granule %llu of device %llu after it was "
        "given to somebody else",
        number(stamp >> 32), number(place.second), number(place.first));
  }
  return Access::done;
}

Access SimBackend::read(Incarnation mapping, uint64_t granule, uint64_t* stamp) const {
  const auto at = incarnations_.find(mapping);
  if (at == incarnations_.end() || granule >= at->second.mapped || on_lost_device(at->second.granules))
    return Access::sigbus;
  if (granule >= at->second.granules.size()) return Access::sigbus;
  const auto written = memory_.find(at->second.granules[granule]);
  *stamp = written == memory_.end() ? 0 : written->second;
  return Access::done;
}

uint64_t SimBackend::granules_of(Incarnation mapping) const {
  const auto at = incarnations_.find(mapping);
  return at == incarnations_.end() ? 0 : at->second.mapped;
}

// --- devices ----------------------------------------------------------------------------------------

void SimBackend::know(const daemon::StateMachine& machine) {
  for (const auto& [id, device] : machine.devices()) serials_.try_emplace(id.value, device.serial);
}

void SimBackend::lose_device(const std::string& serial, bool blank) {
  lost_.try_emplace(serial, environment_.steady_ns());
  if (!blank) return;
  const auto here = [&](const Granule& granule) {
    const auto at = serials_.find(granule.first);
    return at != serials_.end() && at->second == serial;
  };
  for (auto at = objects_.begin(); at != objects_.end();) {
    Object& object = incarnations_.at(at->second);
    if (std::none_of(object.granules.begin(), object.granules.end(), here)) {
      ++at;
      continue;
    }
    // What it had on other devices is the kernel's again, or stays as it was until it is erased.
    if (!in_place_) clear(object.granules, 0);
    object.mapped = 0;
    at = objects_.erase(at);
  }
  std::erase_if(memory_, [&](const auto& entry) { return here(entry.first); });
}

void SimBackend::reboot() {
  objects_.clear();
  incarnations_.clear();
  memory_.clear();
  owner_.clear();
}

}  // namespace terrace::sim
