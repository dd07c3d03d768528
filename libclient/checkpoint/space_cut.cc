// SPDX-License-Identifier: Apache-2.0
#include "libclient/checkpoint/space_cut.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "core/base/kernel_clock.h"
#include "core/base/units.h"
#include "core/os/fault_guard.h"
#include "libclient/checkpoint/abandon.h"
#include "libclient/io/transfer.h"

namespace terrace::checkpoint {
namespace {

constexpr const char* where = "checkpoint";

Error lost(const SharedTensor& tensor) {
  return {.code = ErrorCode::lease_expired,
          .where = where,
          .detail = "tensor " + quoted_name(tensor.name()) + ": the lease behind the space is lost"};
}

Error restless(const SharedTensor& tensor) {
  return {
      .code = ErrorCode::busy,
      .where = where,
      .detail = "tensor " + quoted_name(tensor.name()) +
                " does not stand still: it has a newer version whenever all the others are read; attach the "
                "space with a part and enough pins, or let its writer wait"};
}

}  // namespace

Result<LocalBytes> LocalBytes::make(uint64_t bytes) {
  LocalBytes made;
  if (bytes == 0) return made;
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return Error{.code = ErrorCode::out_of_memory,
                 .where = where,
                 .detail = "no local memory for a copy of " + format_size(bytes)};
  made.bytes_ = {static_cast<std::byte*>(memory), bytes};
  return made;
}

LocalBytes& LocalBytes::operator=(LocalBytes&& other) noexcept {
  reset();
  bytes_ = std::exchange(other.bytes_, {});
  return *this;
}

void LocalBytes::reset() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
  bytes_ = {};
}

Result<std::unique_ptr<SpaceCut>> SpaceCut::take(TensorSpace& space, std::span<const SharedTensor> tensors,
                                                 const SpaceCheckpointOptions& options) try {
  const uint64_t begun_ns = monotonic_ns();
  const uint64_t deadline_ns = begun_ns + std::min(options.wait_ns, UINT64_MAX - begun_ns);
  std::unique_ptr<SpaceCut> cut(new SpaceCut(space));
  cut->taken_.reserve(tensors.size());
  for (const SharedTensor& tensor : tensors) {
    cut->taken_.push_back({.tensor = tensor});
    TERRACE_RETURN_IF_ERROR(cut->take_one(cut->taken_.back(), deadline_ns));
  }
  TERRACE_RETURN_IF_ERROR(cut->hold_still(options, deadline_ns));
  SnapshotStatus& status = cut->status_;
  for (Taken& taken : cut->taken_) {
    taken.brake.reset();
    if (taken.pinned && options.copy_at_once) TERRACE_RETURN_IF_ERROR(cut->copy_one(taken));
    taken.bytes_left = taken.bytes.size();
    status.bytes += taken.bytes.size();
    if (!taken.pinned) status.copied_at_once_bytes += taken.bytes.size();
  }
  if (status.copied_at_once_bytes > 0)
    status.reason = options.copy_at_once ? "copies were asked for"
                                         : "this holder of the space has no part, or too few pins";
  status.freeze_ns = monotonic_ns() - begun_ns;
  std::sort(cut->taken_.begin(), cut->taken_.end(),
            [](const Taken& a, const Taken& b) { return a.bytes.data() < b.bytes.data(); });
  return cut;
} catch (const std::bad_alloc&) {
  return Error{.code = ErrorCode::out_of_memory, .where = where, .detail = "no local memory"};
}

// Until one look at all of them finds every version the newest.
Status SpaceCut::hold_still(const SpaceCheckpointOptions& options, uint64_t deadline_ns) {
  while (true) {
    std::vector<Taken*> moved;
    for (Taken& taken : taken_)
      if (!space_.is_current(taken.tensor, taken.version)) moved.push_back(&taken);
    if (moved.empty()) return {};
    if (options.cancelled && options.cancelled()) return cancelled_error(where, "the cut of the space");
    if (monotonic_ns() >= deadline_ns) return restless(moved.front()->tensor);
    for (Taken* taken : moved) TERRACE_RETURN_IF_ERROR(take_one(*taken, deadline_ns));
  }
}

Status SpaceCut::take_one(Taken& taken, uint64_t deadline_ns) {
  const uint64_t now = monotonic_ns(), wait_ns = deadline_ns > now ? deadline_ns - now : 0;
  auto pin = space_.pin(taken.tensor, wait_ns);
  if (!pin.ok() && pin.error().code == ErrorCode::limit_exceeded && taken.pinned) {
    let_go(taken);
    pin = space_.pin(taken.tensor, wait_ns);
  }
  if (pin.ok()) {
    taken.brake = std::move(taken.pin);
    taken.pin = std::move(*pin);
    taken.pinned = true;
    taken.version = taken.pin.version();
    taken.bytes = taken.pin.bytes().first(taken.tensor.bytes());
    return {};
  }
  if (pin.error().code != ErrorCode::permission_denied && pin.error().code != ErrorCode::limit_exceeded)
    return pin.error();
  if (taken.copy.get().empty()) {
    TERRACE_ASSIGN_OR_RETURN(taken.copy, LocalBytes::make(taken.tensor.bytes()));
  }
  TERRACE_ASSIGN_OR_RETURN(taken.version, space_.read(taken.tensor, taken.copy.get(), 0, wait_ns));
  taken.pinned = false;
  taken.bytes = taken.copy.get();
  return {};
}

Status SpaceCut::copy_one(Taken& taken) {
  TERRACE_ASSIGN_OR_RETURN(taken.copy, LocalBytes::make(taken.bytes.size()));
  const std::span<std::byte> copy = taken.copy.get();
  const bool there = os::guarded([&] {
    if (!copy.empty()) std::memcpy(copy.data(), taken.bytes.data(), copy.size());
  });
  if (!there) return lost(taken.tensor);
  let_go(taken);
  taken.bytes = copy;
  return {};
}

// A pin in memory that is gone stays where it is: to let it go is a store there.
void SpaceCut::let_go(Taken& taken) {
  if (!std::exchange(taken.pinned, false)) return;
  const bool there = os::guarded([&] {
    if (!taken.bytes.empty()) (void)*const_cast<const volatile std::byte*>(taken.bytes.data());
  });
  if (there) {
    taken.brake.reset();
    taken.pin.reset();
    return;
  }
  abandon(std::move(taken.brake));
  abandon(std::move(taken.pin));
}

SpaceCut::~SpaceCut() {
  for (Taken& taken : taken_) let_go(taken);
}

std::vector<TensorView> SpaceCut::views() const {
  std::vector<TensorView> views;
  for (const Taken& taken : taken_) {
    TensorView view;
    view.name = taken.tensor.name();
    view.dtype = taken.tensor.dtype();
    view.shape = taken.tensor.shape();
    view.strides = taken.tensor.strides();
    view.bytes = taken.bytes;
    views.push_back(view);
  }
  return views;
}

void SpaceCut::release(std::span<const std::byte> part) {
  auto at = std::upper_bound(taken_.begin(), taken_.end(), part.data(),
                             [](const std::byte* address, const Taken& taken) {
                               return address < taken.bytes.data() + taken.bytes.size();
                             });
  if (at == taken_.end()) return;
  at->bytes_left -= std::min<uint64_t>(at->bytes_left, part.size());
  if (at->bytes_left > 0) return;
  let_go(*at);
  at->copy.reset();
}

}  // namespace terrace::checkpoint
