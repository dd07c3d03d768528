// SPDX-License-Identifier: Apache-2.0
#include "bindings/nixl/objects.h"

#include <algorithm>
#include <utility>

#include "bindings/nixl/copy_job.h"
#include "bindings/nixl/registrations.h"

namespace terrace::nixl {
namespace {

constexpr const char* where = "nixl objects";
constexpr int replacements_max = 8;  // of a key that others put in the same moment, again and again

Error lost(const std::string& key) {
  return {ErrorCode::lease_expired, 0, where,
          "object " + shown(key) + ": the lease of the space, or that of the program's memory, has ended"};
}

// All of the pieces, from or to `block`.
bool copy_pieces(std::byte* block, std::span<const ObjectPiece> pieces, bool into_block) {
  std::vector<Copy> copies;
  for (const ObjectPiece& piece : pieces) {
    std::byte* const there = block + piece.offset;
    copies.push_back(into_block ? Copy{.to = there, .from = piece.memory, .bytes = piece.bytes}
                                : Copy{.to = piece.memory, .from = there, .bytes = piece.bytes});
  }
  return copy_all(copies.data(), copies.size());
}

Error with_key(Error error, const std::string& key) {
  error.detail = "object " + shown(key) + (error.detail.empty() ? "" : ": " + error.detail);
  return error;
}

}  // namespace

Status Objects::open(const Settings& settings, LeasedMemory& leases) {
  TERRACE_ASSIGN_OR_RETURN(names_, KvNamespace::of(settings.name_space));
  TERRACE_ASSIGN_OR_RETURN(lease_, leases.attach(settings.space, LeaseAccess::read_write));
  TERRACE_ASSIGN_OR_RETURN(mapping_, Mapping::map(lease_));
  KvAttachOptions options;
  TERRACE_ASSIGN_OR_RETURN(options.ownership, ownership_by_manager(lease_));
  auto space = KvSpace::attach(mapping_->bytes(), std::move(options));
  if (!space.ok()) {
    Error error = std::move(space).error();
    error.detail = "lease " + settings.space + ": " + error.detail +
                   "; without a KV space in it: terrace kv format " + settings.space;
    return error;
  }
  TERRACE_ASSIGN_OR_RETURN(const KvStat stat, (*space)->stat());
  bytes_max_ = stat.max_block_bytes;
  space_ = std::move(space).value();
  replaces_ = settings.replaces;
  put_options_.ttl_s = settings.ttl_s;
  return {};
}

// Room for the block. already_exists: it is there, and stays.
Result<KvWrite> Objects::room(const std::string& key, uint64_t bytes) {
  for (int round = 0;; ++round) {
    auto write = space_->begin_put(names_, key, bytes, put_options_);
    if (write.ok() || write.error().code != ErrorCode::already_exists || !replaces_ ||
        round == replacements_max)
      return write;
    const Status erased = space_->erase(names_, key);
    if (!erased.ok() && erased.error().code != ErrorCode::not_found) return erased.error();
  }
}

Status Objects::put(const std::string& key, std::span<const ObjectPiece> pieces) {
  const uint64_t bytes = pieces.back().offset + pieces.back().bytes;
  for (int round = 0;; ++round) {
    auto write = room(key, bytes);
    if (!write.ok() && write.error().code == ErrorCode::already_exists && !replaces_) return {};
    if (!write.ok()) return with_key(std::move(write).error(), key);
    if (pieces.size() == 1) {
      if (const Status filled = write->fill({pieces[0].memory, pieces[0].bytes}); !filled.ok())
        return with_key(filled.error(), key);
    } else if (!copy_pieces(write->bytes().data(), pieces, true)) {
      return lost(key);
    }
    const Status published = write->publish();
    if (published.ok()) return {};
    if (published.error().code != ErrorCode::already_exists) return with_key(published.error(), key);
    if (!replaces_) return {};
    if (round == replacements_max) return with_key(published.error(), key);
  }
}

Status Objects::get(const std::string& key, std::span<const ObjectPiece> pieces) {
  const auto length = space_->length(names_, key);
  if (!length.ok()) return with_key(length.error(), key);
  uint64_t end = 0;
  for (const ObjectPiece& piece : pieces) end = std::max(end, piece.offset + piece.bytes);
  if (end > *length)
    return Error{ErrorCode::limit_exceeded, 0, where,
                 "object " + shown(key) + " has " + std::to_string(*length) +
                     " bytes; read was asked for up to byte " + std::to_string(end)};
  if (pieces.size() == 1 && pieces[0].offset == 0 && pieces[0].bytes == *length) {
    const auto got = space_->get(names_, {.key = key, .into = {pieces[0].memory, pieces[0].bytes}});
    return got.ok() ? Status() : Status(with_key(got.error(), key));
  }
  const auto view = space_->view(names_, key);
  if (view.ok() && view->bytes().size() >= end)
    return copy_pieces(const_cast<std::byte*>(view->bytes().data()), pieces, false) ? Status()
                                                                                    : Status(lost(key));
  // Where nothing can be read in place: no seat or pin is left, or the object was replaced meanwhile by a shorter one.
  std::vector<std::byte> all(*length);
  const auto got = space_->get(names_, {.key = key, .into = all});
  if (!got.ok()) return with_key(got.error(), key);
  if (end > *got)
    return with_key(Error{ErrorCode::busy, 0, where, "it was replaced while it was read; read it again"}, key);
  return copy_pieces(all.data(), pieces, false) ? Status() : Status(lost(key));
}

Result<std::vector<std::optional<uint64_t>>> Objects::lengths(std::span<const std::string_view> keys) {
  std::vector<std::optional<uint64_t>> found(keys.size());
  for (size_t at = 0; at != keys.size(); ++at) {
    const auto length = space_->length(names_, keys[at]);
    if (length.ok())
      found[at] = *length;
    else if (length.error().code != ErrorCode::not_found)
      return length.error();
  }
  return found;
}

}  // namespace terrace::nixl
