// SPDX-License-Identifier: Apache-2.0
#include "bindings/nixl/copy_job.h"

#include <algorithm>
#include <cstring>

#include "bindings/nixl/settings.h"
#include "core/os/fault_guard.h"
#include "terrace/visibility.h"

namespace terrace::nixl {
namespace {

constexpr size_t task_bytes = 1 << 20;  // what is copied before others are looked at
constexpr size_t small_bytes =
    256 << 10;  // copied in less time than a thread needs to wake up and be waited for
constexpr uint32_t publish_operation = 1, acquire_operation = 2;

// Lines that a range touches.
void for_lines(uint32_t operation, const std::byte* memory, size_t bytes) {
  if (bytes == 0) return;
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t first = address & ~(cache_line_bytes - 1);
  // The call wants a descriptor and does not use it.
  lmcache_shared_l1_visibility_v1("noncoherent", operation, 0, reinterpret_cast<void*>(first), 0,
                                  address + bytes - first, 0);
}

struct Lines {
  void acquire(const std::byte* at, size_t bytes) const { for_lines(acquire_operation, at, bytes); }
  void acquire_edge(const std::byte* at) const { for_lines(acquire_operation, at, 1); }
  void publish(const std::byte* at, size_t bytes) const { for_lines(publish_operation, at, bytes); }
  void copy(std::byte* to, const std::byte* from, size_t bytes) const { std::memcpy(to, from, bytes); }
};

std::vector<Copy> in_pieces(std::vector<Copy> copies) {
  if (std::ranges::all_of(copies, [](const Copy& one) { return one.bytes <= task_bytes; })) return copies;
  std::vector<Copy> pieces;
  for (Copy rest : copies)
    while (rest.bytes != 0) {
      Copy piece = rest;
      piece.bytes = std::min(rest.bytes, task_bytes);
      pieces.push_back(piece);
      rest.to += piece.bytes;
      rest.from += piece.bytes;
      rest.bytes -= piece.bytes;
    }
  return pieces;
}

}  // namespace

bool copy_all(const Copy* first, size_t count) {
  return os::guarded([&] {
    for (const Copy* one = first; one != first + count; ++one) copy_by(Lines(), *one);
  });
}

void publish(const std::byte* memory, size_t bytes) {
  os::guarded([&] { for_lines(publish_operation, memory, bytes); });
}
void acquire(const std::byte* memory, size_t bytes) {
  os::guarded([&] { for_lines(acquire_operation, memory, bytes); });
}

CopyJob::CopyJob(std::vector<Copy> copies, std::vector<std::shared_ptr<MappedLease>> keep)
    : Job(0), copies_(in_pieces(std::move(copies))), keep_(std::move(keep)) {
  size_t all = 0, begun = 0, bytes = 0;
  for (size_t at = 0; at != copies_.size(); ++at) {
    if (bytes != 0 && bytes + copies_[at].bytes > task_bytes) {
      parts_.emplace_back(begun, at - begun);
      begun = at;
      bytes = 0;
    }
    bytes += copies_[at].bytes;
    all += copies_[at].bytes;
  }
  parts_.emplace_back(begun, copies_.size() - begun);
  set_tasks(parts_.size());
  small_ = all <= small_bytes;
}

nixl_status_t CopyJob::run(size_t task) {
  const auto [first, count] = parts_[task];
  if (copy_all(copies_.data() + first, count)) return NIXL_SUCCESS;
  complain("memory of a transfer has gone: a lease on one side has ended (terrace lease list)");
  return NIXL_ERR_BACKEND;
}

}  // namespace terrace::nixl
