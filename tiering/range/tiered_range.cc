// SPDX-License-Identifier: Apache-2.0
// One tiered range: reservation, memory file and leases, laid out and given to the engine.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "core/base/limits.h"
#include "core/base/units.h"
#include "core/os/node_attributes.h"
#include "tiering/range/frozen_memory.h"
#include "tiering/range/tiering.h"

namespace terrace {
namespace {

using tiering::Residency;

constexpr const char* where = "Tiering::make_range";

Error invalid(std::string detail) {
  return {ErrorCode::invalid_argument, 0, where, std::move(detail)};
}

Status check_options(const TieredRangeOptions& options) {
  if (options.granule_bytes != 2 * mib && options.granule_bytes != 64 * kib)
    return invalid("granules of " + format_size(options.granule_bytes) + ": choose 2M or 64K");
  if (options.bytes == 0) return invalid("a range of no bytes");
  if (options.bytes > uint64_t{1} << 46)
    return invalid("a range of " + format_size(options.bytes) + " has no addresses");
  if (options.name.size() >= layout::tier_name_bytes ||
      std::any_of(options.name.begin(), options.name.end(), [](char c) { return c < ' ' || c > '~'; }))
    return invalid("a range's name is printable ASCII of at most 63 bytes");
  if (!options.policy.empty() && tiering::find_policy(options.policy) == nullptr) {
    std::string known;
    for (const std::string& name : Tiering::policies()) known += (known.empty() ? "" : ", ") + name;
    return Error{ErrorCode::not_found, 0, where, "no policy '" + options.policy + "'; there are " + known};
  }
  return {};
}

Status check_lease(const Lease& lease, const char* from) {
  const std::string name = "lease " + std::to_string(lease.id().value);
  if (lease.state() == LeaseState::revoking)
    return Error{ErrorCode::lease_revoked, 0, from, name + " is being taken back"};
  if (lease.state() == LeaseState::lost) return Error{ErrorCode::lease_expired, 0, from, name + " is lost"};
  return {};
}

Status check_leases(const std::vector<std::shared_ptr<Lease>>& leases) {
  if (leases.size() > tiering::tier_segments_max)
    return Error{ErrorCode::limit_exceeded, 0, where, "more than 64 leases in one range"};
  for (const auto& lease : leases) {
    if (lease == nullptr) return invalid("a null lease");
    const std::string name = "lease " + std::to_string(lease->id().value);
    if (lease->access() != LeaseAccess::read_write) return invalid(name + " is read-only");
    TERRACE_RETURN_IF_ERROR(check_lease(*lease, where));
  }
  return {};
}

bool on_nodes(const TieredRangeOptions& options) {
  return options.ddr_node != -1 || options.cxl_node != -1;
}

Status check_nodes(const TieredRangeOptions& options, bool leases) {
  if (!on_nodes(options)) return {};
  if (leases) return invalid("a range of two memory nodes has no leases beside them");
  if (options.ddr_node == options.cxl_node)
    return invalid("node " + std::to_string(options.ddr_node) + " is named for both tiers");
  const std::vector<int> online = os::online_nodes();
  for (const int node : {options.ddr_node, options.cxl_node}) {
    if (node < 0) return invalid("name both nodes, ddr_node and cxl_node, or none");
    if (std::find(online.begin(), online.end(), node) != online.end() &&
        os::node_attributes(node).total_bytes > 0)
      continue;
    std::string known;
    for (const int other : online) known += (known.empty() ? "" : ", ") + std::to_string(other);
    return Error{ErrorCode::not_found, 0, where,
                 "memory node " + std::to_string(node) + " is not online, or has no memory; online: " + known +
                     " (`terrace pool create --system-ram` makes CXL memory a node)"};
  }
  return {};
}

}  // namespace

Hold& Hold::operator=(Hold&& other) noexcept {
  if (this != &other) {
    release();
    range_ = std::exchange(other.range_, nullptr);
    first_ = other.first_;
    count_ = other.count_;
  }
  return *this;
}

void Hold::release() {
  if (range_ != nullptr) std::exchange(range_, nullptr)->let_go(first_, count_);
}

Status EngineRange::make(const TieredRangeOptions& options, std::vector<std::shared_ptr<Lease>> leases) {
  TERRACE_RETURN_IF_ERROR(check_options(options));
  TERRACE_RETURN_IF_ERROR(check_leases(leases));
  if (tiering_.shares_ddr() && options.granule_bytes != limits::granule_bytes)
    return invalid("ranges that share DDR (ddr_bytes_shared) have granules of 2M");
  TERRACE_RETURN_IF_ERROR(check_nodes(options, !leases.empty()));
  const uint64_t granule = options.granule_bytes;
  const uint64_t bytes = round_up(options.bytes, granule);
  const uint64_t ddr_max = std::min(options.ddr_bytes_max / granule * granule, bytes);
  uint64_t cxl = on_nodes(options) ? bytes : 0;
  for (const auto& lease : leases) cxl += lease->bytes() / granule * granule;
  if (ddr_max + cxl < bytes)
    return Error{ErrorCode::capacity_exhausted, 0, where,
                 format_size(ddr_max) + " of DDR and " + format_size(cxl) + " of leases are " +
                     format_size(bytes - ddr_max - cxl) + " short of a range of " + format_size(bytes)};
  TERRACE_ASSIGN_OR_RETURN(map_, os::MemoryMap::reserve(bytes, std::max(granule, 2 * mib)));
  // Small granules in small pages: a huge page that several share is not given back when one of them sinks.
  bool huge = false;
  if (granule >= 2 * mib) {
    TERRACE_ASSIGN_OR_RETURN(ddr_file_, os::make_huge_memory_file("terrace-ddr", bytes, &huge));
  } else {
    TERRACE_ASSIGN_OR_RETURN(ddr_file_, os::make_memory_file("terrace-ddr", bytes));
  }
  int failed = memory_.open({.base = reinterpret_cast<char*>(map_.data()),
                             .bytes = bytes,
                             .granule_bytes = granule,
                             .ddr_fd = ddr_file_.get(),
                             .join_pages = !huge,
                             .ddr_node = options.ddr_node,
                             .cxl_node = options.cxl_node});
  if (failed != 0) return os_error(failed, where, "cannot lay out the range");
  TERRACE_RETURN_IF_ERROR(add_leases(std::move(leases)));
  TERRACE_RETURN_IF_ERROR(place(ddr_max));
  tiering::RangeOptions range;
  range.name = options.name.c_str();
  range.policy = options.policy.empty() ? nullptr : tiering::find_policy(options.policy);
  range.ddr_granules_max = ddr_max / granule;
  range.weight = options.weight;
  range.hooks = {.owner = &segments_,
                 .take_ddr = nullptr,
                 .give_ddr = nullptr,
                 .after_round = nullptr,
                 .why_stop = why_stop};
  tiering::Engine& engine = tiering_.engine();
  engine.lock().enter();
  failed = engine.add_range(&memory_, range, &index_);
  engine.lock().leave();
  if (failed == ENOSPC)
    return Error{ErrorCode::limit_exceeded, 0, where, "more than 16 tiered ranges in a process"};
  if (failed != 0) return os_error(failed, where, "the engine refuses the range");
  added_ = true;
  return {};
}

const char* EngineRange::why_stop(void* segments) {
  for (const Segment& segment : *static_cast<std::vector<Segment>*>(segments)) {
    if (segment.lease->state() != LeaseState::live) return "a lease behind it is being taken back, or is lost";
    if (segment.lease->epoch() != segment.epoch || segment.lease->bytes() != segment.bytes)
      return "a lease behind it was moved or resized";
  }
  return nullptr;
}

Status EngineRange::add_leases(std::vector<std::shared_ptr<Lease>> leases) {
  for (auto& lease : leases) {
    const std::string name = "lease " + std::to_string(lease->id().value);
    if (lease->bytes() < memory_.granule_bytes()) continue;  // not one granule
    Segment segment;
    segment.epoch = lease->epoch();
    segment.bytes = lease->bytes();
    segment.fd.reset(::fcntl(lease->fd(), F_DUPFD_CLOEXEC, 3));
    struct stat status {};
    if (!segment.fd.valid() || ::fstat(segment.fd.get(), &status) != 0)
      return os_error(errno, where, "no descriptor for " + name);
    const bool device = S_ISCHR(status.st_mode);
    if (device && memory_.granule_bytes() < 2 * mib)
      return invalid(name + " is a dax device, which is mapped in pieces of 2 MiB: choose granules of 2M");
    segment.device = device ? ~uint64_t{0} : status.st_dev;
    segment.inode = device ? status.st_rdev : status.st_ino;
    tiering_.engine().lock().enter();
    const bool fresh = tiering_.take_file(segment.device, segment.inode);
    tiering_.engine().lock().leave();
    if (!fresh) return Error{ErrorCode::already_exists, 0, where, name + " lies behind a tiered range already"};
    segment.lease = std::move(lease);
    segments_.push_back(std::move(segment));
    const Segment& kept = segments_.back();
    if (const int failed = memory_.add_segment(kept.fd.get(), kept.bytes); failed != 0)
      return os_error(failed, where, "cannot map " + name);
  }
  return {};
}

// The first ddr_bytes in DDR, the rest in the leases.
Status EngineRange::place(uint64_t ddr_bytes) {
  const auto ddr = static_cast<uint32_t>(ddr_bytes / memory_.granule_bytes());
  int failed = ddr > 0 ? memory_.map(0, ddr, Residency::ddr) : 0;
  if (failed == 0) failed = memory_.map(ddr, memory_.granule_count() - ddr, Residency::cxl);
  if (failed == 0) return {};
  if (memory_.on_nodes())
    return os_error(failed, where,
                    "cannot lay the range out on its memory nodes (mbind: a container's filter, a cpuset)");
  return os_error(failed, where, "cannot map the range (vm.max_map_count, or no memory)");
}

EngineRange::~EngineRange() {
  tiering::Engine& engine = tiering_.engine();
  engine.lock().enter();
  if (added_) engine.remove_range(index_);
  for (const Segment& segment : segments_) tiering_.give_file(segment.device, segment.inode);
  engine.lock().leave();
  // In a child of fork these addresses are not this range's: others may be mapped there by now.
  if (engine.abandoned()) new os::MemoryMap(std::move(map_));
  memory_.close();
}

EngineRange::Part EngineRange::part_of(std::span<const std::byte> part) const {
  if (part.empty() || !map_.contains(part.data())) return {};
  const auto offset = static_cast<uint64_t>(part.data() - map_.data());
  if (offset >= memory_.bytes() || part.size() > memory_.bytes() - offset) return {};
  const auto first = static_cast<uint32_t>(offset / memory_.granule_bytes());
  return {first, static_cast<uint32_t>((offset + part.size() - 1) / memory_.granule_bytes() - first + 1)};
}

Result<Hold> EngineRange::hold(std::span<const std::byte> bytes) {
  const Part part = part_of(bytes);
  if (part.count == 0)
    return Error{ErrorCode::invalid_argument, 0, "TieredRange::hold", "no bytes, or not inside this range"};
  memory_.hold(part.first, part.count);
  return make_hold(this, part.first, part.count);
}

void EngineRange::announce(std::span<const std::byte> bytes, uint64_t in_ns) {
  if (const Part part = part_of(bytes); part.count != 0)
    tiering_.engine().announce(index_, part.first, part.count, in_ns);
}

void EngineRange::note_access(std::span<const std::byte> bytes, uint32_t times) {
  if (const Part part = part_of(bytes); part.count != 0)
    tiering_.engine().note_access(index_, part.first, part.count, times);
}

Tier EngineRange::tier_of(const void* address) const {
  const Part part = part_of({static_cast<const std::byte*>(address), 1});
  return part.count != 0 && memory_.residency(part.first) == Residency::ddr ? Tier::ddr : Tier::cxl;
}

TieredRangeStatus EngineRange::status() const {
  tiering::Engine& engine = tiering_.engine();
  engine.lock().enter();
  const layout::TierRange page = engine.statistics(index_);
  TieredRangeStatus status;
  status.ddr_bytes = memory_.ddr_granules() * memory_.granule_bytes();
  status.cxl_bytes = memory_.cxl_granules() * memory_.granule_bytes();
  engine.lock().leave();
  const auto state = static_cast<layout::TierState>(page.state);
  status.state = state == layout::TierState::running  ? TieringState::running
                 : state == layout::TierState::paused ? TieringState::paused
                                                      : TieringState::no_migration;
  status.reason = state == layout::TierState::no_uffd ? tiering_.why_not() : page.reason;
  status.policy = page.policy;
  status.held_bytes = page.busy_bytes;
  status.ddr_bytes_max = page.ddr_bytes_max;
  status.promotions = page.promotions;
  status.demotions = page.demotions;
  status.promoted_bytes = page.promoted_bytes;
  status.demoted_bytes = page.demoted_bytes;
  status.aborted = page.aborted;
  status.skipped_held = page.skipped_busy;
  status.skipped_mappings = page.skipped_vma;
  status.stalled_ns = page.stalled_ns;
  status.copy_ns = page.copy_ns;
  status.announced = page.announced;
  status.prefetched = page.prefetched;
  status.ddr_hit_permille = page.ddr_hit_permille;
  status.copy_mib_per_s = page.copy_mib_per_s;
  return status;
}

void EngineRange::pause() {
  tiering::Engine& engine = tiering_.engine();
  engine.lock().enter();
  engine.set_paused(index_, true);
  engine.lock().leave();
}

void EngineRange::resume() {
  tiering::Engine& engine = tiering_.engine();
  engine.lock().enter();
  engine.set_paused(index_, false);
  engine.lock().leave();
  engine.wake();
}

Status EngineRange::set_policy(const std::string& name) {
  TieredRangeOptions wanted;
  wanted.bytes = 1;
  wanted.policy = name;
  TERRACE_RETURN_IF_ERROR(check_options(wanted));
  tiering::Engine& engine = tiering_.engine();
  engine.lock().enter();
  engine.set_policy(index_, name.empty() ? &tiering::policies()[0] : tiering::find_policy(name));
  engine.lock().leave();
  return {};
}

void EngineRange::set_ddr_bytes_max(uint64_t bytes) {
  tiering::Engine& engine = tiering_.engine();
  engine.lock().enter();
  engine.set_ddr_granules_max(index_, std::min(bytes, memory_.bytes()) / memory_.granule_bytes());
  engine.lock().leave();
  engine.wake();
}

// What the session knows of the leases says more than the engine, which is told nothing else than to stop; and
// the engine may have met a fence that the session has not heard of yet.
Error EngineRange::no_migration() const {
  constexpr const char* here = "TieredRange::move_to";
  for (const Segment& segment : segments_)
    if (Status status = check_lease(*segment.lease, here); !status.ok()) return status.error();
  tiering::Engine& engine = tiering_.engine();
  engine.lock().enter();
  const bool lost = engine.has_lost_memory(index_);
  engine.lock().leave();
  return {lost ? ErrorCode::lease_expired : ErrorCode::unsupported, 0, here, status().reason};
}

Result<uint64_t> EngineRange::move_to(std::span<const std::byte> bytes, Tier tier) {
  constexpr const char* here = "TieredRange::move_to";
  const Part part = part_of(bytes);
  if (part.count == 0) return Error{ErrorCode::invalid_argument, 0, here, "no bytes, or not inside this range"};
  if (tier == Tier::hbm)
    return Error{ErrorCode::invalid_argument, 0, here, "a range lies in ddr and cxl, not in hbm"};
  tiering::Engine& engine = tiering_.engine();
  const auto stopped = [&] {
    return !engine.can_move(memory_) || status().state == TieringState::no_migration;
  };
  if (stopped()) return no_migration();
  const Residency to = tier == Tier::ddr ? Residency::ddr : Residency::cxl;
  auto result = tiering::MoveResult::done;
  uint64_t there = 0;
  // In pieces, so that forks, rounds and other calls get their turn.
  const auto piece = static_cast<uint32_t>(std::max<uint64_t>(64 * mib / memory_.granule_bytes(), 1));
  for (uint32_t done = 0; done < part.count; done += piece) {
    const uint32_t first = part.first + done, count = std::min(piece, part.count - done);
    engine.lock().enter();
    const tiering::MoveResult one = engine.move_now(index_, first, count, to);
    for (uint32_t i = 0; i < count; ++i)
      if (memory_.residency(first + i) == to) there += memory_.granule_bytes();
    engine.lock().leave();
    if (one != tiering::MoveResult::done) result = one;
  }
  if (result != tiering::MoveResult::done && stopped()) return no_migration();
  if (result == tiering::MoveResult::no_slot || result == tiering::MoveResult::no_memory)
    return Error{ErrorCode::capacity_exhausted, 0, here,
                 format_size(part.count * memory_.granule_bytes() - there) + " of the part found no room in " +
                     std::string(tier_name(tier))};
  return there;
}

Result<std::unique_ptr<Snapshot>> EngineRange::freeze(std::span<const std::span<const std::byte>> parts,
                                                      std::span<const std::span<std::byte>> room) {
  constexpr const char* here = "TieredRange::freeze";
  std::vector<uint8_t> use(memory_.granule_count(), 0);  // 1: frozen, 2: room
  for (const auto bytes : parts) {
    const Part part = part_of(bytes);
    if (part.count == 0)
      return Error{ErrorCode::invalid_argument, 0, here, "a part of no bytes, or not inside this range"};
    std::fill_n(use.begin() + part.first, part.count, uint8_t{1});
  }
  for (const auto bytes : room) {
    if (bytes.empty() || !map_.contains(bytes.data())) continue;  // memory of the caller's own
    const Part part = part_of(bytes);
    const auto* from = use.data() + part.first;
    if (part.count == 0 || std::any_of(from, from + part.count, [](uint8_t what) { return what != 0; }))
      return Error{ErrorCode::invalid_argument, 0, here,
                   "room that is not all inside this range, twice given, or what is to be frozen"};
    std::fill_n(use.begin() + part.first, part.count, uint8_t{2});
  }
  for (const Segment& segment : segments_) TERRACE_RETURN_IF_ERROR(check_lease(*segment.lease, here));
  if (frozen_.exchange(true, std::memory_order_acquire))  // acquire: pairs with ~FrozenMemory()
    return Error{ErrorCode::busy, 0, here, "there is a snapshot of this range; wait until it is released"};
  auto frozen = std::make_unique<FrozenMemory>(memory_, frozen_);
  const std::string why_not = tiering_.can_migrate() || memory_.on_nodes() ? "" : tiering_.why_not();
  TERRACE_RETURN_IF_ERROR(frozen->freeze(parts, room, tiering_.userfault_device(), why_not));
  return std::unique_ptr<Snapshot>(std::move(frozen));
}

}  // namespace terrace
