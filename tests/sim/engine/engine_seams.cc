// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/engine/engine_seams.h"

#include <cerrno>
#include <utility>

#include "core/base/limits.h"
#include "tests/sim/actors/sim_operator.h"

namespace terrace::sim {
namespace {

using daemon::LeasePhase;

Error simulated(ErrorCode code, int os_errno, const char* where) {
  return Error{.code = code, .os_errno = os_errno, .where = where, .detail = "simulated"};
}

Error dead() {
  return simulated(ErrorCode::io_error, EIO, "dead");
}

uint64_t quick_bytes_of(Prng& prng) {
  switch (prng.below(3)) {
    case 0: return 0;
    case 1: return 2 * limits::granule_bytes;
    default: return UINT64_MAX;
  }
}

}  // namespace

// --- rows -------------------------------------------------------------------------------------------

EngineStore::EngineStore(Environment& environment, SimStore& store, RealStore* real, Fate& fate,
                         std::function<void(const daemon::Delta&)> durable)
    : environment_(environment),
      store_(store),
      real_(real),
      fate_(fate),
      durable_(std::move(durable)),
      quick_(environment.prng().chance(1, 3)) {}

Result<daemon::Image> EngineStore::load() {
  if (fate_.over()) return dead();
  if (real_ == nullptr) return store_.load();
  if (fate_.strikes("in the middle of a load")) real_->die_soon();
  Result<daemon::Image> image = real_->load();
  if (fate_.over()) return dead();
  return image;
}

Status EngineStore::commit_to_real(const daemon::Delta& delta) {
  const bool dies = fate_.cutting() || fate_.strikes("in the middle of a commit");
  if (dies) real_->die_soon();
  Status status = real_->commit(delta);
  if (dies) return dead();
  if (!status.ok()) {
    environment_.note("store: a commit fails: %s", status.error().to_string().c_str());
    return status;
  }
  durable_(delta);
  (void)fate_.strikes("after a commit");
  return {};
}

Status EngineStore::commit(const daemon::Delta& delta) {
  if (fate_.over() && !fate_.cutting()) return dead();
  if (real_ != nullptr) return commit_to_real(delta);
  const bool lies =
      environment_.planted(Plant::reply_before_commit) || environment_.planted(Plant::effects_before_commit);
  daemon::Delta batch = lies ? std::exchange(late_, delta).value_or(daemon::Delta{}) : delta;
  store_.begin(std::move(batch));
  if (fate_.cutting() || fate_.strikes("in the middle of a commit")) {
    store_.crash();
    return dead();
  }
  const CommitOutcome outcome = store_.finish();
  if (outcome != CommitOutcome::done && !environment_.planted(Plant::ignore_commit_error)) {
    environment_.note("store: a commit fails%s", outcome == CommitOutcome::full ? ", the disk is full" : "");
    if (outcome == CommitOutcome::full) return simulated(ErrorCode::capacity_exhausted, ENOSPC, "EngineStore");
    return simulated(ErrorCode::io_error, EIO, "EngineStore");
  }
  durable_(delta);
  (void)fate_.strikes("after a commit");
  return {};
}

// --- memory -----------------------------------------------------------------------------------------

EngineMemory::EngineMemory(Environment& environment, SimBackend& backend, const SimStore& store, Fate& fate)
    : environment_(environment),
      backend_(backend),
      store_(store),
      fate_(fate),
      quick_bytes_(quick_bytes_of(environment.prng())) {}

template <typename Work>
Status EngineMemory::perform(const char* what, const std::string& object, const daemon::Effect& effect,
                             bool may_pass, Work work) {
  if (fate_.cutting()) {
    const Fate::Cut cut = fate_.next_cut();
    if (cut == Fate::Cut::whole) return work();
    if (cut == Fate::Cut::part) backend_.cut_off(effect);
    return dead();
  }
  if (fate_.over()) return dead();
  if (ignored_.contains(object)) return simulated(ErrorCode::io_error, EAGAIN, what);
  if (fate_.strikes("in the middle of work at memory")) {
    backend_.cut_off(effect);
    return dead();
  }
  if (may_pass && environment_.chance_percent(environment_.faults().passing_failure_percent)) {
    environment_.note("memory: %s %s has to be tried again", what, object.c_str());
    return simulated(ErrorCode::io_error, EAGAIN, what);
  }
  const Status status = work();
  environment_.note("memory: %s %s%s", what, object.c_str(), status.ok() ? "" : ": failed");
  (void)fate_.strikes("after work at memory");
  return status;
}

const daemon::LeaseRow* EngineMemory::row_of(const std::string& object) const {
  return store_.find_by_object(object);
}

bool EngineMemory::taken_back(const daemon::LeaseRow* row) const {
  return row == nullptr || row->phase == LeasePhase::fencing || row->phase == LeasePhase::scrubbing ||
         row->phase == LeasePhase::quarantined;
}

void EngineMemory::check_taken_back(const std::string& object, const char* done) {
  const daemon::LeaseRow* row = row_of(object);
  if (!taken_back(row))
    environment_.fail("lease %llu is %s before that is durable", static_cast<unsigned long long>(row->id.value),
                      done);
}

void EngineMemory::check_resize(const daemon::ResizeObject& effect) {
  const daemon::LeaseRow* row = row_of(effect.object);
  if (taken_back(row)) return;
  const auto number = static_cast<unsigned long long>(row->id.value);
  const bool grows = effect.to_bytes > effect.from_bytes;
  if (!grows && row->target_bytes != effect.to_bytes && row->bytes != effect.to_bytes)
    environment_.fail("lease %llu is cut before that is durable", number);
  if (grows && (row->bytes != effect.to_bytes || row->target_bytes != effect.from_bytes))
    environment_.fail("lease %llu grows before that is durable", number);
}

// Each device is as large as anybody may have adopted it.
std::vector<daemon::SeenDevice> EngineMemory::discover() {
  std::vector<daemon::SeenDevice> seen;
  for (int i = 0; i < SimOperator::devices; ++i) {
    const std::string serial = "emu:" + std::to_string(i);
    if (backend_.seen(serial) || environment_.planted(Plant::keep_lost_device))
      seen.push_back({serial, "emulated", uint64_t{1} << 50, limits::granule_bytes, ""});
  }
  return seen;
}

Status EngineMemory::refresh() {
  if (environment_.chance_percent(environment_.faults().passing_failure_percent))
    return simulated(ErrorCode::busy, EAGAIN, "refresh");
  return {};
}

Status EngineMemory::carve(const std::string& name, uint64_t, const std::vector<daemon::Extent>& extents) {
  const daemon::CarveObject effect{{}, name, 0, extents};
  return perform("carve", name, effect, false, [&] { return backend_.carve(effect); });
}

Result<UniqueFd> EngineMemory::open(const std::string&, daemon::ObjectAccess) {
  return simulated(ErrorCode::unsupported, 0, "open");  // clients map it without a descriptor
}

Status EngineMemory::fence(const std::string& name) {
  if (is_orphan(name)) return {};
  const daemon::LeaseRow* row = row_of(name);
  const bool moved = row != nullptr && row->cause == daemon::LeaseCause::moved;
  return perform("fence", name, daemon::FenceObject{{}, name}, true, [&]() -> Status {
    check_taken_back(name, "fenced");
    if (moved && environment_.planted(Plant::move_without_fence)) {
      backend_.pretend_fence(name);
      return {};
    }
    return backend_.fence(name);
  });
}

Result<uint64_t> EngineMemory::scrub(const std::string& name) {
  const bool orphan = is_orphan(name);
  daemon::ScrubObject effect;
  effect.object = name;
  const Status status = perform("scrub", name, effect, !orphan, [&]() -> Status {
    check_taken_back(name, "scrubbed");
    if (!orphan) return backend_.scrub(name);
    if (!environment_.planted(Plant::keep_orphans)) backend_.destroy(name);
    return {};
  });
  if (!status.ok()) return status.error();
  return uint64_t{0};
}

Status EngineMemory::erase(const std::string& name, const std::vector<daemon::Extent>& extents, uint64_t offset,
                           uint64_t length) {
  daemon::ScrubObject effect;
  effect.object = name;
  effect.extents = extents;
  effect.bytes = offset + length;
  return perform("erase", name, effect, true, [&]() -> Status {
    check_taken_back(name, "erased");
    if (environment_.planted(Plant::early_free_on_advance) && offset != 0) return {};
    return backend_.erase(effect, offset / limits::granule_bytes, length / limits::granule_bytes);
  });
}

Status EngineMemory::resize(const std::string& name, uint64_t from_bytes, uint64_t to_bytes,
                            const std::vector<daemon::Extent>& extents) {
  const daemon::ResizeObject effect{{}, name, from_bytes, to_bytes, extents};
  return perform("resize", name, effect, serving_, [&] {
    if (serving_) check_resize(effect);
    return backend_.resize(effect);
  });
}

Status EngineMemory::rebind(const std::string& from, const std::string& to, uint64_t bytes,
                            const std::vector<daemon::Extent>& extents) {
  const daemon::RebindObject effect{{}, from, to, bytes, extents};
  return perform("rebind", from, effect, true, [&] {
    const daemon::LeaseRow* row = row_of(from);
    if (row != nullptr && row->phase != LeasePhase::transferring) check_taken_back(from, "handed over");
    return backend_.rebind(effect);
  });
}

Status EngineMemory::copy(const std::string& from, const std::string& to, uint64_t) {
  return perform("copy", from, daemon::NotifyHolders{}, false, [&] { return backend_.copy(from, to); });
}

Result<std::vector<daemon::ObservedObject>> EngineMemory::list() {
  std::vector<daemon::ObservedObject> objects;
  for (const auto& [name, bytes] : backend_.list()) objects.push_back({name, bytes, bytes});
  return objects;
}

Result<daemon::ObservedObject> EngineMemory::usage(const std::string& name) {
  for (const auto& [listed, bytes] : backend_.list())
    if (listed == name) return daemon::ObservedObject{name, bytes, bytes};
  return simulated(ErrorCode::not_found, 0, "usage");
}

}  // namespace terrace::sim
