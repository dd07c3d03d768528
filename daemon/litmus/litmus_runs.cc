// SPDX-License-Identifier: Apache-2.0
#include "daemon/litmus/litmus_runs.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "core/litmus/pair.h"
#include "core/litmus/region.h"
#include "core/os/memory_map.h"
#include "daemon/log/log.h"
#include "daemon/model/kinds.h"

namespace terrace::daemon {
namespace {

constexpr const char* where = "device litmus";
constexpr const char* tenant = "terrace";  // of the leases of runs
constexpr uint64_t lease_ttl_ns = 60 * ns_per_s;

Error failed(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = where, .detail = std::move(detail)};
}

// A mapping of all of the object: dax devices map in their own alignment only.
Result<os::MemoryMap> map_object(int fd, uint64_t bytes) {
  TERRACE_ASSIGN_OR_RETURN(os::MemoryMap map, os::MemoryMap::reserve(bytes, bytes));
  TERRACE_RETURN_IF_ERROR(os::map_file_at(map.bytes(), 0, bytes, fd, 0, os::Protection::read_write));
  return map;
}

bool saw_incoherence(const litmus::Report& report) {
  return report.verdict == litmus::Verdict::not_coherent;
}

// Whether somebody wants an emulated device to be seen as one of hosts without coherent caches.
bool looks_noncoherent(const std::string& directory, const DeviceRow& device) {
  constexpr std::string_view prefix = "emu:";
  if (device.backend != kinds::emulated || !device.serial.starts_with(prefix)) return false;
  const std::string mark = directory + "/" + device.serial.substr(prefix.size()) + ".noncoherent";
  return ::faccessat(AT_FDCWD, mark.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

Error not_coherent(const std::string& serial, const std::string& pool, const litmus::Report& report) {
  return failed(ErrorCode::unsupported,
                "device " + serial + " does not behave as coherent memory: " +
                    litmus::forbidden_outcomes(report) + ". It cannot be in pool " + pool +
                    " as coherent: use --coherence noncoherent, which is right "
                    "on such memory, or fix the device and run `terrace device litmus " +
                    serial + "` again");
}

}  // namespace

struct LitmusRuns::Work {
  Objects& memory;
  std::string serial;
  std::string object;
  uint64_t bytes = 0;
  std::vector<Extent> extents;
  std::shared_ptr<const std::atomic<bool>> ending;
  litmus::PairOptions options;

  // Over two mappings of the object, which exists.
  Result<litmus::Report> look() const {
    TERRACE_ASSIGN_OR_RETURN(const UniqueFd fd, memory.open(object, ObjectAccess::read_write));
    TERRACE_ASSIGN_OR_RETURN(const os::MemoryMap first, map_object(fd.get(), bytes));
    TERRACE_ASSIGN_OR_RETURN(const os::MemoryMap second, map_object(fd.get(), bytes));
    return litmus::run_pair(first.bytes(), second.bytes(), options);
  }

  // The same over an object of its own. One that cannot be erased stays as it is: an orphan. Where memory is
  // erased in place it counts as not erased from before it is written to (DevdaxBackend::carve), also when this
  // process dies here.
  Result<litmus::Report> carve_and_look() const {
    TERRACE_RETURN_IF_ERROR(memory.carve(object, bytes, extents));
    Result<litmus::Report> report = look();
    TERRACE_RETURN_IF_ERROR(memory.fence(object));
    if (memory.erases_in_place(object)) TERRACE_RETURN_IF_ERROR(memory.erase(object, extents, 0, bytes));
    const auto scrubbed = memory.scrub(object);
    if (!scrubbed.ok()) return scrubbed.error();
    return report;
  }
};

Status LitmusRuns::may_run(const std::string& serial, uint64_t rounds) const {
  const StateMachine& state = engine_.state();
  if (rounds > rounds_max)
    return failed(ErrorCode::invalid_argument, "a run through the manager has at most " +
                                                   std::to_string(rounds_max) + " rounds of each shape");
  const DeviceRow* device = state.find_device(serial);
  if (device == nullptr)
    return failed(
        ErrorCode::not_found,
        "there is no adopted device '" + serial.substr(0, limits::name_bytes_max) +
            "'; what is not adopted is not written to: `terrace device adopt` it first, or look at it "
            "without the manager (--path)");
  if (state.absent(device->id) || device->state != DeviceState::in_service)
    return failed(ErrorCode::busy, "device " + serial + " takes no leases now, as it is " +
                                       (state.absent(device->id)                 ? "not there"
                                        : device->state == DeviceState::draining ? "being drained"
                                                                                 : "given up"));
  return may_write(serial);
}

// An adopted device whose strangers were not taken away yet has memory that is somebody's.
Status LitmusRuns::may_write(const std::string& serial) const {
  if (adoptions_->under_way.contains(serial))
    return failed(ErrorCode::busy, "device " + serial + " is being adopted; try again in a moment");
  if (adoptions_->half_way.contains(serial))
    return failed(ErrorCode::busy,
                  "the adoption of device " + serial +
                      " failed half-way, and what was on it may still be in use; `terrace device "
                      "adopt` it again first");
  return {};
}

LitmusRuns::Adoption::Adoption(std::shared_ptr<Adoptions> all, std::string serial, bool ours)
    : all_(std::move(all)), serial_(std::move(serial)), ours_(ours) {
  ++all_->under_way[serial_];
}

LitmusRuns::Adoption::~Adoption() {
  const auto calls = all_->under_way.find(serial_);
  if (--calls->second == 0) all_->under_way.erase(calls);
  if (ours_) {
    all_->half_way.erase(serial_);
  } else {
    all_->half_way.insert(serial_);
  }
}

kj::Own<LitmusRuns::Adoption> LitmusRuns::adoption_begins(const std::string& serial) {
  const DeviceRow* device = engine_.state().find_device(serial);
  const bool ours = device != nullptr && !engine_.state().absent(device->id) &&
                    !adoptions_->half_way.contains(serial) && !adoptions_->under_way.contains(serial);
  return kj::heap<Adoption>(adoptions_, serial, ours);
}

Status LitmusRuns::may_change(const std::string& serial) const {
  if (!under_way_.contains(serial)) return {};
  return failed(ErrorCode::busy, "a litmus run of device " + serial + " is under way; try again in a moment");
}

kj::Promise<Result<litmus::Report>> LitmusRuns::run(const std::string& serial, uint64_t rounds, Actor actor) {
  Status allowed = may_run(serial, rounds);
  if (allowed.ok()) allowed = may_change(serial);
  if (!allowed.ok()) return Result<litmus::Report>(std::move(allowed).error());
  under_way_[serial] = "";
  auto next = kj::newPromiseAndFulfiller<void>();
  auto turn = std::exchange(turn_, kj::mv(next.promise));
  auto outcome = kj::newPromiseAndFulfiller<Result<litmus::Report>>();
  // What is adopted only in this process, and not durably, is not written to.
  auto looked =
      turn.then([this] { return engine_.settled(); })
          .then([this, serial, rounds, actor](Status settled) mutable {
            if (settled.ok()) settled = may_run(serial, rounds);
            if (!settled.ok())
              return kj::Promise<Result<litmus::Report>>(Result<litmus::Report>(std::move(settled).error()));
            return run_now(serial, rounds, std::move(actor));
          });
  tasks_.add(
      looked
          .then([this, serial, fulfiller = kj::mv(outcome.fulfiller)](Result<litmus::Report> report) mutable {
            finished(serial, report);
            fulfiller->fulfill(std::move(report));
          })
          .attach(kj::defer([fulfiller = kj::mv(next.fulfiller)]() mutable { fulfiller->fulfill(); })));
  return kj::mv(outcome.promise);
}

kj::Promise<Result<litmus::Report>> LitmusRuns::run_now(const std::string& serial, uint64_t rounds,
                                                        Actor actor) {
  const DeviceRow& device = *engine_.state().find_device(serial);
  Work work{engine_.backend(), serial, "", device.granule_bytes, {Extent{device.id, 0, 1}}, ending_, {}};
  work.options.rounds = rounds == 0 ? litmus::rounds_default : rounds;
  work.options.run_ns_max = run_ns_max;
  work.options.stop = ending_.get();
  work.options.cached = looks_noncoherent(options_.object_directory, device);
  if (device.pool.valid()) return run_on_lease(std::move(work), device, std::move(actor));
  work.object = prefix_of_kind(device.backend) + "litmus-" + std::to_string(next_object_++);
  under_way_[serial] = work.object;
  return run_on_object(std::move(work));
}

void LitmusRuns::taskFailed(kj::Exception&& exception) {
  log::critical("a litmus run failed: {}", exception.getDescription().cStr());
}

kj::Promise<Result<litmus::Report>> LitmusRuns::run_on_lease(Work work, const DeviceRow& device, Actor actor) {
  Grant grant;
  grant.pool = engine_.state().find_pool(device.pool)->name;
  grant.tenant = tenant;
  grant.host = options_.host;
  grant.label = "litmus run of " + device.serial;
  grant.bytes = device.granule_bytes;
  grant.ttl_ns = lease_ttl_ns;
  grant.now_ns = engine_.now_ns();
  grant.device = device.serial;
  return engine_.submit(grant, actor)
      .then([this, actor, work = std::move(work)](
                Result<LeaseReply> granted) mutable -> kj::Promise<Result<litmus::Report>> {
        if (!granted.ok()) return Result<litmus::Report>(std::move(granted).error());
        work.object = granted->lease.object;
        const LeaseId lease = granted->lease.id;
        return engine_.run_blocking([work = std::move(work)] { return work.look(); })
            .then([this, actor, lease](Result<litmus::Report> report) {
              // Taken away while the run waited for the worker, or ran: that says nothing of the device.
              const LeaseRow* row = engine_.state().find_lease(lease);
              if (!report.ok() && (row == nullptr || row->phase != LeasePhase::active))
                report = failed(ErrorCode::unavailable,
                                "the lease of the run ended before the run did, as the manager was busy with "
                                "other memory; try again later");
              // One that is not released, as the store fails just now, ends by its TTL.
              return engine_.submit(Release{lease, "", engine_.now_ns()}, actor)
                  .then([report = std::move(report)](Result<Done>) mutable { return std::move(report); });
            });
      });
}

kj::Promise<Result<litmus::Report>> LitmusRuns::run_on_object(Work work) {
  return engine_.run_blocking([work = std::move(work)] { return work.carve_and_look(); });
}

void LitmusRuns::finished(const std::string& serial, const Result<litmus::Report>& report) {
  under_way_.erase(serial);
  if (!report.ok()) {
    log::warn("device {} could not be looked at (litmus): {}", serial, report.error().to_string());
    return;
  }
  log::write(report->verdict == litmus::Verdict::not_coherent ? log::Level::error : log::Level::info,
             "litmus run of device {}: {}; {}", serial, litmus::verdict_name(report->verdict),
             report->note.empty() ? litmus::forbidden_outcomes(*report) : report->note);
  const auto last = last_.find(serial);
  if (last != last_.end() && saw_incoherence(last->second.report) &&
      report->verdict == litmus::Verdict::inconclusive)
    return;
  last_[serial] = {*report, engine_.now_ns()};
}

kj::Promise<Status> LitmusRuns::admit(std::vector<std::string> serials, const std::string& pool, Actor actor) {
  while (!serials.empty()) {
    const std::string serial = serials.back();
    serials.pop_back();
    const DeviceRow* device = engine_.state().find_device(serial);
    if (device == nullptr || device->pool.valid()) continue;
    return run(serial, 0, actor)
        .then([this, serials = std::move(serials), pool, actor,
               serial](Result<litmus::Report> report) mutable -> kj::Promise<Status> {
          if (!report.ok()) {
            Error error = report.error();
            error.detail = "device " + serial + " could not be looked at before it joins the coherent pool " +
                           pool + ": " + error.detail;
            return Status(std::move(error));
          }
          if (saw_incoherence(*report)) return Status(not_coherent(serial, pool, *report));
          return admit(std::move(serials), pool, std::move(actor));
        });
  }
  return Status();
}

Status LitmusRuns::may_join(const std::vector<std::string>& serials, const std::string& pool) const {
  for (const std::string& serial : serials) {
    TERRACE_RETURN_IF_ERROR(may_change(serial));
    const auto last = last_.find(serial);
    if (last != last_.end() && saw_incoherence(last->second.report))
      return not_coherent(serial, pool, last->second.report);
  }
  return {};
}

Status LitmusRuns::may_be_coherent(const PoolRow& pool) const {
  for (const auto& [id, device] : engine_.state().devices()) {
    const auto last = last_.find(device.serial);
    if (device.pool != pool.id || last == last_.end()) continue;
    if (saw_incoherence(last->second.report))
      return not_coherent(device.serial, pool.name, last->second.report);
  }
  return {};
}

}  // namespace terrace::daemon
