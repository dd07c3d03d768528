// SPDX-License-Identifier: Apache-2.0
// Litmus runs of devices, on free memory that is erased afterwards. Keeps the last result of each device, and
// runs one at a time.
//
//   a device in a pool    a lease of its own on it, for a minute at most: placed, carved, fenced and erased as
//                         any, also after a crash
//   a device in no pool   no lease can lie there. An object that no row has, on its first granule; while it is
//                         there the device joins no pool and is not removed. After a crash it is an orphan,
//                         destroyed at the next start
//
// One run at a time; others wait for their turn. A device whose adoption is under way, or failed half-way, may
// still have memory of strangers on it: no run of it then.
//
// Place     Between AdminServer and the engine; the run itself is core/litmus, on the engine's bulk
//           worker, which does nothing else meanwhile (about a third of a second, run_ns_max at most).
// Threads   The event loop's thread only.
#pragma once

#include <kj/async.h>

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "core/litmus/report.h"
#include "daemon/event_loop/engine.h"

namespace terrace::daemon {

struct LitmusOptions {
  std::string host;              // of the lease
  std::string object_directory;  // where `<device>.noncoherent` makes an emulated device look so
};

class LitmusRuns final : private kj::TaskSet::ErrorHandler {
  struct Adoptions {
    std::map<std::string, size_t> under_way;  // by serial: calls
    std::set<std::string> half_way;           // perhaps in the books, but what was on them was not taken over
  };

 public:
  struct Last {
    litmus::Report report;
    uint64_t ended_ns = 0;  // CLOCK_BOOTTIME
  };
  // Of each shape, at most: a longer run would keep leases from being erased.
  static constexpr uint64_t rounds_max = 100'000;
  // What is not done by then is inconclusive. Below the TTL of a run's lease.
  static constexpr uint64_t run_ns_max = 20 * ns_per_s;

  LitmusRuns(Engine& engine, LitmusOptions options)
      : engine_(engine), options_(std::move(options)), tasks_(*this) {}
  ~LitmusRuns() { *ending_ = true; }  // a run under way ends soon

  // Resolves when the memory is erased again, or a lease that will be.
  //
  // Errors    not_found           not an adopted device; nothing else is ever written to
  //           busy                it takes no leases now (drained, failed, gone), is being adopted, or a run of
  //                               it is under way
  //           unavailable         the manager is recovering; or the run's lease ended before the run did
  //           invalid_argument    more than rounds_max rounds
  //           capacity_exhausted  nothing of it is free
  //           others              of the backend, or as litmus::run_pair
  kj::Promise<Result<litmus::Report>> run(const std::string& serial, uint64_t rounds, Actor actor);

  // Before devices join a coherent pool, one after the other: those that are adopted and in no pool. What else
  // is wrong with them is for the command to say.
  // Errors    unsupported   one is not coherent; says what was seen, and what to do
  kj::Promise<Status> admit(std::vector<std::string> serials, const std::string& pool, Actor actor);

  // The devices that are about to join `pool`, in the turn in which the command that does it is submitted.
  // Errors    busy          as may_change()
  //           unsupported   one was seen not to be coherent
  Status may_join(const std::vector<std::string>& serials, const std::string& pool) const;

  // One call of Engine::adopt(): no run of the device begins while it lives. One that goes without success()
  // leaves the device as it was: one that is not ours for certain has no run until it is adopted.
  class Adoption {
   public:
    Adoption(std::shared_ptr<Adoptions> all, std::string serial, bool ours);
    ~Adoption();
    Adoption(const Adoption&) = delete;
    Adoption& operator=(const Adoption&) = delete;
    void success() { ours_ = true; }

   private:
    const std::shared_ptr<Adoptions> all_;  // calls may outlive the runs
    const std::string serial_;
    bool ours_;
  };
  kj::Own<Adoption> adoption_begins(const std::string& serial);

  // Errors    busy   a run of the device is under way, which nothing may change meanwhile
  Status may_change(const std::string& serial) const;
  // Errors    unsupported   a device of the pool was seen not to be coherent
  Status may_be_coherent(const PoolRow& pool) const;

  // The last finished run of each device since the manager's start. An inconclusive one does not replace one
  // that saw the device not to be coherent.
  const std::map<std::string, Last>& last() const { return last_; }
  void forget(const std::string& serial) { last_.erase(serial); }
  // The objects that no lease has, now.
  const std::map<std::string, std::string>& under_way() const { return under_way_; }

 private:
  struct Work;  // one run, for the worker
  Status may_run(const std::string& serial, uint64_t rounds) const;
  Status may_write(const std::string& serial) const;
  kj::Promise<Result<litmus::Report>> run_now(const std::string& serial, uint64_t rounds, Actor actor);
  kj::Promise<Result<litmus::Report>> run_on_lease(Work work, const DeviceRow& device, Actor actor);
  kj::Promise<Result<litmus::Report>> run_on_object(Work work);
  void finished(const std::string& serial, const Result<litmus::Report>& report);
  void taskFailed(kj::Exception&& exception) override;

  Engine& engine_;
  const LitmusOptions options_;
  std::map<std::string, Last> last_;
  std::map<std::string, std::string> under_way_;  // by serial: the object, or "" where it is a lease's
  const std::shared_ptr<Adoptions> adoptions_ = std::make_shared<Adoptions>();
  uint64_t next_object_ = 1;
  std::shared_ptr<std::atomic<bool>> ending_ =
      std::make_shared<std::atomic<bool>>(false);  // the worker reads it
  kj::Promise<void> turn_ = kj::READY_NOW;         // of the next run
  kj::TaskSet tasks_;  // runs end, and give their memory back, also when nobody waits for them any more
};

}  // namespace terrace::daemon
