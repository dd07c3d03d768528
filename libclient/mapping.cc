// SPDX-License-Identifier: Apache-2.0
// Mapping: a lease's descriptor as memory, by core/os/persist.
#include "terrace/mapping.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <utility>

#include "core/base/units.h"
#include "core/os/fault_guard.h"
#include "core/os/memory_map.h"
#include "core/os/persist.h"
#include "libclient/guarded_copy.h"
#include "libclient/lease_ranges.h"

namespace terrace {
namespace {

// Which kernel object a descriptor leads to.
struct ObjectIdentity {
  dev_t device = 0, number = 0;
  ino_t inode = 0;
  bool operator==(const ObjectIdentity&) const = default;
};

ObjectIdentity identity_of(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return {};
  return {.device = status.st_dev, .number = status.st_rdev, .inode = status.st_ino};
}

// Memory that the kernel maps for the lease now.
// Errors    as Mapping::map
Result<os::FileMap> map_object(const Lease& lease, int fd, uint64_t bytes) {
  const std::string name = "lease " + std::to_string(lease.id().value);
  auto map = os::FileMap::map(fd);
  if (!map.ok()) {
    Error error = std::move(map).error();
    error.detail = name + ": " + error.detail;
    if (error.code ==
        ErrorCode::not_found) {  // an object without bytes was fenced, whether we heard of it or not
      const bool revoked = lease.state() == LeaseState::revoking;
      error.code = revoked ? ErrorCode::lease_revoked : ErrorCode::lease_expired;
    }
    return error;
  }
  if (map->bytes().size() < bytes) {
    return Error{ErrorCode::corrupt, 0, "Mapping::map",
                 name + " has " + std::to_string(bytes) + " bytes but its object only " +
                     std::to_string(map->bytes().size())};
  }
  return map;
}

Status check_not_lost(Lease& lease, const char* where) {
  if (lease.state() != LeaseState::lost) return {};
  // A lost lease answers without asking the manager, with the reason why it was lost.
  const auto info = lease.info();
  const ErrorCode code = info.ok() ? ErrorCode::lease_expired : info.error().code;
  return Error{code, 0, where, "lease " + std::to_string(lease.id().value) + " is lost: its memory is gone"};
}

// The addresses from base_ on: first what libpmem2 mapped and will unmap, then what a growth added behind it
// (tail_bytes_, ours to unmap). Of all these `length_` are the lease's; the rest is held, mapped to nothing.
class LeaseMapping final : public Mapping {
 public:
  LeaseMapping(std::shared_ptr<Lease> lease, os::FileMap map, uint64_t bytes, ObjectIdentity object)
      : lease_(std::move(lease)), map_(std::move(map)), length_(bytes), object_(object) {
    note_lease_range(in_use(), lease_);
  }
  ~LeaseMapping() override {
    forget_lease_range(in_use().data());
    drop_tail();
  }
  LeaseMapping(const LeaseMapping&) = delete;
  LeaseMapping& operator=(const LeaseMapping&) = delete;

  std::span<std::byte> bytes() override { return map_.writable() ? in_use() : std::span<std::byte>{}; }
  std::span<const std::byte> const_bytes() const override { return in_use(); }
  const std::shared_ptr<Lease>& lease() const override { return lease_; }
  // Of memory that is gone nothing is left to persist.
  void persist(std::span<const std::byte> range) override {
    (void)os::guarded({range}, [&] { map_.persist(range); });
  }
  const char* store_granularity() const override { return os::store_granularity_name(map_.granularity()); }
  Result<Remapped> resize() override;
  Status move(const PauseWriters& pause) override;

 private:
  std::span<std::byte> in_use() const { return {map_.bytes().data(), static_cast<size_t>(length_)}; }
  std::span<std::byte> held() const { return {map_.bytes().data(), map_.bytes().size() + tail_bytes_}; }
  os::Protection protection() const {
    return map_.writable() ? os::Protection::read_write : os::Protection::read_only;
  }
  void drop_tail() {
    if (tail_bytes_ != 0) ::munmap(map_.bytes().data() + map_.bytes().size(), tail_bytes_);
    tail_bytes_ = 0;
  }
  bool hold(uint64_t bytes);
  Status replace(LeaseMove& move, const os::FileMap& target);

  std::shared_ptr<Lease> lease_;
  os::FileMap map_;
  uint64_t tail_bytes_ = 0;
  uint64_t length_;
  ObjectIdentity object_;
};

// Holds addresses up to `bytes` from the start, if those behind the present ones are free.
bool LeaseMapping::hold(uint64_t bytes) {
  const auto now = held();
  if (bytes <= now.size()) return true;
  void* wanted = now.data() + now.size();
  const uint64_t more = bytes - now.size();
  void* got =
      ::mmap(wanted, more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == MAP_FAILED) return false;
  if (got != wanted) {  // a kernel that takes the address for a hint
    ::munmap(got, more);
    return false;
  }
  tail_bytes_ += more;
  return true;
}

Result<Remapped> LeaseMapping::resize() {
  constexpr const char* where = "Mapping::resize";
  TERRACE_RETURN_IF_ERROR(check_not_lost(*lease_, where));
  const uint64_t bytes = lease_->bytes();
  const ObjectIdentity object = identity_of(lease_->fd());
  if (!hold(bytes)) {
    TERRACE_ASSIGN_OR_RETURN(auto map, map_object(*lease_, lease_->fd(), bytes));
    forget_lease_range(in_use().data());
    drop_tail();
    map_ = std::move(map);
    length_ = bytes;
    object_ = object;
    note_lease_range(in_use(), lease_);
    return Remapped::elsewhere;
  }
  const uint64_t known = object == object_ ? length_ : 0;  // from here on the object is not mapped yet
  if (bytes > known) {
    TERRACE_RETURN_IF_ERROR(os::map_file_at(held(), known, bytes - known, lease_->fd(), known, protection()));
  }
  if (bytes < length_) TERRACE_RETURN_IF_ERROR(os::unmap_at(held(), bytes, length_ - bytes));
  length_ = bytes;
  object_ = object;
  note_lease_range(in_use(), lease_);
  return Remapped::in_place;
}

Status LeaseMapping::move(const PauseWriters& pause) {
  constexpr const char* where = "Mapping::move";
  TERRACE_RETURN_IF_ERROR(check_not_lost(*lease_, where));
  TERRACE_ASSIGN_OR_RETURN(auto move, lease_->begin_move());  // given up when this function returns early
  if (move->bytes() != length_ || lease_->bytes() != length_) {
    return Error{ErrorCode::invalid_argument, 0, where,
                 "lease " + std::to_string(lease_->id().value) + " has " + std::to_string(lease_->bytes()) +
                     " bytes and the mapping " + std::to_string(length_) + "; call resize() first"};
  }
  TERRACE_ASSIGN_OR_RETURN(const auto target, map_object(*lease_, move->fd(), length_));
  Status status = Error{ErrorCode::invalid_argument, 0, where, "the pause did not call its argument"};
  bool called = false;
  pause([&] {
    if (std::exchange(called, true)) return;
    status = replace(*move, target);
  });
  return status;
}

// With the writers paused.
Status LeaseMapping::replace(LeaseMove& move, const os::FileMap& target) {
  TERRACE_RETURN_IF_ERROR(copy_guarded(lease_->fd(), in_use(), target.bytes().first(length_)));
  TERRACE_RETURN_IF_ERROR(persist_guarded(target, target.bytes().first(length_)));
  const auto put = [this](int fd) { return os::map_file_at(in_use(), 0, length_, fd, 0, protection()); };
  const ObjectIdentity object = identity_of(move.fd());
  Status status = put(move.fd());
  if (status.ok()) {
    do status = move.commit();
    while (!status.ok() && move.state() == LeaseMoveState::unknown &&
           status.error().code == ErrorCode::unavailable);
    if (status.ok() || move.state() == LeaseMoveState::unknown) {
      object_ = object;
      return status;
    }
  }
  if (const Status back = put(lease_->fd()); !back.ok() && lease_->state() != LeaseState::lost) {
    Error error = back.error();
    error.detail = "the move failed (" + status.error().detail +
                   ") and the lease cannot be mapped back: " + error.detail + "; unmap it";
    return error;
  }
  return status;
}

}  // namespace

Result<std::unique_ptr<Mapping>> Mapping::map(std::shared_ptr<Lease> lease) {
  TERRACE_RETURN_IF_ERROR(check_not_lost(*lease, "Mapping::map"));
  const uint64_t bytes = lease->bytes();
  const ObjectIdentity object = identity_of(lease->fd());
  TERRACE_ASSIGN_OR_RETURN(auto map, map_object(*lease, lease->fd(), bytes));
  return std::unique_ptr<Mapping>(
      std::make_unique<LeaseMapping>(std::move(lease), std::move(map), bytes, object));
}

}  // namespace terrace
