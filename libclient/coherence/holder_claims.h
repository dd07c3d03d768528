// SPDX-License-Identifier: Apache-2.0
// How a holder becomes the owner of a part or a seat, by the source that its program gave; and what it knows of
// other owners. Shared by tensor spaces and KV spaces.
//
// Threads   Any number.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libclient/coherence/owner_line.h"
#include "libclient/coherence/reader.h"
#include "terrace/tensor_space.h"

namespace terrace::coherence {

// `what`: "tensor space" or "KV space". The space's kind of owners, and that of the source that was given: numbers of
// layout::OwnershipKind. Defined in formatting.cc.
Error other_kind_of_owners(const char* what, uint64_t of_space, uint64_t of_source);

struct Claimed {
  uint32_t holder = 0;
  uint64_t epoch = 0;
};

template <typename Memory>
class HolderClaims {
 public:
  HolderClaims(const Geometry& geometry, std::shared_ptr<OwnershipSource> source, const char* what)
      : geometry_(geometry), source_(std::move(source)), what_(what) {}

  OwnershipSource* source() const { return source_.get(); }

  // Whether an owner is shut out for good. The claims must outlive it.
  IsDead dead_check() const {
    return [this](uint32_t holder, uint64_t epoch) {
      return source_ != nullptr && knows_owners() && source_->is_dead(holder, epoch);
    };
  }

  // Errors    permission_denied  the space has owners of another kind than the source's
  Status check_kind() const {
    if (!geometry_.says_ownership()) return {};
    return check_kind(kind_of_owners(Memory(), geometry_));
  }

  // Parts or seats. First those whose owner did not give them back: if it is dead, what it left blocks others
  // until then.
  std::vector<uint32_t> to_try(uint32_t begin, uint32_t end) const {
    std::vector<uint32_t> holders, given_back;
    for (uint32_t holder = begin; holder < end; ++holder)
      (last_owner(holder).gave_back ? given_back : holders).push_back(holder);
    holders.insert(holders.end(), given_back.begin(), given_back.end());
    return holders;
  }

  // The first that can be had. `busy` if none: its detail is why in brackets, or empty.
  Result<Claimed> claim_first(const std::vector<uint32_t>& holders) const {
    std::string why;
    std::optional<Error> refused;
    for (const uint32_t holder : holders) {
      const Result<uint64_t> epoch =
          source_->claim_after(holder, [this, holder] { return last_owner(holder); });
      if (epoch.ok()) {
        const Status kind = settle_kind();
        if (kind.ok()) return Claimed{holder, *epoch};
        source_->release(holder);
        return kind.error();
      }
      const ErrorCode code = epoch.error().code;
      if (code == ErrorCode::busy)
        why = " (" + epoch.error().detail + ")";
      else if (code != ErrorCode::permission_denied && code != ErrorCode::limit_exceeded)
        return epoch.error();  // not of this part alone
      else if (!refused)
        refused = epoch.error();
    }
    if (refused) return *refused;
    return Error{.code = ErrorCode::busy, .where = what_, .detail = why};
  }

  // Those that nobody had yet, or that were given back.
  std::vector<uint32_t> spare_parts() const {
    std::vector<uint32_t> spare;
    for (uint32_t part = 0; part < geometry_.parts; ++part)
      if (const LastOwner last = last_owner(part); last.epoch == 0 || last.gave_back) spare.push_back(part);
    return spare;
  }

  LastOwner last_owner(uint32_t holder) const {
    Memory memory;
    const layout::PartOwner* const owner = geometry_.owner(holder);
    memory.invalidate(owner, sizeof *owner, Step::none);
    memory.load_barrier(Step::none);
    return {.epoch = memory.load(&owner->epoch),
            .gave_back = memory.load(&owner->state) == static_cast<uint64_t>(layout::PartState::free)};
  }

 private:
  // Of another kind's owners a source knows nothing, so none of them is dead for it.
  bool knows_owners() const {
    if (!geometry_.says_ownership() || right_kind_.load(std::memory_order_relaxed)) return true;
    const bool right = kind_of_owners(Memory(), geometry_) == own_kind();
    if (right) right_kind_.store(true, std::memory_order_relaxed);
    return right;
  }
  uint64_t own_kind() const { return static_cast<uint64_t>(source_->kind()); }
  Status check_kind(uint64_t kind) const {
    if (kind == 0 || kind == own_kind()) return {};
    return other_kind_of_owners(what_, kind, own_kind());
  }
  // Before the first store to a part or seat: the first owner's kind is the space's.
  Status settle_kind() const {
    if (!geometry_.says_ownership()) return {};
    return check_kind(coherence::settle_kind(Memory(), geometry_, own_kind()));
  }

  const Geometry geometry_;
  const std::shared_ptr<OwnershipSource> source_;
  const char* const what_;
  mutable std::atomic<bool> right_kind_ = false;  // the space's is known, and the source's
};

}  // namespace terrace::coherence
