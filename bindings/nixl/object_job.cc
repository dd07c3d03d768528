// SPDX-License-Identifier: Apache-2.0
#include "bindings/nixl/object_job.h"

#include <algorithm>
#include <utility>

#include "bindings/nixl/registrations.h"
#include "bindings/nixl/settings.h"

namespace terrace::nixl {
namespace {

constexpr uint64_t small_bytes = 64 << 10;

}  // namespace

ObjectJob::ObjectJob(Objects& objects, bool writes, std::vector<ObjectTransfer> transfers)
    : Job(transfers.size()), objects_(objects), writes_(writes), transfers_(std::move(transfers)) {
  uint64_t all = 0;
  for (const ObjectTransfer& transfer : transfers_)
    for (const ObjectPiece& piece : transfer.pieces) all += piece.bytes;
  small_ = !writes_ && all <= small_bytes;  // a put may wait for room, 50 ms
}

nixl_status_t ObjectJob::run(size_t task) {
  const ObjectTransfer& one = transfers_[task];
  const Status done = writes_ ? objects_.put(one.key, one.pieces) : objects_.get(one.key, one.pieces);
  if (done.ok()) return NIXL_SUCCESS;
  complain(done.error().to_string());
  return status_of(done.error());
}

std::string order_for_write(ObjectTransfer& transfer, uint64_t bytes_max) {
  std::ranges::stable_sort(transfer.pieces, {}, &ObjectPiece::offset);
  uint64_t end = 0;
  for (const ObjectPiece& piece : transfer.pieces) {
    if (piece.offset != end)
      return "object " + shown(transfer.key) +
             ": one transfer writes all of it, from byte 0 and without gaps; at byte " +
             std::to_string(std::min(end, piece.offset)) + " its descriptors " +
             (piece.offset > end ? "leave one" : "overlap");
    end += piece.bytes;
  }
  if (end == 0) return "object " + shown(transfer.key) + ": it has no bytes";
  if (end > bytes_max)
    return "object " + shown(transfer.key) + " has " + std::to_string(end) + " bytes; the space takes up to " +
           std::to_string(bytes_max) + " (terrace kv format --max-block)";
  return {};
}

}  // namespace terrace::nixl
