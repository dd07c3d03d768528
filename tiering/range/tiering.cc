// SPDX-License-Identifier: Apache-2.0
// Tiering: the engine of a process with its thread, and what a fork must wait for.
#include "tiering/range/tiering.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <system_error>
#include <utility>

#include "core/base/limits.h"
#include "core/base/sync/mutex.h"
#include "core/base/units.h"
#include "tiering/range/lossy_copy.h"

namespace terrace {
namespace {

// Engines of this process, for forks. A fork waits for a round's end: the engine's threads hold no lock during
// a round that another library's fork handlers could want.
constexpr size_t engines_max = 64;
std::atomic<tiering::Engine*> engines[engines_max];

// From prepare to parent or child held by the thread that forks.
Mutex registry;

template <typename Act>
void for_each_engine(Act act) {
  for (std::atomic<tiering::Engine*>& place : engines)
    // acquire: pairs with enter_registry()
    if (tiering::Engine* engine = place.load(std::memory_order_acquire); engine != nullptr) act(*engine);
}

// The engines' locks, as many as there are, are given back by the next function: not analysed.
void before_fork() TERRACE_ACQUIRE(registry) {
  registry.lock();
  for_each_engine([](tiering::Engine& engine) TERRACE_NO_THREAD_SAFETY_ANALYSIS { engine.lock().enter(); });
}
void after_fork_in_parent() TERRACE_RELEASE(registry) {
  for_each_engine([](tiering::Engine& engine) TERRACE_NO_THREAD_SAFETY_ANALYSIS { engine.lock().leave(); });
  registry.unlock();
}
// The child has neither the threads nor the memory; its copies of the objects say so.
void after_fork_in_child() TERRACE_RELEASE(registry) {
  for_each_engine([](tiering::Engine& engine) { engine.abandon_in_child(); });
  for (std::atomic<tiering::Engine*>& place : engines) place.store(nullptr, std::memory_order_relaxed);
  registry.unlock();
}

bool enter_registry(tiering::Engine* engine) {
  static const int registered = ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  if (registered != 0) return false;
  const MutexLock lock(registry);
  for (std::atomic<tiering::Engine*>& place : engines) {
    tiering::Engine* empty = nullptr;
    if (place.compare_exchange_strong(empty, engine)) return true;
  }
  return false;
}

void leave_registry(const tiering::Engine* engine) {
  const MutexLock lock(registry);
  for (std::atomic<tiering::Engine*>& place : engines) {
    tiering::Engine* found = place.load();
    if (found == engine) place.store(nullptr);
  }
}

}  // namespace

Result<std::unique_ptr<Tiering>> Tiering::start(const TieringOptions& options) {
  auto tiering = std::make_unique<EngineTiering>();
  TERRACE_RETURN_IF_ERROR(tiering->begin(options));
  return std::unique_ptr<Tiering>(std::move(tiering));
}

std::vector<std::string> Tiering::policies() {
  std::vector<std::string> names;
  for (const tiering::PolicyEntry& entry : tiering::policies()) names.emplace_back(entry.name);
  return names;
}

Status EngineTiering::begin(const TieringOptions& options) {
  tiering::EngineOptions chosen;
  chosen.batch_bytes = round_up(std::max<uint64_t>(options.batch_bytes_max, 2 * mib), 2 * mib);
  chosen.copy_bytes_per_s_max = options.copy_bytes_per_s_max;
  chosen.round_ns = options.round_ns;
  chosen.copy_threads = options.copy_threads;
  chosen.copy = copy_unless_lost;
  chosen.ddr_granules_shared = options.ddr_bytes_shared / limits::granule_bytes;
  shares_ddr_ = chosen.ddr_granules_shared != 0;
  chosen.access_events = options.access_events;
  int failed = engine_.open(chosen);
  if (failed == EPERM && options.session != nullptr) {
    auto given = options.session->userfaultfd_device();
    if (given.ok()) {
      device_ = std::move(*given);
      engine_.close();
      chosen.userfault_device = device_.get();
      failed = engine_.open(chosen);
    } else {
      why_not_ = "the manager gives no userfaultfd: " + given.error().to_string();
    }
  }
  if (failed == ENOMEM) return os_error(failed, "Tiering::start", "no memory for the engine's tables");
  if (failed == 0)
    why_not_.clear();
  else if (why_not_.empty())
    why_not_ =
        os_error(failed, "Tiering::start",
                 failed == EPERM ? "this process may not handle kernel faults: connect a Session to a manager "
                                   "that hands /dev/userfaultfd out, or run with CAP_SYS_PTRACE"
                                 : "the kernel's userfaultfd lacks what migration needs (`terrace doctor`)")
            .to_string();
  if (!enter_registry(&engine_))
    return Error{ErrorCode::limit_exceeded, 0, "Tiering::start",
                 "more than 64 Tiering objects in this process"};
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Status started;
  try {
    thread_ = std::thread([this] { engine_.run(); });
  } catch (const std::system_error& refused) {
    started =
        os_error(refused.code().value(), "Tiering::start", "cannot start the engine's thread (ulimit -u?)");
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

EngineTiering::~EngineTiering() {
  if (engine_.abandoned()) {
    thread_.detach();  // it exists in the parent only
    return;
  }
  engine_.stop();
  if (thread_.joinable()) thread_.join();
  leave_registry(&engine_);
}

bool EngineTiering::take_file(uint64_t device, uint64_t inode) {
  return files_.emplace(device, inode).second;
}

void EngineTiering::give_file(uint64_t device, uint64_t inode) {
  files_.erase({device, inode});
}

void EngineTiering::set_copy_budget(uint64_t bytes_per_s) {
  engine_.lock().enter();
  engine_.set_copy_budget(bytes_per_s);
  engine_.lock().leave();
}

Result<std::unique_ptr<TieredRange>> EngineTiering::make_range(const TieredRangeOptions& options,
                                                               std::vector<std::shared_ptr<Lease>> leases) {
  auto range = std::make_unique<EngineRange>(*this);
  TERRACE_RETURN_IF_ERROR(range->make(options, std::move(leases)));
  return std::unique_ptr<TieredRange>(std::move(range));
}

}  // namespace terrace
