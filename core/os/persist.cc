// SPDX-License-Identifier: Apache-2.0
#include "core/os/persist.h"

#include <errno.h>
#include <fcntl.h>
#include <libpmem2.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "core/base/units.h"
#include "core/os/memory_map.h"

namespace terrace::os {
namespace {

template <typename T, int (*destroy)(T**)>
struct Owned {
  T* object = nullptr;
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (object != nullptr) destroy(&object);
  }
};
using Source = Owned<pmem2_source, pmem2_source_delete>;
using Config = Owned<pmem2_config, pmem2_config_delete>;

// `result` is what a pmem2 function returned: 0, a negative errno or a number of the library's own.
Error pmem2_error(int result, const char* where, const char* what) {
  const char* reason = pmem2_errormsg();
  std::string detail =
      std::string(what) + ": " + (reason != nullptr && *reason != '\0' ? reason : "no reason given");
  switch (result) {
    case PMEM2_E_SOURCE_EMPTY: return {ErrorCode::not_found, 0, where, std::move(detail)};
    case PMEM2_E_NO_ACCESS: return {ErrorCode::permission_denied, 0, where, std::move(detail)};
    case PMEM2_E_MAPPING_EXISTS:
    case PMEM2_E_MAP_EXISTS:
    case PMEM2_E_LENGTH_OUT_OF_RANGE:
    case PMEM2_E_OFFSET_OUT_OF_RANGE:
    case PMEM2_E_ADDRESS_UNALIGNED:
    case PMEM2_E_OFFSET_UNALIGNED:
    case PMEM2_E_LENGTH_UNALIGNED: return {ErrorCode::invalid_argument, 0, where, std::move(detail)};
    case PMEM2_E_NOSUPP:
    case PMEM2_E_INVALID_FILE_TYPE:
    case PMEM2_E_INVALID_FILE_HANDLE:
    case PMEM2_E_SOURCE_TYPE_NOT_SUPPORTED:
    case PMEM2_E_GRANULARITY_NOT_SUPPORTED: return {ErrorCode::unsupported, 0, where, std::move(detail)};
    default: break;
  }
  if (result <= PMEM2_E_UNKNOWN) return {ErrorCode::io_error, 0, where, std::move(detail)};
  return os_error(-result, where, std::move(detail));
}

constexpr const char* map_where = "os::FileMap::map";

Status configure(Config& config, Placement placement, uint64_t lead_bytes, pmem2_vm_reservation* reservation,
                 bool writable) {
  int result = pmem2_config_new(&config.object);
  // Page is the coarsest: every memory can serve it, and what the memory really offers is asked afterwards.
  if (result == 0) result = pmem2_config_set_required_store_granularity(config.object, PMEM2_GRANULARITY_PAGE);
  if (result == 0) {
    result = pmem2_config_set_protection(config.object,
                                         writable ? PMEM2_PROT_READ | PMEM2_PROT_WRITE : PMEM2_PROT_READ);
  }
  if (result == 0 && reservation != nullptr) {
    result = pmem2_config_set_vm_reservation(config.object, reservation, lead_bytes + placement.offset_bytes);
  }
  if (result != 0) return pmem2_error(result, map_where, "cannot configure a map");
  return {};
}

// The size of a dax device of a dynamic region; nullopt: it is none.
std::optional<uint64_t> dynamic_dax_bytes(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISCHR(status.st_mode)) return std::nullopt;
  const std::string link =
      "/sys/dev/char/" + std::to_string(major(status.st_rdev)) + ":" + std::to_string(minor(status.st_rdev));
  std::error_code failed;
  const std::filesystem::path device = std::filesystem::canonical(link, failed);
  if (failed || !std::filesystem::exists(device.parent_path() / "dax_region" / "create", failed))
    return std::nullopt;
  uint64_t bytes = 0;
  std::ifstream(device / "size") >> bytes;
  return bytes;
}

StoreGranularity granularity_of(pmem2_map* map) {
  switch (pmem2_map_get_store_granularity(map)) {
    case PMEM2_GRANULARITY_BYTE: return StoreGranularity::byte;
    case PMEM2_GRANULARITY_CACHE_LINE: return StoreGranularity::cache_line;
    case PMEM2_GRANULARITY_PAGE: break;
  }
  return StoreGranularity::page;
}

}  // namespace

const char* store_granularity_name(StoreGranularity granularity) {
  switch (granularity) {
    case StoreGranularity::byte: return "byte";
    case StoreGranularity::cache_line: return "cache line";
    case StoreGranularity::page: return "page";
  }
  return "page";
}

void AddressReservation::Deleter::operator()(pmem2_vm_reservation* reservation) const {
  const int result = pmem2_vm_reservation_delete(&reservation);
  TERRACE_CHECK(result == 0, "an address reservation was destroyed before the maps inside it");
}

Result<AddressReservation> AddressReservation::make(uint64_t bytes, uint64_t alignment_bytes) {
  constexpr const char* where = "os::AddressReservation::make";
  if (bytes == 0 || !is_power_of_two(alignment_bytes) || alignment_bytes < page_bytes() ||
      bytes % alignment_bytes != 0 || bytes > std::numeric_limits<uint64_t>::max() - alignment_bytes) {
    return Error{
        ErrorCode::invalid_argument, 0, where,
        std::to_string(bytes) + " bytes aligned to " + std::to_string(alignment_bytes) + " is no range"};
  }
  // The library aligns to a page only, so one alignment more is held and the aligned part of it used.
  const uint64_t held = alignment_bytes > page_bytes() ? bytes + alignment_bytes : bytes;
  pmem2_vm_reservation* raw = nullptr;
  if (const int result = pmem2_vm_reservation_new(&raw, nullptr, held); result != 0)
    return pmem2_error(result, where, "cannot reserve addresses");
  AddressReservation reservation;
  reservation.reservation_.reset(raw);
  auto* start = static_cast<std::byte*>(pmem2_vm_reservation_get_address(raw));
  const uint64_t misalignment = reinterpret_cast<uintptr_t>(start) & (alignment_bytes - 1);
  reservation.lead_bytes_ = misalignment == 0 ? 0 : alignment_bytes - misalignment;
  reservation.range_ = {start + reservation.lead_bytes_, static_cast<size_t>(bytes)};
  return reservation;
}

void FileMap::Deleter::operator()(pmem2_map* map) const {
  const int result = pmem2_map_delete(&map);
  TERRACE_CHECK(result == 0, "libpmem2 could not unmap what it mapped");
}

void FileMap::Unmapper::operator()(std::byte* at) const {
  if (reserved) {
    // Refused, it stays mapped: nobody is there to be told.
    (void)::mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  } else {
    ::munmap(at, bytes);
  }
}

// What was mapped before goes in the order of a destructor: libpmem2 forgets it, then it is unmapped.
FileMap& FileMap::operator=(FileMap&& other) noexcept {
  if (this == &other) return *this;
  map_.reset();
  own_ = std::move(other.own_);
  map_ = std::move(other.map_);
  bytes_ = std::exchange(other.bytes_, {});
  writable_ = other.writable_;
  granularity_ = other.granularity_;
  persist_ = other.persist_;
  flush_ = other.flush_;
  drain_ = other.drain_;
  return *this;
}

// Volatile memory behind a cache: what other machines on it shall see must be written back, as with any dax.
Result<FileMap> FileMap::map_dynamic_dax(int fd, uint64_t bytes, Placement placement) {
  if (bytes == 0) return Error{ErrorCode::not_found, ENXIO, map_where, "the dax device has no memory any more"};
  const bool writable = (::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
  void* wanted = nullptr;
  if (placement.reservation != nullptr) {
    const std::span<std::byte> range = placement.reservation->range_;
    if (bytes > range.size() || placement.offset_bytes > range.size() - bytes)
      return Error{ErrorCode::invalid_argument, 0, map_where,
                   "the placement is outside the reserved addresses"};
    wanted = range.data() + placement.offset_bytes;
  }
  void* at = ::mmap(wanted, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                    MAP_SHARED | (wanted != nullptr ? MAP_FIXED : 0), fd, 0);
  if (at == MAP_FAILED) {
    if (errno == ENXIO)
      return Error{ErrorCode::not_found, ENXIO, map_where, "the dax device is gone: its memory was fenced"};
    return os_error(errno, map_where, "cannot map the dax device");
  }
  FileMap file_map;
  file_map.own_ = {static_cast<std::byte*>(at), Unmapper{bytes, wanted != nullptr}};
  file_map.bytes_ = {static_cast<std::byte*>(at), static_cast<size_t>(bytes)};
  file_map.writable_ = writable;
  Source source;
  pmem2_map* raw = nullptr;
  int result = pmem2_source_from_anon(&source.object, bytes);
  if (result == 0)
    result = pmem2_map_from_existing(&raw, source.object, at, bytes, PMEM2_GRANULARITY_CACHE_LINE);
  if (result != 0) return pmem2_error(result, map_where, "cannot write back the memory of the dax device");
  file_map.map_.reset(raw);
  file_map.granularity_ = StoreGranularity::cache_line;
  file_map.take_functions();
  return file_map;
}

void FileMap::take_functions() {
  persist_ = pmem2_get_persist_fn(map_.get());
  flush_ = pmem2_get_flush_fn(map_.get());
  drain_ = pmem2_get_drain_fn(map_.get());
}

Result<FileMap> FileMap::map(int fd, Placement placement) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return os_error(errno, map_where, "no such descriptor");
  if (const auto bytes = dynamic_dax_bytes(fd)) return map_dynamic_dax(fd, *bytes, placement);
  Source source;
  if (const int result = pmem2_source_from_fd(&source.object, fd); result != 0)
    return pmem2_error(result, map_where, "this descriptor cannot be mapped");
  pmem2_vm_reservation* reservation = nullptr;
  uint64_t lead_bytes = 0;
  if (placement.reservation != nullptr) {
    reservation = placement.reservation->reservation_.get();
    lead_bytes = placement.reservation->lead_bytes_;
    // The library holds more than the range (for alignment), so it would not refuse a map past its end.
    size_t file_bytes = 0;
    if (const int result = pmem2_source_size(source.object, &file_bytes); result != 0)
      return pmem2_error(result, map_where, "cannot tell the size of this descriptor");
    const uint64_t range_bytes = placement.reservation->range_.size();
    if (file_bytes > range_bytes || placement.offset_bytes > range_bytes - file_bytes)
      return Error{ErrorCode::invalid_argument, 0, map_where,
                   "the placement is outside the reserved addresses"};
  }
  FileMap file_map;
  file_map.writable_ = (flags & O_ACCMODE) == O_RDWR;
  Config config;
  TERRACE_RETURN_IF_ERROR(configure(config, placement, lead_bytes, reservation, file_map.writable_));
  pmem2_map* raw = nullptr;
  if (const int result = pmem2_map_new(&raw, config.object, source.object); result != 0)
    return pmem2_error(result, map_where, "cannot map the descriptor");
  file_map.map_.reset(raw);
  file_map.bytes_ = {static_cast<std::byte*>(pmem2_map_get_address(raw)), pmem2_map_get_size(raw)};
  file_map.granularity_ = granularity_of(raw);
  file_map.take_functions();
  return file_map;
}

void FileMap::persist(std::span<const std::byte> range) const {
  if (!range.empty()) persist_(range.data(), range.size());
}

void FileMap::flush(std::span<const std::byte> range) const {
  if (!range.empty()) flush_(range.data(), range.size());
}

void FileMap::drain() const {
  drain_();
}

}  // namespace terrace::os
