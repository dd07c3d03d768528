// SPDX-License-Identifier: Apache-2.0
// The pmem backend's objects: a lease's namespace made, opened, fenced, erased, removed and handed over.
#include "daemon/memory/pmem/pmem.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "core/base/failpoint.h"
#include "core/base/limits.h"
#include "daemon/memory/pmem/dax_memory.h"

namespace terrace::daemon {
namespace {

constexpr std::string_view stray_prefix = "pmem:stray-";

Status unused(PmemKernel& kernel, const PmemNamespace& space) {
  TERRACE_ASSIGN_OR_RETURN(const std::string user, kernel.users(space));
  if (user.empty()) return {};
  return Error{.code = ErrorCode::busy,
               .where = "PmemBackend",
               .detail = space.name + ", which no lease has, is used by " + user +
                         "; it stays, and its room with it, until that ends"};
}

// What fits into a namespace's label, its ending zero included, and is an object's name of this kind.
bool valid_name_of_object(const std::string& name) {
  return name.starts_with("pmem:") && name.size() <= limits::name_bytes_max &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                  c == '_' || c == '.' || c == ':' || c == '@';
         });
}

ByteRange data_of(const PmemNamespace& space) {
  return {space.start + space.bytes - space.device_bytes, space.start + space.bytes};
}

Error no_object(const std::string& name, const char* where) {
  return Error{.code = ErrorCode::not_found, .where = where, .detail = "there is no namespace " + name};
}

}  // namespace

PmemBackend::PmemBackend(PmemKernel& kernel, CxlKernel& cxl, RegionRecords records, PmemOptions options)
    : kernel_(kernel),
      options_(std::move(options)),
      record_(options_.record_directory, options_.boot_id),
      pages_(record_, options_.pins),
      maker_(cxl, std::move(records)) {}

std::string PmemBackend::describe_memory() const {
  return "namespaces of CXL regions of persistent memory";
}

// --- made -------------------------------------------------------------------------------------------------

Status PmemBackend::finish_namespace(const std::string& uuid, const std::string& name) {
  constexpr const char* where = "PmemBackend::carve";
  if (const int code = TERRACE_FAILPOINT(namespace_after_create); code != 0)
    return os_error(code, where, "the namespace of " + name + " was created, and not finished");
  TERRACE_RETURN_IF_ERROR(kernel_.set_label(uuid, name));
  if (const int code = TERRACE_FAILPOINT(namespace_after_label); code != 0)
    return os_error(code, where, "the namespace of " + name + " was named, and not finished");
  TERRACE_RETURN_IF_ERROR(kernel_.make_device(uuid));
  if (const int code = TERRACE_FAILPOINT(namespace_after_enable); code != 0)
    return os_error(code, where, "the namespace of " + name + " was enabled, and not finished");
  return {};
}

// On failure nothing is left, as far as the kernel lets it go; what stays is destroyed at the next start.
Result<PmemNamespace> PmemBackend::make_namespace(const Device& device, const std::string& name,
                                                  uint64_t bytes) {
  TERRACE_ASSIGN_OR_RETURN(const std::string uuid, kernel_.allocate(device.region.start, bytes));
  Status status = finish_namespace(uuid, name);
  auto space = find_namespace(uuid);
  if (status.ok() && !space.ok()) status = space.error();
  if (status.ok() && (space->label != name || space->device.empty() || space->bytes < bytes)) {
    status = Error{.code = ErrorCode::io_error,
                   .where = "PmemBackend::carve",
                   .detail = "the kernel reported no error, but namespace " + space->name +
                             " is not what was asked for: it has the label '" + space->label + "', " +
                             format_size(space->bytes) + " and " +
                             (space->device.empty() ? "no device" : "the device " + space->device)};
  }
  if (status.ok()) return space;
  if (space.ok()) (void)destroy_namespace(*space);
  return std::move(status).error();
}

Status PmemBackend::destroy_namespace(const PmemNamespace& space) {
  TERRACE_RETURN_IF_ERROR(kernel_.disable(space.uuid));
  return kernel_.remove(space.uuid);
}

// Long for large leases whose place was never erased by us; the kernel is free for others meanwhile.
Status PmemBackend::prepare(const PmemNamespace& space, const std::vector<ByteRange>& dirty) {
  TERRACE_ASSIGN_OR_RETURN(const UniqueFd fd, kernel_.open(space, O_RDWR));
  const uint64_t begin = data_of(space).begin;
  for (const ByteRange& part : dirty)
    TERRACE_RETURN_IF_ERROR(erase_memory(fd.get(), part.begin - begin, part.end - part.begin));
  return {};
}

Status PmemBackend::carve(const std::string& name, uint64_t bytes, const std::vector<Extent>& extents) {
  constexpr const char* where = "PmemBackend::carve";
  if (!valid_name_of_object(name) || bytes == 0) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where,
                 .detail = "'" + name + "' of " + format_size(bytes) + " cannot be a namespace"};
  }
  TERRACE_ASSIGN_OR_RETURN(const std::string serial, device_of(name, extents));
  PmemNamespace space;
  std::vector<ByteRange> dirty;
  {
    const MutexLock lock(kernel_mutex_);
    TERRACE_ASSIGN_OR_RETURN(const std::optional<Object> there, find(name));
    if (there.has_value()) {
      return Error{.code = ErrorCode::already_exists,
                   .where = where,
                   .detail = "there is a namespace " + name + " already (" + there->space.name + ")"};
    }
    if (maker_.is_untried(serial)) {
      return Error{.code = ErrorCode::unavailable,
                   .where = where,
                   .detail = "region " + serial +
                             " was made again and could not be tried yet; `terrace device list` says why. "
                             "It is tried again every ten seconds"};
    }
    // Where the unit cannot be set, namespaces are larger, and the books may promise more than fits.
    TERRACE_ASSIGN_OR_RETURN(Device device, find_device(serial));
    if (remove_ended(device)) {
      TERRACE_ASSIGN_OR_RETURN(device, find_device(serial));
    }
    const Status unit = kernel_.set_unit(device.region.start, pmem_unit_bytes(device.region.ways));
    if (unit.ok()) device.region.unit_bytes = pmem_unit_bytes(device.region.ways);
    const uint64_t needed = pmem_namespace_bytes(bytes, device.region.unit_bytes);
    if (needed > device.region.largest_free_bytes) {
      return Error{.code = ErrorCode::capacity_exhausted,
                   .os_errno = ENOSPC,
                   .where = where,
                   .detail = "region " + serial + " has no " + format_size(needed) + " in one piece for " +
                             format_size(bytes) + " and its metadata: the largest free run is " +
                             format_size(device.region.largest_free_bytes) + " of " +
                             format_size(device.region.free_bytes) +
                             " free; ask for less, or wait for a lease between to end"};
    }
    auto made = make_namespace(device, name, needed);
    if (!made.ok()) {
      Error error = made.error();
      if (error.os_errno == ENOSPC || error.os_errno == ENOMEM) error.code = ErrorCode::capacity_exhausted;
      if (error.os_errno == ENOMEM) {
        error.os_errno = ENOSPC;  // not a failure that passes by itself
        error.detail += "; page structures of a lease are kept in DRAM, which this machine lacks";
      }
      return error;
    }
    space = std::move(made).value();
    if (Status status = check_not_kept(serial, space); !status.ok()) {
      (void)destroy_namespace(space);
      return status;
    }
    ErasedRanges& erased = erased_[serial];
    dirty = erased.missing(data_of(space));
    erased.remove({space.start, space.start + space.bytes});
    const MutexLock state(mutex_);
    preparing_.insert(name);
  }
  Status status = prepare(space, dirty);
  if (status.ok() && space.device_bytes < bytes) {
    status = Error{.code = ErrorCode::io_error,
                   .where = where,
                   .detail = "namespace " + space.name + " has only " + format_size(space.device_bytes) +
                             " of " + format_size(bytes)};
  }
  const MutexLock lock(kernel_mutex_);
  {
    const MutexLock state(mutex_);
    preparing_.erase(name);
    if (status.ok()) known_objects_[name] = {name, bytes, extents};
  }
  if (!status.ok()) (void)destroy_namespace(space);
  const Status published = publish();
  return status.ok() ? published : status;
}

Result<UniqueFd> PmemBackend::open(const std::string& name, ObjectAccess access) {
  PmemNamespace space;
  {
    const MutexLock lock(mutex_);
    const auto at = objects_.find(name);
    if (at != objects_.end() && at->second.bytes != 0) space = at->second.space;
  }
  if (space.uuid.empty() && on_lost_device(name)) {
    return Error{.code = ErrorCode::unavailable,
                 .where = "PmemBackend::open",
                 .detail = "the region of " + name + " is not there now; `terrace device list` says why"};
  }
  if (space.uuid.empty()) return no_object(name, "PmemBackend::open");
  return kernel_.open(space, access == ObjectAccess::read_write ? O_RDWR : O_RDONLY);
}

// --- taken back -------------------------------------------------------------------------------------------

Status PmemBackend::fence(const std::string& name) {
  const MutexLock lock(kernel_mutex_);
  TERRACE_ASSIGN_OR_RETURN(const std::optional<Object> object, find(name));
  if (!object.has_value()) return {};
  if (may_be_somebodys(name, object->serial)) TERRACE_RETURN_IF_ERROR(unused(kernel_, object->space));
  TERRACE_RETURN_IF_ERROR(take_away(object->serial, object->space));
  if (const int code = TERRACE_FAILPOINT(namespace_after_disable); code != 0)
    return os_error(code, "PmemBackend::fence", "the namespace of " + name + " was disabled");
  return publish();
}

// The erased end of a lease is free in the books as soon as it is erased: so it must be in the kernel's. Where
// that fails, the room comes with the rest.
void PmemBackend::give_back_tail(const std::string& name, uint64_t keep_bytes) {
  const auto object = find(name);
  if (!object.ok() || !object->has_value()) return;
  const Object& whole = **object;
  const auto device = find_device(whole.serial);
  if (!device.ok()) return;
  const uint64_t unit = pmem_unit_bytes(device->region.ways);
  if (!kernel_.set_unit(device->region.start, unit).ok()) return;
  const uint64_t kept = pmem_namespace_bytes(keep_bytes, unit);
  if (kept >= whole.space.bytes || !kernel_.disable(whole.space.uuid).ok()) return;
  if (!kernel_.shrink(whole.space.uuid, kept).ok()) return;
  erased_[whole.serial].add({whole.space.start + kept, whole.space.start + whole.space.bytes});
}

Status PmemBackend::erase(const std::string& name, const std::vector<Extent>& extents, uint64_t offset,
                          uint64_t length) {
  constexpr const char* where = "PmemBackend::erase";
  (void)extents;
  PmemNamespace space;
  std::string serial;
  uint64_t end = 0;
  {
    const MutexLock lock(kernel_mutex_);
    TERRACE_ASSIGN_OR_RETURN(std::optional<Object> object, find(name));
    if (!object.has_value()) {
      if (!on_lost_device(name)) return {};  // its room is erased before anybody gets it
      return Error{
          .code = ErrorCode::io_error, .where = where, .detail = "the region of " + name + " is not there"};
    }
    space = object->space;
    serial = object->serial;
    TERRACE_RETURN_IF_ERROR(reclaim(serial, space));
    if (space.device.empty()) {
      TERRACE_RETURN_IF_ERROR(kernel_.enable(space.uuid));
      TERRACE_ASSIGN_OR_RETURN(space, find_namespace(space.uuid));
    }
    if (offset >= space.device_bytes) return {};  // given back already, before a restart
    // What follows on the piece before it needs no more; else all behind it is erased, too: what this process
    // did not erase, and what units add to the lease.
    const auto erased = erased_from_bytes_.find(name);
    const bool follows = erased != erased_from_bytes_.end() && erased->second == offset + length;
    end = follows ? offset + length : space.device_bytes;
  }
  if (const int code = TERRACE_FAILPOINT(namespace_during_erase); code != 0)
    return os_error(code, where, "the namespace of " + name + " could not be erased");
  {
    TERRACE_ASSIGN_OR_RETURN(const UniqueFd fd, kernel_.open(space, O_RDWR));
    TERRACE_RETURN_IF_ERROR(erase_memory(fd.get(), offset, end - offset));
    measure_erased(serial, fd.get(), {offset, end});
  }
  const MutexLock lock(kernel_mutex_);
  erased_from_bytes_[name] = offset;
  if (offset != 0) give_back_tail(name, offset);
  return {};
}

Result<uint64_t> PmemBackend::scrub(const std::string& name) {
  constexpr const char* where = "PmemBackend::scrub";
  const MutexLock lock(kernel_mutex_);
  TERRACE_ASSIGN_OR_RETURN(const std::optional<Object> object, find(name));
  uint64_t scrubbed = 0;
  if (object.has_value()) {
    PmemNamespace space = object->space;
    if (may_be_somebodys(name, object->serial)) TERRACE_RETURN_IF_ERROR(unused(kernel_, space));
    TERRACE_RETURN_IF_ERROR(reclaim(object->serial, space));
    const auto erased = erased_from_bytes_.find(name);
    TERRACE_RETURN_IF_ERROR(destroy_namespace(space));
    if (erased != erased_from_bytes_.end() && erased->second == 0) {
      // Its first bytes were the kernel's metadata.
      erased_[object->serial].add({space.start + pmem_align_bytes, space.start + space.bytes});
      scrubbed = space.bytes - pmem_align_bytes;
    }
    if (const int code = TERRACE_FAILPOINT(namespace_after_destroy); code != 0)
      return os_error(code, where, "the namespace of " + name + " was removed");
  } else if (on_lost_device(name)) {
    return Error{.code = ErrorCode::io_error,
                 .where = where,
                 .detail = "the region of " + name + " is not there: its bytes cannot be erased"};
  }
  erased_from_bytes_.erase(name);
  {
    const MutexLock state(mutex_);
    known_objects_.erase(name);
  }
  TERRACE_RETURN_IF_ERROR(publish());
  return scrubbed;
}

// --- changed ----------------------------------------------------------------------------------------------

Status PmemBackend::resize(const std::string& name, uint64_t from_bytes, uint64_t to_bytes,
                           const std::vector<Extent>& extents) {
  (void)extents;
  if (from_bytes == to_bytes) return {};
  return Error{
      .code = ErrorCode::unsupported,
      .where = "PmemBackend::resize",
      .detail = name +
                " is a namespace, which cannot change its size while it is mapped; take another lease of " +
                format_size(to_bytes) + ", copy, and release this one"};
}

// A new label on the same bytes. Disabled in between: what held `from` is dead, what opens `to` is new.
Status PmemBackend::rebind(const std::string& from, const std::string& to, uint64_t bytes,
                           const std::vector<Extent>& extents) {
  constexpr const char* where = "PmemBackend::rebind";
  if (!valid_name_of_object(to))
    return Error{
        .code = ErrorCode::invalid_argument, .where = where, .detail = "'" + to + "' cannot be a namespace"};
  const MutexLock lock(kernel_mutex_);
  TERRACE_ASSIGN_OR_RETURN(std::optional<Object> object, find(from));
  if (object.has_value()) {
    TERRACE_RETURN_IF_ERROR(take_away(object->serial, object->space));
    TERRACE_RETURN_IF_ERROR(reclaim(object->serial, object->space));
    if (const int code = TERRACE_FAILPOINT(rebind_before_copy); code != 0)
      return os_error(code, where, "the namespace of " + from + " is not renamed yet");
    TERRACE_RETURN_IF_ERROR(kernel_.set_label(object->space.uuid, to));
  }
  TERRACE_ASSIGN_OR_RETURN(object, find(to));
  if (!object.has_value()) {
    return Error{.code = on_lost_device(from) ? ErrorCode::io_error : ErrorCode::corrupt,
                 .where = where,
                 .detail = "there is neither a namespace " + from + " nor " + to};
  }
  TERRACE_RETURN_IF_ERROR(reclaim(object->serial, object->space));
  if (!object->space.enabled) TERRACE_RETURN_IF_ERROR(kernel_.enable(object->space.uuid));
  if (const int code = TERRACE_FAILPOINT(rebind_after_copy); code != 0)
    return os_error(code, where, "the namespace of " + to + " has its name");
  {
    const MutexLock state(mutex_);
    known_objects_.erase(from);
    known_objects_[to] = {to, bytes, extents};
  }
  TERRACE_RETURN_IF_ERROR(publish());
  const MutexLock state(mutex_);
  const auto at = objects_.find(to);
  if (at != objects_.end() && at->second.bytes >= bytes) return {};
  return Error{
      .code = ErrorCode::corrupt, .where = where, .detail = "namespace " + to + " has lost its device"};
}

Status PmemBackend::copy(const std::string& from, const std::string& to, uint64_t bytes) {
  TERRACE_ASSIGN_OR_RETURN(const UniqueFd in, open(from, ObjectAccess::read_only));
  TERRACE_ASSIGN_OR_RETURN(const UniqueFd out, open(to, ObjectAccess::read_write));
  if (const int code = TERRACE_FAILPOINT(move_before_copy); code != 0)
    return os_error(code, "PmemBackend::copy", "cannot copy " + from);
  TERRACE_RETURN_IF_ERROR(copy_memory(in.get(), out.get(), bytes));
  if (const int code = TERRACE_FAILPOINT(move_after_copy); code != 0)
    return os_error(code, "PmemBackend::copy", "cannot copy " + from);
  return {};
}

// --- seen -------------------------------------------------------------------------------------------------

// A lease's namespace that something disabled is enabled again; one that was fenced has no holder any more. So is one
// that is kept and was counted: its pins end in its pages. Where it was not, nobody may take its pages for those.
Result<std::vector<ObservedObject>> PmemBackend::list() {
  const MutexLock lock(kernel_mutex_);
  {
    const MutexLock state(mutex_);
    if (known_devices_.empty()) return std::vector<ObservedObject>{};
  }
  TERRACE_ASSIGN_OR_RETURN(const std::vector<Device> devices, look());
  TERRACE_RETURN_IF_ERROR(all_seen());
  for (const auto& [name, object] : objects_of(devices)) {
    const std::vector<KeptMemory> kept = kept_in(object.serial, object.space);
    const bool counted =
        std::all_of(kept.begin(), kept.end(), [](const KeptMemory& one) { return one.pins.has_value(); });
    if (!object.space.enabled && counted && (!kept.empty() || is_known(name, object.serial)))
      (void)kernel_.enable(object.space.uuid);
  }
  TERRACE_RETURN_IF_ERROR(publish());
  const MutexLock state(mutex_);
  std::vector<ObservedObject> listed;
  for (const auto& [name, object] : objects_) {
    const auto known = known_objects_.find(name);
    // Longer in units of the kernel's than its lease: that is nobody's growth.
    const uint64_t bytes =
        known == known_objects_.end() ? object.bytes : std::min(object.bytes, known->second.bytes);
    listed.push_back({name, bytes, object.space.bytes});
  }
  return listed;
}

Result<ObservedObject> PmemBackend::usage(const std::string& name) {
  const MutexLock lock(mutex_);
  const auto at = objects_.find(name);
  if (at == objects_.end()) return no_object(name, "PmemBackend::usage");
  const auto known = known_objects_.find(name);
  const uint64_t bytes =
      known == known_objects_.end() ? at->second.bytes : std::min(at->second.bytes, known->second.bytes);
  return ObservedObject{name, bytes, at->second.space.bytes};
}

}  // namespace terrace::daemon
