// SPDX-License-Identifier: Apache-2.0
// The engine's start, and its way back after a commit that failed: load, compare with what exists, repair,
// serve.

#include <algorithm>
#include <chrono>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "core/base/failpoint.h"
#include "core/base/limits.h"
#include "daemon/event_loop/engine.h"
#include "daemon/events/commands/command_events.h"
#include "daemon/log/log.h"
#include "daemon/memory/machine/backend_set.h"
#include "daemon/memory/remote/remote_memory.h"
#include "daemon/model/kinds.h"

namespace terrace::daemon {
namespace {

bool is_live(const LeaseRow& lease) {
  return lease.phase == LeasePhase::active || lease.phase == LeasePhase::revoking ||
         lease.phase == LeasePhase::transferring;
}

bool lies_on(const LeaseRow& lease, DeviceId device) {
  return std::any_of(lease.extents.begin(), lease.extents.end(),
                     [device](const Extent& extent) { return extent.device == device; });
}

// An agent cuts its objects back before it counts (daemon/hosts/agents.h): nobody waits for it at the start.
bool is_local_resize(const Effect& effect) {
  const auto* resize = std::get_if<ResizeObject>(&effect);
  return resize != nullptr && object_host(resize->object).empty();
}

}  // namespace

kj::Promise<Status> Engine::start() {
  return recover().then([this](Status status) -> Status {
    if (status.ok()) {
      refusing_ = false;
      arm_timer();
      if (options_.gap_ns != 0) tasks_.add(keep_time());
      // A holder whose session is not back yet still writes: what looks unheld now may not be.
      if (options_.housekeeping_ns != 0) tasks_.add(keep_house());
    }
    return status;
  });
}

kj::Promise<Status> Engine::recover() {
  return load().then([this](Result<Loaded> loaded) -> kj::Promise<Status> {
    if (!loaded.ok()) return Status(std::move(loaded).error());
    return take_over(std::move(loaded).value());
  });
}

// The rows first: a backend may find its objects only by where the rows say that they lie.
kj::Promise<Result<Engine::Loaded>> Engine::load() {
  return store_worker_.run([this]() { return store_.load(); })
      .then([this](Result<Image> read) -> kj::Promise<Result<Loaded>> {
        if (!read.ok()) return Result<Loaded>(std::move(read).error());
        auto image = std::make_shared<Image>(std::move(read).value());
        return bulk_worker_.run([this, image]() -> Result<Loaded> { return look_around(std::move(*image)); });
      });
}

// On the bulk worker. The kernel may still be finding memory when the machine comes up: a first start waits for
// what live leases have and what outlasts that, but not for long. What is not there then is waited for while
// the manager serves (StateMachine::awaiting).
Result<Engine::Loaded> Engine::look_around(Image image) {
  constexpr auto pause = std::chrono::milliseconds(100);
  if (memory_is_newer_ && counters_.recoveries == 0) image.meta.restored = true;
  backend_.know_devices(known_devices(image));
  backend_.know_objects(known_objects(image));
  const uint64_t settle_ns = counters_.recoveries == 0 ? options_.settle_ns : 0;
  const uint64_t deadline_ns = clock_.now_ns() + settle_ns;
  for (bool told = false;;) {
    const Status looked = backend_.refresh();
    auto listed = backend_.list();
    const std::string missing = still_missing(image, listed);
    if (missing.empty() || clock_.now_ns() >= deadline_ns) {
      if (!missing.empty() && settle_ns != 0)
        log::warn("start: {} not there after {}; what needs it waits", missing, format_duration(settle_ns));
      if (!listed.ok()) return std::move(listed).error();
      TERRACE_RETURN_IF_ERROR(claim_memory(image));
      TERRACE_RETURN_IF_ERROR(all_seen(image, looked));
      Loaded loaded{std::move(image), std::move(listed).value()};
      keep_orphans(loaded);
      return loaded;
    }
    if (!std::exchange(told, true))
      log::info("start: waiting up to {} for {}", format_duration(settle_ns), missing);
    std::this_thread::sleep_for(pause);
  }
}

// In words, which memory of live leases that may still show up has not; empty: none.
std::string Engine::still_missing(const Image& image, const Result<std::vector<ObservedObject>>& objects) {
  const std::vector<SeenDevice> seen = backend_.discover();
  std::set<std::string> missing;
  for (const LeaseRow& lease : image.leases) {
    if (!is_live(lease) || !object_host(lease.object).empty()) continue;
    for (const DeviceRow& device : image.devices) {
      if (!backend_.outlasts_absence(device.backend) || !lies_on(lease, device.id)) continue;
      const bool whole = objects.ok() && std::any_of(objects->begin(), objects->end(), [&](const auto& object) {
                           return object.bytes >= lease.bytes &&
                                  (object.name == lease.object || object.name == lease.next_object);
                         });
      if (!is_seen(seen, device)) {
        missing.insert("device " + device.serial);
      } else if (!whole) {
        missing.insert("memory object " + lease.object);
      }
    }
  }
  constexpr size_t named_max = 3;
  std::string words;
  size_t named = 0;
  for (const std::string& one : missing)
    if (named++ < named_max) words += (words.empty() ? "" : ", ") + one;
  if (missing.size() > named_max) words += " and " + std::to_string(missing.size() - named_max) + " more";
  return words;
}

// Memory that could not be looked at is not gone: leases on it must not be ended for that.
Status Engine::all_seen(const Image& image, const Status& looked) const {
  if (looked.ok() || accept_lost_objects_) return {};
  for (const LeaseRow& lease : image.leases) {
    const std::string kind(object_kind(lease.object));
    if (!is_live(lease) || !object_host(lease.object).empty() || backend_.saw_all(kind)) continue;
    if (backend_.outlasts_absence(kind)) continue;  // it waits
    Error error = looked.error();
    error.detail = "lease " + std::to_string(lease.id.value) + " has memory of the kind '" + kind +
                   "', which cannot be looked at now: " + error.detail +
                   ". Start again when that passed; or, if that memory really is gone, with "
                   "--accept-lost-objects, which ends such leases";
    return error;
  }
  return {};
}

// Whether a live lease on a device whose memory outlasts its absence has no whole object there.
bool Engine::lacks_objects(const Image& image, const DeviceRow& device,
                           const std::vector<ObservedObject>& objects) const {
  if (!backend_.outlasts_absence(device.backend)) return false;
  return std::any_of(image.leases.begin(), image.leases.end(), [&](const LeaseRow& lease) {
    if (!is_live(lease) || !object_host(lease.object).empty() || !lies_on(lease, device.id)) return false;
    return std::none_of(objects.begin(), objects.end(), [&](const ObservedObject& object) {
      return object.bytes > 0 && (object.name == lease.object || object.name == lease.next_object);
    });
  });
}

// Builds the state, destroys orphans, makes the findings durable; only then are its effects performed.
kj::Promise<Status> Engine::take_over(Loaded loaded) {
  Observation observed;
  observed.kept = std::move(loaded.kept);
  observed.older_copy = loaded.older_copy;
  leftovers_ = std::move(loaded.leftovers);
  for (const ObservedObject& object : loaded.objects) {
    observed.objects.emplace_back(object.name, object.bytes);
    if (!object.device.empty()) observed.lies_on[object.name] = object.device;
  }
  const std::vector<SeenDevice> seen_devices = backend_.discover();
  for (const DeviceRow& device : loaded.image.devices) {
    // One whose namespaces the kernel is still finding is not there yet.
    if (is_seen(seen_devices, device) && !lacks_objects(loaded.image, device, loaded.objects))
      observed.device_serials.push_back(device.serial);
    if (backend_.outlasts_absence(device.backend)) observed.lasting_backends.insert(device.backend);
  }
  if (Status status = check_directory(loaded.image, observed); !status.ok()) return status;
  auto next = std::make_unique<StateMachine>(options_.ttl_ns_max);
  auto recovered = next->recover(std::move(loaded.image), observed, clock_.boot_id(), clock_.now_ns());
  if (!recovered.ok()) return Status(std::move(recovered).error());
  state_ = std::move(next);
  for (const auto& [id, lease] : state_->leases()) leftovers_.erase(lease.object);  // quarantined by this start
  auto recovery = std::make_shared<Recovery>(std::move(recovered).value());
  if (watcher_ != nullptr) watcher_->recovered(*recovery, observed, *state_);
  findings_ = recovery->findings;
  for (const std::string& finding : findings_) log::warn("recovery: {}", finding);
  StartCheck check = std::exchange(start_check_, nullptr);
  const auto image = std::make_shared<const Image>(check ? state_->image() : Image{});
  const auto seen = std::make_shared<std::vector<std::string>>();
  const auto resized = std::make_shared<std::vector<ResizeFinished>>();
  return bulk_worker_
      .run([this, recovery, resized, image, seen, check = std::move(check)]() -> Status {
        if (check) *seen = check(*image);
        destroy_orphans(recovery->orphans);
        *resized = finish_resizes(recovery->effects);
        return {};
      })
      .then([this, recovery](Status status) -> kj::Promise<Status> {
        if (!status.ok() || recovery->delta.empty()) return status;
        return store_worker_.run([this, recovery]() -> Status { return store_.commit(recovery->delta); });
      })
      .then([this, recovery, resized, seen](Status status) -> Status {
        if (!status.ok()) return status;
        for (std::string& finding : *seen) {
          log::warn("start: {}", finding);
          findings_.push_back(std::move(finding));
        }
        ++counters_.recoveries;
        refusing_ = false;
        tell_recovered(*recovery);
        destroy_orphans_ = false;  // the operator's word was for this start
        for (ResizeFinished& finished : *resized) {
          finished.now_ns = clock_.now_ns();
          apply(finished, nullptr);
        }
        for (Effect& effect : recovery->effects)
          if (!is_local_resize(effect)) perform(std::move(effect));
        leftover_pause_ns_ = options_.leftover_pause_ns;
        watch_leftovers();
        ask_for_kept_memory();
        ask_for_unended();
        [[maybe_unused]] const int armed = TERRACE_FAILPOINT(recover_before_serve);
        return status;
      });
}

// What a start says of itself is said where it is whole (daemon/role_manager.cc).
void Engine::tell_recovered(const Recovery& recovery) {
  if (!options_.tell_events) return;
  if (counters_.recoveries > 1)
    events_.tell(Event{.kind = EventKind::manager_recovered,
                       .severity = EventSeverity::warning,
                       .message = "recovered; serving again"});
  Step found;
  found.delta.leases = recovery.delta.leases;
  events_.tell(command_events(Tick{}, found, *state_, {}));
}

// On the bulk worker, before anybody attaches: nobody maps what is about to be cut off and erased.
std::vector<ResizeFinished> Engine::finish_resizes(const std::vector<Effect>& effects) {
  std::vector<ResizeFinished> finished;
  for (const Effect& effect : effects) {
    const auto* resize = std::get_if<ResizeObject>(&effect);
    if (resize == nullptr || !is_local_resize(effect)) continue;
    Status status;
    if (resize->from_bytes != resize->to_bytes)
      status = backend_.resize(resize->object, resize->from_bytes, resize->to_bytes, resize->extents);
    if (!status.ok()) log::error("object {} keeps its size: {}", resize->object, status.error().to_string());
    finished.push_back({resize->lease, std::move(status), 0});
  }
  return finished;
}

// Memory that is gone as a whole, within one boot, is most likely memory that was looked for elsewhere: going
// on would give up every lease while its holder still has it.
Status Engine::check_directory(const Image& image, const Observation& observed) const {
  if (accept_lost_objects_) return {};
  // Without the kind of its memory a lease could neither be fenced nor kept: its holder would go on meanwhile.
  std::set<std::string_view> kinds;
  for (const LeaseRow& lease : image.leases) {
    if (!kinds.insert(object_kind(lease.object)).second) continue;
    const auto usage = backend_.usage(lease.object);
    if (usage.ok() || usage.error().code != ErrorCode::unsupported) continue;
    return Error{
        .code = ErrorCode::invalid_argument,
        .where = "Engine::recover",
        .detail = "lease " + std::to_string(lease.id.value) + " has memory of the kind '" +
                  std::string(object_kind(lease.object)) +
                  "', which this daemon does not serve. Start it as root and without --no-hardware; or, "
                  "if that memory really is gone, with --accept-lost-objects, which ends such leases"};
  }
  if (image.meta.boot_id.empty() || image.meta.boot_id != clock_.boot_id()) return {};
  // A backup knows leases that ended since. That the directory is its store's, the objects there say.
  if (image.meta.restored && !observed.objects.empty()) return {};
  size_t live = 0;
  for (const LeaseRow& lease : image.leases) {
    if (lease.phase != LeasePhase::active && lease.phase != LeasePhase::revoking) continue;
    if (!memory_kind(object_kind(lease.object)).in_named_directory) continue;
    if (!object_host(lease.object).empty()) continue;  // its agent says what there is
    ++live;
    for (const auto& [name, bytes] : observed.objects)
      if (name == lease.object) return {};
  }
  if (live == 0) return {};
  return Error{
      .code = ErrorCode::invalid_argument,
      .where = "Engine::recover",
      .detail = "none of the " + std::to_string(live) + " live leases has its memory in " +
                backend_.describe_memory() +
                ". Start with the --runtime-dir, --object-dir and --no-mount of the last run; or, if that "
                "memory really is gone, with --accept-lost-objects, which ends these leases"};
}

void Engine::begin_recovery(const Error& cause) {
  if (refusing_) return;
  if (options_.tell_events)
    events_.tell(Event{.kind = EventKind::manager_failed,
                       .severity = EventSeverity::critical,
                       .message = "the store could not be written: " + cause.to_string() + "; recovering",
                       .code = std::string(error_code_name(cause.code))});
  refusing_ = true;
  ++recoveries_begun_;
  refusal_ = Error{.code = ErrorCode::unavailable,
                   .os_errno = cause.os_errno,
                   .where = "Engine",
                   .detail = "the manager cannot write its store (" + cause.detail +
                             ") and is recovering; leases go on, nothing new is granted. Fix the disk"};
  fail_batch(std::exchange(open_, Batch{}), refusal_);
  for (auto& [lease, waiting] : carving_)
    for (ReplyFulfiller& fulfiller : waiting) fulfiller->fulfill(Result<Reply>(refusal_));
  carving_.clear();
  for (auto& change : changing_) change.second->fulfill(Result<Reply>(refusal_));
  changing_.clear();
  for (auto& [id, waiting] : std::exchange(opening_, {}))
    for (auto& one : waiting) one->fulfill(Status(refusal_));
  actors_.clear();
  ended_by_.clear();
  asked_to_move_ns_.clear();
  facts_.fences.clear();
  unheld_since_ns_.clear();
  missed_since_ns_.clear();
  incomplete_since_ns_.clear();
  clear_scrubbers();
  armed_for_ns_ = UINT64_MAX;
  ++timer_generation_;
  tasks_.add(recover_until_done());
}

// A disk that stays full fails the first commit after each recovery: the pauses between them grow.
kj::Promise<void> Engine::recover_until_done() {
  return timer_.afterDelay(static_cast<int64_t>(recovery_pause_ns_) * kj::NANOSECONDS)
      .then([this]() -> kj::Promise<void> {
        if (backend_jobs_ > 0)
          return recover_until_done();  // what was begun under the lost state must end first
        return recover().then([this](Status status) -> kj::Promise<void> {
          recovery_pause_ns_ = std::min(recovery_pause_ns_ * 2, recovery_pause_ns_max);
          if (status.ok()) {
            refusing_ = false;
            arm_timer();
            return kj::READY_NOW;
          }
          log::critical("recovery failed, trying again: {}", status.error().to_string());
          return recover_until_done();
        });
      });
}

kj::Promise<void> Engine::drain() {
  if (idle()) return kj::READY_NOW;
  request_commit();
  return timer_.afterDelay(5 * kj::MILLISECONDS).then([this] { return drain(); });
}

}  // namespace terrace::daemon
