// SPDX-License-Identifier: Apache-2.0
#include "libclient/coherence/lossy_space.h"

#include <cerrno>

namespace terrace {
namespace {

bool within(const void* address, std::span<const std::byte> memory) {
  const auto at = reinterpret_cast<uintptr_t>(address), begin = reinterpret_cast<uintptr_t>(memory.data());
  return at >= begin && at - begin < memory.size();
}

}  // namespace

Error lost_memory(const char* where, const void* address, std::span<const std::byte> memory) {
  const std::string what = std::string_view(where).substr(0, 2) == "Kv" ? "KV space" : "tensor space";
  if (within(address, memory))
    return Error{
        .code = ErrorCode::lease_expired,
        .where = where,
        .detail = what +
                  ": its memory is gone: the lease has ended, or the file was cut. Get another lease and "
                  "attach again"};
  return Error{.code = ErrorCode::io_error,
               .os_errno = EFAULT,
               .where = where,
               .detail = what + ": the caller's own memory went away during the copy (SIGBUS)"};
}

Error LossySpace::lost_at(const void* address) const {
  if (within(address, memory_)) lost_.store(true, std::memory_order_relaxed);
  return lost_memory("TensorSpace", address, memory_);
}

Status LossySpace::health() const {
  return survive([&]() -> Status {
    (void)os::load_or_zero(reinterpret_cast<const uint64_t*>(memory_.data()));
    return {};
  });
}

}  // namespace terrace
