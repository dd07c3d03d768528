// SPDX-License-Identifier: Apache-2.0
// Arena: the mapping half. What is mapped where in the range, and which GranuleAllocator counts its pages;
// the bookkeeping itself is libclient/arena.
#include "terrace/arena.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "core/base/sync/mutex.h"
#include "core/base/units.h"
#include "core/os/memory_map.h"
#include "core/os/persist.h"
#include "libclient/arena/granule_allocator.h"

namespace terrace {
namespace {

using client::GranuleAllocator;

// A mapped part of the range: the DDR budget, or one lease.
struct Segment {
  Tier tier = Tier::ddr;
  std::shared_ptr<Lease> lease;    // cxl
  std::optional<os::FileMap> map;  // cxl
  GranuleAllocator pages;

  // Allocations in memory that is about to be fenced would only be lost.
  bool usable() const { return lease == nullptr || lease->state() == LeaseState::live; }
};

Error invalid(const char* where, std::string detail) {
  return {ErrorCode::invalid_argument, 0, where, std::move(detail)};
}

class MappedArena final : public Arena {
 public:
  MappedArena(os::AddressReservation reservation, uint64_t granule_bytes)
      : reservation_(std::move(reservation)),
        granule_bytes_(granule_bytes),
        places_(reservation_.range().size() / granule_bytes) {}

  Status map_ddr(uint64_t bytes, bool in_memory_file);

  Status add_lease(std::shared_ptr<Lease> lease) override;
  Status remove_lease(LeaseId id) override;
  Result<void*> allocate(uint64_t bytes, uint64_t alignment_bytes, TierPreference preference) override;
  Status free(void* address) override;
  std::optional<Tier> tier_of(const void* address) const override;
  std::shared_ptr<Lease> lease_of(const void* address) const override;
  TierUse use(Tier tier) const override;
  std::span<std::byte> range() const override { return reservation_.range(); }

 private:
  using Segments = std::map<uint64_t, Segment>;  // by offset in the range

  std::byte* start() const { return reservation_.range().data(); }
  // A segment's pages are counted from address 0, so that alignment means that of addresses.
  GranuleAllocator count_pages(uint64_t offset_bytes, uint64_t bytes) const {
    return GranuleAllocator(bytes / os::page_bytes(),
                            (reinterpret_cast<uintptr_t>(start()) + offset_bytes) / os::page_bytes());
  }
  Segments::const_iterator find(const void* address) const TERRACE_REQUIRES(mutex_);
  void* take(Tier tier, uint64_t pages, uint64_t alignment_pages) TERRACE_REQUIRES(mutex_);
  TierUse use_locked(Tier tier) const TERRACE_REQUIRES(mutex_);
  std::string shortage(Tier tier, uint64_t bytes, uint64_t alignment_bytes) const TERRACE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  const os::AddressReservation reservation_;
  const uint64_t granule_bytes_;
  GranuleAllocator places_ TERRACE_GUARDED_BY(mutex_);  // granules of the range
  UniqueFd ddr_file_ TERRACE_GUARDED_BY(mutex_);
  Segments segments_ TERRACE_GUARDED_BY(mutex_);  // after reservation_: unmapped before it goes
};

Status MappedArena::map_ddr(uint64_t bytes, bool in_memory_file) {
  if (bytes == 0) return {};
  const MutexLock lock(mutex_);
  const std::optional<uint64_t> place = places_.take(bytes / granule_bytes_);
  TERRACE_CHECK(place == 0, "DDR is the first segment of a range that holds it");
  if (in_memory_file) {
    TERRACE_ASSIGN_OR_RETURN(ddr_file_, os::make_memory_file("terrace-ddr", bytes));
    TERRACE_RETURN_IF_ERROR(os::map_file_at(range(), 0, bytes, ddr_file_.get(), 0, os::Protection::read_write));
  } else {
    TERRACE_RETURN_IF_ERROR(os::map_anonymous_at(range(), 0, bytes));
  }
  segments_.emplace(0, Segment{Tier::ddr, nullptr, std::nullopt, count_pages(0, bytes)});
  return {};
}

Status MappedArena::add_lease(std::shared_ptr<Lease> lease) {
  constexpr const char* where = "Arena::add_lease";
  const std::string name = "lease " + std::to_string(lease->id().value);
  if (lease->access() != LeaseAccess::read_write) return invalid(where, name + " is read-only");
  if (lease->state() != LeaseState::live) {
    const bool revoked = lease->state() == LeaseState::revoking;
    return Error{revoked ? ErrorCode::lease_revoked : ErrorCode::lease_expired, 0, where,
                 name + (revoked ? " is being taken back" : " is lost")};
  }
  const MutexLock lock(mutex_);
  for (const auto& [offset, segment] : segments_) {
    if (segment.lease != nullptr && segment.lease->id() == lease->id())
      return Error{ErrorCode::already_exists, 0, where, name + " is in the arena already"};
  }
  const uint64_t granules = round_up(lease->bytes(), granule_bytes_) / granule_bytes_;
  if (granules == 0) return invalid(where, name + " has no bytes");
  const std::optional<uint64_t> place = places_.take(granules);
  if (!place.has_value()) {
    return Error{ErrorCode::capacity_exhausted, 0, where,
                 "the arena's address range has no room for " + name + " of " + format_size(lease->bytes()) +
                     ": the largest gap is " + format_size(places_.largest_free_units() * granule_bytes_)};
  }
  const uint64_t offset = *place * granule_bytes_;
  auto map = os::FileMap::map(lease->fd(), {.reservation = &reservation_, .offset_bytes = offset});
  if (!map.ok() || map->bytes().size() < lease->bytes() || map->bytes().size() > granules * granule_bytes_) {
    places_.give(*place);
    if (map.ok()) return Error{ErrorCode::corrupt, 0, where, name + " and its object differ in size"};
    Error error = std::move(map).error();
    error.detail = name + ": " + error.detail;
    if (error.code == ErrorCode::not_found) error.code = ErrorCode::lease_expired;  // fenced, not heard of yet
    return error;
  }
  GranuleAllocator pages = count_pages(offset, lease->bytes());
  segments_.emplace(offset, Segment{Tier::cxl, std::move(lease), std::move(*map), std::move(pages)});
  return {};
}

Status MappedArena::remove_lease(LeaseId id) {
  constexpr const char* where = "Arena::remove_lease";
  const MutexLock lock(mutex_);
  for (auto at = segments_.begin(); at != segments_.end(); ++at) {
    const Segment& segment = at->second;
    if (segment.lease == nullptr || segment.lease->id() != id) continue;
    if (segment.pages.taken_runs() != 0) {
      return Error{ErrorCode::busy, 0, where,
                   std::to_string(segment.pages.taken_runs()) + " allocations are left in lease " +
                       std::to_string(id.value)};
    }
    places_.give(at->first / granule_bytes_);
    segments_.erase(at);
    return {};
  }
  return Error{ErrorCode::not_found, 0, where, "lease " + std::to_string(id.value) + " is not in the arena"};
}

void* MappedArena::take(Tier tier, uint64_t pages, uint64_t alignment_pages) {
  for (auto& [offset, segment] : segments_) {
    if (segment.tier != tier || !segment.usable()) continue;
    if (const auto page = segment.pages.take(pages, alignment_pages))
      return start() + offset + *page * os::page_bytes();
  }
  return nullptr;
}

std::string MappedArena::shortage(Tier tier, uint64_t bytes, uint64_t alignment_bytes) const {
  const TierUse use = use_locked(tier);
  std::string text(tier_name(tier));
  if (use.capacity_bytes == 0) return text + " has no memory here";
  if (use.largest_free_bytes >= bytes)
    return text + " has no free run aligned to " + format_size(alignment_bytes);
  return text + " is short of " + format_size(bytes - use.largest_free_bytes) + " (largest free run " +
         format_size(use.largest_free_bytes) + ", free " + format_size(use.free_bytes) + " of " +
         format_size(use.capacity_bytes) + ")";
}

Result<void*> MappedArena::allocate(uint64_t bytes, uint64_t alignment_bytes, TierPreference preference) {
  constexpr const char* where = "Arena::allocate";
  const uint64_t page = os::page_bytes();
  if (bytes == 0 || !is_power_of_two(alignment_bytes)) {
    return invalid(where, std::to_string(bytes) + " bytes aligned to " + std::to_string(alignment_bytes) +
                              ": at least one byte and a power of two are needed");
  }
  const uint64_t pages = bytes / page + (bytes % page != 0 ? 1 : 0);
  const uint64_t alignment_pages = alignment_bytes <= page ? 1 : alignment_bytes / page;
  const MutexLock lock(mutex_);
  if (preference != TierPreference::cxl_only)
    if (void* address = take(Tier::ddr, pages, alignment_pages)) return address;
  if (preference != TierPreference::ddr_only)
    if (void* address = take(Tier::cxl, pages, alignment_pages)) return address;
  std::string detail = "no room for " + format_size(bytes) + ": ";
  if (preference != TierPreference::cxl_only) detail += shortage(Tier::ddr, bytes, alignment_bytes);
  if (preference == TierPreference::ddr_first) detail += ", ";
  if (preference != TierPreference::ddr_only) detail += shortage(Tier::cxl, bytes, alignment_bytes);
  return Error{ErrorCode::capacity_exhausted, 0, where, std::move(detail)};
}

Status MappedArena::free(void* address) {
  constexpr const char* where = "Arena::free";
  const MutexLock lock(mutex_);
  const auto found = find(address);
  if (found == segments_.end()) return invalid(where, "the address is not in the arena");
  const uint64_t offset = static_cast<uint64_t>(static_cast<std::byte*>(address) - start());
  const uint64_t within = offset - found->first;
  auto& segment = segments_.at(found->first);
  const auto pages =
      within % os::page_bytes() == 0 ? segment.pages.give(within / os::page_bytes()) : std::nullopt;
  if (!pages.has_value()) return invalid(where, "no allocation begins at this address; was it freed before?");
  const uint64_t bytes = *pages * os::page_bytes();
  // A large piece of DDR goes back to the system; a small one is likely to be wanted again soon.
  if (segment.tier == Tier::ddr && bytes >= granule_bytes_) return os::discard_at(range(), offset, bytes);
  return {};
}

MappedArena::Segments::const_iterator MappedArena::find(const void* address) const {
  const auto bytes = range();
  const auto* byte = static_cast<const std::byte*>(address);
  if (byte < bytes.data() || byte >= bytes.data() + bytes.size()) return segments_.end();
  const uint64_t offset = static_cast<uint64_t>(byte - bytes.data());
  auto at = segments_.upper_bound(offset);
  if (at == segments_.begin()) return segments_.end();
  --at;
  return offset - at->first < at->second.pages.units() * os::page_bytes() ? at : segments_.end();
}

std::optional<Tier> MappedArena::tier_of(const void* address) const {
  const MutexLock lock(mutex_);
  const auto found = find(address);
  if (found == segments_.end()) return std::nullopt;
  return found->second.tier;
}

std::shared_ptr<Lease> MappedArena::lease_of(const void* address) const {
  const MutexLock lock(mutex_);
  const auto found = find(address);
  return found == segments_.end() ? nullptr : found->second.lease;
}

TierUse MappedArena::use(Tier tier) const {
  const MutexLock lock(mutex_);
  return use_locked(tier);
}

TierUse MappedArena::use_locked(Tier tier) const {
  TierUse use;
  const uint64_t page = os::page_bytes();
  for (const auto& [offset, segment] : segments_) {
    if (segment.tier != tier) continue;
    use.capacity_bytes += segment.pages.units() * page;
    use.allocations += segment.pages.taken_runs();
    if (!segment.usable()) continue;
    use.free_bytes += segment.pages.free_units() * page;
    use.largest_free_bytes = std::max(use.largest_free_bytes, segment.pages.largest_free_units() * page);
  }
  return use;
}

}  // namespace

std::string_view tier_name(Tier tier) {
  if (tier == Tier::hbm) return "hbm";
  return tier == Tier::ddr ? "ddr" : "cxl";
}

Result<std::unique_ptr<Arena>> Arena::make(const ArenaOptions& options) {
  constexpr const char* where = "Arena::make";
  const uint64_t granule = options.granule_bytes;
  if (!is_power_of_two(granule) || granule < os::page_bytes())
    return invalid(where,
                   "a granule of " + std::to_string(granule) + " bytes is no power of two of at least a page");
  const uint64_t range_bytes = options.range_bytes & ~(granule - 1);
  if (range_bytes == 0 || options.ddr_bytes > range_bytes) {
    return invalid(where, "a DDR budget of " + format_size(options.ddr_bytes) + " does not fit a range of " +
                              format_size(range_bytes));
  }
  TERRACE_ASSIGN_OR_RETURN(auto reservation, os::AddressReservation::make(range_bytes, granule));
  auto arena = std::make_unique<MappedArena>(std::move(reservation), granule);
  TERRACE_RETURN_IF_ERROR(arena->map_ddr(round_up(options.ddr_bytes, granule), options.ddr_in_memory_file));
  return std::unique_ptr<Arena>(std::move(arena));
}

}  // namespace terrace
