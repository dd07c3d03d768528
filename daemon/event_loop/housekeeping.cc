// What the engine looks after once a second: devices that vanish and come back, and leases that a drain or a
// compaction wants elsewhere. A movable lease that one session holds is moved by that session, on request; one
// that nobody holds is copied here; all others stay until they end.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "daemon/event_loop/engine.h"

namespace terrace::daemon {
namespace {

constexpr uint64_t ask_again_ns = 10 * ns_per_s;

}  // namespace

kj::Promise<void> Engine::keep_house() {
  const auto pause = static_cast<int64_t>(options_.housekeeping_ns) * kj::NANOSECONDS;
  return timer_.afterDelay(pause).then([this]() { return look_at_devices(); }).then([this]() {
    if (!refusing_) drive_moves();
    return keep_house();
  });
}

// Not on the urgent worker: hardware that answers slowly must not keep a fence waiting.
kj::Promise<void> Engine::look_at_devices() {
  return bulk_worker_
      .run([this]() -> Status {
        backend_.refresh();
        return {};
      })
      .then([this](Status) {
        if (!refusing_) watch_devices();
      });
}

void Engine::tell_devices() {
  std::vector<KnownDevice> known;
  for (const auto& [id, row] : state_->devices())
    known.push_back({id, row.serial, row.backend, row.capacity_bytes, row.granule_bytes});
  backend_.know_devices(known);
}

kj::Promise<Result<Reply>> Engine::adopt(AdoptDevice command, Actor actor) {
  const bool known = state_->find_device(command.serial) != nullptr;
  return submit(command, actor)
      .then([this, command, actor, known](Result<Reply> reply) -> kj::Promise<Result<Reply>> {
        if (!reply.ok()) return reply;
        auto adopted = std::make_shared<Result<Reply>>(std::move(reply));
        return bulk_worker_
            .run([this, serial = command.serial]() -> Status { return backend_.take_over(serial); })
            .then([this, command, actor, known, adopted](Status status) -> kj::Promise<Result<Reply>> {
              if (status.ok()) return std::move(*adopted);
              spdlog::error("device {} was not taken over: {}", command.serial, status.error().to_string());
              if (known) return Result<Reply>(std::move(status).error());
              return submit(RemoveDevice{command.serial, false}, actor)
                  .then([status = std::move(status)](Result<Reply>) mutable {
                    return Result<Reply>(std::move(status).error());
                  });
            });
      });
}

void Engine::watch_devices() {
  const std::vector<SeenDevice> seen = backend_.discover();
  std::vector<std::pair<std::string, bool>> changed;  // serial, lost
  for (const auto& entry : state_->devices()) {
    const DeviceRow& device = entry.second;
    const bool here = std::any_of(seen.begin(), seen.end(), [&device](const SeenDevice& one) {
      return one.serial == device.serial && one.capacity_bytes >= device.capacity_bytes;
    });
    if (here == state_->absent(device.id)) changed.emplace_back(device.serial, !here);
  }
  for (const auto& [serial, lost] : changed) {
    if (lost) {
      spdlog::error("device {} vanished; its leases are fenced", serial);
      apply(DeviceLost{serial, clock_.now_ns()}, nullptr);
    } else {
      spdlog::warn("device {} is back", serial);
      apply(DeviceBack{serial, clock_.now_ns()}, nullptr);
    }
  }
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
  for (const WantedMove& move : wanted) {
    if (!move.movable || move.target.valid() || moving_.contains(move.lease)) continue;
    const size_t holders = notifier_->holders(move.lease);
    if (holders > 0) unheld_since_ns_.erase(move.lease.value);
    if (holders == 0) {
      const uint64_t since_ns = unheld_since_ns_.try_emplace(move.lease.value, now_ns).first->second;
      if (now_ns - since_ns >= options_.unheld_ns) move_unheld(move.lease);
    } else if (holders == 1) {
      uint64_t& asked_ns = asked_to_move_ns_[move.lease.value];
      if (asked_ns != 0 && now_ns - asked_ns < ask_again_ns) continue;
      asked_ns = now_ns;
      notifier_->move_requested(move.lease,
                                move.for_drain ? "its device is being drained" : "its pool is compacted");
    }
  }
}

// One after the other would be slow for many small leases, all at once would take the pool's room and the
// machine's bandwidth.
void Engine::move_unheld(LeaseId lease) {
  constexpr size_t moves_at_once = 4;
  if (moving_.size() >= moves_at_once) return;
  moving_.insert(lease);
  tasks_.add(submit(BeginMove{lease, "", clock_.now_ns()}, Actor{}).then([this, lease](Result<Reply> reply) {
    if (!reply.ok()) {
      moving_.erase(lease);
      spdlog::info("lease {} cannot move now: {}", lease.value, reply.error().to_string());
      return;
    }
    if (const auto* ready = std::get_if<MoveReady>(&reply.value())) {
      copy_and_finish(*ready);
    } else {
      moving_.erase(lease);
    }
  }));
}

void Engine::copy_and_finish(const MoveReady& move) {
  const LeaseRow* lease = state_->find_lease(move.lease);
  if (lease == nullptr) {
    moving_.erase(move.lease);
    return;
  }
  ++backend_jobs_;
  tasks_.add(worker_of(move.object, false)
                 .run([this, from = lease->object, to = move.object, bytes = move.bytes]() -> Status {
                   return backend_.copy(from, to, bytes);
                 })
                 .then([this, move](Status status) -> kj::Promise<void> {
                   --backend_jobs_;
                   if (refusing_) {  // the target is an orphan of a state that is gone
                     moving_.erase(move.lease);
                     return kj::READY_NOW;
                   }
                   // Whoever attached it meanwhile has the old memory: the lease stays where it is.
                   const bool held = notifier_ != nullptr && notifier_->holders(move.lease) > 0;
                   if (!status.ok())
                     spdlog::error("lease {} could not be moved: {}", move.lease.value,
                                   status.error().to_string());
                   const bool commit = status.ok() && !held;
                   return submit(FinishMove{move.lease, move.target, "", commit, clock_.now_ns()}, Actor{})
                       .then([this, move, commit](Result<Reply> reply) {
                         moving_.erase(move.lease);
                         if (commit && reply.ok()) ++counters_.moves;
                       });
                 }));
}

}  // namespace terrace::daemon
