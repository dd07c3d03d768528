// SPDX-License-Identifier: Apache-2.0
// A lease's descriptor as memory, through libpmem2: its mapping, the flush that makes its stores durable, and
// the reason of a refusal by the kernel or the library.
//
// Place     core/os, the only user of libpmem2. libclient's Mapping and Arena sit on it.
// Threads   Objects belong to one owner; persist() may run on any thread while the map lives. libpmem2
//           keeps the reason of a failure per thread, so each call reads it where it failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/base/result.h"

struct pmem2_map;
struct pmem2_vm_reservation;

namespace terrace::os {

// How much a store must be followed by before it is durable or seen beyond this processor.
//   byte        nothing: the caches are in the persistence domain
//   cache_line  cache-line write-back (dax devices)
//   page        msync (files of a page cache; a no-op on tmpfs)
enum class StoreGranularity : uint8_t { byte, cache_line, page };
const char* store_granularity_name(StoreGranularity granularity);  // "byte", "cache line", "page"

// Address space held for maps that come later, each at an exact place. Parts not filled by a FileMap are
// the owner's to fill with the calls of memory_map.h.
//
// Ownership  Gives the range back when destroyed; every FileMap inside must be gone before.
class AddressReservation {
 public:
  // Units      bytes, alignment_bytes: the start and the length are multiples of alignment_bytes, a power
  //            of two of at least a page.
  // Errors     invalid_argument  not such multiples
  //            out_of_memory     no such range is free
  static Result<AddressReservation> make(uint64_t bytes, uint64_t alignment_bytes);

  std::span<std::byte> range() const { return range_; }

 private:
  friend class FileMap;
  struct Deleter {
    void operator()(pmem2_vm_reservation* reservation) const;
  };
  std::unique_ptr<pmem2_vm_reservation, Deleter> reservation_;
  uint64_t lead_bytes_ = 0;  // from the library's start to the aligned one
  std::span<std::byte> range_;
};

// Where a map goes. The default lets the kernel choose.
struct Placement {
  const AddressReservation* reservation = nullptr;
  uint64_t offset_bytes = 0;  // from the start of the reservation's range()
};

// All bytes of a descriptor, mapped shared: writable when the descriptor is, read-only otherwise.
//
// Ownership  Unmaps when destroyed. The descriptor may be closed right after map().
class FileMap {
 public:
  // Errors     not_found          the descriptor has no bytes: its memory was fenced
  //            permission_denied  the descriptor does not allow the access
  //            invalid_argument   the placement is taken, out of range or not aligned as the memory needs
  //            out_of_memory      no address space
  //            unsupported        libpmem2 cannot map this kind of file; the detail gives its reason
  //            io_error           anything else of the kernel's
  //
  // A dax device of a dynamic region is mapped by this module itself: libpmem2 1.12 crashes when it is asked
  // for the size of one (pmem2_source_size), as it has no persistent namespace.
  static Result<FileMap> map(int fd, Placement placement = {});

  FileMap(FileMap&&) noexcept = default;
  FileMap& operator=(FileMap&& other) noexcept;

  std::span<std::byte> bytes() const { return bytes_; }  // stores fault unless writable()
  bool writable() const { return writable_; }
  StoreGranularity granularity() const { return granularity_; }

  // Makes stores to `range`, which must lie in bytes(), durable; flush() does so without waiting for the
  // last of them, drain() waits for all flushes of this thread.
  void persist(std::span<const std::byte> range) const;
  void flush(std::span<const std::byte> range) const;
  void drain() const;

 private:
  FileMap() = default;
  static Result<FileMap> map_dynamic_dax(int fd, uint64_t bytes, Placement placement);
  void take_functions();

  struct Deleter {
    void operator()(pmem2_map* map) const;
  };
  // What was mapped without libpmem2; the addresses go back to the reservation that they are of.
  struct Unmapper {
    uint64_t bytes;
    bool reserved;
    void operator()(std::byte* at) const;
  };
  std::unique_ptr<std::byte, Unmapper> own_;  // before map_, which knows of it
  std::unique_ptr<pmem2_map, Deleter> map_;
  std::span<std::byte> bytes_;
  bool writable_ = false;
  StoreGranularity granularity_ = StoreGranularity::page;
  void (*persist_)(const void*, size_t) = nullptr;
  void (*flush_)(const void*, size_t) = nullptr;
  void (*drain_)() = nullptr;
};

}  // namespace terrace::os
