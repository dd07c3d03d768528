// SPDX-License-Identifier: Apache-2.0
// What the engine looks after once a second: devices that vanish and come back, and leases that a drain or a
// compaction wants elsewhere. A movable lease that one session holds is moved by that session, on request; one
// that nobody holds is copied here; all others stay until they end.

#include <algorithm>

#include "daemon/event_loop/engine.h"
#include "daemon/event_loop/processes.h"
#include "daemon/log/log.h"

namespace terrace::daemon {
namespace {

constexpr uint64_t ask_again_ns = 10 * ns_per_s;
constexpr size_t moves_at_once = 4;
// Leases whose memory is opened to look for processes that have it.
constexpr size_t looked_at_once_max = 64;

bool is_whole(const LeaseRow& lease, const std::vector<ObservedObject>& objects) {
  return std::any_of(objects.begin(), objects.end(), [&lease](const ObservedObject& object) {
    return object.name == lease.object && object.bytes >= lease.bytes;
  });
}

bool is_unbound(const LeaseRow& lease, const std::vector<ObservedObject>& objects) {
  return std::any_of(objects.begin(), objects.end(), [&lease](const ObservedObject& object) {
    return object.name == lease.object && object.bytes == 0;
  });
}

}  // namespace

kj::Promise<void> Engine::keep_house() {
  const auto pause = static_cast<int64_t>(options_.housekeeping_ns) * kj::NANOSECONDS;
  return timer_.afterDelay(pause).then([this]() { return look_at_devices(); }).then([this]() {
    if (!refusing_) look_at_kept_memory();
    if (!refusing_) look_at_unended();
    if (!refusing_) drive_moves();
    return keep_house();
  });
}

// Not on the urgent worker: hardware that answers slowly must not keep a fence waiting.
kj::Promise<void> Engine::look_at_devices() {
  return bulk_worker_.run([this]() -> Status { return backend_.refresh(); })
      .then([this](Status looked) -> kj::Promise<void> {
        const bool failed = !looked.ok() && looked.error().code != ErrorCode::busy;
        const std::string failure = failed ? looked.error().to_string() : "";
        if (failure != look_failure_ && !failure.empty())
          log::warn("devices could not all be looked at; what is not seen is not taken for gone: {}", failure);
        look_failure_ = failure;
        if (refusing_) return kj::READY_NOW;
        return watch_devices();
      });
}

// A device of which there is less than was adopted is not the one.
bool Engine::is_seen(const std::vector<SeenDevice>& seen, const DeviceRow& device) {
  return std::any_of(seen.begin(), seen.end(), [&device](const SeenDevice& one) {
    return one.serial == device.serial && one.capacity_bytes >= device.capacity_bytes;
  });
}

void Engine::tell_devices() {
  std::vector<KnownDevice> known;
  for (const auto& [id, row] : state_->devices())
    known.push_back({id, row.serial, row.backend, row.capacity_bytes, row.granule_bytes});
  backend_.know_devices(known);
}

kj::Promise<Result<DeviceReply>> Engine::adopt(AdoptDevice command, Actor actor) {
  const DeviceRow* row = state_->find_device(command.serial);
  if (row != nullptr && state_->absent(row->id)) {  // it is back: what leases have on it is looked at first
    return look_at_devices().then([this, command, actor] { return adopt_present(command, actor); });
  }
  if (row != nullptr) return adopt_present(std::move(command), std::move(actor));
  return bulk_worker_
      .run([this, serial = command.serial]() -> Status { return backend_.may_take_over(serial); })
      .then([this, command, actor](Status status) -> kj::Promise<Result<DeviceReply>> {
        if (!status.ok()) return Result<DeviceReply>(std::move(status).error());
        return adopt_present(command, actor);
      });
}

kj::Promise<Result<DeviceReply>> Engine::adopt_present(AdoptDevice command, Actor actor) {
  const bool known = state_->find_device(command.serial) != nullptr;
  return submit(command, actor)
      .then([this, command, actor, known](Result<DeviceReply> reply) -> kj::Promise<Result<DeviceReply>> {
        if (!reply.ok()) return reply;
        auto adopted = std::make_shared<Result<DeviceReply>>(std::move(reply));
        return bulk_worker_
            .run([this, serial = command.serial]() -> Status { return backend_.take_over(serial); })
            .then([this, command, actor, known, adopted](Status status) -> kj::Promise<Result<DeviceReply>> {
              if (status.ok()) return std::move(*adopted);
              log::error("device {} was not taken over: {}", command.serial, status.error().to_string());
              if (known) return Result<DeviceReply>(std::move(status).error());
              return submit(RemoveDevice{command.serial, false}, actor)
                  .then([status = std::move(status)](Result<Done>) mutable {
                    return Result<DeviceReply>(std::move(status).error());
                  });
            });
      });
}

// A device is lost when looks in turn, each of which saw all there is of its kind, did not show it for a while:
// one alone may have come between two steps of the kernel's, or of somebody's who reconfigures it.
kj::Promise<void> Engine::watch_devices() {
  const uint64_t now_ns = clock_.now_ns();
  const std::vector<SeenDevice> seen = backend_.discover();
  std::vector<std::string> lost, back;
  bool unsure = false;
  for (const auto& entry : state_->devices()) {
    const DeviceRow& device = entry.second;
    const bool here = is_seen(seen, device);
    if (here) missed_since_ns_.erase(device.id);
    if (!here) incomplete_since_ns_.erase(device.id);
    if (here && state_->absent(device.id)) back.push_back(device.serial);
    if (here || state_->absent(device.id) || !backend_.saw_all(device.backend)) continue;
    const auto [missed, first] = missed_since_ns_.try_emplace(device.id, now_ns);
    if (first || now_ns - missed->second < options_.lost_after_ns) {
      unsure = true;
      continue;
    }
    missed_since_ns_.erase(missed);
    lost.push_back(device.serial);
  }
  for (const std::string& serial : lost) {
    apply(DeviceLost{serial, clock_.now_ns()}, nullptr);
  }
  if (unsure && !looking_again_ && options_.housekeeping_ns != 0) {
    looking_again_ = true;
    tasks_.add(timer_.afterDelay(static_cast<int64_t>(options_.lost_after_ns) * kj::NANOSECONDS).then([this] {
      looking_again_ = false;
      return look_at_devices();
    }));
  }
  if (back.empty()) return kj::READY_NOW;
  return end_waits(std::move(back));
}

// Devices that are there again. Where leases wait for one, their objects are looked at before anything is
// decided about them; the kernel may find them a moment after the device.
kj::Promise<void> Engine::end_waits(std::vector<std::string> back) {
  const auto waited_for = [this](const std::string& serial) {
    const DeviceRow* device = state_->find_device(serial);
    return device != nullptr && !state_->awaiting(device->id).empty();
  };
  const bool list = std::any_of(back.begin(), back.end(), waited_for);
  return bulk_worker_
      .run([this, list]() -> Result<std::vector<ObservedObject>> {
        if (!list) return std::vector<ObservedObject>{};
        return backend_.list();
      })
      .then([this, back = std::move(back),
             recoveries = recoveries_begun_](Result<std::vector<ObservedObject>> listed) {
        if (refusing_ || recoveries != recoveries_begun_ || !listed.ok()) return;  // the next look tries again
        std::vector<std::pair<std::string, uint64_t>> objects;
        for (const ObservedObject& object : *listed) objects.emplace_back(object.name, object.bytes);
        for (const std::string& serial : back) {
          const DeviceRow* device = state_->find_device(serial);
          if (device == nullptr) continue;
          const std::vector<LeaseId> waiting = state_->awaiting(device->id);
          const bool whole = std::all_of(waiting.begin(), waiting.end(), [&](LeaseId id) {
            return is_whole(*state_->find_lease(id), *listed);
          });
          const uint64_t since_ns = incomplete_since_ns_.try_emplace(device->id, clock_.now_ns()).first->second;
          // A live lease's object without bytes is one whose driver is not there yet: no time makes it gone.
          const bool unbound = std::any_of(waiting.begin(), waiting.end(), [&](LeaseId id) {
            return is_unbound(*state_->find_lease(id), *listed);
          });
          if (!whole && (unbound || clock_.now_ns() - since_ns < options_.return_settle_ns)) continue;
          incomplete_since_ns_.erase(device->id);
          if (!waiting.empty())
            log::info("leases that waited for device {} go on where their memory is whole", serial);
          apply(DeviceBack{serial, clock_.now_ns(), objects}, nullptr);
        }
      });
}

void Engine::drive_moves() {
  if (notifier_ == nullptr) return;
  const std::vector<WantedMove> wanted = state_->moves_wanted();
  if (wanted.empty()) {
    asked_to_move_ns_.clear();
    unheld_since_ns_.clear();
    return;
  }
  const uint64_t now_ns = clock_.now_ns();
  std::set<LeaseId> unsure;
  for (const WantedMove& move : wanted) {
    if (!move.movable || move.target.valid() || moving_.contains(move.lease)) continue;
    const size_t holders = notifier_->holders(move.lease);
    // A living owner of a part may store, and has no session now.
    if (holders > 0 || living_owner(*state_, move.lease).has_value()) {
      unheld_since_ns_.erase(move.lease.value);
      if (holders == 1) ask_to_move(move, now_ns);
      continue;
    }
    const uint64_t since_ns = unheld_since_ns_.try_emplace(move.lease.value, now_ns).first->second;
    if (now_ns - since_ns >= options_.unheld_ns) {
      move_unheld(move.lease);
    } else if (unsure.size() < looked_at_once_max) {
      unsure.insert(move.lease);
    }
  }
  if (!unsure.empty()) move_if_nobody_has(std::move(unsure));
}

// Not within the command or the move that asks for it.
void Engine::drive_moves_soon() {
  if (options_.housekeeping_ns == 0) return;
  tasks_.add(kj::evalLater([this] {
    if (!refusing_) drive_moves();
  }));
}

void Engine::ask_to_move(const WantedMove& move, uint64_t now_ns) {
  uint64_t& asked_ns = asked_to_move_ns_[move.lease.value];
  if (asked_ns != 0 && now_ns - asked_ns < ask_again_ns) return;
  asked_ns = now_ns;
  notifier_->move_requested(move.lease,
                            move.for_drain ? "its device is being drained" : "its pool is compacted");
}

// What is sure to be nobody's need not wait for a holder to come back.
void Engine::move_if_nobody_has(std::set<LeaseId> leases) {
  if (looking_for_holders_ || moving_.size() >= moves_at_once) return;
  looking_for_holders_ = true;
  tasks_.add(notifier_->nobody_has(std::move(leases))
                 .then([this, recoveries = recoveries_begun_](const std::set<LeaseId>& nobodys) {
                   looking_for_holders_ = false;
                   if (refusing_ || recoveries != recoveries_begun_ || notifier_ == nullptr) return;
                   for (const WantedMove& move : state_->moves_wanted()) {
                     if (!nobodys.contains(move.lease) || !move.movable || move.target.valid()) continue;
                     if (moving_.contains(move.lease) || notifier_->holders(move.lease) > 0) continue;
                     if (!living_owner(*state_, move.lease).has_value()) move_unheld(move.lease);
                   }
                 })
                 .catch_([this](kj::Exception&& exception) {
                   looking_for_holders_ = false;
                   log::warn("who has leases that should move could not be looked at: {}",
                             exception.getDescription().cStr());
                 }));
}

// One after the other would be slow for many small leases, all at once would take the pool's room and the
// machine's bandwidth.
void Engine::move_unheld(LeaseId lease) {
  if (moving_.size() >= moves_at_once) return;
  moving_.emplace(lease, false);
  tasks_.add(submit(BeginMove{lease, "", clock_.now_ns()}).then([this, lease](Result<MoveReady> ready) {
    if (!ready.ok()) {
      moving_.erase(lease);
      log::info("lease {} cannot move now: {}", lease.value, ready.error().to_string());
      return;
    }
    copy_and_finish(*ready);
  }));
}

void Engine::copy_and_finish(const MoveReady& move) {
  const LeaseRow* lease = state_->find_lease(move.lease);
  if (lease == nullptr) {
    moving_.erase(move.lease);
    return;
  }
  ++backend_jobs_;
  tasks_.add(
      worker_of(move.object, false)
          .run([this, from = lease->object, to = move.object, bytes = move.bytes]() -> Status {
            return backend_.copy(from, to, bytes);
          })
          .then([this, move](Status status) -> kj::Promise<void> {
            --backend_jobs_;
            if (refusing_) {  // the target is an orphan of a state that is gone
              moving_.erase(move.lease);
              return kj::READY_NOW;
            }
            // Whoever attached it meanwhile has, or had, the old memory: the lease stays where it is.
            const bool held = moving_.at(move.lease) ||
                              (notifier_ != nullptr && notifier_->holders(move.lease) > 0) ||
                              living_owner(*state_, move.lease).has_value();
            if (!status.ok())
              log::error("lease {} could not be moved: {}", move.lease.value, status.error().to_string());
            const bool commit = status.ok() && !held;
            return submit(FinishMove{move.lease, move.target, "", commit, clock_.now_ns()})
                .then([this, move, commit](Result<LeaseReply> reply) {
                  moving_.erase(move.lease);
                  if (!commit || !reply.ok()) return;
                  ++counters_.moves;
                  drive_moves_soon();
                  if (Status kept = backend_.hand_out(move.object); !kept.ok())
                    log::warn("object {} counts as never used: {}", move.object, kept.error().to_string());
                });
          }));
}

}  // namespace terrace::daemon
