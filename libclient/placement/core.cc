// SPDX-License-Identifier: Apache-2.0
#include "libclient/placement/core.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <system_error>
#include <utility>

#include "core/base/signals_blocked.h"
#include "core/base/units.h"

namespace terrace::placement {
namespace {

constexpr const char* where = "TensorPool";
constexpr uint64_t granule_bytes = 2 * mib;
constexpr size_t name_bytes_max = 1024;
constexpr uint64_t pin_patience_ns = 30 * ns_per_s;
constexpr double learns = 0.5;        // weight of a new step in a tensor's uses a step
constexpr double hint_learns = 0.05;  // and of a tensor's in those of its hint

Error error(ErrorCode code, std::string detail) {
  return {code, 0, where, std::move(detail)};
}

}  // namespace

Storage::Storage(std::shared_ptr<Core> of, const TensorSpec& spec, uint64_t size)
    : core(std::move(of)),
      name(spec.name),
      dtype(spec.dtype),
      shape(spec.shape),
      bytes(size),
      hint(spec.hint),
      flags(spec.flags) {}

Storage::~Storage() {
  core->retire(*this);
}

Result<std::shared_ptr<Core>> Core::make(const TensorPoolOptions& options,
                                         std::vector<std::shared_ptr<Lease>> leases) {
  std::shared_ptr<Core> core(new Core);
  TERRACE_RETURN_IF_ERROR(core->begin(options, std::move(leases)));
  return core;
}

Status Core::begin(const TensorPoolOptions& options, std::vector<std::shared_ptr<Lease>> leases) {
  uint64_t cxl = 0;
  for (const auto& lease : leases) {
    if (lease == nullptr) return error(ErrorCode::invalid_argument, "a null lease");
    cxl += lease->bytes() / granule_bytes;
  }
  const uint64_t ddr = options.ddr_bytes / granule_bytes;
  if (ddr + cxl == 0)
    return error(ErrorCode::capacity_exhausted, "a pool needs at least 2 MiB of DDR or of leases");
  if (ddr + cxl > UINT32_MAX / 2)
    return error(ErrorCode::invalid_argument, "more bytes than there are addresses");
  granule_bytes_ = granule_bytes;
  ddr_max_ = static_cast<uint32_t>(ddr);
  cxl_max_ = static_cast<uint32_t>(cxl);
  batch_granules_ =
      static_cast<uint32_t>(std::clamp<uint64_t>(options.copy_batch_bytes / granule_bytes, 1, 32));
  // By so much one tier can have room while the other one is full.
  const uint32_t spare = ddr_max_ == 0 || cxl_max_ == 0 ? 0 : std::clamp(cxl_max_ / 32, 1u, batch_granules_);
  granules_ = ddr_max_ + cxl_max_ - spare;
  if (options.tiering != nullptr) {
    tiering_ = options.tiering;
  } else {
    TERRACE_ASSIGN_OR_RETURN(
        own_tiering_,
        Tiering::start({.session = options.session, .copy_bytes_per_s_max = options.copy_bytes_per_s_max}));
    tiering_ = own_tiering_.get();
  }
  TieredRangeOptions range;
  range.bytes = granules_ * granule_bytes_;
  range.ddr_bytes_max = ddr_max_ * granule_bytes_;
  range.name = options.name;
  range.policy = options.policy;
  leases_ = leases;
  TERRACE_ASSIGN_OR_RETURN(range_, tiering_->make_range(range, std::move(leases)));
  base_ = range_->bytes().data();
  guard_wait_ = options.guard_wait;
  const bool step_aware = options.step_aware;
  step_aware_ = step_aware && ddr_max_ > 0 && cxl_max_ > 0;
  process_ = ::getpid();
  begin_state(options);
  if (options.device != nullptr) {
    TERRACE_ASSIGN_OR_RETURN(device_, DeviceTier::make(options.device, options.hbm_bytes, step_aware));
  }
  return start_thread();
}

// Without the mutex: nobody else has the pool yet.
void Core::begin_state(const TensorPoolOptions& options) {
  rate_ = options.copy_bytes_per_s_max;
  read_costs(options);
  space_ = std::make_unique<GranuleSpace>(granules_, granule_bytes_);
  pin_counts_.assign(granules_, 0);
  pinned_in_ddr_.assign(granules_, 0);
  not_before_.assign(granules_, SteadyTime{});
  if (!tiering_->can_migrate()) stopped_ = tiering_->why_not();
}

// The slowest lease speaks for CXL.
void Core::read_costs(const TensorPoolOptions& options) {
  uint64_t bandwidth = options.cxl_bytes_per_s, latency = options.cxl_latency_ns;
  for (const auto& lease : leases_) {
    if (options.cxl_bytes_per_s != 0 && options.cxl_latency_ns != 0) break;
    const auto info = lease->info();
    if (!info.ok()) continue;
    const TierFigures& figures = info->figures;
    if (options.cxl_bytes_per_s == 0 && figures.bandwidth_bytes_per_s != 0)
      bandwidth =
          bandwidth == 0 ? figures.bandwidth_bytes_per_s : std::min(bandwidth, figures.bandwidth_bytes_per_s);
    if (options.cxl_latency_ns == 0) latency = std::max<uint64_t>(latency, figures.latency_ns);
  }
  if (bandwidth != 0) costs_.cxl.bytes_per_s = static_cast<double>(bandwidth);
  if (latency != 0) costs_.cxl.latency_ns = static_cast<double>(latency);
  if (options.ddr_bytes_per_s != 0) costs_.ddr.bytes_per_s = static_cast<double>(options.ddr_bytes_per_s);
  if (options.ddr_latency_ns != 0) costs_.ddr.latency_ns = options.ddr_latency_ns;
  costs_.copy_bytes_per_s = copy_rate();
}

Status Core::start_thread() {
  Status started;
  try {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& refused) {
    started = os_error(refused.code().value(), where, "cannot start the pool's thread (ulimit -u?)");
  }
  return started;
}

bool Core::in_child() const {
  return process_ != 0 && ::getpid() != process_;
}

void Core::stop() {
  {
    const MutexLock lock(mutex_);
    if (std::exchange(stopping_, true)) return;
    cancel_requests(nullptr, "the pool is gone");
    mover_wakes_.notify_all();
    guards_wake_.notify_all();
  }
  if (device_ != nullptr) device_->stop();
  if (thread_.joinable()) thread_.join();
  if (range_ != nullptr) range_->pause();
}

Core::~Core() {
  if (in_child()) {
    (void)device_.release();  // its threads are the parent's: nothing to join
  } else {
    stop();
  }
}

Status Core::check_leases() const {
  for (const auto& lease : leases_) {
    const LeaseState state = lease->state();
    if (state == LeaseState::live) continue;
    const std::string name = "lease " + std::to_string(lease->id().value) + " behind the pool ";
    if (state == LeaseState::revoking) return error(ErrorCode::lease_revoked, name + "is being taken back");
    return error(ErrorCode::lease_expired, name + "is lost");
  }
  return {};
}

Result<std::shared_ptr<Storage>> Core::create(const TensorSpec& spec) {
  if (spec.name.size() > name_bytes_max || !is_utf8(spec.name))
    return error(ErrorCode::invalid_argument, "a tensor's name is UTF-8 of at most 1 KiB");
  if ((spec.flags & ~TensorFlags::all) != 0) return error(ErrorCode::invalid_argument, "unknown flags");
  auto bytes = tensor_bytes(spec.dtype, spec.shape);
  if (!bytes.ok()) return bytes.error();
  TERRACE_RETURN_IF_ERROR(check_leases());
  // Made before the lock, so that its destructor, which takes it, never runs under it.
  auto storage = std::make_shared<Storage>(shared_from_this(), spec, *bytes);
  {
    const MutexLock lock(mutex_);
    if (const auto named = names_.find(spec.name);
        !spec.name.empty() && named != names_.end() && !named->second.expired())
      return error(ErrorCode::already_exists, "a tensor " + quoted_name(spec.name) + " exists");
    const UseFacts facts = facts_of(*storage);
    if (*bytes > 0) {
      const uint64_t wanted = (*bytes + granule_bytes_ - 1) / granule_bytes_;
      std::optional<bool> to_ddr;  // asked only where granules are taken
      const auto place =
          space_->take(*bytes, heat_class(costs_, facts), [&](uint32_t granule) TERRACE_REQUIRES(mutex_) {
            if (!to_ddr) to_ddr = begins_in_ddr(facts, wanted);
            return in_ddr(granule) == *to_ddr;
          });
      if (!place) {
        const uint64_t in_a_row = space_->longest_free_run() * granule_bytes_;
        const uint64_t rounded = wanted * granule_bytes_;
        return error(ErrorCode::capacity_exhausted,
                     in_words(*storage) +
                         " does not fit: " + format_size(rounded > in_a_row ? rounded - in_a_row : rounded) +
                         " short of granules in a row (free " +
                         format_size(space_->free_granules() * granule_bytes_) + "; tiers: ddr " +
                         format_size(ddr_max_ * granule_bytes_) + ", cxl " +
                         format_size(cxl_max_ * granule_bytes_) + " in all)");
      }
      storage->place = *place;
      if (device_ != nullptr)
        storage->replica = device_->add(in_words(*storage), {base_ + place->offset, *bytes});
    }
    storages_.insert(storage.get());
    if (!spec.name.empty()) names_[spec.name] = storage;
    ++counts_.tensors;
    counts_.tensor_bytes += *bytes;
  }
  if ((spec.flags & TensorFlags::pinned) != 0 && *bytes > 0) {
    const auto first = static_cast<uint32_t>(storage->place.offset / granule_bytes_);
    auto pinned = pin(*storage, in_ddr(first) ? Tier::ddr : Tier::cxl);
    if (!pinned.ok()) return pinned.error();
    // At once, but where it lies in both tiers.
    TERRACE_RETURN_IF_ERROR((*pinned)->wait(pin_patience_ns));
  }
  return storage;
}

bool Core::begins_in_ddr(const UseFacts& facts, uint64_t granules) const {
  uint64_t taken = 0, free = 0;
  for (uint32_t granule = 0; granule < granules_; ++granule)
    if (in_ddr(granule)) space_->is_free(granule) ? ++free : ++taken;
  const double after = static_cast<double>(taken + std::min(granules, free));
  return free > 0 && after <= may_fill_ddr(costs_, facts) * ddr_max_;
}

Result<std::shared_ptr<Storage>> Core::find(const std::string& name) {
  const MutexLock lock(mutex_);
  const auto named = names_.find(name);
  auto storage = named == names_.end() ? nullptr : named->second.lock();
  if (storage == nullptr) return error(ErrorCode::not_found, "no tensor " + quoted_name(name));
  return storage;
}

void Core::retire(Storage& storage) {
  if (in_child()) return;  // not this process's locks, nor its memory
  if (storage.replica != nullptr) device_->retire(storage.replica);
  const MutexLock lock(mutex_);
  if (storages_.erase(&storage) == 0) return;  // never came to be
  cancel_requests(&storage, "the tensor is gone");
  if (storage.pins > 0) count_pins(run_of({base_ + storage.place.offset, storage.bytes}), storage.pin_tier, -1);
  storage.pin_hold.release();
  if (storage.bytes > 0) space_->give(storage.place);
  // Another of the name may live already.
  if (const auto named = names_.find(storage.name); named != names_.end() && named->second.expired())
    names_.erase(named);
  --counts_.tensors;
  counts_.tensor_bytes -= storage.bytes;
}

Run Core::run_of(std::span<const std::byte> bytes) const {
  if (bytes.empty()) return {};
  const auto offset = static_cast<uint64_t>(bytes.data() - base_);
  const auto first = static_cast<uint32_t>(offset / granule_bytes_);
  return {first, static_cast<uint32_t>((offset + bytes.size() - 1) / granule_bytes_) - first + 1};
}

uint32_t Core::missing(Run run) const {
  uint32_t count = 0;
  for (uint32_t i = 0; i < run.count; ++i) count += in_ddr(run.first + i) ? 0 : 1;
  return count;
}

uint32_t Core::awaited(Run run) const {
  if (missing(run) == 0) return 0;
  const SteadyTime time = std::chrono::steady_clock::now();
  std::vector<uint8_t> stays(run.count, 0);
  for (const OpenGuard* guard : open_) {
    if (!guard->holds) continue;
    const uint32_t end = std::min(run.first + run.count, guard->run.first + guard->run.count);
    for (uint32_t granule = std::max(run.first, guard->run.first); granule < end; ++granule)
      stays[granule - run.first] = 1;
  }
  uint32_t count = 0;
  for (uint32_t i = 0; i < run.count; ++i) {
    const uint32_t granule = run.first + i;
    const bool may_move = stays[i] == 0 && (pin_counts_[granule] == 0 || pinned_in_ddr_[granule] != 0) &&
                          not_before_[granule] <= time;
    count += !in_ddr(granule) && may_move ? 1 : 0;
  }
  return count;
}

UseFacts Core::facts_of(const Storage& storage) const {
  UseFacts facts{.hint = storage.hint, .flags = storage.flags, .uses_per_step = -1, .passes = storage.passes};
  if (storage.uses_before < 0) {  // as others of its hint were used
    facts.uses_per_step = observed_uses_[static_cast<size_t>(storage.hint)];
    return facts;
  }
  double uses = storage.uses_before;
  if (storage.use_step < step_number_) {
    uses = uses * (1 - learns) + learns * static_cast<double>(storage.uses_now);
    // And the steps without a use since then.
    uses *= std::pow(1 - learns, static_cast<double>(step_number_ - storage.use_step - 1));
  }
  facts.uses_per_step = uses;
  return facts;
}

void Core::note_use(Storage& storage, bool write) {
  write ? ++storage.writes : ++storage.reads;
  if (storage.use_step != step_number_) {
    if (storage.use_step != 0) {
      const double uses = static_cast<double>(storage.uses_now);
      storage.uses_before = storage.uses_before < 0 ? uses : facts_of(storage).uses_per_step;
      double& usual = observed_uses_[static_cast<size_t>(storage.hint)];
      usual = usual < 0 ? uses : usual + hint_learns * (uses - usual);
    }
    storage.use_step = step_number_;
    storage.uses_now = 0;
  }
  ++storage.uses_now;
}

std::string Core::in_words(const Storage& storage) const {
  return (storage.name.empty() ? std::string("an unnamed tensor") : "tensor " + quoted_name(storage.name)) +
         " of " + format_size(storage.bytes);
}

std::string Core::why_no_moves() const {
  if (!stopped_.empty()) return stopped_;
  if (stopping_) return "the pool is gone";
  if (ddr_max_ == 0) return "the pool has no DDR";
  if (cxl_max_ == 0) return "the pool has no leases";
  return {};
}

void Core::advise(Storage& storage, const TensorAdvice& advice) {
  const MutexLock lock(mutex_);
  if (advice.hint) storage.hint = *advice.hint;
  if (advice.flags)
    storage.flags = static_cast<uint8_t>((storage.flags & TensorFlags::pinned) |
                                         (*advice.flags & (TensorFlags::read_mostly | TensorFlags::streaming)));
  if (advice.passes && *advice.passes >= 0) storage.passes = static_cast<double>(*advice.passes);
}

void Core::step() {
  if (device_ != nullptr) device_->step();
  const MutexLock lock(mutex_);
  ++step_number_;
  ++counts_.steps;
  if (!step_aware_ || !stopped_.empty()) return;
  const OrderLearner::Step outcome = learner_.step();
  counts_.deviations = learner_.deviations();
  if (outcome == OrderLearner::Step::learned) {
    ++counts_.orders_learned;
    order_changed_ = true;
  }
  if (outcome == OrderLearner::Step::forgotten) {
    ++counts_.orders_forgotten;
    following_ = false;
    guards_wake_.notify_all();
  }
  note_work();
}

TensorPoolStatistics Core::statistics() const {
  const TieredRangeStatus status = range_->status();
  const MutexLock lock(mutex_);
  TensorPoolStatistics result = counts_;
  result.capacity_bytes = granules_ * granule_bytes_;
  result.free_bytes = space_->free_granules() * granule_bytes_;
  result.ddr_bytes_max = ddr_max_ * granule_bytes_;
  result.ddr_bytes = status.ddr_bytes;
  result.cxl_bytes = status.cxl_bytes;
  result.pinned_bytes = uint64_t{pinned_ddr_ + pinned_cxl_} * granule_bytes_;
  result.reason = why_no_moves();
  result.step_state = !step_aware_ || !result.reason.empty() ? StepState::off
                      : following_                           ? StepState::following
                                                             : StepState::observing;
  if (following_) {
    result.uses_per_step = schedule_.positions();
    result.planned_bytes_per_step = schedule_.fetches() * granule_bytes_;
  }
  if (device_ != nullptr) result.hbm = device_->statistics();
  return result;
}

TensorStatistics Core::statistics(const Storage& storage) const {
  const MutexLock lock(mutex_);
  TensorStatistics result{.reads = storage.reads,
                          .writes = storage.writes,
                          .uses_per_step = static_cast<float>(std::max(0.0, facts_of(storage).uses_per_step)),
                          .guard_waits = storage.waits,
                          .guard_wait_ns = storage.wait_ns,
                          .pins = storage.pins};
  if (storage.replica != nullptr) device_->add_to(*storage.replica, result);
  return result;
}

TensorResidency Core::residency(const Storage& storage, std::span<const std::byte> bytes) const {
  TensorResidency result = host_residency(bytes);
  if (storage.replica != nullptr) device_->add_to(*storage.replica, bytes.size(), result);
  return result;
}

TensorResidency Core::host_residency(std::span<const std::byte> bytes) const {
  TensorResidency result;
  const Run run = run_of(bytes);
  const auto offset = static_cast<uint64_t>(bytes.data() - base_);
  for (uint32_t granule = run.first; granule < run.first + run.count; ++granule) {
    const uint64_t from = std::max(offset, uint64_t{granule} * granule_bytes_);
    const uint64_t to = std::min(offset + bytes.size(), (uint64_t{granule} + 1) * granule_bytes_);
    (in_ddr(granule) ? result.ddr_bytes : result.cxl_bytes) += to - from;
  }
  return result;
}

void Core::set_copy_budget(uint64_t bytes_per_s) {
  if (own_tiering_ != nullptr) own_tiering_->set_copy_budget(bytes_per_s);
  const MutexLock lock(mutex_);
  rate_ = bytes_per_s;
  costs_.copy_bytes_per_s = copy_rate();
  next_copy_ = {};
  note_work();
}

}  // namespace terrace::placement
