// SPDX-License-Identifier: Apache-2.0
// Address space as values: reservations that hold a range and mappings that fill it, each unmapped once.
//
// Place     core/os; the arena reserves its range here and puts DDR granules and leases inside.
// Threads   A MemoryMap belongs to one owner; bytes inside are ordinary shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace::os {

enum class Protection : uint8_t { none, read_only, read_write };

class MemoryMap {
 public:
  MemoryMap() = default;  // maps nothing
  MemoryMap(MemoryMap&& other) noexcept;
  MemoryMap& operator=(MemoryMap&& other) noexcept;
  MemoryMap(const MemoryMap&) = delete;
  MemoryMap& operator=(const MemoryMap&) = delete;
  ~MemoryMap();

  // Holds `bytes` of address space that nothing else in the process will be given: PROT_NONE, no memory
  // behind it. The start is a multiple of `alignment_bytes`.
  //
  // Units      bytes: a multiple of the page size. alignment_bytes: a power of two, at least a page.
  // Errors     invalid_argument  bytes is 0 or no multiple of a page, or the alignment is no power of two
  //            out_of_memory     no such range is free (RLIMIT_AS, vm.max_map_count)
  static Result<MemoryMap> reserve(uint64_t bytes, uint64_t alignment_bytes);

  // Anonymous private memory, zeroed, at an address of the kernel's choice.
  // Errors     as for reserve
  static Result<MemoryMap> anonymous(uint64_t bytes, uint64_t alignment_bytes);

  std::byte* data() const { return data_; }
  uint64_t size_bytes() const { return size_bytes_; }
  std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(size_bytes_)}; }
  bool empty() const { return size_bytes_ == 0; }
  bool contains(const void* address) const {
    const auto* byte = static_cast<const std::byte*>(address);
    return byte >= data_ && byte < data_ + size_bytes_;
  }

 private:
  MemoryMap(std::byte* data, uint64_t size_bytes) : data_(data), size_bytes_(size_bytes) {}
  static Result<MemoryMap> map(uint64_t bytes, uint64_t alignment_bytes, Protection protection,
                               const char* where);

  std::byte* data_ = nullptr;
  uint64_t size_bytes_ = 0;
};

// The calls below replace what is mapped in [offset_bytes, offset_bytes + length_bytes) of `range`, in one
// step: nobody else can be given the addresses in between. Offsets and lengths are multiples of the page.
// Errors     invalid_argument  outside the range, or not on page boundaries
//            out_of_memory     the kernel has no memory or no room for another mapping
//            io_error and others as os_error says

// With zeroed memory of this process, private to it (a fork copies it).
Status map_anonymous_at(std::span<std::byte> range, uint64_t offset_bytes, uint64_t length_bytes);

// With `fd` from `file_offset_bytes` on, MAP_SHARED.
Status map_file_at(std::span<std::byte> range, uint64_t offset_bytes, uint64_t length_bytes, int fd,
                   uint64_t file_offset_bytes, Protection protection);

// With nothing again: PROT_NONE; memory behind it is given back to the system.
Status unmap_at(std::span<std::byte> range, uint64_t offset_bytes, uint64_t length_bytes);

// Gives the memory behind private or shared pages of this process back to the system; they stay mapped and
// read as zeros afterwards.
Status discard_at(std::span<std::byte> range, uint64_t offset_bytes, uint64_t length_bytes);

// A memory file of this process (memfd_create), close-on-exec, of `bytes`, sealed against shrinking.
// Errors     out_of_memory, limit_exceeded  no memory, no descriptor left
Result<UniqueFd> make_memory_file(const char* name, uint64_t bytes);

// As make_memory_file, in huge pages if this process may mount a tmpfs of its own for it (nobody else sees
// that); else an ordinary memory file, whose pages are huge only if the system says so
// (/sys/kernel/mm/transparent_hugepage/shmem_enabled). `*huge` says which it became.
// Errors     as make_memory_file
Result<UniqueFd> make_huge_memory_file(const char* name, uint64_t bytes, bool* huge);

// The kernel's page size; constant over the life of the process.
uint64_t page_bytes();

}  // namespace terrace::os
